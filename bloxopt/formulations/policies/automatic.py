"""Automatic choice among registered policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from bloxopt.errors import FormulationError, UnknownNameError
from bloxopt.formulations.automatic import AutomaticPolicy, ByLoad, BySimulation
from bloxopt.formulations.policies import ALIASES, POLICIES, get_policy
from bloxopt.formulations.policy import Policy


def automatic(
    candidates: Sequence[str] = ("fifo", "las", "srtf"),
    rule: Literal["simulation", "load"] = "simulation",
    metric: Literal["average_jct", "makespan"] = "average_jct",
    horizon: float = 86_400.0,
    interval: float = 3_600.0,
    limits: Sequence[float] = (),
    hysteresis: float = 0.1,
    **options: Any,
) -> Policy:
    """The best of several policies by name: by forward simulation (``metric``, ``horizon``, ``interval`` in seconds),
    or by load (``limits`` between them, in GPUs asked for over GPUs up).
    """
    settings = {
        "name": "automatic",
        "source": "Blox (EuroSys 2024, section 5)",
        "description": f"the best of {', '.join(candidates)}, chosen by {rule}",
        **options,
    }
    unused = {
        "simulation": {"limits": len(limits) > 0, "hysteresis": hysteresis != 0.1},
        "load": {"horizon": horizon != 86_400.0, "interval": interval != 3_600.0, "metric": metric != "average_jct"},
    }
    for option, given in unused[rule].items():
        if given:
            raise FormulationError(
                f"policy 'automatic': {option} is given, but rule is {rule!r}, which does not use it"
            )
    if rule == "load" and len(limits) != len(candidates) - 1:
        raise FormulationError(
            f"policy 'automatic': {len(limits)} limits for {len(candidates)} candidates: give one limit fewer"
        )
    own = {key: value for key, value in options.items() if key not in ("name", "source", "description")}
    return AutomaticPolicy(
        candidates=[_candidate(name, own) for name in candidates],
        rule=ByLoad(limits, hysteresis) if rule == "load" else BySimulation(horizon, interval, metric),
        **settings,
    )


def _candidate(name: str, options: dict[str, Any]) -> Policy:
    if name not in POLICIES and name not in ALIASES:
        raise UnknownNameError("policy among the candidates", name, [*POLICIES, *ALIASES])
    return get_policy(name, **options)
