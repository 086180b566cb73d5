"""The ladder: an allocation by a deadline, from the first of several ways that gives a valid one."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from bloxopt.anytime.greedy import carried_over, greedy_shares
from bloxopt.errors import BloxoptError, CheckError, InfeasibleError, InputError, SolverError, UnboundedError
from bloxopt.formulations.allocation import CHECK_TOLERANCE, Allocation, violations_of
from bloxopt.formulations.constraints import Capacity, TimeShare
from bloxopt.formulations.constraints.base import name_blocks
from bloxopt.formulations.policy import Policy
from bloxopt.formulations.solving.resuming import Resolver
from bloxopt.formulations.solving.session import built_program
from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray
from bloxopt.selection.base import Plan
from bloxopt.solvers.base import Capabilities, Solver, SolverOptions, SolverResult, Start, Termination
from bloxopt.solvers.watchdog import GRACE_SECONDS, Watched

SOLVE_PART = 0.7
"""Part of the time left that a solve may take: building the program before it and placing after it share the rest."""

_WAIT_PART = 0.8
"""Part of the time left after which a solver is not waited for: few end the moment that they are told to."""

_LEAST_SOLVE = 0.002
"""Seconds below which a solver is not asked: building the program alone would take them."""

_NEVER = 1_000_000
"""Rounds of garbage after which everything is looked through while a round is decided."""

_SECOND_SOLVERS = ("highs", "cvxpy:clarabel")
"""Asked, the first that the failed one was not, when a solver failed with time left."""


class Rung(StrEnum):
    """How an allocation came about, best first."""

    SOLVED = "solved"
    """Proven optimal, or to the requested gap."""
    INCUMBENT = "incumbent"
    """The best that the solver had found when its time was up."""
    OTHER_SOLVER = "other_solver"
    """From a second solver, after the first one failed."""
    CARRIED_OVER = "carried_over"
    """The plan before, without what is gone, and filled up greedily."""
    GREEDY = "greedy"
    """No solver and no earlier plan."""


class Ladder:
    """Allocates by a deadline, whatever the solver does; one serves every round of a scheduler.

    ``budget`` is the seconds that a round may take from observing to applying. Solvers run ``watched``, in processes of
    their own. What each rung failed with is said in the message of the allocation. Raises
    :class:`~bloxopt.errors.InputError` for a budget that is not a number of seconds > 0.
    """

    def __init__(self, budget: float, watched: bool = True) -> None:
        if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0 < budget < np.inf:
            raise InputError(f"the budget of a round is {budget!r}: it must be a finite number of seconds > 0")
        self.budget = float(budget)
        self.watched = watched
        self._solvers: dict[object, Watched] = {}

    def start(self, solver: str | Solver, wait: float = 0.0) -> None:
        """Bring up the processes of a solver and of the second one, so that the first round need not wait for them.

        ``wait`` is for how many seconds at most each of the two is waited for.
        """
        if self.watched:
            self._watch(solver).start(wait=wait)
            self._watch(_second(solver)).start(spare=False, wait=wait)

    def solver(self, solver: str | Solver, seconds: float) -> Solver:
        """A solver for another part of the round, such as selection: watched, and waited for no longer than that."""
        return _Punctual(
            self._watch(solver), self._watch(_SECOND_SOLVERS[0]), time.monotonic() + seconds + GRACE_SECONDS
        )

    def __deepcopy__(self, memo: object) -> Ladder:
        return self  # copies of what uses it share its processes

    def close(self) -> None:
        """End the processes of its solvers."""
        while self._solvers:
            self._solvers.popitem()[1].close()

    def allocate(
        self,
        policy: Policy,
        space: AllocationSpace,
        previous: Plan | None = None,
        *,
        deadline: float | None = None,
        solver: str | Solver | None = None,
        options: SolverOptions | None = None,
        resume: Resolver | None = None,
    ) -> Allocation:
        """A valid allocation for ``space`` by ``deadline`` (``time.monotonic`` seconds; default: now plus the budget).

        Valid means that no GPU type is over capacity, no job over its time, and that every upper limit holds. Lower
        limits that a rung without a solver could not keep are named in the message. Only errors that no rung gets
        around are raised: blocks that cannot be built.
        """
        end = time.monotonic() + self.budget if deadline is None else deadline
        with collection_put_off():
            return self._allocate(policy, space, previous, end, solver, options, resume)

    def _allocate(
        self,
        policy: Policy,
        space: AllocationSpace,
        previous: Plan | None,
        end: float,
        solver: str | Solver | None,
        options: SolverOptions | None,
        resume: Resolver | None,
    ) -> Allocation:
        chosen = policy.solver if solver is None else solver
        limits = policy.options if options is None else options
        last_rungs = _LastRungs(policy, space, previous)
        failures: list[str] = []
        for rung, name in ((Rung.SOLVED, chosen), (Rung.OTHER_SOLVER, _second(chosen))):
            now = time.monotonic()
            left = (end - now) * SOLVE_PART
            if left <= _LEAST_SOLVE:
                failures.append(f"{rung}: no time left")
                break
            until = max(now + (end - now) * _WAIT_PART, min(now + left + GRACE_SECONDS, end))
            punctual = _Punctual(self._watch(name), self._watch(_SECOND_SOLVERS[0]), until, last_rungs.prepare)
            try:
                allocation = policy.allocate(space, punctual, replace(limits, time_limit=_within(left, limits)), resume)
            except (SolverError, CheckError, InfeasibleError, UnboundedError) as error:
                failures.append(f"{rung}: {error}")
                continue
            if rung is Rung.SOLVED and allocation.termination is not Termination.OPTIMAL:
                rung = Rung.INCUMBENT
            return replace(allocation, rung=str(rung), message=_message(allocation.message, failures))
        return last_rungs.allocation(failures)

    def _watch(self, solver: str | Solver) -> Watched:
        key = solver if isinstance(solver, str) else id(solver)
        if key not in self._solvers:
            self._solvers[key] = Watched(solver)
        return self._solvers[key]


@dataclass(frozen=True, eq=False)
class _Punctual:
    """A watched solver for one round: it is asked nothing after ``until``, and ``meanwhile`` is done while it works.

    ``other`` is asked for what this one cannot decide when it is about why there is no solution.
    """

    watched: Watched
    other: Watched
    until: float
    meanwhile: Callable[[], None] | None = None

    @property
    def name(self) -> str:
        return self.watched.name

    @property
    def capabilities(self) -> Capabilities:
        return self.watched.capabilities

    @property
    def deciding(self) -> Solver:
        return replace(self, watched=self.other)

    def solve(
        self,
        form: StandardForm,
        options: SolverOptions = SolverOptions(),
        warm_start: FloatArray | None = None,
        start: Start | None = None,
    ) -> SolverResult:
        return self.watched.solve(form, options, warm_start, start, until=self.until, meanwhile=self.meanwhile)


class _LastRungs:
    """The allocation that needs no solver: made while a solver works, so that it is at hand at the deadline."""

    def __init__(self, policy: Policy, space: AllocationSpace, previous: Plan | None) -> None:
        self._arguments = (policy, space, previous)
        self._made: Allocation | None = None

    def prepare(self) -> None:
        """Make it, unless it is made; what goes wrong shows when it is needed."""
        if self._made is None:
            with contextlib.suppress(Exception):
                self._made = _without_solver(*self._arguments)

    def allocation(self, failures: list[str]) -> Allocation:
        """It, with what the rungs before failed with."""
        made = _without_solver(*self._arguments) if self._made is None else self._made
        return replace(made, message=_message(made.message, failures))


@contextlib.contextmanager
def collection_put_off() -> Iterator[None]:
    """Garbage is not looked for everywhere within: that stops a large process for 100 ms and more.

    What is young is still looked through, lest there be much of it at the end.
    """
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _within(left: float, limits: SolverOptions) -> float:
    return left if limits.time_limit is None else min(left, limits.time_limit)


def _second(solver: str | Solver) -> str:
    return next(name for name in _SECOND_SOLVERS if name != solver)


def _message(own: str, failures: list[str]) -> str:
    return "; ".join([*failures, *([own] if own else [])])


def _without_solver(policy: Policy, space: AllocationSpace, previous: Plan | None) -> Allocation:
    """The plan before as far as it still holds, else the greedy; with the lower limits it breaks named."""
    if policy.pair_threshold is None:
        space = space.alone()
    named = name_blocks(policy.blocks)
    remarks: list[str] = []
    try:
        program = built_program(space, named)
    except BloxoptError as error:
        remarks.append(f"the blocks cannot be built: {error}")
        named = name_blocks([Capacity(), TimeShare()])
        program = built_program(space, named)
    rung, most = Rung.GREEDY, None
    if previous is not None and previous.share.any():
        rung, most = Rung.CARRIED_OVER, carried_over(space, previous)
    x = greedy_shares(policy, space, program, most)
    broken = {name: float(violations_of(name, block, space, x).max(initial=0.0)) for name, block in named.items()}
    unmet = [f"{name} by {amount:.3g}" for name, amount in broken.items() if amount > CHECK_TOLERANCE]
    if unmet:
        remarks.append(f"not kept: {', '.join(unmet)}")
    return Allocation(
        space=space,
        x=x,
        objective=_value(policy, space, x),
        bound=None,
        termination=Termination.FEASIBLE,
        solver="none",
        solve_seconds=0.0,
        build_seconds=0.0,
        num_solves=0,
        constraints=named,
        ranking=policy.rank(space),
        message=_message("", remarks),
        work_conserving=policy.work_conserving,
        rung=str(rung),
    )


def _value(policy: Policy, space: AllocationSpace, x: FloatArray) -> float:
    """What the objective is worth at ``x``, NaN where only a solver knows."""
    try:
        utility = policy.objective.utility(space, x) if space.num_columns else 0.0
    except BloxoptError:
        utility = None
    return float("nan") if utility is None else (-utility if policy.objective.minimised else utility) + 0.0
