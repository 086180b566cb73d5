"""Maximum total throughput."""

from __future__ import annotations

from typing import Any

from bloxopt.formulations import EffectiveThroughput, MaxSum, NormalizedThroughput, Policy


def max_sum_throughput(**options: Any) -> Policy:
    """``max Σ_i s_i/prop_i Σ_j T_ij x_ij``: work done in units of an average GPU's, so that all models count alike."""
    return Policy(
        objective=MaxSum(NormalizedThroughput(weighted=False)),
        **{
            "name": "max_sum_throughput",
            "source": "bloxopt, after Gavel (OSDI 2020)",
            "description": "most work done, in average GPUs' worth",
            **options,
        },
    )


def max_sum_throughput_raw(**options: Any) -> Policy:
    """``max Σ_i Σ_j T_ij x_ij`` in steps/s whatever a step is: what Gavel's ``max_sum_throughput_perf`` computes."""
    return Policy(
        objective=MaxSum(EffectiveThroughput()),
        **{
            "name": "max_sum_throughput_raw",
            "source": "Gavel (OSDI 2020)",
            "description": "most steps/s, models with short steps first",
            **options,
        },
    )
