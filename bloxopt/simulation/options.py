"""What published simulators do differently, as explicit options, and presets that reproduce them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from bloxopt.arguments import is_finite_number
from bloxopt.errors import ConfigError, UnknownNameError
from bloxopt.formulations.space import EVERY_COUNT_UP_TO
from bloxopt.registry import Registry

Progress = Literal["exact", "whole_seconds", "whole_steps", "whole_rounds", "whole_steps_in_whole_rounds"]
RoundEnd = Literal["fixed", "last_job", "next_event"]
PhaseChange = Literal["next_round", "round_after_next"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """The semantics of a simulation. ``with_`` gives a copy with other values, checked.

    - ``round_seconds``: length of a round (s).
    - ``first_round``: when the first round starts (s); jobs that arrive before wait for it.
    - ``progress``: ``exact`` (a job runs at its rate and finishes inside the round), ``whole_seconds`` (the same, but
      the time to the end of a phase, such as an epoch, and of the job is rounded to seconds: Pollux), ``whole_steps``
      (a round runs floor(rate × round) steps and a job stops when they are done: Gavel) or
      ``whole_rounds`` (a job holds its GPUs to the end of the round in which its work is done, and that
      end is its finish time: Blox), or ``whole_steps_in_whole_rounds``: both (Synergy).
    - ``round_end``: ``fixed``; ``last_job``: a round ends when its last job stops (Gavel); or ``next_event``: it ends
      when a job arrives or completes, a node fails or comes back, or the policy's order changes (a queue limit of
      Tiresias), and after ``round_seconds`` at the latest. Needs ``progress`` ``exact``.
    - ``phase_change``: where phases (see :mod:`bloxopt.phases`) do not change inside rounds, a job that comes to
      another one has its rates from the ``next_round`` on in which it runs, or the ``round_after_next`` (Shockwave).
    - ``solve_interval``: seconds that pass at least between two plans, whatever changes (Gavel 1920).
    - ``selector`` and ``selector_options``: how a plan becomes a round (see ``bloxopt.selection``).
    - ``placement`` and ``placement_options``: how a gang gets its nodes (see ``bloxopt.placement``).
    - ``host_allocation`` and ``host_allocation_options``: how CPUs and memory are divided in each round (see
      ``bloxopt.hosts``); None leaves every job what it needs, and rates as they are. ``sensitivity``: what jobs gain
      from them, ``synergy`` or the path of a file of profiles.
    - ``restart_cost``: seconds without progress when a job starts again after a preemption, a move or a
      failure; None takes each job's own ``restart_cost``.
    - ``start_cost``: the same when a job starts for the first time.
    - ``placement_slowdown``: whether a gang on more nodes than it needs runs slower, by ``simulate(slowdown=...)`` or
      else by rows for ``<type>_unconsolidated`` in the trace's throughput table.
    - ``placement_retries``: how often a round is selected again without the jobs that found no place (or not the one
      that the plan promised them), so that others can use their GPUs.
    - ``every_gpu_count_up_to``: elastic jobs may have every GPU count up to this, above it powers of two (with their
      own bounds and request).
    - ``round_budget``: seconds of real time that deciding a round may take: see :class:`bloxopt.anytime.Ladder`.
      None: as long as it takes. With a budget, results depend on how fast the machine is.
    - ``incremental``: whether the solves of a round begin from the answers of the round before, where the solver can
      and programs are large enough to gain by it: see :class:`bloxopt.formulations.solving.resuming.Resolver`.
    - ``solver``: used where neither the caller nor the policy names one. Which of many optimal
      allocations is found depends on it: Gavel's interior-point solver gives the middle of the optimal
      face, a simplex solver one of its corners.
    """

    round_seconds: float = 360.0
    first_round: float = 0.0
    progress: Progress = "exact"
    round_end: RoundEnd = "fixed"
    phase_change: PhaseChange = "next_round"
    solve_interval: float = 0.0
    selector: str = "priorities"
    selector_options: Mapping[str, Any] = field(default_factory=dict)
    placement: str = "consolidated"
    placement_options: Mapping[str, Any] = field(default_factory=dict)
    host_allocation: str | None = None
    host_allocation_options: Mapping[str, Any] = field(default_factory=dict)
    sensitivity: str = "synergy"
    restart_cost: float | None = None
    start_cost: float = 0.0
    placement_slowdown: bool = False
    placement_retries: int = 3
    round_budget: float | None = None
    every_gpu_count_up_to: int = EVERY_COUNT_UP_TO
    incremental: bool = True
    solver: str = "auto"

    def __post_init__(self) -> None:
        def fail(name: str, wanted: str) -> None:
            raise ConfigError(f"simulation option {name} is {getattr(self, name)!r}: it must be {wanted}")

        if not is_finite_number(self.round_seconds) or not self.round_seconds > 0:
            fail("round_seconds", "a finite number of seconds > 0")
        if not is_finite_number(self.first_round) or not self.first_round >= 0:
            fail("first_round", "a finite number of seconds >= 0")
        never = isinstance(self.solve_interval, float) and self.solve_interval == math.inf
        if not never and (not is_finite_number(self.solve_interval) or not self.solve_interval >= 0):
            fail("solve_interval", "a number of seconds >= 0")
        if self.restart_cost is not None and not (is_finite_number(self.restart_cost) and self.restart_cost >= 0):
            fail("restart_cost", "None or a finite number of seconds >= 0")
        if not is_finite_number(self.start_cost) or not self.start_cost >= 0:
            fail("start_cost", "a finite number of seconds >= 0")
        for name in ("placement_slowdown", "incremental"):
            if not isinstance(getattr(self, name), bool):
                fail(name, "True or False")
        for name, least in (("placement_retries", 0), ("every_gpu_count_up_to", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                fail(name, f"a whole number >= {least}")
        if self.round_budget is not None and not (is_finite_number(self.round_budget) and self.round_budget > 0):
            fail("round_budget", "None or a finite number of seconds > 0")
        if self.progress not in get_args(Progress):
            fail("progress", "exact, whole_seconds, whole_steps, whole_rounds or whole_steps_in_whole_rounds")
        if self.round_end not in ("fixed", "last_job", "next_event"):
            fail("round_end", "fixed, last_job or next_event")
        if self.phase_change not in get_args(PhaseChange):
            fail("phase_change", "next_round or round_after_next")
        if self.phase_change != "next_round" and self.progress in ("exact", "whole_seconds"):
            fail("phase_change", f"next_round with progress={self.progress!r}, which changes phases inside rounds")
        if self.round_end == "next_event" and self.progress != "exact":
            fail("progress", "exact with round_end='next_event': rounds end in the middle of a step")

    def with_(self, **changes: Any) -> SimulationOptions:
        """A copy with other values; raises :class:`UnknownNameError` for an option that does not exist."""
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in changes:
            if name not in known:
                raise UnknownNameError("simulation option", name, known)
        if changes.get("selector", self.selector) != self.selector and "selector_options" not in changes:
            changes["selector_options"] = {}
        if changes.get("placement", self.placement) != self.placement and "placement_options" not in changes:
            changes["placement_options"] = {}
        if changes.get("host_allocation", self.host_allocation) != self.host_allocation:
            changes.setdefault("host_allocation_options", {})
        return SimulationOptions(**{**known, **changes})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a result's configuration."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            **values,
            "selector_options": dict(self.selector_options),
            "placement_options": dict(self.placement_options),
            "host_allocation_options": dict(self.host_allocation_options),
        }


DEFAULT = SimulationOptions()
"""Rounds of 360 s, exact completion, a new plan whenever jobs or nodes change."""

GAVEL = SimulationOptions(
    progress="whole_steps",
    round_end="last_job",
    solve_interval=1920.0,
    selector_options={"type_order": ["v100", "p100", "k80"], "fill_each_type": True, "shuffle_seed": 5},
    placement="first_fit",
    placement_retries=0,
    restart_cost=0.0,
    solver="cvxpy:clarabel",
)
"""Gavel's simulator (OSDI 2020): whole steps, rounds end with their last job, plans at least 1920 s apart."""

BLOX = SimulationOptions(
    round_seconds=300.0,
    progress="whole_rounds",
    selector="ranking",
    selector_options={"starvation_seconds": 3_600_000.0},
    placement="blox_scattered",
    placement_retries=0,
    restart_cost=0.0,
)
"""Blox' simulator (EuroSys 2024): 300 s rounds, finishes at round ends, eviction from the end of the ranking."""

TIRESIAS = SimulationOptions(
    round_seconds=1e9,
    round_end="next_event",
    placement="first_fit",
    placement_retries=0,
    restart_cost=0.0,
)
"""Tiresias' simulator (NSDI 2019), its ``count`` scheme: decides at every event and only then; preemption is free."""

SYNERGY = SimulationOptions(
    round_seconds=300.0,
    first_round=1.0,
    progress="whole_steps_in_whole_rounds",
    placement="first_fit",
    placement_retries=0,
    host_allocation="tuned",
    host_allocation_options={"repack": True},
    restart_cost=0.0,
)
"""Synergy's simulator (OSDI 2022): every round is placed anew, whole steps, finishes at round ends.

Its static traces start at 1 s, when all their jobs are there. Its policies let jobs overtake: use backfill=True.
"""

POLLUX = SimulationOptions(
    round_seconds=60.0,
    first_round=60.0,
    progress="whole_seconds",
    placement="emptiest_first",
    placement_retries=0,
    restart_cost=30.0,
    start_cost=30.0,
    every_gpu_count_up_to=64,
)
"""Pollux' simulator (OSDI 2021): 60 s rounds, every start stalls 30 s, epochs end at whole seconds."""

SHOCKWAVE = SimulationOptions(
    round_seconds=120.0,
    progress="whole_steps",
    round_end="last_job",
    phase_change="round_after_next",
    solve_interval=1000.0,
    placement="first_fit",
    placement_retries=0,
    restart_cost=20.0,
    start_cost=20.0,
    solver="cvxpy:clarabel",
)
"""Shockwave's simulator (NSDI 2023), a descendant of Gavel's: 120 s rounds, every start costs 20 s, and a job that asks
for another batch size gets it after one more round; plans at least 1000 s apart."""

PRESETS = Registry(
    "preset",
    {
        "default": DEFAULT,
        "gavel": GAVEL,
        "blox": BLOX,
        "synergy": SYNERGY,
        "tiresias": TIRESIAS,
        "pollux": POLLUX,
        "shockwave": SHOCKWAVE,
    },
)


def preset_table() -> list[dict[str, Any]]:
    """Every preset with the options it sets."""
    return [{"name": name, **PRESETS.get(name).to_dict()} for name in PRESETS]
