"""Elastic GPUs one after the other to the job that they help most (Optimus)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.solving.packing import Packing, Room
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import Outcome, Session
from bloxopt.formulations.space import AllocationSpace
from bloxopt.formulations.systems.remaining_estimates import (
    AtPresentRate,
    RemainingEstimate,
    check_estimate,
    seconds_left,
)
from bloxopt.jobs import BoolArray, FloatArray, IntArray
from bloxopt.solvers.base import Termination


@dataclass(frozen=True, eq=False)
class MarginalGain(Objective):
    """Make the remaining time of all jobs together small, one step up of one job at a time.

    Every job first gets its smallest gang (those with the smallest first, then in order of admission, on the GPU type
    on which it takes least). Then the job moves to its next larger gang on its GPU type whose remaining time that
    shortens most per GPU, until no GPUs are left or none helps. The same as the optimum (:class:`LeastRemainingTime`)
    on one GPU type where rates are concave in the number of GPUs, every number is possible and all smallest gangs fit.

    Jobs that cannot have their smallest gang are left out, and not counted in the reported value (s). Needs constraint
    blocks that are upper limits. Source: Peng et al., Optimus, EuroSys 2018, §4.1.
    """

    estimate: RemainingEstimate = field(default_factory=AtPresentRate)
    curvature = "staged"
    minimised = True
    progress_dependent = True

    def __post_init__(self) -> None:
        check_estimate(self.estimate, "MarginalGain")

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        return total_seconds(seconds_left(self.estimate, space), x)

    def solve(self, session: Session) -> Outcome:
        program = session.program()
        program.make_integer()
        seconds = seconds_left(self.estimate, session.space)
        x = climb(program, seconds)
        if x is None:
            raise FormulationError(
                "MarginalGain takes GPUs step by step, for which all constraint blocks must be upper limits: drop "
                "lower limits such as MinimumShare, or use LeastRemainingTime (optimus with method='program')"
            )
        return Outcome(x, total_seconds(seconds, x), None, Termination.FEASIBLE)


def climb(program: Program, seconds: FloatArray) -> FloatArray | None:
    """The allocation of 0 and 1 that marginal gains lead to, (num_columns,); None where rows are no upper limits."""
    packing = Packing.of(program)
    if packing is None or not packing.forced_fit:
        return None
    return _Climb(program.space, packing, seconds).climb()


def total_seconds(seconds: FloatArray, x: FloatArray) -> float:
    """Minus the seconds that jobs take on the columns they have."""
    used = x > 0
    return -float(seconds[used] @ x[used])


class _Climb:
    """The state of the search: ``held`` is the rung of each job, -1 for none.

    ``column`` (rungs,) are the columns that can be used, one a GPU count, those of a job and GPU type together and by
    size; ``gain`` seconds saved per GPU by going on to the next rung, 0 on the last.
    """

    def __init__(self, space: AllocationSpace, packing: Packing, seconds: FloatArray) -> None:
        self.space, self.seconds = space, seconds
        self.forced: BoolArray = packing.forced
        kept = np.bincount(space.job[self.forced], minlength=space.num_jobs) > 0
        usable = (packing.allowed & np.isfinite(seconds) & ~kept[space.job]).nonzero()[0]
        job, kind, gpus = space.job[usable], space.gpu_type[usable], space.num_gpus[usable]
        order = np.lexsort((seconds[usable], gpus, kind, job))
        key = np.column_stack([job, kind, gpus])[order]
        first = np.ones(len(key), dtype=bool)
        first[1:] = (key[1:] != key[:-1]).any(axis=1)
        self.column: IntArray = usable[order][first]
        self.key: IntArray = key[first]
        self.gain = np.zeros(len(self.column))
        same = (self.key[1:, :2] == self.key[:-1, :2]).all(axis=1)
        saved = -np.diff(seconds[self.column]) / np.maximum(np.diff(self.key[:, 2]), 1)
        self.gain[:-1] = np.where(same, saved, 0.0)
        self.room = Room(packing)

    def climb(self) -> FloatArray:
        """Time shares of 0 and 1, (num_columns,)."""
        held = self._smallest_gangs()
        gain, column, job = self.gain.tolist(), self.column.tolist(), self.key[:, 0].tolist()
        heap = [(-gain[rung], job[rung], rung) for rung in held if gain[rung] > 0]
        heapq.heapify(heap)
        last = dict(zip((job[rung] for rung in held), held, strict=True))
        while heap:
            _, owner, rung = heapq.heappop(heap)
            self.room.give_back(column[rung])
            if not self.room.fits(column[rung + 1]):
                self.room.take(column[rung])
                continue
            self.room.take(column[rung + 1])
            last[owner] = rung + 1
            if gain[rung + 1] > 0:
                heapq.heappush(heap, (-gain[rung + 1], owner, rung + 1))
        x = self.forced.astype(np.float64)
        x[self.column[list(last.values())]] = 1.0
        return x

    def _smallest_gangs(self) -> list[int]:
        """The rungs on which jobs begin."""
        begins = np.ones(len(self.column), dtype=bool)
        begins[1:] = (self.key[1:, :2] != self.key[:-1, :2]).any(axis=1)
        rungs = begins.nonzero()[0]
        job, gpus = self.key[rungs, 0], self.key[rungs, 2]
        least = np.full(self.space.num_jobs, np.iinfo(np.int64).max)
        np.minimum.at(least, job, gpus)
        order = np.lexsort((self.seconds[self.column[rungs]], job, least[job]))
        served: set[int] = set()
        held = []
        for rung, owner in zip(rungs[order].tolist(), job[order].tolist(), strict=True):
            column = int(self.column[rung])
            if owner not in served and self.room.fits(column):
                self.room.take(column)
                served.add(owner)
                held.append(rung)
        return held
