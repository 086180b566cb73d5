"""Integer programs as choices: of each group of columns at most one is taken, and few rows tie the groups together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csc_array

from bloxopt.jobs import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm

MOST_SHARED = 60
"""Shared rows up to which prices are looked for: cutting planes take many steps in more dimensions."""

ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Decision:
    """What every group does on its own at some prices.

    ``bound`` on the program's minimum, its ``slope`` (shared rows,), ``x`` (columns,) and ``reduced`` costs (columns,).
    """

    bound: float
    slope: FloatArray
    x: FloatArray
    reduced: FloatArray


@dataclass(frozen=True, eq=False)
class Choices:
    """A program as choices: of the columns of a group at most one is 1.

    ``column`` (entries,) of each group in turn, ``group`` (entries,) and ``start`` (groups,) delimit them. ``alone``
    are the other columns, bounded on their own. ``shared`` (rows, columns) with bounds ``lower`` and ``upper`` is what
    ties them together: the ``rows`` of the program that are no choices.
    """

    form: StandardForm
    column: IntArray
    group: IntArray
    start: IntArray
    alone: IntArray
    rows: IntArray
    shared: csc_array
    lower: FloatArray
    upper: FloatArray

    @classmethod
    def of(cls, form: StandardForm) -> Choices | None:
        """None unless few rows are left beside those by which each group of binary columns has a sum of at most 1."""
        matrix = form.matrix
        binary = form.integer & (form.lower == 0.0) & (form.upper >= 1.0)
        if not (np.isfinite(form.lower).all() and np.isfinite(form.upper).all()):
            return None
        owner = np.repeat(np.arange(form.num_columns), np.diff(matrix.indptr))
        rows = matrix.indices
        # Columns closed at 0 are no choices and stand in nobody's way.
        live = ~((form.lower == 0.0) & (form.upper == 0.0))[owner]
        owner, rows, data = owner[live], rows[live], matrix.data[live]
        least = np.full(form.num_rows, np.inf)
        np.minimum.at(least, rows, data)
        largest = np.full(form.num_rows, -np.inf)
        np.maximum.at(largest, rows, data)
        choice: BoolArray = (least > 0) & (largest == least) & (form.row_lower <= 0)
        choice &= (form.row_upper >= least) & (form.row_upper < 2 * least)
        choice[rows[~binary[owner]]] = False
        claims = np.bincount(owner[choice[rows]], minlength=form.num_columns)
        choice[rows[choice[rows] & (claims[owner] > 1)]] = False
        shared = np.flatnonzero(~choice)
        if len(shared) > MOST_SHARED or choice.sum() < 2 * len(shared):
            return None
        mine = choice[rows]
        column, row = owner[mine], rows[mine]
        order = np.argsort(row, kind="stable")
        column, row = column[order], row[order]
        first = np.diff(row, prepend=-1) != 0
        alone = np.ones(form.num_columns, dtype=bool)
        alone[column] = False
        return cls(
            form=form,
            column=column,
            group=np.cumsum(first) - 1,
            start=np.flatnonzero(first),
            alone=np.flatnonzero(alone),
            rows=shared,
            shared=csc_array(matrix.tocsr()[shared]),
            lower=form.row_lower[shared],
            upper=form.row_upper[shared],
        )

    @property
    def sign(self) -> tuple[FloatArray, FloatArray]:
        """Least and most price of the shared rows: below 0 only where there is a lower bound, above 0 an upper one."""
        return np.where(np.isfinite(self.lower), -np.inf, 0.0), np.where(np.isfinite(self.upper), np.inf, 0.0)

    def signed(self, prices: FloatArray) -> FloatArray:
        """Prices of the shared rows, those of a sign that a row cannot have 0."""
        return np.clip(prices, *self.sign)

    def multipliers(self, prices: FloatArray) -> FloatArray:
        """Prices of the shared rows as row duals of the program, (rows of the program,)."""
        duals = np.zeros(self.form.num_rows)
        duals[self.rows] = -prices
        return duals

    def decide(self, prices: FloatArray) -> Decision:
        """The best that every group and every column alone can do at the prices of the shared rows."""
        reduced = self.form.cost + self.shared.T @ prices
        chosen = reduced[self.column]
        least = np.minimum.reduceat(chosen, self.start)
        best = np.flatnonzero(chosen == least[self.group])
        first = best[np.diff(self.group[best], prepend=-1) != 0]
        x = np.zeros(self.form.num_columns)
        x[self.column[first[least < 0]]] = 1.0
        x[self.alone] = np.where(reduced[self.alone] > 0, self.form.lower[self.alone], self.form.upper[self.alone])
        used = np.flatnonzero(x)
        activity = self.shared @ x
        # A priced row is used up to the bound that its price points to; one without a price, as it comes.
        room = np.where(prices > 0, self.upper, np.where(prices < 0, self.lower, activity))
        room = np.clip(room, self.lower, self.upper)
        bound = float((reduced[used] * x[used]).sum()) - float((prices * room).sum())
        return Decision(bound, activity - room, x, reduced)

    def excess(self, reduced: FloatArray) -> FloatArray:
        """By how much an answer that uses each entry's column is at least above the bound, (entries,)."""
        chosen = reduced[self.column]
        above: FloatArray = chosen - np.minimum(np.minimum.reduceat(chosen, self.start), 0.0)[self.group]
        return above

    def nearest(self, decision: Decision, beyond: int) -> IntArray:
        """Entries of least excess, the least first: one a group and so many ``beyond``."""
        excess = self.excess(decision.reduced)
        count = len(self.start) + beyond
        if count >= len(excess):
            return np.argsort(excess, kind="stable")
        within = np.flatnonzero(excess <= np.partition(excess, count - 1)[count - 1])
        return within[np.argsort(excess[within], kind="stable")][:count]

    def fits(self, x: FloatArray) -> bool:
        """Whether the shared rows hold; those of the choices do by construction."""
        activity = self.shared @ x
        slack = ROUNDING * np.maximum(1.0, self._size @ np.abs(x))
        return bool(((activity >= self.lower - slack) & (activity <= self.upper + slack)).all())

    @cached_property
    def _size(self) -> csc_array:
        return abs(self.shared)
