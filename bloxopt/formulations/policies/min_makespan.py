"""Minimum makespan."""

from __future__ import annotations

from typing import Any

from bloxopt.formulations import MinMax, Policy, RemainingTime


def min_makespan(**options: Any) -> Policy:
    """``min max_i R_i / Σ_j T_ij x_ij``, one linear program (Gavel's ``min_total_duration`` without its bisection)."""
    return Policy(
        objective=MinMax(RemainingTime()),
        **{
            "name": "min_makespan",
            "source": "Gavel (OSDI 2020)",
            "description": "finish the last job as early as possible",
            **options,
        },
    )
