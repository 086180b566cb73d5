"""Shockwave: market fairness over a window of future rounds."""

from __future__ import annotations

from typing import Any

from bloxopt.formulations import NashWelfareWindow, Policy
from bloxopt.solvers.base import SolverOptions


def shockwave(
    rounds: int = 20,
    makespan_weight: float = 1e-3,
    fairness_power: float = 12.0,
    largest_ratio: float = 1.0,
    points: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
    replan_rounds: int = 8,
    **options: Any,
) -> Policy:
    """``max Σ_j w_j log u_j / (J T) − k max_j (time left of j)`` over a window of T rounds (Zheng et al., NSDI 2023).

    ``rounds`` T of a window, ``makespan_weight`` k per second, ``fairness_power`` λ of the finish-time ratio that
    jobs behind their target weigh, ``largest_ratio`` that they may have, ``points`` between which the logarithm is
    interpolated, ``replan_rounds`` after which a window is planned anew: its published parameters by default. Solved to
    a gap of 1e-4: a larger one is lost among the weights of late jobs and leaves it open what the others get.
    """
    return Policy(
        objective=NashWelfareWindow(
            rounds=rounds,
            makespan_weight=makespan_weight,
            fairness_power=fairness_power,
            largest_ratio=largest_ratio,
            points=tuple(points) if isinstance(points, list) else points,
            replan_rounds=replan_rounds,
        ),
        **{
            "name": "shockwave",
            "source": "Shockwave (NSDI 2023)",
            "description": "Nash welfare of a window of future rounds, fair finish times and a short makespan",
            "solver": "highs",
            "options": SolverOptions(mip_gap=1e-4, time_limit=15.0),
            **options,
        },
    )
