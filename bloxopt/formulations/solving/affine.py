"""Values that a program can bound: affine rows ``A x + b`` over its columns, and their reciprocals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.jobs import BoolArray, FloatArray, IntArray

Labels = Callable[[], Sequence[str]]
"""Names of rows, worked out only when a person asks for them."""


@dataclass(frozen=True, eq=False)
class Affine:
    """Rows ``v_r = Σ_k value_k x[column_k] + constant_r`` (k with ``row_k`` = r).

    ``row``, ``column``, ``value`` are the entries, in any order, repeated positions add up. ``constant``
    (rows,) also gives the number of rows. ``counted`` (rows,) marks the rows that a minimum or maximum
    runs over, None for all: jobs without a column take no part in this program.
    """

    row: IntArray
    column: IntArray
    value: FloatArray
    constant: FloatArray
    labels: Labels | None = None
    counted: BoolArray | None = None

    @property
    def num_rows(self) -> int:
        return len(self.constant)

    def at(self, x: FloatArray) -> FloatArray:
        """Values (rows,) at the point ``x``."""
        return sum_by(self.row, self.value * x[self.column], self.num_rows) + self.constant

    def scaled(self, factor: float | FloatArray) -> Affine:
        """Each row times a number, or its own factor (rows,)."""
        entries = factor[self.row] if isinstance(factor, np.ndarray) else factor
        return replace(self, value=self.value * entries, constant=self.constant * factor)

    def shifted(self, amount: float | FloatArray) -> Affine:
        """Each row plus a number, or its own amount (rows,)."""
        return replace(self, constant=self.constant + amount)

    def plus(self, other: Affine) -> Affine:
        """Row by row sum; both need the same number of rows."""
        if self.num_rows != other.num_rows:
            raise FormulationError(
                f"cannot add expressions of {self.num_rows} and {other.num_rows} rows: both must be per job, or by "
                "the same group"
            )
        counted = self.counted
        if other.counted is not None:
            counted = other.counted if counted is None else counted & other.counted
        return Affine(
            np.concatenate([self.row, other.row]),
            np.concatenate([self.column, other.column]),
            np.concatenate([self.value, other.value]),
            self.constant + other.constant,
            self.labels or other.labels,
            counted,
        ).merged()

    def merged(self) -> Affine:
        """The same rows with one entry per position, sorted by row, then column."""
        if not len(self.row):
            return self
        position = self.row * (int(self.column.max()) + 1) + self.column
        if (np.diff(position) > 0).all():
            return self
        _, first, entry = np.unique(position, return_index=True, return_inverse=True)
        value = sum_by(entry, self.value, len(first))
        return replace(self, row=self.row[first], column=self.column[first], value=value)

    def plus_column(self, column: int, coefficient: float | FloatArray) -> Affine:
        """Every row plus ``coefficient`` (one, or (rows,)) times one more column."""
        rows = np.arange(self.num_rows)
        return replace(
            self,
            row=np.concatenate([self.row, rows]),
            column=np.concatenate([self.column, np.full(self.num_rows, column)]),
            value=np.concatenate([self.value, np.broadcast_to(np.asarray(coefficient, np.float64), rows.shape)]),
        )

    def only_counted(self) -> Affine:
        """The rows that take part in a minimum or maximum, in order."""
        if self.counted is None or self.counted.all():
            return self
        keep = self.counted
        number = np.cumsum(keep) - 1
        entries = keep[self.row]
        labels = self.labels
        return Affine(
            number[self.row[entries]],
            self.column[entries],
            self.value[entries],
            self.constant[keep],
            None if labels is None else lambda: np.asarray(labels(), dtype=object)[keep].tolist(),
        )

    @classmethod
    def nothing(cls) -> Affine:
        """One row that is always 0."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(1))

    @classmethod
    def one_column(cls, column: int) -> Affine:
        """One row: the value of a column."""
        return cls(np.zeros(1, np.int64), np.array([column]), np.ones(1), np.zeros(1))

    def total(self) -> Affine:
        """One row: the sum of all."""
        constant = np.array([self.constant.sum()])
        return Affine(np.zeros_like(self.row), self.column, self.value, constant, lambda: ["total"])

    def limits(self, job: IntArray | None = None) -> tuple[FloatArray, FloatArray]:
        """Least and greatest value (rows,) over the box 0 ≤ x ≤ 1.

        With ``job`` (columns,), the job of each column, at most one unit of x is shared among the columns of a
        job (its time share), so that only the best column of each job counts in a row.
        """
        rows = self.merged()
        group, value = rows.row, rows.value
        high, low = np.maximum(value, 0.0), np.minimum(value, 0.0)
        if job is not None and len(value):
            pair = rows.row * (int(job.max()) + 1) + job[rows.column]
            order = np.argsort(pair, kind="stable")
            start = np.flatnonzero(np.diff(pair[order], prepend=-1))
            group = rows.row[order[start]]
            high, low = np.maximum.reduceat(high[order], start), np.minimum.reduceat(low[order], start)
        return (
            sum_by(group, low, self.num_rows) + self.constant,
            sum_by(group, high, self.num_rows) + self.constant,
        )


@dataclass(frozen=True, eq=False)
class Reciprocal:
    """Rows ``v_r = offset_r + numerator_r / base_r(x)`` with numerator ≥ 0: they fall as the base grows."""

    offset: FloatArray
    numerator: FloatArray
    base: Affine

    @property
    def labels(self) -> Labels | None:
        return self.base.labels

    def at(self, x: FloatArray) -> FloatArray:
        """Values (rows,) at ``x``; +inf where the base is 0 and something remains."""
        return self.value_at(np.maximum(self.base.at(x), 0.0))

    def value_at(self, base: FloatArray) -> FloatArray:
        """Values (rows,) where the base rows have the values ``base`` ≥ 0."""
        left = self.numerator > 0
        ratio = np.where(left, np.inf, 0.0)
        np.divide(self.numerator, base, out=ratio, where=left & (base > 0))
        return np.asarray(self.offset + ratio, dtype=np.float64)

    def required(self, value: float) -> FloatArray:
        """Base (rows,) that each row needs to be at most ``value``; +inf where no base is enough."""
        room = value - self.offset
        level = np.full(len(room), np.inf)
        np.divide(self.numerator, room, out=level, where=room > 0)
        return level

    def scaled(self, factor: float | FloatArray) -> Reciprocal:
        if np.any(np.asarray(factor) < 0):
            raise FormulationError("a reciprocal expression cannot be scaled by a negative number")
        return replace(self, offset=self.offset * factor, numerator=self.numerator * factor)

    def shifted(self, amount: float | FloatArray) -> Reciprocal:
        return replace(self, offset=self.offset + amount)

    def only_counted(self) -> Reciprocal:
        """The rows that a maximum runs over: counted, and with something left to do."""
        counted = np.ones(len(self.offset), bool) if self.base.counted is None else self.base.counted
        keep = counted & (self.numerator > 0)
        base = replace(self.base, counted=keep)
        return Reciprocal(self.offset[keep], self.numerator[keep], base.only_counted())
