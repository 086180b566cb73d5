"""From counts of rounds to rounds: which jobs run in each round of a window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bloxopt.formulations.solving.packing import Packing
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.jobs import BoolArray, FloatArray, IntArray

_MOST_MOVES = 8
"""Jobs that are tried further in front where a round is not full."""
_ROUNDING = 1e-9


def rounds_of_window(
    packing: Packing, count: IntArray, urgency: FloatArray, idle_order: IntArray, rounds: int
) -> BoolArray:
    """Columns that run in each of ``rounds`` rounds, (rounds, num_columns).

    ``count`` (num_columns,) rounds that each column is to have, ``urgency`` (num_jobs,) what a round later costs.
    Round by round, jobs that need every round that is left go first, then by urgency, each if it still fits
    (``packing`` has the rows of one round). Where that leaves GPUs idle although a gang waits that is too large for
    them, the gang goes before others; a round that a job is short of in the end is made by moving jobs no larger to
    other rounds. What is then left over goes to other jobs in ``idle_order``, on their fastest columns. As long
    as the rounds can be filled so, every column gets its count.
    """
    space = packing.space
    left = count.astype(np.int64).copy()
    plan = np.zeros((rounds, space.num_columns), dtype=bool)
    by_job = np.concatenate([[0], np.cumsum(np.bincount(space.job, minlength=space.num_jobs))])
    for current in range(rounds):
        owed = sum_by(space.job, left.astype(np.float64), space.num_jobs)
        pressing = owed >= rounds - current
        queue = np.lexsort((-owed, -urgency, ~pressing))
        planned = np.lexsort((-left, space.job))
        open_columns = replace(packing, allowed=packing.allowed & (left > 0))
        chosen = _fullest(open_columns, queue[owed[queue] > 0], int(pressing.sum()), planned, by_job)
        plan[current] = chosen > 0.5
        left = np.maximum(left - plan[current], 0)
    if left.any():
        _Rooms(packing, plan).make_up(left, urgency)
    fastest = np.lexsort((space.num_gpus, -space.rate, space.job))
    for current in range(rounds):
        room = packing.room - _taken(packing, plan[current] & ~packing.forced)
        rest = replace(packing, room=room, forced=plan[current] | packing.forced)
        plan[current] = rest.fill(idle_order, fastest, by_job, backfill=True) > 0.5
    return plan


def _fullest(packing: Packing, queue: IntArray, pressing: int, columns: IntArray, by_job: IntArray) -> FloatArray:
    """Jobs of the queue that fill a round; one that does not fit may move up, behind the first ``pressing`` ones."""
    space = packing.space
    capacity = float(space.capacity.sum())
    chosen = packing.fill(queue, columns, by_job, backfill=True)
    used = float(space.gpu_demand @ chosen)
    served = sum_by(space.job, chosen, space.num_jobs) > 0
    for late in queue[pressing:][~served[queue[pressing:]]][:_MOST_MOVES].tolist():
        if used >= capacity - _ROUNDING:
            break
        others = queue[pressing:]
        moved = np.concatenate([queue[:pressing], [late], others[others != late]])
        other = packing.fill(moved, columns, by_job, backfill=True)
        if float(space.gpu_demand @ other) > used + _ROUNDING:
            queue, chosen, used = moved, other, float(space.gpu_demand @ other)
    return chosen


class _Rooms:
    """The rounds of a plan with what is free in each, to move jobs between them."""

    def __init__(self, packing: Packing, plan: BoolArray) -> None:
        self._packing = packing
        self._plan = plan
        self._room = np.array([packing.room - _taken(packing, row & ~packing.forced) for row in plan])

    def make_up(self, left: IntArray, urgency: FloatArray) -> None:
        """Give columns rounds that they are short of, ``left`` (num_columns,), where moving others makes room."""
        space = self._packing.space
        short = np.flatnonzero(left)
        for column in short[np.argsort(-urgency[space.job[short]], kind="stable")].tolist():
            for _ in range(int(left[column])):
                if not any(self._squeeze(column, current) for current in range(len(self._plan))):
                    break

    def _squeeze(self, column: int, current: int) -> bool:
        """Run ``column`` in a round by moving jobs no larger out of it; False, and nothing changed, if impossible."""
        space = self._packing.space
        if self._runs(column, current):
            return False
        before, room = self._plan.copy(), self._room.copy()
        mine = np.flatnonzero(self._plan[current] & ~self._packing.forced)
        mine = mine[
            (space.gpu_demand[mine] <= space.gpu_demand[column]) & (space.gpu_type[mine] == space.gpu_type[column])
        ]
        for other in mine[np.argsort(space.gpu_demand[mine], kind="stable")].tolist():
            if self._fits(column, current):
                break
            for elsewhere in range(len(self._plan)):
                if elsewhere != current and not self._runs(other, elsewhere) and self._fits(other, elsewhere):
                    self._put(other, current, -1)
                    self._put(other, elsewhere, 1)
                    break
        if self._fits(column, current):
            self._put(column, current, 1)
            return True
        self._plan[...], self._room[...] = before, room
        return False

    def _runs(self, column: int, current: int) -> bool:
        """Whether the job of a column runs in a round, on whatever column."""
        job = self._packing.space.job
        return bool(self._plan[current, job == job[column]].any())

    def _fits(self, column: int, current: int) -> bool:
        entries = slice(self._packing.start[column], self._packing.start[column + 1])
        free = self._room[current, self._packing.row[entries]]
        return bool(self._packing.allowed[column] and (self._packing.use[entries] <= free + _ROUNDING).all())

    def _put(self, column: int, current: int, times: int) -> None:
        """Add (1) or remove (-1) a column of a round."""
        entries = slice(self._packing.start[column], self._packing.start[column + 1])
        np.subtract.at(self._room[current], self._packing.row[entries], times * self._packing.use[entries])
        self._plan[current, column] = times > 0


def _taken(packing: Packing, x: BoolArray) -> FloatArray:
    """What the columns ``x`` take of each row."""
    owner = np.repeat(np.arange(len(packing.start) - 1), np.diff(packing.start))
    return sum_by(packing.row, packing.use * x[owner], len(packing.room))
