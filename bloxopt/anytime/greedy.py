"""Allocations without a solver: columns are filled one by one while every row still holds."""

from __future__ import annotations

import numpy as np

from bloxopt.formulations.policy import Policy
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray
from bloxopt.selection.base import Plan

_NOTHING = 1e-9
"""Shares this small are not worth giving out."""


def greedy_shares(
    policy: Policy, space: AllocationSpace, program: Program, most: FloatArray | None = None
) -> FloatArray:
    """Time shares that keep every upper limit of ``program``, and as many of its lower limits as come easily.

    Jobs are served in the policy's own order or, where it has none, those that have received least for their weight
    first; each gets what it runs on now, else what it asks for, fastest type first. Rows that are unmet at first
    (lower limits) are served before all else. ``most`` (num_columns,) is given out before anything beyond it is.
    Deterministic; always gives an answer.
    """
    form = program.compile_rows()
    order = _columns_in_order(policy, space)
    filling = _Filling(form, space.num_columns)
    filling.serve(order, needs_only=True)
    if most is not None:
        filling.serve(order, most)
    filling.serve(order)
    return np.array(filling.x[: space.num_columns])


def carried_over(space: AllocationSpace, plan: Plan) -> FloatArray:
    """The shares of an earlier plan for the columns that ``space`` still has, 0 for the others, (num_columns,)."""
    at = plan.position(space.index[space.job], space.gpu_type, space.num_gpus, space.partner)
    share = np.where(at >= 0, plan.share[at], 0.0) if len(plan.share) else np.zeros(space.num_columns)
    # A plan keeps one share for the columns that differ in spread alone: the consolidated one takes it.
    share[space.has_twin & (space.spread == 1)] = 0.0
    return share


def _columns_in_order(policy: Policy, space: AllocationSpace) -> IntArray:
    place = np.empty(space.num_jobs, dtype=np.int64)
    rank = policy.rank(space)
    if rank is None:
        served = space.attained_service / (space.weight * np.maximum(space.requested_demand, 1e-3))
        rank = np.argsort(served, kind="stable")
    place[rank] = np.arange(space.num_jobs)
    other_size = space.num_gpus != space.requested_gpus[space.job]
    return np.lexsort((-space.rate, other_size, ~space.is_current, place[space.job]))


class _Filling:
    """Column values that only grow, each as far as no row that holds is broken.

    Plain lists: columns are looked at one by one, which NumPy makes slow.
    """

    def __init__(self, form: StandardForm, own: int) -> None:
        matrix = form.matrix
        self.x: list[float] = np.clip(0.0, form.lower, form.upper).tolist()
        activity: FloatArray = matrix @ np.array(self.x) if form.num_columns else np.zeros(form.num_rows)
        self._room: list[float] = (form.row_upper - activity).tolist()
        self._need: list[float] = (form.row_lower - activity).tolist()
        self._start: list[int] = matrix.indptr.tolist()
        self._row: list[int] = matrix.indices.tolist()
        self._value: list[float] = matrix.data.tolist()
        self._integer: list[bool] = form.integer[:own].tolist()
        self._upper: list[float] = form.upper[:own].tolist()

    def serve(self, order: IntArray, most: FloatArray | None = None, needs_only: bool = False) -> None:
        """Raise columns in turn up to ``most``; with ``needs_only`` just as far as unmet rows need them."""
        limit = self._upper if most is None else np.minimum(most, self._upper).tolist()
        x, room, need = self.x, self._room, self._need
        for column in order.tolist():
            step = limit[column] - x[column]
            if step <= _NOTHING:
                continue
            entries = range(self._start[column], self._start[column + 1])
            wanted = 0.0
            for k in entries:
                row, value = self._row[k], self._value[k]
                if value > 0:
                    step = min(step, room[row] / value)
                    if need[row] > _NOTHING:
                        wanted = max(wanted, need[row] / value)
                elif value < 0:
                    step = min(step, 0.0 if need[row] > 0 else need[row] / value)
                if step <= _NOTHING:
                    break
            if step <= _NOTHING:
                continue
            if self._integer[column]:
                if step < 1.0 - _NOTHING or (needs_only and wanted <= 0):
                    continue
                step = 1.0 - x[column]
            elif needs_only:
                step = min(step, wanted)
                if step <= _NOTHING:
                    continue
            x[column] += step
            for k in entries:
                room[self._row[k]] -= step * self._value[k]
                need[self._row[k]] -= step * self._value[k]
