"""How each plan of a simulation came about: the rung, the proven gap, and the real time that deciding took."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bloxopt.experiments.style import PALETTE, figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bloxopt.simulation.result import SimulationResult

HOUR = 3600.0
_LEAST_GAP = 1e-9
"""Gaps below this, and 0, are drawn here: the axis is logarithmic."""


def plot_solves(result: SimulationResult, path: str | Path | None = None) -> Figure:
    """Gap of every plan (relative, logarithmic) and the real time its round took to decide (ms), over time (hours).

    Colours tell the rungs apart (:class:`bloxopt.anytime.Rung`); plans without a bound are crosses at the top, where
    gaps above 1 are drawn as well. The deadline is a line where there is one. Saved to ``path`` if given.
    """
    rounds = result.rounds
    plans = rounds[rounds["solved"].astype(bool)]
    hours = plans["time"].to_numpy(dtype=float) / HOUR
    gap = plans["gap"].to_numpy(dtype=float)
    decide = (
        1000 * plans["decide_seconds"].to_numpy(dtype=float)
        if "decide_seconds" in plans
        else np.full(len(plans), np.nan)
    )
    rung = plans["rung"].fillna("solved").to_numpy(dtype=str) if "rung" in plans else np.full(len(plans), "solved")
    known = np.isfinite(gap)
    drawn = np.where(known, np.clip(gap, _LEAST_GAP, 1.0), 1.0)
    with figure(height=5.5) as (drawing, above):
        drawing.delaxes(above)
        above, below = drawing.subplots(2, 1, sharex=True)
        for index, name in enumerate(dict.fromkeys(rung)):
            mine = rung == name
            colour = PALETTE[index % len(PALETTE)]
            above.plot(hours[mine & known], drawn[mine & known], ".", color=colour, label=f"{name} ({mine.sum()})")
            above.plot(hours[mine & ~known], drawn[mine & ~known], "x", color=colour)
            below.plot(hours[mine], decide[mine], ".", color=colour)
        above.set(
            yscale="log",
            ylim=(_LEAST_GAP / 2, 2),
            ylabel="Gap (relative; × no bound)" if not known.all() else "Gap (relative)",
        )
        below.set(yscale="log", ylabel="To decide (ms)", xlabel="Time (hours)")
        budget = result.config.get("options", {}).get("round_budget")
        if budget is not None:
            below.axhline(1000 * budget, color="#666666", linestyle="--", linewidth=1.0, label="deadline")
        named = [str(result.config[key]) for key in ("trace", "cluster", "policy", "solver") if result.config.get(key)]
        above.set_title("\n".join(["How plans came about", " · ".join(named)]).strip())
        if len(plans):
            drawing.legend(loc="outside lower center", ncols=5)
    if path is not None:
        save_figure(drawing, path)
    return drawing
