"""Finish-time fairness."""

from __future__ import annotations

from typing import Any

from bloxopt.formulations import FinishTimeRatio, MinMax, Policy


def finish_time_fairness(**options: Any) -> Policy:
    """``min max_i (t_i + R_i / Σ_j T_ij x_ij) / (iso_i + R_i / T_i^iso)`` (Themis, NSDI 2020), to optimality."""
    return Policy(
        objective=MinMax(FinishTimeRatio()),
        **{
            "name": "finish_time_fairness",
            "source": "Themis (NSDI 2020); Gavel (OSDI 2020)",
            "description": "lower the largest finish time relative to an equal share of the cluster",
            **options,
        },
    )
