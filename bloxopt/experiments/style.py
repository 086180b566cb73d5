"""One look for every figure: size, fonts, grid, and colours that colour-blind readers can tell apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bloxopt.errors import ResultError
from bloxopt.experiments.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
"""Okabe and Ito's palette (2008), its yellow replaced by a brown that shows on white."""
LINE_STYLES = ("-", "--", "-.", ":")
FORMATS = ("png", "svg", "pdf")

_SETTINGS: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
    # Fixed, so that the same result gives the same file.
    "svg.hashsalt": "bloxopt",
}


def line_style(index: int) -> dict[str, Any]:
    """Colour and dash of the n-th line; the pairs repeat after 32 lines."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "linestyle": LINE_STYLES[index // len(PALETTE) % len(LINE_STYLES)],
    }


@contextmanager
def figure(width: float = 8.0, height: float = 4.5) -> Iterator[tuple[Figure, Axes]]:
    """A figure (inches) with one pair of axes in the house style, without pyplot and its global state."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_SETTINGS):
        drawing = Figure(figsize=(width, height), layout="constrained")
        yield drawing, drawing.add_subplot()


def save_figure(drawing: Figure, path: str | Path) -> None:
    """Write a figure; the ending of the name (png, svg or pdf) chooses the format.

    Raises :class:`~bloxopt.errors.ResultError` for another ending and a file that cannot be written.
    """
    import matplotlib as mpl

    path = Path(path)
    ending = path.suffix.lower().lstrip(".")
    if ending not in FORMATS:
        raise ResultError(f"{path}: cannot draw a {ending or 'nameless'!r} file: end the name in .png, .svg or .pdf")
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
    with mpl.rc_context(_SETTINGS):
        write_atomically(path, lambda part: drawing.savefig(part, format=ending, dpi=150, metadata=metadata))
