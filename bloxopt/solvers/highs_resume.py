"""HiGHS's dual simplex from the answer to a similar program: a few pivots where little has changed.

Between two rounds of a schedule a few jobs go and a few come. Those that stay keep their basic rows and columns, and
what is left to do is one pivot or so for each new job: most of these are made at once (:func:`_pivoted`), which leaves
a handful for the simplex method. An interior-point answer has no basis, but tells which one is near: of a variable's
room to its bounds and its reduced cost the larger one says whether it is basic (strict complementarity). Half of the
time would go into factoring the basis where a column stands in a row of every job, so such columns are split first
(:mod:`~bloxopt.solvers.splitting`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bloxopt.jobs import BoolArray, FloatArray
from bloxopt.solvers.base import Basis, SolverOptions, Start, Status, StatusArray, Termination
from bloxopt.solvers.highs_direct import highs_answer, highs_options, pass_model, prepared_highspy
from bloxopt.solvers.presolve import Answer
from bloxopt.solvers.splitting import Split

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm

_MOST_ITERATIONS = 500
"""Iterations, beside as many as there are new rows, after which beginning anew is faster ..."""

_ITERATIONS_A_ROW = 0.125
"""... in programs of fewer than 4,000 rows; in larger ones, this times the number of rows ..."""

LARGE_ROWS = 10_000
"""... up to so many; beyond, an iteration takes ever longer, and fewer are worth it. From a point alone none is. Nor is
a simplex method's own solve, for the sake of its basis: it takes 3 to 15 times what the interior-point method takes."""

_FEWEST_ITERATIONS = 100
"""However large a program is."""

_DEVEX = 1
"""HiGHS's number of a pricing rule that needs no weights to begin with: steepest edge would first compute one a row."""

_BROKEN = 1e-9


def resume_highs(form: StandardForm, options: SolverOptions, start: Start) -> Answer:
    """Minimise a cleaned linear program from ``start``; not OPTIMAL where that takes too many iterations."""
    if start.basis is None and form.num_rows > LARGE_ROWS:
        return Answer(Termination.LIMIT_NO_SOLUTION, message="it has no basis, and the program is large")
    basis = _nearest(form, start) if start.basis is None else start.basis
    split = Split.of(form)
    whole, basis = split.form, split.basis(_pivoted(form, start, _sound(form, basis)))
    most = most_iterations(form.num_rows)
    new = int(start.new_rows.sum()) if form.num_rows <= LARGE_ROWS else min(int(start.new_rows.sum()), most)
    highspy = prepared_highspy(options)
    highs = highspy.Highs()
    if options.time_limit is not None:
        # Half of it is left to begin anew, should this lead nowhere.
        options = replace(options, time_limit=options.time_limit / 2)
    chosen = highs_options(form, options) | {
        "output_flag": False,
        "solver": "simplex",
        "simplex_dual_edge_weight_strategy": _DEVEX,
        # So near the optimum costs that differ slightly only have to be put right again at the end.
        "dual_simplex_cost_perturbation_multiplier": 0.0,
        "simplex_scale_strategy": 0,
        "simplex_initial_condition_check": False,
        "simplex_iteration_limit": most + new,
    }
    for name, value in chosen.items():
        highs.setOptionValue(name, value)
    pass_model(highs, whole)
    statuses = [
        highspy.HighsBasisStatus.kLower,
        highspy.HighsBasisStatus.kBasic,
        highspy.HighsBasisStatus.kUpper,
        highspy.HighsBasisStatus.kZero,
    ]
    given = highspy.HighsBasis()
    given.col_status = [statuses[status] for status in basis.column.tolist()]
    given.row_status = [statuses[status] for status in basis.row.tolist()]
    given.valid = True
    # With as many basic ones as rows HiGHS can begin at once, else it has to find out which of them are too many.
    basic = np.count_nonzero(basis.column == Status.BASIC) + np.count_nonzero(basis.row == Status.BASIC)
    given.alien = bool(basic != whole.num_rows)
    highs.setBasis(given)
    highs.run()
    answer = highs_answer(form, highs)
    if answer.x is None or answer.row_duals is None:
        return answer
    x, row_duals = split.own(answer.x, answer.row_duals)
    return replace(answer, x=x, row_duals=row_duals, basis=_reached(form, highs, x))


def most_iterations(rows: int) -> int:
    """Iterations after which beginning anew is faster, in a program of so many rows, none of them new."""
    most = max(_MOST_ITERATIONS, int(_ITERATIONS_A_ROW * min(rows, LARGE_ROWS)))
    return most if rows <= LARGE_ROWS else max(_FEWEST_ITERATIONS, int(most * (LARGE_ROWS / rows) ** 2))


def _reached(form: StandardForm, highs: Any, x: FloatArray) -> Basis:
    """The basis at the end, from its variables (rows are −1, −2, …): HiGHS's list of all takes ten times as long."""
    basic = highs.getBasicVariables()[1]
    column = _nearer(x, form.lower, form.upper)
    row = _nearer(form.matrix @ x, form.row_lower, form.row_upper)
    own_columns, own_rows = basic[(basic >= 0) & (basic < form.num_columns)], -1 - basic[basic < 0]
    column[own_columns] = Status.BASIC
    row[own_rows[own_rows < form.num_rows]] = Status.BASIC
    return Basis(column, row)


def _nearest(form: StandardForm, start: Start) -> Basis:
    """The basis that a point and its prices point to, degenerate or not."""
    activity = form.matrix @ start.x
    reduced = form.cost - form.matrix.T @ start.row_duals
    column = _status(start.x, form.lower, form.upper, reduced)
    row = _status(activity, form.row_lower, form.row_upper, start.row_duals)
    column[start.new_columns & (column == Status.BASIC)] = Status.LOWER
    row[start.new_rows] = Status.BASIC
    return Basis(column, row)


def _status(value: FloatArray, lower: FloatArray, upper: FloatArray, price: FloatArray) -> StatusArray:
    status = _nearer(value, lower, upper)
    status[np.minimum(value - lower, upper - value) > np.abs(price)] = Status.BASIC
    return status


def _nearer(value: FloatArray, lower: FloatArray, upper: FloatArray) -> StatusArray:
    return np.where(value - lower <= upper - value, Status.LOWER, Status.UPPER).astype(np.int8)


def _sound(form: StandardForm, basis: Basis) -> Basis:
    """The basis with what is at a bound that is none at the other one, or at 0 where there is neither."""
    return Basis(
        _at_bounds(basis.column, form.lower, form.upper), _at_bounds(basis.row, form.row_lower, form.row_upper)
    )


def _at_bounds(status: StatusArray, lower: FloatArray, upper: FloatArray) -> StatusArray:
    low, high = np.isfinite(lower), np.isfinite(upper)
    at_bound = np.where((status == Status.UPPER) & high | ~low, Status.UPPER, Status.LOWER)
    at_bound = np.where(low | high, at_bound, Status.ZERO)
    return np.where(status == Status.BASIC, Status.BASIC, at_bound).astype(np.int8)


def _pivoted(form: StandardForm, start: Start, basis: Basis) -> Basis:
    """One dual simplex step for each new row that the point breaks, all at the prices of the earlier answer.

    The new column that keeps the prices of the others right, the one of the least ratio, becomes basic for the row.
    """
    if not start.new_rows.any() or not start.new_columns.any():
        return basis
    activity = form.matrix @ start.x
    slack = _BROKEN * np.maximum(1.0, np.abs(activity))
    low = start.new_rows & (activity < form.row_lower - slack)
    high = start.new_rows & (activity > form.row_upper + slack)
    new = start.new_columns.nonzero()[0]
    part = form.matrix[:, new]
    row, column = part.indices, new[np.repeat(np.arange(len(new)), np.diff(part.indptr))]
    # A column at its lower bound can only rise, one at its upper bound only fall.
    push = np.where(basis.column[column] == Status.UPPER, -part.data, part.data)
    helps: BoolArray = (low[row] & (push > 0)) | (high[row] & (push < 0))
    helps &= basis.column[column] != Status.BASIC
    row, column, push = row[helps], column[helps], push[helps]
    reduced = np.abs(form.cost - form.matrix.T @ start.row_duals)
    order = np.lexsort((reduced[column] / np.abs(push), row))
    row, column = row[order], column[order]
    first = np.diff(row, prepend=-1) > 0
    row, column = row[first], column[first]
    column, once = np.unique(column, return_index=True)
    row = row[once]
    columns, rows = basis.column.copy(), basis.row.copy()
    columns[column] = Status.BASIC
    rows[row] = np.where(low[row], Status.LOWER, Status.UPPER)
    return Basis(columns, rows)
