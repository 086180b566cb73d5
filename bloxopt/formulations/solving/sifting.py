"""Linear programs with far more columns than a solution uses: the others are offered to the solver only if they pay.

Columns that pairs of jobs need (:mod:`bloxopt.pairing`) are *deferred*: the program is solved without them, its prices
tell which of them would improve it, and these join, until none does. The last prices prove that the answer is optimal
for the whole program. A pair needs a column on each side, tied by a row of its own: while neither side has joined, that
row's price is free, and is chosen so that the best column of either side looks equally good.
Source: sifting (Bixby et al., 1992), column generation in which all columns are known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array

from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.jobs import BoolArray, FloatArray, IntArray
from bloxopt.solvers.base import SolverResult, Termination

WORTH_SIFTING = 4_000
"""Deferred columns from which solving several small programs is faster than one large one."""

_MOST_PASSES = 15
_MOST_ROWS = 100
"""Ties whose columns join in one pass, those that promise most first."""
_GAP = 1e-8
"""What the columns left out could add, relative to the objective, at which the answer counts as optimal."""


def sift(
    form: StandardForm, deferred: BoolArray, group: IntArray, run: Callable[[StandardForm], SolverResult]
) -> tuple[SolverResult, BoolArray] | None:
    """The optimum of a linear program of which the columns ``deferred`` (n,) need not be there for it to be feasible.

    ``group`` (n,) numbers sets of columns whose values add up to at most 1, -1 for columns in none. Returned with the
    columns that it took, (n,). Where a limit ends it, the last answer is returned as feasible, with the bound that its
    prices prove. None where this way leads nowhere (a solver without prices, a program that is infeasible without the
    deferred columns).
    """
    matrix = form.matrix.tocsr()
    joined = ~deferred
    spent = 0.0
    best: tuple[SolverResult, BoolArray] | None = None
    for _ in range(_MOST_PASSES):
        columns = joined.nonzero()[0]
        part = replace(
            form,
            cost=form.cost[columns],
            matrix=form.matrix[:, columns],
            lower=form.lower[columns],
            upper=form.upper[columns],
            integer=form.integer[columns],
        )
        result = run(part)
        spent += result.solve_seconds
        if result.termination in (Termination.FEASIBLE, Termination.LIMIT_NO_SOLUTION):
            return best
        if result.termination is not Termination.OPTIMAL or result.x is None or result.row_duals is None:
            return None
        if result.x.shape != part.cost.shape:
            return None
        empty = np.bincount(part.matrix.indices, minlength=form.num_rows) == 0
        prices = np.where(empty, 0.0, result.row_duals)
        gain = np.where(form.upper > 0, form.matrix.T @ prices - form.cost, -np.inf)
        ties = _Ties.of(form, matrix, empty, gain)
        prices[ties.row] = ties.price
        np.add.at(gain, ties.column, ties.sign * ties.price[ties.number])
        gain[joined] = 0.0
        missed = _at_most(np.maximum(gain, 0.0), group)
        objective = form.objective(_lifted(result.x, columns, form.num_columns))
        proven = missed <= _GAP * max(abs(objective), 1e-12)
        whole = replace(
            result,
            termination=Termination.OPTIMAL if proven else Termination.FEASIBLE,
            x=_lifted(result.x, columns, form.num_columns),
            objective=objective,
            bound=None if result.bound is None else result.bound - missed,
            row_duals=prices,
            reduced_costs=form.cost - form.matrix.T @ prices,
            solve_seconds=spent,
        )
        best = whole, joined
        if proven:
            return best
        useful = gain > 0.1 * _GAP * max(abs(objective), 1e-12) / max(1, len(columns))
        useful[ties.column] = ties.most_promising(_MOST_ROWS)[ties.number]
        joined = joined | useful
    return None


class _Ties:
    """Rows that nothing has joined yet: deferred columns with ``sign`` + and − in a row that must be 0.

    ``column``, its ``number`` in ``row``, and the ``price`` of each row at which the best gains of its two sides agree;
    ``promise`` is what they are then.
    """

    def __init__(self, column: IntArray, number: IntArray, sign: FloatArray, row: IntArray, gain: FloatArray) -> None:
        self.column, self.number, self.sign, self.row = column, number, sign, row
        sides = np.full((2, len(row)), -np.inf)
        np.maximum.at(sides, ((sign > 0).astype(np.int64), number), gain[column])
        both = np.isfinite(sides).all(axis=0)
        self.promise = np.where(both, sides.sum(axis=0) / 2.0, -np.inf)
        # A row with one side only keeps that at 0: any price that makes it unattractive is right.
        one = np.where(np.isfinite(sides[1]), -sides[1], sides[0])
        self.price = np.where(np.isfinite(one), one, 0.0)
        self.price[both] = (sides[0, both] - sides[1, both]) / 2.0

    @classmethod
    def of(cls, form: StandardForm, matrix: csr_array, empty: BoolArray, gain: FloatArray) -> _Ties:
        """The ties among the ``empty`` rows of a program: those that must be 0, with entries of 1 and -1."""
        row = (empty & (form.row_lower == 0.0) & (form.row_upper == 0.0)).nonzero()[0]
        entries = matrix[row].tocoo()
        odd = np.bincount(entries.row[np.abs(entries.data) != 1.0], minlength=len(row)) > 0
        if odd.any():
            row = row[~odd]
            entries = matrix[row].tocoo()
        return cls(entries.col.astype(np.int64), entries.row.astype(np.int64), entries.data, row, gain)

    def most_promising(self, count: int) -> BoolArray:
        """Rows (rows,) that promise a gain, at most ``count`` of them."""
        chosen = self.promise > 0
        if chosen.sum() > count:
            chosen &= self.promise >= np.partition(self.promise, -count)[-count]
        return chosen


def _lifted(x: FloatArray, columns: IntArray, count: int) -> FloatArray:
    full = np.zeros(count)
    full[columns] = x
    return full


def _at_most(gain: FloatArray, group: IntArray) -> float:
    """The most that columns in [0, 1] with these gains can add, one unit at most of each group."""
    inside = group >= 0
    best = np.zeros(int(group.max(initial=-1)) + 1)
    np.maximum.at(best, group[inside], gain[inside])
    return float(best.sum() + gain[~inside].sum())
