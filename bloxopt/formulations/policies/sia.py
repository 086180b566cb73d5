"""Sia: GPU type and number of GPUs of every job, adaptive or not, by an integer program."""

from __future__ import annotations

from typing import Any, Literal

from bloxopt.errors import FormulationError
from bloxopt.formulations import (
    AfterRestart,
    Capacity,
    NodeShapes,
    OneConfiguration,
    Otherwise,
    Policy,
    PowerMean,
    ScaleUpLimit,
    Speedup,
)
from bloxopt.formulations.checks import finite_number
from bloxopt.solvers.base import SolverOptions
from bloxopt.throughput import ThroughputOracle

_HIGHEST_COST = 3000.0
"""No configuration costs more, however little is left of it after a restart."""


def sia(
    exponent: float = -0.5,
    cost_of_none: float = 1.1,
    restart_seconds: float | None = 30.0,
    scale_up: float | None = 2.0,
    predictor: ThroughputOracle | Literal["own"] | None = None,
    **options: Any,
) -> Policy:
    """``min Σ_ic (r_ic G_ic)^p x_ic + λ (n − Σ_ic x_ic)`` over the configurations c of n jobs (Sia, SOSP 2023, §3.4).

    G is the goodput, scaled so that a job's least is its number of GPUs there; r the restart factor of configurations
    other than the present one. ``exponent`` p < 0, ``cost_of_none`` λ > 0 (above 1 every job is better off with GPUs).
    ``restart_seconds``, ``scale_up`` (counted for each GPU type) and ``predictor`` as for ``pollux``. Without a goodput
    model the rates are throughputs. Reported is the power mean: λ counts as ``λ^(1/p)``.
    Raises :class:`FormulationError` for an exponent of 0 or more and a λ of 0 or less.
    """
    exponent, cost_of_none = finite_number("sia: exponent", exponent), finite_number("sia: cost_of_none", cost_of_none)
    if exponent >= 0:
        raise FormulationError(f"sia: exponent is {exponent:g}, must be below 0: costs are powers of goodputs")
    if cost_of_none <= 0:
        raise FormulationError(f"sia: cost_of_none is {cost_of_none:g}, must be above 0")
    goodput = AfterRestart(Speedup("least", predictor), restart_seconds, floor=_HIGHEST_COST ** (1.0 / exponent))
    limits = [] if scale_up is None else [ScaleUpLimit(scale_up, by_type=True)]
    return Policy(
        objective=PowerMean(Otherwise(goodput, cost_of_none ** (1.0 / exponent)), exponent),
        **{
            "constraints": [Capacity(), OneConfiguration(), NodeShapes("powers_of_two"), *limits],
            "solver": "prices",
            "options": SolverOptions(mip_gap=1e-3, time_limit=10.0),
            "name": "sia",
            "source": "Sia (SOSP 2023)",
            "description": "raise the power mean of normalised goodputs over GPU types and counts",
            **options,
        },
    )
