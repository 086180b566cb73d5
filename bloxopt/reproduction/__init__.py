"""``bloxopt reproduce``: published results, ours beside them. One file a system and one line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bloxopt.registry import Registry
from bloxopt.reproduction.base import Figure, Reproduced, Run, as_rows, compare

_HERE = "bloxopt.reproduction"

SYSTEMS = Registry(
    "system",
    {
        "gavel": f"{_HERE}.gavel:RUNS",
        "blox": f"{_HERE}.blox:RUNS",
        "tiresias": f"{_HERE}.tiresias:RUNS",
        "synergy": f"{_HERE}.synergy:RUNS",
        "pollux": f"{_HERE}.pollux:RUNS",
        "shockwave": f"{_HERE}.shockwave:RUNS",
    },
)
"""System to its runs, a tuple of :class:`Run`."""

__all__ = ["SYSTEMS", "Figure", "Reproduced", "Run", "as_rows", "reproduce"]


def reproduce(
    systems: Sequence[str] | None = None, progress: Callable[[int, int, str], None] | None = None
) -> list[Reproduced]:
    """Run the published experiments of ``systems`` (default: all) and compare every figure.

    ``progress`` is called before each run with the runs done, their number and what comes next. Raises
    :class:`~bloxopt.errors.UnknownNameError` for a system that is not there.
    """
    chosen = list(SYSTEMS) if systems is None else list(systems)
    runs: list[tuple[str, Run]] = [(name, run) for name in chosen for run in SYSTEMS.get(name)]
    lines = []
    for done, (name, run) in enumerate(runs):
        if progress is not None:
            progress(done, len(runs), f"{name}: {run.policy} on {run.trace}")
        lines += compare(name, run, run.measure())
    return lines
