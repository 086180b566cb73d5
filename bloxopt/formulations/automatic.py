"""A policy that chooses among policies: by the load it sees, or by simulating each of them forward."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.allocation import Allocation
from bloxopt.formulations.checks import finite_number, shown
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.policy import Policy
from bloxopt.formulations.round_limits import RoundLimits
from bloxopt.formulations.solving.resuming import Resolver
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import IntArray
from bloxopt.solvers.base import Solver, SolverOptions

_CHOICE, _CHOSEN_AT = "automatic.choice", "automatic.chosen_at"
"""Notes of the ledger: the number of the policy in force, and when it was chosen (s)."""


class ChoiceRule(Protocol):
    """Chooses one of several policies for the present state."""

    def choose(self, space: AllocationSpace, candidates: Sequence[Policy], present: int | None) -> int:
        """The number of the policy to use; ``present`` is the one in force, None at the beginning."""
        ...


@dataclass(frozen=True)
class ByLoad:
    """The k-th policy while the load is up to the k-th limit, the last one beyond them all.

    The load is the GPUs that the active jobs ask for over those that are up. ``limits`` ascend, one fewer than the
    policies. Once chosen, a policy stays until the load is ``hysteresis`` (a part of the limit) beyond it.
    """

    limits: Sequence[float]
    hysteresis: float = 0.1

    def __post_init__(self) -> None:
        limits = tuple(finite_number("ByLoad: a limit", limit) for limit in self.limits)
        if any(limit <= 0 for limit in limits) or any(b <= a for a, b in pairwise(limits)):
            raise FormulationError(f"ByLoad: limits are {list(limits)}, must be greater than 0 and ascend")
        object.__setattr__(self, "limits", limits)
        if not 0 <= finite_number("ByLoad: hysteresis", self.hysteresis) < 1:
            raise FormulationError(f"ByLoad: hysteresis is {self.hysteresis!r}, must be from 0 to below 1")

    def choose(self, space: AllocationSpace, candidates: Sequence[Policy], present: int | None) -> int:
        if len(self.limits) != len(candidates) - 1:
            raise FormulationError(
                f"ByLoad: {len(self.limits)} limits for {len(candidates)} policies: give one limit fewer than policies"
            )
        load = load_of(space)
        if present is not None:
            low = -math.inf if present == 0 else self.limits[present - 1] * (1.0 - self.hysteresis)
            high = math.inf if present == len(self.limits) else self.limits[present] * (1.0 + self.hysteresis)
            if low < load <= high:
                return present
        return int(np.searchsorted(self.limits, load))


@dataclass(frozen=True)
class BySimulation:
    """The policy under which the jobs at hand would fare best, found by simulating each of them forward.

    Every ``interval`` seconds each candidate is simulated from the present state for ``horizon`` seconds without
    further arrivals; the one with the smallest ``metric`` is used, ties going to the one in force, then to the first.
    Source: the automatic synthesis of policies in Blox (EuroSys 2024, section 5).
    """

    horizon: float = 86_400.0
    interval: float = 3_600.0
    metric: Literal["average_jct", "makespan"] = "average_jct"

    def __post_init__(self) -> None:
        for name in ("horizon", "interval"):
            if not finite_number(f"BySimulation: {name}", getattr(self, name)) > 0:
                raise FormulationError(
                    f"BySimulation: {name} is {getattr(self, name)!r}, must be a number of seconds > 0"
                )
        if self.metric not in ("average_jct", "makespan"):
            raise FormulationError(f"BySimulation: metric is {self.metric!r}, must be 'average_jct' or 'makespan'")

    def choose(self, space: AllocationSpace, candidates: Sequence[Policy], present: int | None) -> int:
        notes = space.ledger.notes
        if present is not None and space.now - notes.get(_CHOSEN_AT, -math.inf) < self.interval:
            return present
        notes[_CHOSEN_AT] = space.now
        from bloxopt.simulation.forward import look_ahead

        values = []
        for candidate in candidates:
            outlook = look_ahead(space, candidate, horizon=self.horizon)
            jct = outlook.average_jct(space.arrival)
            values.append(jct if self.metric == "average_jct" else outlook.makespan(space.now))
        best = int(np.argmin(values))
        # A difference that rounding explains is no reason to change what runs.
        return present if present is not None and values[present] <= values[best] * (1.0 + 1e-9) else best


def load_of(space: AllocationSpace) -> float:
    """GPUs that the active jobs ask for over the GPUs that are up; inf if none is up while some are asked for."""
    asked, up = float(space.requested_demand.sum()), float(space.capacity.sum())
    return asked / up if up else (math.inf if asked else 0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class AutomaticPolicy(Policy):
    """One of several policies, chosen by a rule whenever an allocation is made; what was chosen is kept in the ledger.

    Everything else is that of the policy in force. Raises :class:`FormulationError` for candidates that are not
    policies, or fewer than two.
    """

    candidates: Sequence[Policy]
    rule: ChoiceRule
    objective: Objective = field(init=False)

    def __post_init__(self) -> None:
        given = self.candidates
        if not isinstance(given, Iterable) or isinstance(given, str):
            raise FormulationError(f"policy {self.name!r}: candidates is {shown(given)}, must be a list of policies")
        chosen = tuple(given)
        for candidate in chosen:
            if not isinstance(candidate, Policy):
                raise FormulationError(f"policy {self.name!r}: candidate {shown(candidate)} is not a Policy")
            if isinstance(candidate, AutomaticPolicy):
                raise FormulationError(
                    f"policy {self.name!r}: candidate {candidate.name!r} chooses among policies itself: name those"
                )
        if len(chosen) < 2:
            raise FormulationError(f"policy {self.name!r}: needs at least two candidates, has {len(chosen)}")
        if not hasattr(self.rule, "choose"):
            raise FormulationError(
                f"policy {self.name!r}: rule is {shown(self.rule)}, must be ByLoad(...), BySimulation(...) or have a "
                "method choose(space, candidates, present)"
            )
        object.__setattr__(self, "candidates", chosen)
        object.__setattr__(self, "objective", chosen[0].objective)
        super().__post_init__()

    def chosen(self, space: AllocationSpace) -> Policy:
        """The policy in force, choosing one if none is yet."""
        present = space.ledger.notes.get(_CHOICE)
        return self.candidates[self._choose(space, None) if present is None else int(present)]

    def _choose(self, space: AllocationSpace, present: int | None) -> int:
        choice: object = self.rule.choose(space, self.candidates, present)
        if not isinstance(choice, (int, np.integer)) or not 0 <= choice < len(self.candidates):
            raise FormulationError(
                f"policy {self.name!r}: the rule chose {shown(choice)}, must be a number from 0 to "
                f"{len(self.candidates) - 1}"
            )
        space.ledger.notes[_CHOICE] = float(choice)
        return int(choice)

    @property
    def progress_dependent(self) -> bool:
        """True: the load and what is best to do change as jobs progress."""
        return True

    @property
    def unserved(self) -> str:
        return next((candidate.unserved for candidate in self.candidates if candidate.unserved), "")

    @property
    def uses_spread(self) -> bool:
        return any(candidate.uses_spread for candidate in self.candidates)

    @property
    def pair_threshold(self) -> float | None:
        thresholds = [candidate.pair_threshold for candidate in self.candidates]
        return min((threshold for threshold in thresholds if threshold is not None), default=None)

    def round_limits(self, space: AllocationSpace) -> RoundLimits | None:
        return self.chosen(space).round_limits(space)

    def rank(self, space: AllocationSpace) -> IntArray | None:
        present = space.ledger.notes.get(_CHOICE)
        return self.candidates[self._choose(space, None if present is None else int(present))].rank(space)

    def allocate(
        self,
        space: AllocationSpace,
        solver: str | Solver | None = None,
        options: SolverOptions | None = None,
        resume: Resolver | None = None,
    ) -> Allocation:
        """The allocation of the policy that the rule chooses for ``space``."""
        present = space.ledger.notes.get(_CHOICE)
        choice = self._choose(space, None if present is None else int(present))
        return self.candidates[choice].allocate(space, solver, options, resume)
