"""Automatic choice among registered policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from bloxopt.errors import FormulationError
from bloxopt.formulations.automatic import AutomaticPolicy, ByLoad, BySimulation
from bloxopt.formulations.policies import get_policy
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
    if rule == "load" and len(limits) != len(candidates) - 1:
        raise FormulationError(
            f"policy 'automatic': {len(limits)} limits for {len(candidates)} candidates: give one limit fewer"
        )
    own = {key: value for key, value in options.items() if key not in ("name", "source", "description")}
    return AutomaticPolicy(
        candidates=[get_policy(name, **own) for name in candidates],
        rule=ByLoad(limits, hysteresis) if rule == "load" else BySimulation(horizon, interval, metric),
        **settings,
    )
