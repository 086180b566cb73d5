"""A picture of a topology: racks as columns of nodes, nodes as rows of GPUs, equal ones drawn once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bloxopt.experiments.style import PALETTE, figure
from bloxopt.placement.topology_outline import DatacenterGroup, NodeGroup, RackGroup, group_label, outline, shown_names
from bloxopt.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bloxopt.placement.topology import Topology

MOST_RACKS = 4
"""Up to so many racks are drawn one by one; of more, equal ones are drawn once with their count."""
MOST_CENTERS = 6
MOST_COLUMNS = 6
"""Racks in all data centres together, at least one in each."""
MOST_ROWS = 6
MOST_GPUS = 16
MOST_CHARACTERS = 46

# Inches.
_GPU = 0.2
_GAP = 0.05
_ISLAND_GAP = 0.16
_PAD = 0.14
_ROW = 0.78
_HEAD = 0.42
_CHARACTER = 0.062
_LINE = "#666666"


class _Column(NamedTuple):
    """A rack to draw: its heading, its nodes and what is left out, and its size."""

    heading: str
    rack: RackGroup
    rows: tuple[NodeGroup, ...]
    left_out: int
    width: float
    height: float


class _Block(NamedTuple):
    """A data centre to draw: where it starts, its columns and the racks left out."""

    center: DatacenterGroup
    columns: list[_Column]
    left_out: int
    left: float
    width: float


def draw_topology(topology: Topology) -> Figure:
    """The picture. A coloured square is a GPU, a frame around squares an NVLink island; GB/s are for one direction.

    Equal nodes of a rack are one row with their count; from five racks on, equal racks are one column.
    """
    centers = outline(topology, join_racks=len(topology.rack_names) > MOST_RACKS)
    blocks = _blocks(centers[:MOST_CENTERS])
    width = max(blocks[-1].left + blocks[-1].width, 4.5)
    depth = max(column.height for block in blocks for column in block.columns)
    several_centers, several_racks = len(topology.datacenter_names) > 1, len(topology.rack_names) > 1
    top = 0.5 + 0.45 * several_racks + 0.55 * several_centers
    colour = {kind: PALETTE[i % len(PALETTE)] for i, kind in enumerate(topology.cluster.gpu_types)}
    with figure(width + 0.5, depth + top + 0.9) as (drawing, axes):
        axes.set_axis_off()
        axes.set_xlim(-0.1, width + 0.1)
        axes.set_ylim(-depth - 0.4, top)
        axes.set_aspect("equal")
        for block in blocks:
            _draw_block(axes, block, colour, several_racks, several_centers)
        if several_centers:
            middles = [block.left + block.width / 2 for block in blocks]
            _spine(axes, middles, 1.0, 1.25, f"{topology.network.datacenter:g} GB/s between data centres")
        axes.set_title(
            f"{counted(len(topology.rack_names), 'rack')}, {counted(len(topology.node_names), 'node')}, "
            f"{counted(topology.cluster.num_gpus, 'GPU')}"
            + (f" (first {MOST_CENTERS} of {len(centers)} data centres)" if len(centers) > MOST_CENTERS else "")
        )
        _legend(axes, colour, -depth - 0.25)
    return drawing


def _blocks(centers: tuple[DatacenterGroup, ...]) -> list[_Block]:
    blocks: list[_Block] = []
    left = 0.0
    most = max(1, MOST_COLUMNS // len(centers))
    for center in centers:
        columns = [_column(rack) for rack in center.racks[:most]]
        left_out = sum(rack.count for rack in center.racks[most:])
        width = sum(column.width for column in columns) + 0.3 * (len(columns) - 1) + (1.3 if left_out else 0.0)
        blocks.append(_Block(center, columns, left_out, left, width))
        left += width + 0.7
    return blocks


def _column(rack: RackGroup) -> _Column:
    rows = rack.nodes[:MOST_ROWS]
    left_out = sum(group.count for group in rack.nodes[MOST_ROWS:])
    heading = shown_names(rack.names, 1) + (f" ({rack.count:,} racks)" if rack.count > 1 else "")
    texts = [heading + "   ", f"{rack.within:g} GB/s between nodes"]
    texts += [text for row in rows for text in (_label(rack, row), row.description)]
    width = max([*(_gpus_width(row) for row in rows), *(len(text) * _CHARACTER for text in texts)]) + 2 * _PAD
    return _Column(heading, rack, rows, left_out, width, _HEAD + _ROW * len(rows) + (0.25 if left_out else 0.0) + 0.05)


def _label(rack: RackGroup, row: NodeGroup) -> str:
    """The nodes of a row in words, or the first one's name where all would be too long."""
    label = group_label(rack, row)
    if len(label) > MOST_CHARACTERS and row.count > 1:
        label = f"{row.names[0]} … ({row.count:,} nodes)"
    return label if len(label) <= MOST_CHARACTERS else label[: MOST_CHARACTERS - 1] + "…"


def _gpus_width(row: NodeGroup) -> float:
    shown = min(row.num_gpus, MOST_GPUS)
    return (
        shown * (_GPU + _GAP)
        + (shown - 1) // row.island_gpus * (_ISLAND_GAP - _GAP)
        + (0.4 if shown < row.num_gpus else 0.0)
    )


def _draw_block(axes: Axes, block: _Block, colour: dict[str, str], several_racks: bool, several_centers: bool) -> None:
    left = block.left
    middles = []
    for column in block.columns:
        _draw_column(axes, column, left, colour)
        middles.append(left + column.width / 2)
        left += column.width + 0.3
    if block.left_out:
        axes.text(left, -0.3, f"and {block.left_out:,}\nmore racks", fontsize=8.5, color=_LINE, va="top")
    name = shown_names(block.center.names, 2) + (f" ({block.center.count})" if block.center.count > 1 else "")
    if several_racks:
        ups = sorted({column.rack.uplink for column in block.columns})
        speed = f"{ups[0]:g}" if len(ups) == 1 else f"{ups[0]:g} to {ups[-1]:g}"
        inside = block.center.count * sum(rack.count for rack in block.center.racks) > block.center.count
        _spine(axes, middles, 0.0, 0.25, f"{name} · {speed} GB/s between racks" if inside else name)
    if several_centers:
        middle = block.left + block.width / 2
        axes.plot([middle, middle], [0.55, 1.0], color=_LINE, linewidth=1.2)


def _spine(axes: Axes, middles: list[float], low: float, high: float, label: str) -> None:
    """A switch above the places in ``middles``, with a line to each and what it carries."""
    axes.plot([min(middles) - 0.1, max(middles) + 0.1], [high, high], color=_LINE, linewidth=2.4)
    for middle in middles:
        axes.plot([middle, middle], [low, high], color=_LINE, linewidth=1.2)
    axes.text(min(middles) - 0.1, high + 0.07, label, fontsize=8.5, color="#333333", va="bottom")


def _draw_column(axes: Axes, column: _Column, left: float, colour: dict[str, str]) -> None:
    _frame(axes, left, -column.height, column.width, column.height, "#F6F6F6", "#999999", 0.06)
    axes.text(left + _PAD, -0.1, column.heading, fontsize=9, fontweight="bold", va="top")
    if column.rack.num_nodes > 1:
        axes.text(left + _PAD, -0.27, f"{column.rack.within:g} GB/s between nodes", fontsize=7.5, color=_LINE, va="top")
    top = -_HEAD
    for row in column.rows:
        _draw_node(axes, row, _label(column.rack, row), left + _PAD, top, colour[row.gpu_type])
        top -= _ROW
    if column.left_out:
        axes.text(left + _PAD, top - 0.02, f"and {column.left_out:,} more nodes", fontsize=8, color=_LINE, va="top")


def _draw_node(axes: Axes, row: NodeGroup, name: str, left: float, top: float, colour: str) -> None:
    axes.text(left, top - 0.06, name, fontsize=8, va="top")
    bottom = top - 0.48
    x = left
    shown = min(row.num_gpus, MOST_GPUS)
    faded = 0.35 if row.conditions else 0.9
    for start in range(0, shown, row.island_gpus):
        count = min(row.island_gpus, shown - start)
        if count > 1:
            width = count * (_GPU + _GAP) + _GAP
            _frame(axes, x - _GAP, bottom - _GAP, width, _GPU + 2 * _GAP, "white", "#AAAAAA", 0.03)
        for _ in range(count):
            _frame(axes, x, bottom, _GPU, _GPU, colour, "none", 0.0, faded)
            x += _GPU + _GAP
        x += _ISLAND_GAP - _GAP
    if row.num_gpus > shown:
        axes.text(x, bottom + _GPU / 2, f"+ {row.num_gpus - shown:,}", fontsize=8, color=_LINE, va="center")
    axes.text(left, bottom - 0.08, row.description, fontsize=7, color=_LINE, va="top")


def _frame(
    axes: Axes,
    left: float,
    bottom: float,
    width: float,
    height: float,
    face: str,
    edge: str,
    rounding: float,
    opacity: float = 1.0,
) -> None:
    from matplotlib.patches import FancyBboxPatch

    style = f"round,pad=0,rounding_size={rounding}" if rounding else "square,pad=0"
    axes.add_patch(
        FancyBboxPatch(
            (left, bottom), width, height, boxstyle=style, facecolor=face, edgecolor=edge, linewidth=0.8, alpha=opacity
        )
    )


def _legend(axes: Axes, colour: dict[str, str], height: float) -> None:
    left = 0.0
    for kind, shade in colour.items():
        _frame(axes, left, height - 0.06, 0.13, 0.13, shade, "none", 0.0, 0.9)
        axes.text(left + 0.2, height, kind, fontsize=8.5, va="center")
        left += 0.5 + len(kind) * 0.085
