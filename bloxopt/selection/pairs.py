"""Choosing pairs: columns name the kind of the partner, a round needs the partner itself."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import BoolArray, IntArray

if TYPE_CHECKING:
    from bloxopt.formulations.round_limits import RoundLimits
    from bloxopt.selection.base import Plan

_ROUNDING = 1e-6


def fill_with_pairs(
    columns: IntArray,
    plan: Plan,
    kind: IntArray,
    waiting: BoolArray,
    capacity: float,
    limits: RoundLimits | None,
) -> tuple[list[int], list[int], float]:
    """Columns of one GPU type in order of urgency, each taken if it still fits; a pair takes both of its jobs.

    A column beside a partner takes the most urgent column of a waiting job of that kind beside one of its own. ``kind``
    (columns of the plan,) of each column's job, ``waiting`` (jobs of the table,) is brought up to date. Returns
    the columns taken, the row of the partner of each (-1 for none) and what is left of ``capacity``.
    """
    row, beside = plan.row[columns].tolist(), plan.partner[columns].tolist()
    own, gpus, demand = kind[columns].tolist(), plan.num_gpus[columns].tolist(), plan.gpu_demand[columns].tolist()
    gpu_type = int(plan.gpu_type[columns[0]]) if len(columns) else -1
    sides: dict[tuple[int, int], list[int]] = defaultdict(list)
    for position in range(len(row) - 1, -1, -1):
        if beside[position] >= 0:
            sides[own[position], beside[position]].append(position)
    taken: list[int] = []
    partner: list[int] = []
    for position, job in enumerate(row):
        if capacity <= _ROUNDING:
            break
        if not waiting[job]:
            continue
        if beside[position] < 0:
            size = demand[position]
            if size <= capacity + _ROUNDING and (limits is None or limits.admit(job, gpu_type, gpus[position])):
                capacity -= size
                waiting[job] = False
                taken.append(position)
                partner.append(-1)
            continue
        size = gpus[position]
        if size > capacity + _ROUNDING:
            continue
        other = _first_waiting(sides[beside[position], own[position]], row, waiting, job)
        if other < 0:
            continue
        half = [(job, gpu_type, size, beside[position]), (row[other], gpu_type, size, own[position])]
        if limits is None or limits.admit_all(half):
            capacity -= size
            waiting[[job, row[other]]] = False
            taken += [position, other]
            partner += [row[other], job]
    return columns[taken].tolist(), partner, capacity


def _first_waiting(queue: list[int], row: list[int], waiting: BoolArray, job: int) -> int:
    """The last entry of ``queue`` whose job waits and is not ``job``, -1 for none; it drops those that do not wait."""
    while queue and not waiting[row[queue[-1]]]:
        queue.pop()
    for position in reversed(queue):
        if row[position] != job and waiting[row[position]]:
            return position
    return -1


def partners(space: AllocationSpace, columns: IntArray) -> IntArray:
    """Row of the partner of each of the chosen ``columns``, -1 for those without one, (columns,).

    Of every kind beside another there must be as many as the other way round, and of a kind beside itself an even
    number.
    """
    found = np.full(len(columns), -1)
    pairing = space.catalog.pairing
    if pairing is None:
        return found
    row = space.index[space.job[columns]]
    own, beside, gpu_type = pairing.kind[row], space.partner[columns], space.gpu_type[columns]
    sides: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for position in (beside >= 0).nonzero()[0].tolist():
        queue = sides[int(beside[position]), int(own[position]), int(gpu_type[position])]
        if queue:
            other = queue.pop()
            found[position], found[other] = row[other], row[position]
        else:
            sides[int(own[position]), int(beside[position]), int(gpu_type[position])].append(position)
    return found
