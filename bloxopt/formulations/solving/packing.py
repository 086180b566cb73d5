"""Programs in which less is always possible: filling them job by job is exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import BoolArray, FloatArray, IntArray

_ROUNDING = 1e-9
_BATCH = 64
"""Jobs placed between two looks at which columns still fit anywhere."""


@dataclass(frozen=True, eq=False)
class Packing:
    """Rows ``Σ a x ≤ b`` with a ≥ 0 over binary columns, some of which are forced to 1 or forbidden.

    ``start`` (columns + 1,), ``row`` and ``use`` are the entries by column; ``room`` (rows,) is b less what the
    forced columns take.
    """

    space: AllocationSpace
    start: IntArray
    row: IntArray
    use: FloatArray
    room: FloatArray
    forced: BoolArray
    allowed: BoolArray

    @classmethod
    def of(cls, program: Program) -> Packing | None:
        """The program as a packing, None if it has another kind of row or columns of its own."""
        space = program.space
        if program.num_columns != space.num_columns:
            return None
        form = program.compile_rows()
        rows = form.matrix.tocsr()
        count = np.diff(rows.indptr)
        single = count == 1
        lower, upper = form.lower.copy(), form.upper.copy()
        at = rows.indptr[:-1][single]
        column, scale = rows.indices[at], rows.data[at]
        if np.any(scale <= 0):
            return None
        np.maximum.at(lower, column, form.row_lower[single] / scale)
        np.minimum.at(upper, column, form.row_upper[single] / scale)
        others = ~single & (count > 0)
        if np.any(form.row_lower[others] > 0) or np.any(form.row_upper[others] < 0) or np.any(rows.data < 0):
            return None
        if np.any((form.row_lower[count == 0] > _ROUNDING) | (form.row_upper[count == 0] < -_ROUNDING)):
            return None
        forced = lower > _ROUNDING
        matrix = form.matrix
        room = form.row_upper - matrix @ forced.astype(np.float64)
        return cls(
            space,
            matrix.indptr.astype(np.int64),
            matrix.indices.astype(np.int64),
            matrix.data,
            room,
            forced,
            upper >= 1.0 - _ROUNDING,
        )

    @property
    def forced_fit(self) -> bool:
        """True if the forced columns are possible together."""
        fits = bool((self.room >= -_ROUNDING).all() and self.allowed[self.forced].all())
        return fits and bool((np.bincount(self.space.job[self.forced], minlength=1) <= 1).all())

    def fill(self, queue: IntArray, columns: IntArray, first: IntArray, *, backfill: bool) -> FloatArray:
        """Give each job of ``queue`` the first of its columns that fits; (num_columns,) of 0 and 1.

        Those of job i are ``columns[first[i]:first[i + 1]]``, best first.
        Without ``backfill`` the first job that does not fit ends it. Jobs with a forced column keep that.
        """
        x = self.forced.astype(np.float64)
        room = Room(self)
        served = np.bincount(self.space.job[self.forced], minlength=self.space.num_jobs) > 0
        waiting = queue[~served[queue]]
        while len(waiting):
            fitting = self._fitting(np.array(room.left))
            able = np.bincount(self.space.job[fitting], minlength=self.space.num_jobs) > 0
            if backfill:
                waiting = waiting[able[waiting]]
            placed = position = 0
            for job in waiting.tolist():
                position += 1
                candidates = columns[first[job] : first[job + 1]].tolist()
                column = next((column for column in candidates if fitting[column] and room.fits(column)), -1)
                if column >= 0:
                    x[column] = 1.0
                    room.take(column)
                    placed += 1
                elif not backfill:
                    return x
                if placed == _BATCH and backfill:
                    break
            waiting = waiting[position:]
        return x

    def _fitting(self, room: FloatArray) -> BoolArray:
        """Columns that fit into ``room`` on their own."""
        tight = self.use > room[self.row] + _ROUNDING
        owner = np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))
        blocked = np.bincount(owner[tight], minlength=len(self.start) - 1) > 0
        return self.allowed & ~blocked


class Room:
    """What is left of every row while columns are taken and given back, one at a time: plain lists are fastest."""

    def __init__(self, packing: Packing) -> None:
        self.left: list[float] = packing.room.tolist()
        self._start, self._row, self._use = packing.start.tolist(), packing.row.tolist(), packing.use.tolist()

    def fits(self, column: int) -> bool:
        left, row, use = self.left, self._row, self._use
        entries = range(self._start[column], self._start[column + 1])
        return all(use[entry] <= left[row[entry]] + _ROUNDING for entry in entries)

    def take(self, column: int) -> None:
        for entry in range(self._start[column], self._start[column + 1]):
            self.left[self._row[entry]] -= self._use[entry]

    def give_back(self, column: int) -> None:
        for entry in range(self._start[column], self._start[column + 1]):
            self.left[self._row[entry]] += self._use[entry]
