"""Pollux: GPUs and batch sizes by goodput, as an integer program over whole configurations."""

from __future__ import annotations

from typing import Any, Literal

from bloxopt.formulations import (
    AfterRestart,
    Capacity,
    NodeCapacity,
    OneConfiguration,
    Policy,
    PowerMean,
    ScaleUpLimit,
    Speedup,
)
from bloxopt.solvers.base import SolverOptions
from bloxopt.throughput import ThroughputOracle

_NO_GPUS = 1e-3
"""Speedup that a job without GPUs counts as, and what all have besides theirs."""


def pollux(
    exponent: float = -1.0,
    restart_seconds: float | None = 30.0,
    scale_up: float | None = 2.0,
    predictor: ThroughputOracle | Literal["own"] | None = None,
    **options: Any,
) -> Policy:
    """``max (1/n Σ_i (SPEEDUP_i + 10⁻³)^p)^(1/p)`` over the configurations of all jobs (Pollux, OSDI 2021, §4.2).

    ``exponent`` p: the more negative, the fairer. ``restart_seconds``: what a restart costs in the restart factor
    (None: each job's own cost). ``scale_up``: how many times the GPUs that it has run on so far a job may get at once
    (None: any). ``predictor``: an oracle to plan with in place of the rates that jobs run at, or ``"own"`` for what the
    oracle of the trace predicts (see :class:`~bloxopt.formulations.Speedup`).
    """
    speedup = Speedup("fair", predictor)
    limits = [] if scale_up is None else [ScaleUpLimit(scale_up)]
    return Policy(
        objective=PowerMean(AfterRestart(speedup, restart_seconds, waiting=True) + _NO_GPUS, exponent),
        **{
            "constraints": [Capacity(), OneConfiguration(), NodeCapacity(whole_nodes=True), *limits],
            "solver": "prices",
            "options": SolverOptions(mip_gap=1e-3, time_limit=10.0),
            "name": "pollux",
            "source": "Pollux (OSDI 2021)",
            "description": "raise the power mean of speedups in goodput",
            **options,
        },
    )
