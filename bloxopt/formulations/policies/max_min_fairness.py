"""Max-min fairness, aware of and blind to how fast GPU types are."""

from __future__ import annotations

from typing import Any

from bloxopt.formulations import MaxMin, NormalizedThroughput, Policy, TimeFraction
from bloxopt.formulations.expressions import Expression
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray


def max_min_fairness(**options: Any) -> Policy:
    """``max min_i s_i/(w_i prop_i) Σ_j T_ij x_ij``: Gavel's ``max_min_fairness_perf`` (OSDI 2020, §4.1)."""
    return Policy(
        objective=MaxMin(NormalizedThroughput()),
        **{
            "name": "max_min_fairness",
            "source": "Gavel (OSDI 2020)",
            "description": "raise the smallest normalised throughput",
            **options,
        },
    )


def max_min_fairness_agnostic(**options: Any) -> Policy:
    """``max min_i s_i/w_i Σ_j x_ij``: GPU time alone, every GPU type counts the same (Gavel's baseline)."""
    return Policy(
        objective=MaxMin(GpuTime()),
        **{
            "name": "max_min_fairness_agnostic",
            "source": "Gavel (OSDI 2020)",
            "description": "raise the smallest GPU time per weight",
            "heterogeneity_aware": False,
            **options,
        },
    )


class GpuTime(Expression):
    """GPU time of each job per priority weight, ``s_i / w_i Σ_j x_ij``."""

    progress_dependent = False

    def build(self, space: AllocationSpace) -> FloatArray:
        share = TimeFraction().build(space)
        worth: FloatArray = share.value * (space.gpu_demand / space.weight[space.job])
        return worth
