"""Shockwave's objective: Nash welfare over a window of future rounds, planned anew as jobs come and go."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bloxopt.errors import FormulationError, InfeasibleError
from bloxopt.formulations.checks import checked_amount, shown
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.solving.packing import Packing
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import Outcome, Session, Solved
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.formulations.space import AllocationSpace
from bloxopt.formulations.systems.finish_time_targets import fair_share, finish_time_targets
from bloxopt.formulations.systems.predicted_work import PredictedWork, predict_work
from bloxopt.formulations.systems.window_program import WindowWelfare
from bloxopt.formulations.systems.window_rounds import rounds_of_window
from bloxopt.jobs import BoolArray, FloatArray, IntArray
from bloxopt.solvers.base import Termination

MOST_ROUNDS = 62
"""Rounds of a window: who runs in which is remembered in the bits of a whole number."""
_HIGHEST_WEIGHT = 1e6
"""A larger weight makes all others vanish within the accuracy of a solver; jobs that have one go first anyway."""
_LAST_ROUND_POWER = 100.0
"""Power of the finish-time ratio of jobs that need less than a round."""
_MEMORY = "nash_window"


@dataclass(frozen=True, eq=False)
class NashWelfareWindow(Objective):
    """Who runs in the coming round, by the welfare of a window of ``rounds`` rounds (Shockwave).

    The window maximises :class:`~bloxopt.formulations.systems.window_program.WindowWelfare` (``points``, ``origin``,
    ``makespan_weight`` per second). First every job is to keep its finish-time target:
    ``now + T·round + (remaining_j − v_j)⁺ / share ≤ largest_ratio · target_j``. Where not all can, those rows are
    dropped and a job whose ratio ``ρ_j = (now + remaining_j / share) / target_j`` exceeds ``largest_ratio`` weighs
    ``ρ_j ^ fairness_power`` instead of 1. Jobs that weigh most get the earlier rounds of the window. The plan holds
    until a job or GPUs come or go, for at most ``replan_rounds`` rounds.

    Its allocation is 0 or 1: those who run in this round. ``Allocation.objective`` and ``bound`` are those of the
    window. Constraint blocks must be upper limits; they hold in every round of the plan. Source: Zheng et al.,
    NSDI 2023 (Eisenberg-Gale over time), its implementation and default parameters.
    """

    rounds: int = 20
    makespan_weight: float = 1e-3
    fairness_power: float = 12.0
    largest_ratio: float = 1.0
    points: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    origin: float = 1e-6
    replan_rounds: int = 8
    progress_dependent = True
    decides_rounds = True
    curvature = "staged"

    def __post_init__(self) -> None:
        user = type(self).__name__
        for name in ("rounds", "replan_rounds"):
            value = getattr(self, name)
            whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
            if not whole or not 1 <= value <= MOST_ROUNDS:
                raise FormulationError(
                    f"{user}: {name} is {shown(value)}, must be a whole number from 1 to {MOST_ROUNDS}"
                )
        for name, lowest in (("makespan_weight", 0.0), ("fairness_power", 0.0), ("largest_ratio", 1e-3)):
            object.__setattr__(self, name, checked_amount(user, name, getattr(self, name), lowest))
        checked_amount(user, "origin", self.origin, lowest=1e-12, highest=1.0)
        points = np.asarray(self.points, dtype=np.float64) if _numbers(self.points) else np.zeros(0)
        ascending = len(points) >= 2 and bool((np.diff(points) > 0).all())
        if not ascending or points[0] != 0.0 or points[-1] != 1.0 or not self.origin < points[1]:
            raise FormulationError(
                f"{user}: points is {shown(self.points)}, must be numbers ascending from 0 to 1, the second above "
                f"origin ({self.origin:g})"
            )

    def solve(self, session: Session) -> Outcome:
        space = session.space
        memory = _Window(space, self.replan_rounds)
        program = None if memory.goes_on else self._plan(session, memory)
        x = memory.chosen().astype(np.float64)
        return Outcome(x, memory.value, memory.bound, memory.termination, program)

    def _plan(self, session: Session, memory: _Window) -> Program:
        """Solve a new window and remember it; the program that was solved."""
        space = session.space
        packing = _packing(session)
        work = predict_work(space)
        target = finish_time_targets(space, work, _MEMORY, renew=memory.jobs_changed)
        share = fair_share(space)
        length = self.rounds * space.round_seconds
        need = work.remaining - (self.largest_ratio * target - space.now - length) * share
        fair = space.now + length <= self.largest_ratio * target
        weight = np.where(space.runnable, space.weight, 0.0)
        welfare = self._welfare(space, work, weight)
        counted: tuple[Solved, IntArray] | None = None
        if (fair & (need <= np.minimum(length, welfare.most)))[space.runnable].all():
            with contextlib.suppress(InfeasibleError):
                counted = self._solve(session, welfare, need * space.runnable)
        if counted is None:
            weight = weight * self._urgency(space, work, target, share)
            welfare = self._welfare(space, work, weight)
            counted = self._solve(session, welfare, None)
        solved, whole = counted
        plan = self._rounds(space, packing, welfare, whole)
        value = welfare.value(space, plan.sum(axis=0).astype(np.float64))
        bound = np.inf if solved.utility_bound is None else max(solved.utility_bound, value)
        memory.keep(plan, value, bound, solved.result.termination)
        return solved.program

    def _rounds(self, space: AllocationSpace, packing: Packing, welfare: WindowWelfare, count: IntArray) -> BoolArray:
        """Who runs in each round, (rounds, num_columns): those that a round later costs most go first."""
        demand = (count * space.gpu_demand).astype(np.float64)
        urgency = welfare.weight / np.maximum(sum_by(space.job, demand, space.num_jobs), 1.0)
        idle_order = np.argsort(-welfare.remaining, kind="stable")
        return rounds_of_window(packing, count, urgency, idle_order, self.rounds)

    def _urgency(self, space: AllocationSpace, work: PredictedWork, target: FloatArray, share: float) -> FloatArray:
        """Factor of the weight of jobs that are going to miss their target."""
        ratio = (space.now + work.remaining / share) / target
        power = np.where(work.remaining < space.round_seconds, _LAST_ROUND_POWER, self.fairness_power)
        late = ratio > self.largest_ratio
        limit = np.log(_HIGHEST_WEIGHT)
        exponent = np.where(late, power * np.log(np.maximum(ratio, 1e-300)), 0.0)
        return np.asarray(np.exp(np.clip(exponent, -limit, limit)))

    def _welfare(self, space: AllocationSpace, work: PredictedWork, weight: FloatArray) -> WindowWelfare:
        # A job whose nodes are all down holds no other up.
        remaining = np.where(space.runnable, work.remaining, 0.0)
        return WindowWelfare(
            weight,
            np.minimum(work.done, 1.0),
            work.whole,
            remaining,
            work.rate,
            self.rounds,
            space.round_seconds,
            np.asarray(self.points, dtype=np.float64),
            self.origin,
            self.makespan_weight,
        )

    def _solve(self, session: Session, welfare: WindowWelfare, at_least: FloatArray | None) -> tuple[Solved, IntArray]:
        """The window with the most welfare, and the rounds that each column of the space has in it."""
        program = session.program()
        program.block = program.unique_family(type(self).__name__)
        row, count = welfare.add_to(program, at_least)
        solved = session.solve(program, row)
        assert solved.result.x is not None
        return solved, np.rint(solved.result.x[count]).astype(np.int64)


class _Window:
    """The plan of a window in the ledger's memory: who runs in which round, and which round this is."""

    def __init__(self, space: AllocationSpace, replan_rounds: int) -> None:
        self._space = space
        ledger, index = space.ledger, space.index
        self._round = ledger.memory(f"{_MEMORY}.round", -1)
        self._asked = ledger.memory(f"{_MEMORY}.asked_at", np.nan)
        self._jobs = ledger.memory(f"{_MEMORY}.jobs", 0)
        self._gpus = ledger.memory(f"{_MEMORY}.gpus", 0)
        self._length = ledger.memory(f"{_MEMORY}.length", 0)
        self._value = ledger.memory(f"{_MEMORY}.value", np.nan)
        self._bound = ledger.memory(f"{_MEMORY}.bound", np.nan)
        self._ending = ledger.memory(f"{_MEMORY}.optimal", False)
        current = self._round[index]
        self.jobs_changed = not (len(index) and (current >= 0).all() and (self._jobs[index] == len(index)).all())
        same = not self.jobs_changed and bool((self._gpus[index] == space.capacity.sum()).all())
        same = same and len(np.unique(current)) == 1
        if same and space.now > self._asked[index[0]]:
            self._round[index] += 1
            self._asked[index] = space.now
        self.goes_on = same and bool(self._round[index[0]] < min(self._length[index[0]], replan_rounds))

    @property
    def value(self) -> float:
        return float(self._value[self._space.index[0]])

    @property
    def bound(self) -> float | None:
        bound = float(self._bound[self._space.index[0]])
        return bound if np.isfinite(bound) else None

    @property
    def termination(self) -> Termination:
        return Termination.OPTIMAL if self._ending[self._space.index[0]] else Termination.FEASIBLE

    def keep(self, plan: BoolArray, value: float, bound: float, ending: Termination) -> None:
        """Remember a new window that begins with this round; ``plan`` is (rounds, num_columns)."""
        space, index = self._space, self._space.index
        bits = np.bitwise_or.reduce(plan.astype(np.int64) << np.arange(len(plan))[:, None], axis=0)
        for name, columns in self._kinds():
            schedule = space.ledger.memory(name, 0)
            schedule[index] = 0
            schedule[index[space.job[columns]]] = bits[columns]
        self._round[index], self._asked[index], self._jobs[index] = 0, space.now, len(index)
        self._gpus[index], self._length[index] = int(space.capacity.sum()), len(plan)
        self._value[index], self._bound[index], self._ending[index] = value, bound, ending is Termination.OPTIMAL

    def chosen(self) -> BoolArray:
        """Columns that run in the present round."""
        space = self._space
        chosen = np.zeros(space.num_columns, dtype=bool)
        current = int(self._round[space.index[0]])
        for name, columns in self._kinds():
            schedule = space.ledger.memory(name, 0)
            chosen[columns] = (schedule[space.index[space.job[columns]]] >> current) & 1 > 0
        return chosen

    def _kinds(self) -> list[tuple[str, IntArray]]:
        """Columns by GPU type, count and spread, of which a job has at most one each."""
        space = self._space
        keys: NDArray[np.int64] = np.column_stack([space.gpu_type, space.num_gpus, space.spread])
        distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        return [
            (f"{_MEMORY}.schedule {' '.join(map(str, key))}", (inverse.ravel() == code).nonzero()[0])
            for code, key in enumerate(distinct.tolist())
        ]


def _packing(session: Session) -> Packing:
    """The rows of one round; raises :class:`FormulationError` where they are not upper limits."""
    program = session.program()
    program.make_integer()
    packing = Packing.of(program)
    if packing is None or not packing.forced_fit:
        raise FormulationError(
            "NashWelfareWindow decides round by round, in which lower limits such as MinimumShare or Deadlines cannot "
            "hold: use constraints that are upper limits"
        )
    return packing


def _numbers(values: object) -> bool:
    return isinstance(values, (tuple, list)) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) for value in values
    )
