"""The workload of a log simulated, under what it was scheduled by or something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bloxopt.admission import get_admission
from bloxopt.experiments.policies import make_policy
from bloxopt.placement import get_placement
from bloxopt.runtime.replay.workload import Workload
from bloxopt.selection import get_selector
from bloxopt.simulation.options import SimulationOptions
from bloxopt.simulation.result import SimulationResult
from bloxopt.simulation.simulate import ProgressUpdate, simulate


def simulate_workload(
    workload: Workload,
    changes: Mapping[str, Any] | None = None,
    progress: Callable[[ProgressUpdate], None] | None = None,
) -> SimulationResult:
    """Simulate the jobs, nodes and outages of a log.

    ``changes`` has what is to be other than it was: ``policy``, ``admission``, ``placement`` and ``selector`` as
    ``{"name": …, "options": {…}}``, ``solver`` as a name. Jobs cost a restart what they say that it costs. Raises a
    :class:`~bloxopt.errors.BloxoptError` for a name or option that is not known, and as ``simulate`` does.
    """
    config, given = workload.config, dict(changes or {})

    def part(name: str) -> tuple[str, dict[str, Any]]:
        chosen = given.get(name)
        if chosen is None:
            component = getattr(config, name)
            return component.name, dict(component.options)
        return chosen["name"], dict(chosen["options"])

    selector, selector_options = part("selector")
    placement, placement_options = part("placement")
    admission, admission_options = part("admission")
    policy = make_policy(*part("policy"))
    get_selector(selector, **selector_options)
    get_placement(placement, **placement_options)
    options = SimulationOptions(
        round_seconds=config.rounds.seconds,
        round_end="next_event" if config.rounds.end == "next_event" else "fixed",
        solve_interval=config.rounds.solve_interval,
        every_gpu_count_up_to=config.rounds.every_gpu_count_up_to,
        selector=selector,
        selector_options=selector_options,
        placement=placement,
        placement_options=placement_options,
    )
    # A solver was chosen for the policy that there was.
    solver = given.get("solver", None if "policy" in given else config.solver)
    return simulate(
        workload.trace,
        workload.cluster,
        policy,
        solver,
        options=options,
        admission=get_admission(admission, **admission_options),
        failures=workload.outages,
        progress=progress,
    )
