"""Synergy's simulator (Mohan et al., OSDI 2022): 100 single-GPU jobs on 4 servers of 8 GPUs, 24 CPUs and 500 GiB."""

from __future__ import annotations

from functools import partial
from typing import Any

from bloxopt.formulations.policies import get_policy
from bloxopt.hosts import HostAllocation
from bloxopt.hosts.optimal import Optimal
from bloxopt.reproduction.base import Figure, Run
from bloxopt.simulation import simulate

# Average JCT (h) of Synergy's own code: proportional shares of CPUs and memory, and its tuned greedy.
_PUBLISHED: dict[str, tuple[dict[str, Any], float, float]] = {
    "fifo": ({}, 5.631, 5.082),
    "las": ({"gpu_weighted": True}, 5.625, 5.171),
    "srtf": ({}, 4.412, 4.107),
    # Its code serves the smallest finish-time ratio first, the opposite of Themis.
    "finish_time_order": ({"largest_first": False}, 7.983, 7.778),
}

_ROUNDED = 2e-4
"""The semantics are known exactly: only the rounding of the published figures is left."""


CLUSTER = "4x8xV100:24cpus:500gib"


def average_jct(policy: str, host_allocation: str | HostAllocation | None) -> float:
    """Average JCT (h) of the trace under one of the published policies; None for the preset's tuned greedy."""
    options = _PUBLISHED[policy][0]
    result = simulate(
        "synergy-100",
        CLUSTER,
        get_policy(policy, backfill=True, **options),
        preset="synergy",
        host_allocation=host_allocation,
    )
    return float(result.summary()["average_jct"]) / 3600


def _measure(policy: str, host_allocation: str | HostAllocation | None) -> dict[str, float | None]:
    return {"average_jct": average_jct(policy, host_allocation)}


RUNS = tuple(
    Run(
        trace="synergy-100",
        policy=f"{policy}, {label}",
        source=source,
        measure=partial(_measure, policy, allocation),
        figures=(figure,),
    )
    for policy, (_, proportional, tuned) in _PUBLISHED.items()
    for label, source, allocation, figure in (
        (
            "proportional",
            "Synergy's simulator, its fair mode",
            "proportional",
            Figure(metric="average_jct", reference=proportional, unit="h", tolerance=_ROUNDED),
        ),
        (
            "tuned",
            "Synergy's simulator, its tune mode",
            None,
            Figure(metric="average_jct", reference=tuned, unit="h", tolerance=_ROUNDED),
        ),
        (
            # The optimum of each round has no published figure here: it must not be worse than the greedy.
            "optimal",
            "Synergy's simulator, its tune mode, which the optimum must not exceed",
            Optimal(repack=True),
            Figure(metric="average_jct", reference=tuned, unit="h", goal="at_most"),
        ),
    )
)
