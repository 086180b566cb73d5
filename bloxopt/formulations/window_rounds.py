"""From counts of rounds to rounds: which jobs run in each round of a window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bloxopt.formulations.packing import Packing
from bloxopt.formulations.sums import sum_by
from bloxopt.jobs import BoolArray, FloatArray, IntArray


def rounds_of_window(
    packing: Packing, count: IntArray, urgency: FloatArray, idle_order: IntArray, rounds: int
) -> BoolArray:
    """Columns that run in each of ``rounds`` rounds, (rounds, num_columns).

    ``count`` (num_columns,) rounds that each column is to have, ``urgency`` (num_jobs,) what a round later costs.
    Round by round, jobs that need every round that is left go first, then by urgency, each if it still fits
    (``packing`` has the rows of one round). Where that leaves GPUs idle although a gang waits that is too large for
    them, the gang goes before others. What is then left over goes to other jobs in ``idle_order``, on their fastest
    columns. As long as the rounds can be filled so, every column gets its count.
    """
    space = packing.space
    left = count.astype(np.int64).copy()
    plan = np.zeros((rounds, space.num_columns), dtype=bool)
    by_job = np.concatenate([[0], np.cumsum(np.bincount(space.job, minlength=space.num_jobs))])
    fastest = np.lexsort((space.num_gpus, -space.rate, space.job))
    for current in range(rounds):
        owed = sum_by(space.job, left.astype(np.float64), space.num_jobs)
        pressing = owed >= rounds - current
        queue = np.lexsort((-owed, -urgency, ~pressing))
        planned = np.lexsort((-left, space.job))
        first = replace(packing, allowed=packing.allowed & (left > 0))
        chosen = _fullest(first, queue[owed[queue] > 0], int(pressing.sum()), planned, by_job)
        room = packing.room - _taken(packing, chosen - packing.forced)
        rest = replace(packing, room=room, forced=chosen > 0.5)
        chosen = rest.fill(idle_order, fastest, by_job, backfill=True)
        plan[current] = chosen > 0.5
        left = np.maximum(left - plan[current], 0)
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


_MOST_MOVES = 8
"""Jobs that are tried further in front where a round is not full."""
_ROUNDING = 1e-9


def _taken(packing: Packing, x: FloatArray) -> FloatArray:
    """What ``x`` takes of each row."""
    owner = np.repeat(np.arange(len(packing.start) - 1), np.diff(packing.start))
    return sum_by(packing.row, packing.use * x[owner], len(packing.room))
