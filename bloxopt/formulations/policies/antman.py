"""AntMan: jobs with a resource guarantee, and opportunistic ones beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bloxopt.formulations import (
    Capacity,
    Lexicographic,
    MaxSum,
    NormalizedThroughput,
    OneConfiguration,
    PairedShares,
    Policy,
    RestartPenalty,
)
from bloxopt.formulations.systems.guarantees import BoundedSlowdown, GuaranteedGpus
from bloxopt.solvers.base import SolverOptions


def antman(quota: Mapping[str, float] | None = None, slowdown: float = 0.1, **options: Any) -> Policy:
    """Jobs within their tenant's quota first, the others beside them or on GPUs that these leave (OSDI 2020).

    ``quota``: GPUs by tenant, 0 for those not named; None divides the cluster evenly. ``slowdown``: the part of its
    rate that a job with a guarantee may lose to a job beside it. Jobs keep what they run on until jobs come or go.
    """
    return Policy(
        objective=Lexicographic(
            [MaxSum(GuaranteedGpus(quota)), MaxSum(NormalizedThroughput(weighted=False)) - RestartPenalty()]
        ),
        **{
            "name": "antman",
            "source": "AntMan (OSDI 2020)",
            "description": "guaranteed jobs as if alone; opportunistic ones beside them and on what is left",
            "constraints": (Capacity(), OneConfiguration(), BoundedSlowdown(slowdown, quota), PairedShares(1.0, True)),
            "options": SolverOptions(mip_gap=1e-3, time_limit=30.0),
            **options,
        },
    )
