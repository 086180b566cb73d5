"""Optimus: GPUs to the elastic jobs whose remaining time they shorten most."""

from __future__ import annotations

from typing import Any

from bloxopt.errors import UnknownNameError
from bloxopt.formulations import (
    AsMeasured,
    AtPresentRate,
    Capacity,
    LeastRemainingTime,
    MarginalGain,
    OneConfiguration,
    Policy,
    RemainingEstimate,
)

ESTIMATES: dict[str, type[RemainingEstimate]] = {"present_rate": AtPresentRate, "as_measured": AsMeasured}


def optimus(method: str = "greedy", estimate: str | RemainingEstimate = "present_rate", **options: Any) -> Policy:
    """Least remaining time of all jobs together, over the numbers of GPUs that elastic jobs can run on.

    ``method``: ``greedy`` (a GPU after the other, by marginal gain: Optimus) or ``program`` (the optimum). ``estimate``
    of the remaining time: ``present_rate``, ``as_measured`` (what the trace's oracle foresees, as in Pollux' simulator)
    or a :class:`RemainingEstimate`.
    """
    if isinstance(estimate, str):
        if estimate not in ESTIMATES:
            raise UnknownNameError("estimate", estimate, ESTIMATES)
        estimate = ESTIMATES[estimate]()
    if method not in ("greedy", "program"):
        raise UnknownNameError("method", str(method), ["greedy", "program"])
    return Policy(
        objective=MarginalGain(estimate) if method == "greedy" else LeastRemainingTime(estimate),
        **{
            "constraints": [Capacity(), OneConfiguration()],
            "name": "optimus",
            "source": "Optimus (EuroSys 2018)",
            "description": "make the remaining time of all jobs together small",
            **options,
        },
    )
