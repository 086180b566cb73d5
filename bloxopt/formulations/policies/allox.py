"""Least average completion time by matching jobs to GPUs and positions."""

from __future__ import annotations

from typing import Any, Literal

from bloxopt.formulations import CompletionMatching, Policy
from bloxopt.formulations.checks import checked_amount


def allox(
    alpha: float = 1.0,
    preemptive: bool = False,
    method: Literal["matching", "program"] = "matching",
    **options: Any,
) -> Policy:
    """Match waiting jobs to (GPU type, position) at least ``Σ position × processing time`` (AlloX, EuroSys 2020).

    ``alpha`` is the part of the waiting jobs, first to arrive, that takes part (fairness); ``preemptive`` matches
    running jobs anew as well; ``method="program"`` solves the linear program instead of the network flow.
    """
    checked_amount("allox", "alpha", alpha, 0.0, 1.0)
    return Policy(
        objective=CompletionMatching(alpha, preemptive, method),
        **{
            "name": "allox",
            "source": "AlloX (EuroSys 2020); Gavel (OSDI 2020)",
            "description": "least average completion time by matching",
            **options,
        },
    )
