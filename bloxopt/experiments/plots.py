"""Figures of simulation results: completion times, utilisation, queue length, and who ran where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bloxopt.errors import ResultError
from bloxopt.experiments.gantt import draw_gantt
from bloxopt.experiments.solves_plot import plot_solves
from bloxopt.experiments.style import PALETTE, figure, line_style, save_figure
from bloxopt.jobs import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bloxopt.simulation.result import SimulationResult

HOUR = 3600.0
_LEGEND_CHARACTERS = 110
"""What fits into one row of the legend."""
_MOST_POINTS = 1500
_BINS = 400
"""Longer series are averaged over so many bins: more points than pixels only hide the shape."""


def plot_jct_cdf(results: Any, path: str | Path | None = None) -> Figure:
    """Share of jobs by completion time (hours, logarithmic), one line per result.

    ``results`` is one result, several, or a mapping from label to one or several (pooled, such as
    the seeds of one policy). Jobs that never finished keep a line below 100 %. Saved to ``path``
    if given.
    """
    lines = _labelled(results)
    with figure() as (drawing, axes):
        for index, (label, group) in enumerate(lines.items()):
            hours = np.concatenate([_column(result.jobs, "jct") for result in group]) / HOUR
            total, hours = len(hours), np.sort(hours[np.isfinite(hours)])
            unfinished = "" if len(hours) == total else f" ({total - len(hours)} of {total} jobs unfinished)"
            share = 100 * np.arange(len(hours) + 1) / max(total, 1)
            hours = np.append(hours[:1], hours)  # rises from zero at the first completion
            axes.step(hours, share[: len(hours)], where="post", label=label + unfinished, **line_style(index))
        _logarithmic_hours(axes)
        axes.set(xlabel="Job completion time (hours)", ylabel="Jobs finished (%)", ylim=(0, 101))
        _finish(axes, "Job completion times", lines)
    return _saved(drawing, path)


def plot_utilisation(results: Any, path: str | Path | None = None) -> Figure:
    """GPUs in use as a share of the GPUs that are up (%), over time (hours), one line per result."""
    lines = _labelled(results)
    with figure() as (drawing, axes):
        for index, (label, group) in enumerate(lines.items()):
            rounds = group[0].rounds
            up = _column(rounds, "gpus_up")
            used = np.divide(100 * _column(rounds, "gpus_used"), up, out=np.zeros_like(up), where=up > 0)
            time, series, extremes = _thinned(rounds, used)
            if extremes is not None and len(lines) == 1:
                low, high = extremes
                axes.fill_between(time, low, high, step="post", alpha=0.2, linewidth=0, color=PALETTE[0], label="range")
                label = f"mean over {(time[1] - time[0]):.2g} hours"
            axes.step(time, series, where="post", label=label, **line_style(index))
        axes.set(xlabel="Time (hours)", ylabel="GPUs in use (% of GPUs up)", ylim=(0, 103), xlim=(0, None))
        _finish(axes, "GPU utilisation", lines, always_legend=bool(axes.collections))
    return _saved(drawing, path)


def plot_queue_length(results: Any, path: str | Path | None = None) -> Figure:
    """Jobs that wait, over time (hours), one line per result; with a single result also those that run."""
    lines = _labelled(results)
    with figure() as (drawing, axes):
        for index, (label, group) in enumerate(lines.items()):
            rounds = group[0].rounds
            if len(lines) == 1:
                time, series, _ = _thinned(rounds, _column(rounds, "running_jobs"))
                axes.step(time, series, where="post", label="running", **line_style(1))
                label = "waiting"
            time, series, _ = _thinned(rounds, _column(rounds, "waiting_jobs"))
            axes.step(time, series, where="post", label=label, **line_style(index))
        axes.set(
            xlabel="Time (hours)", ylabel="Jobs" if len(lines) == 1 else "Jobs waiting", ylim=(0, None), xlim=(0, None)
        )
        _finish(axes, "Queue length", lines, always_legend=True)
    return _saved(drawing, path)


def plot_gantt(result: SimulationResult, path: str | Path | None = None) -> Figure:
    """Which job held which GPUs of each node, over time (hours).

    Shows at most 160 GPUs and 6,000 segments; the title says what was left out.
    """
    return _saved(draw_gantt(result, describe(result)), path)


PLOTS: Mapping[str, Any] = {
    "jct_cdf": plot_jct_cdf,
    "utilisation": plot_utilisation,
    "queue_length": plot_queue_length,
    "gantt": plot_gantt,
    "solves": plot_solves,
}
"""File name to function, for one result."""

OVERLAYS: Mapping[str, Any] = {name: plot for name, plot in PLOTS.items() if plot not in (plot_gantt, plot_solves)}
"""Those that compare several results."""


def plot_result(result: SimulationResult, folder: str | Path, formats: Iterable[str] = ("png",)) -> list[Path]:
    """Every plot of one result, as ``folder/NAME.FORMAT``; the files written."""
    return _all(PLOTS, result, Path(folder), tuple(formats))


def plot_comparison(
    results: Mapping[str, SimulationResult | Sequence[SimulationResult]],
    folder: str | Path,
    formats: Iterable[str] = ("png",),
) -> list[Path]:
    """The plots that overlay several results, labelled by key; the files written."""
    return _all(OVERLAYS, results, Path(folder), tuple(formats))


def describe(result: SimulationResult) -> str:
    """``trace · cluster · policy · solver`` of a result, for titles."""
    named = [result.config.get(key) for key in ("trace", "cluster", "policy", "solver")]
    return " · ".join(_shortened(str(name)) for name in named if name)


def _all(plots: Mapping[str, Any], results: Any, folder: Path, formats: tuple[str, ...]) -> list[Path]:
    written = []
    for name, plot in plots.items():
        drawing = plot(results)
        for ending in formats:
            written.append(folder / f"{name}.{ending}")
            save_figure(drawing, written[-1])
    return written


def _labelled(results: Any) -> dict[str, list[SimulationResult]]:
    """Label to results; several without labels are told apart by what differs in their configuration."""
    if isinstance(results, Mapping):
        lines = {str(label): _as_list(value) for label, value in results.items()}
    else:
        group = _as_list(results)
        lines = {label: [result] for label, result in zip(_labels(group), group, strict=True)}
    if not lines or not all(lines.values()):
        raise ResultError("nothing to plot: give at least one result")
    return lines


def _labels(results: Sequence[SimulationResult]) -> list[str]:
    keys = ("trace", "cluster", "policy", "solver", "preset", "placement", "selector", "seed")
    differing = [key for key in keys if len({str(result.config.get(key)) for result in results}) > 1] or ["policy"]
    labels = [" · ".join(str(result.config.get(key)) for key in differing) for result in results]
    counted: dict[str, int] = {}
    for i, label in enumerate(labels):
        counted[label] = counted.get(label, 0) + 1
        if counted[label] > 1:
            labels[i] = f"{label} ({counted[label]})"
    return labels


def _as_list(value: Any) -> list[SimulationResult]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _column(frame: pd.DataFrame, name: str) -> FloatArray:
    return frame[name].to_numpy(dtype=np.float64)


def _thinned(
    rounds: pd.DataFrame, values: FloatArray
) -> tuple[FloatArray, FloatArray, tuple[FloatArray, FloatArray] | None]:
    """Times (hours) and values for steps; beyond 1,500 rounds time-weighted means with their (low, high)."""
    start = _column(rounds, "time")
    length = _column(rounds, "seconds")
    if len(start) == 0:
        return np.zeros(0), np.zeros(0), None
    end = start[-1] + length[-1]
    if len(start) <= _MOST_POINTS:
        return np.append(start, end) / HOUR, np.append(values, values[-1]), None
    edges = np.linspace(start[0], end, _BINS + 1)
    # The integral of the series at both ends of every round; between them it is linear.
    knots = np.column_stack([start, start + length]).ravel()
    area = np.cumsum(np.column_stack([np.zeros(len(start)), values * length]).ravel())
    mean = np.diff(np.interp(edges, knots, area)) / np.diff(edges)
    first = np.clip(np.searchsorted(edges, start, side="right") - 1, 0, _BINS - 1)
    last = np.clip(np.searchsorted(edges, start + length, side="left") - 1, first, _BINS - 1)
    low, high = np.full(_BINS, np.inf), np.full(_BINS, -np.inf)
    for row in np.flatnonzero(last > first + 1):
        low[first[row] : last[row]] = np.minimum(low[first[row] : last[row]], values[row])
        high[first[row] : last[row]] = np.maximum(high[first[row] : last[row]], values[row])
    for end_bin in (first, last):
        np.minimum.at(low, end_bin, values)
        np.maximum.at(high, end_bin, values)
    mean, low, high = (np.append(series, series[-1]) for series in (mean, low, high))
    return edges / HOUR, mean, (low, high)


def _logarithmic_hours(axes: Axes) -> None:
    """Decades and their 2 and 5, written out: 0.1, 0.2, 0.5, 1, …"""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    subs = (1, 2, 5) if high / low < 2000 else (1,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda hours, _: f"{hours:,.10g}"))
    if subs != (1,):
        axes.xaxis.set_minor_locator(NullLocator())


def _finish(axes: Axes, title: str, lines: Mapping[str, list[SimulationResult]], always_legend: bool = False) -> None:
    """Title with what all lines have in common, and the legend."""
    results = [result for group in lines.values() for result in group]
    common = [
        str(values.pop())
        for values in ({result.config.get(key) for result in results} for key in ("trace", "cluster", "policy"))
        if len(values) == 1 and None not in values
    ]
    axes.set_title("\n".join([title, " · ".join(_shortened(name) for name in common)]).strip())
    if always_legend or len(lines) > 1:
        # Below the axes: nothing it could cover is as bad as a hidden line.
        drawing: Any = axes.figure
        labels = [str(text) for text in axes.get_legend_handles_labels()[1]]
        widths = [len(label) + 8 for label in labels]
        one_row = sum(widths) <= _LEGEND_CHARACTERS
        columns = len(labels) if one_row else max(1, min(len(labels), _LEGEND_CHARACTERS // max(widths)))
        drawing.legend(loc="outside lower center", ncols=columns)
        drawing.set_figheight(4.5 + 0.2 * -(-len(labels) // columns))


def _shortened(text: str, most: int = 48) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _saved(drawing: Figure, path: str | Path | None) -> Figure:
    if path is not None:
        save_figure(drawing, path)
    return drawing
