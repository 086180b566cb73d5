"""The Gantt chart: every GPU of a node is a lane, every stretch a job held GPUs is a bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from bloxopt.cluster import load_cluster
from bloxopt.errors import ClusterError
from bloxopt.experiments.style import PALETTE, figure
from bloxopt.jobs import FloatArray, IntArray
from bloxopt.wording import natural_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bloxopt.simulation.result import SimulationResult

HOUR = 3600.0
MOST_LANES = 160
MOST_SEGMENTS = 6000
_INCHES_PER_CHARACTER = 0.075
_COLOURS = tuple("#777777" if colour == "#000000" else colour for colour in PALETTE)
"""Large areas of black would draw the eye to jobs that are like the others."""


class _Bar(NamedTuple):
    """A stretch of a job on a node: hours, and (first lane, number of lanes) blocks."""

    job_id: str
    node: str
    start: float
    hours: float
    lanes: list[tuple[int, int]]


def draw_gantt(result: SimulationResult, subtitle: str) -> Figure:
    """The chart of ``result.placements``, capped to what a page can show; the title says what was left out."""
    segments, nodes, notes = _visible(merged(result.placements), result)
    top = np.concatenate([[0], np.cumsum([lanes for _, _, lanes in nodes])])
    height = float(np.clip(1.6 + 0.085 * top[-1], 3.0, 14.0))
    with figure(11.0, height) as (drawing, axes):
        colour = _job_colours(segments)
        # A blank half lane between nodes keeps neighbouring nodes apart.
        offset = {name: float(top[i]) for i, (name, _, _) in enumerate(nodes)}
        rectangles: list[tuple[float, float, float, float]] = []
        colours: list[str] = []
        bars = _bars(segments)
        for bar in bars:
            for lane, count in bar.lanes:
                rectangles.append((bar.start, offset[bar.node] + lane, bar.hours, count))
                colours.append(colour[bar.job_id])
        _add_bars(axes, rectangles, colours)
        axes.set_xlim(0, max((r[0] + r[2] for r in rectangles), default=1.0))
        axes.set_ylim(float(top[-1]) or 1.0, 0)
        for edge in top[1:-1]:
            axes.axhline(float(edge), color="#444444", linewidth=0.8)
        every = max(1, int(np.ceil(len(nodes) / (height * 4.5))))
        shown = range(0, len(nodes), every)
        axes.set_yticks(
            [float(top[i] + top[i + 1]) / 2 for i in shown], [f"{nodes[i][0]} ({nodes[i][1]})" for i in shown]
        )
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set(xlabel="Time (hours)", ylabel="Node (a lane per GPU)")
        heading = "Jobs by node" + (f" — {'; '.join(notes)}" if notes else "")
        axes.set_title(f"{heading}\n{subtitle}".strip())
        _label_bars(axes, bars, offset)
    return drawing


def merged(placements: pd.DataFrame) -> pd.DataFrame:
    """Placements sorted by node and start, a job's stretches that touch on the same GPUs joined into one."""
    frame = placements.sort_values(["node", "job_id", "start"], kind="stable")
    frame = frame[frame["end"] > frame["start"]]
    same = (
        (frame["node"] == frame["node"].shift())
        & (frame["job_id"] == frame["job_id"].shift())
        & (frame["gpus"] == frame["gpus"].shift())
        & np.isclose(frame["start"], frame["end"].shift(), rtol=0, atol=1e-6)
    )
    keys = (~same).cumsum()
    return (
        frame.groupby(keys, sort=False)
        .agg(
            job_id=("job_id", "first"),
            node=("node", "first"),
            gpu_type=("gpu_type", "first"),
            gpus=("gpus", "first"),
            start=("start", "first"),
            end=("end", "last"),
        )
        .reset_index(drop=True)
        .sort_values(["start", "node"], kind="stable", ignore_index=True)
    )


def lanes_of(segments: pd.DataFrame) -> list[list[tuple[int, int]]]:
    """For every segment its (first lane, number of lanes) blocks on the node; no lane is used twice at once.

    Segments must be sorted by start. The lowest free run of lanes that fits is taken, else the
    lowest free lanes, so that a gang is drawn in one piece where that is possible.
    """
    free_at: dict[str, FloatArray] = {}
    blocks: list[list[tuple[int, int]]] = []
    for node, gpus, start, end in zip(
        segments["node"], segments["gpus"], segments["start"], segments["end"], strict=True
    ):
        free = free_at.setdefault(node, np.zeros(0))
        lanes = _choose(free <= start + 1e-6, int(gpus))
        if lanes[-1] >= len(free):
            free = free_at[node] = np.append(free, np.zeros(int(lanes[-1]) + 1 - len(free)))
        free[lanes] = end
        breaks = np.flatnonzero(np.diff(lanes) > 1) + 1
        blocks.append([(int(part[0]), len(part)) for part in np.split(lanes, breaks)])
    return blocks


def _choose(free: Any, count: int) -> IntArray:
    available = np.flatnonzero(np.append(free, np.ones(count, dtype=bool)))
    run = np.flatnonzero(available[count - 1 :] - available[: len(available) - count + 1] == count - 1)
    first = int(run[0])
    if available[first + count - 1] < len(free):
        return available[first : first + count]
    # In pieces rather than on a lane more: a node never has more lanes than GPUs in use at once.
    return available[:count]


def _visible(
    segments: pd.DataFrame, result: SimulationResult
) -> tuple[pd.DataFrame, list[tuple[str, str, int]], list[str]]:
    """The segments and nodes that fit, with their lanes, and what the title has to say about the rest."""
    notes = []
    nodes = _nodes(segments, result)
    fitting = np.cumsum([gpus for _, _, gpus in nodes]) <= MOST_LANES
    shown = nodes[: max(1, int(fitting.sum()))]
    if len(shown) < len(nodes):
        notes.append(f"first {len(shown):,} of {len(nodes):,} nodes")
        segments = segments[segments["node"].isin([name for name, _, _ in shown])]
    if len(segments) > MOST_SEGMENTS:
        until = float(segments["start"].iloc[MOST_SEGMENTS])
        segments = segments[segments["start"] < until]
        segments = segments.assign(end=np.minimum(segments["end"], until))
        notes.append(f"first {until / HOUR:,.3g} hours")
    lanes = pd.Series(lanes_of(segments), index=segments.index, dtype=object)
    return segments.assign(lanes=lanes), shown, notes


def _nodes(segments: pd.DataFrame, result: SimulationResult) -> list[tuple[str, str, int]]:
    """Name, GPU type and GPUs of every node in the cluster's order.

    The cluster is rebuilt from the result's description; where its nodes have names of their own,
    the nodes are those that were used, each with the most GPUs in use at once.
    """
    used = segments.drop_duplicates("node").set_index("node")["gpu_type"]
    try:
        cluster = load_cluster(str(result.config.get("cluster")))
    except ClusterError:
        cluster = None
    if cluster is not None and set(used.index) <= {node.name for node in cluster.nodes}:
        return [(node.name, node.gpu_type, node.num_gpus) for node in cluster.nodes]
    changes = pd.DataFrame(
        {
            "node": pd.concat([segments["node"], segments["node"]]),
            "time": pd.concat([segments["start"], segments["end"]]),
            "gpus": pd.concat([segments["gpus"], -segments["gpus"]]),
        }
    ).sort_values(["node", "time", "gpus"], kind="stable")
    most = changes["gpus"].cumsum().groupby(changes["node"]).max()
    return [
        (name, used[name], int(most[name])) for name in sorted(most.index, key=lambda name: natural_order(str(name)))
    ]


def _bars(segments: pd.DataFrame) -> list[_Bar]:
    columns = (segments[name].tolist() for name in ("job_id", "node", "start", "end", "lanes"))
    return [
        _Bar(str(job_id), node, start / HOUR, (end - start) / HOUR, lanes)
        for job_id, node, start, end, lanes in zip(*columns, strict=True)
    ]


def _job_colours(segments: pd.DataFrame) -> dict[str, str]:
    """One colour per job in order of first start; they repeat, so neighbours differ but far jobs may not."""
    order = segments.sort_values("start", kind="stable")["job_id"].drop_duplicates()
    return {str(job): _COLOURS[i % len(_COLOURS)] for i, job in enumerate(order)}


def _add_bars(axes: Axes, rectangles: list[tuple[float, float, float, float]], colours: list[str]) -> None:
    from matplotlib.collections import PolyCollection

    corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in rectangles]
    thin = 0.4 if len(corners) < 1500 else 0.15
    axes.add_collection(PolyCollection(corners, facecolors=colours, edgecolors="white", linewidths=thin, alpha=0.9))


def _label_bars(axes: Axes, bars: list[_Bar], offset: dict[str, float]) -> None:
    """The job's name in every bar that is long enough for it."""
    drawing: Any = axes.figure
    hours_per_inch = (axes.get_xlim()[1] - axes.get_xlim()[0]) / (drawing.get_figwidth() * 0.85)
    lanes_per_inch = (axes.get_ylim()[0] - axes.get_ylim()[1]) / (drawing.get_figheight() * 0.8)
    for bar in bars:
        lane, count = max(bar.lanes, key=lambda block: block[1])
        wide = bar.hours / hours_per_inch >= _INCHES_PER_CHARACTER * (len(bar.job_id) + 1)
        if wide and count / lanes_per_inch >= 0.11:
            middle = (bar.start + bar.hours / 2, offset[bar.node] + lane + count / 2)
            axes.text(*middle, bar.job_id, ha="center", va="center", fontsize=6.5, color="white")
