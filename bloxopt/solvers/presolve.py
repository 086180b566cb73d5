"""What is done to every program before a back end sees it, and undone in its answer.

Back ends disagree on the corners of linear programming: rows without entries, crossed bounds, what
counts as infinite, coefficients below 1e-9 (HiGHS drops them). All of that is settled here, once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array

from bloxopt.errors import SolverError
from bloxopt.jobs import BoolArray, FloatArray
from bloxopt.solvers.base import Basis, Start, Status, Termination

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm

INFINITE_BOUND = 1e20
"""A bound of this size or more is no bound: the convention of HiGHS and SCIP, applied to all back ends."""
BOUND_SLACK = 1e-9
"""Bounds that cross by no more than this, relative to their size, are rounding errors and count as equal."""
LARGEST_UNSCALED = 2.0**13
SMALLEST_UNSCALED = 2.0**-13
SCALING_PASSES = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """What a back end claims about a program; nothing in it has been checked yet.

    Fields as in :class:`~bloxopt.solvers.base.SolverResult`, without the constant in ``bound``. A back
    end that cannot tell unbounded from infeasible claims UNBOUNDED: that claim is always verified.
    """

    termination: Termination
    x: FloatArray | None = None
    row_duals: FloatArray | None = None
    bound: float | None = None
    message: str = ""
    basis: Basis | None = None


@dataclass(frozen=True, eq=False)
class Reduced:
    """An equivalent program: ``rows`` and ``columns`` of the original kept, scaled by powers of two.

    ``form`` has ``x = column_scale · x'`` (of the kept columns, the others are 0), rows multiplied by
    ``row_scale`` (of the kept rows) and the cost by ``cost_scale``; its constant is 0.
    """

    form: StandardForm
    rows: npt.NDArray[np.intp]
    num_rows: int
    columns: npt.NDArray[np.intp]
    num_columns: int
    row_scale: FloatArray
    column_scale: FloatArray
    cost_scale: float
    offset: float = 0.0
    """Cost of the columns without entries, which are fixed where they are best."""

    def lift(self, answer: Answer) -> Answer:
        """The answer in terms of the original rows and columns."""
        row_duals = None
        if _has_length(answer.row_duals, len(self.rows)):
            row_duals = np.zeros(self.num_rows)
            row_duals[self.rows] = answer.row_duals * self.row_scale / self.cost_scale
        x = None
        if _has_length(answer.x, len(self.columns)):
            x = np.zeros(self.num_columns)
            x[self.columns] = answer.x * self.column_scale
        return replace(
            answer,
            x=x,
            row_duals=row_duals,
            bound=None if answer.bound is None else answer.bound / self.cost_scale + self.offset,
            basis=None if answer.basis is None else self._lift_basis(answer.basis),
        )

    def _lift_basis(self, basis: Basis) -> Basis:
        column = np.full(self.num_columns, Status.LOWER, dtype=np.int8)
        row = np.full(self.num_rows, Status.BASIC, dtype=np.int8)
        column[self.columns], row[self.rows] = basis.column, basis.row
        return Basis(column, row)

    def reduce_start(self, x: FloatArray | None) -> FloatArray | None:
        """A point of the original program in terms of the columns of ``form``."""
        return None if x is None else x[self.columns] / self.column_scale

    def reduce_answer(self, start: Start) -> Start:
        """The answer to a similar program in terms of the columns and rows of ``form``."""
        basis = start.basis
        return Start(
            x=start.x[self.columns] / self.column_scale,
            row_duals=start.row_duals[self.rows] / self.row_scale * self.cost_scale,
            new_columns=start.new_columns[self.columns],
            new_rows=start.new_rows[self.rows],
            basis=None if basis is None else Basis(basis.column[self.columns], basis.row[self.rows]),
        )


def reduce(form: StandardForm) -> Reduced | Answer:
    """Clean and scale a program, or answer it at once if it has no rows, no columns or crossed bounds.

    Raises :class:`SolverError` for a NaN anywhere and for an infinite cost or coefficient.
    """
    _require_numbers(form)
    lower, upper = _absent(form.lower), _absent(form.upper)
    row_lower, row_upper = _absent(form.row_lower), _absent(form.row_upper)
    lower = np.where(form.integer, np.ceil(lower - BOUND_SLACK), lower)
    upper = np.where(form.integer, np.floor(upper + BOUND_SLACK), upper)

    matrix = csc_array(form.matrix, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    for low, high, kind in ((lower, upper, "column"), (row_lower, row_upper, "row")):
        if (at := _first_crossing(low, high)) is not None:
            return _infeasible(f"{kind} {at} has the lower bound {low[at]:g} above the upper bound {high[at]:g}")
    upper, row_upper = np.maximum(lower, upper), np.maximum(row_lower, row_upper)

    # Interior-point methods take several times as long over a column that has no interior. An integer program must
    # remain one, though.
    used = (lower != 0.0) | (upper != 0.0)
    columns = np.flatnonzero(used if (used & form.integer).any() else used | form.integer)
    if len(columns) < form.num_columns:
        matrix = csc_array(matrix[:, columns])
    entries = np.bincount(matrix.indices, minlength=form.num_rows)
    impossible = (entries == 0) & ((row_lower > BOUND_SLACK) | (row_upper < -BOUND_SLACK))
    if impossible.any():
        at = int(np.argmax(impossible))
        return _infeasible(
            f"row {at} has no entries but those of columns fixed at 0, so its activity is 0, outside "
            f"[{row_lower[at]}, {row_upper[at]}]"
        )
    kept = (entries > 0) & (np.isfinite(row_lower) | np.isfinite(row_upper))
    if not kept.all():
        matrix = csc_array(matrix.tocsr()[kept])
    rows = np.flatnonzero(kept)
    if not len(rows) or not len(columns):
        return _separable(form, lower, upper)

    cost, lower, upper = form.cost[columns], lower[columns], upper[columns]
    settled = _best_alone(cost, lower, upper)
    alone = (np.diff(matrix.indptr) == 0) & np.isfinite(settled)
    reduced = replace(
        form,
        cost=np.where(alone, 0.0, cost),
        matrix=matrix,
        row_lower=row_lower[kept],
        row_upper=row_upper[kept],
        lower=np.where(alone, settled, lower),
        upper=np.where(alone, settled, upper),
        integer=form.integer[columns],
        constant=0.0,
    )
    row_scale, column_scale, cost_scale = _scales(reduced)
    return Reduced(
        _scaled(reduced, row_scale, column_scale, cost_scale),
        rows,
        form.num_rows,
        columns,
        form.num_columns,
        row_scale,
        column_scale,
        cost_scale,
        offset=float(cost[alone] @ settled[alone]),
    )


def _require_numbers(form: StandardForm) -> None:
    for name, values, finite in (
        ("cost", form.cost, True),
        ("matrix", form.matrix.data, True),
        ("row_lower", form.row_lower, False),
        ("row_upper", form.row_upper, False),
        ("lower", form.lower, False),
        ("upper", form.upper, False),
    ):
        wrong = ~np.isfinite(values) if finite else np.isnan(values)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise SolverError(f"the program's {name}[{at}] is {values[at]}: costs, coefficients and bounds are numbers")


def _absent(bounds: FloatArray) -> FloatArray:
    """Bounds with everything at or beyond ±1e20 infinite."""
    return np.where(np.abs(bounds) >= INFINITE_BOUND, np.copysign(np.inf, bounds), bounds)


def _first_crossing(lower: FloatArray, upper: FloatArray) -> int | None:
    """Index of the first lower bound above its upper bound beyond rounding, or of a bound at the wrong infinity."""
    slack = BOUND_SLACK * np.maximum(1.0, np.where(np.isfinite(upper), np.abs(upper), 0.0))
    crossed = (lower > upper + slack) | (lower == np.inf) | (upper == -np.inf)
    return int(np.argmax(crossed)) if crossed.any() else None


def _infeasible(message: str) -> Answer:
    return Answer(Termination.INFEASIBLE, message=message)


def _separable(form: StandardForm, lower: FloatArray, upper: FloatArray) -> Answer:
    """The optimum of a program whose rows bind nothing: each column at the bound its cost points to."""
    cost = form.cost
    x = _best_alone(cost, lower, upper)
    if not np.isfinite(x).all():
        at = int(np.argmax(~np.isfinite(x)))
        return Answer(Termination.UNBOUNDED, message=f"column {at} has cost {cost[at]:g} and no bound on that side")
    return Answer(Termination.OPTIMAL, x, row_duals=np.zeros(form.num_rows), bound=float(cost @ x))


def _best_alone(cost: FloatArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
    """Where each column (n,) is best if no row holds it: at the bound its cost points to, near 0 without a cost."""
    return np.where(cost > 0, lower, np.where(cost < 0, upper, np.clip(0.0, lower, upper)))


def _has_length(values: FloatArray | None, length: int) -> TypeGuard[FloatArray]:
    return values is not None and values.shape == (length,)


def _scales(form: StandardForm) -> tuple[FloatArray, FloatArray, float]:
    """Factors of rows, columns and cost that bring huge or tiny entries near 1, and the largest cost too.

    Geometric-mean scaling of rows and continuous columns in turn; ordinary programs pass unchanged.
    Factors are powers of two, so that no coefficient is rounded.
    """
    matrix = form.matrix
    column_of_entry = np.repeat(np.arange(form.num_columns), np.diff(matrix.indptr))
    size = np.abs(matrix.data)
    row_scale, column_scale = np.ones(form.num_rows), np.ones(form.num_columns)
    if size.max() > LARGEST_UNSCALED or size.min() < SMALLEST_UNSCALED:
        for _ in range(SCALING_PASSES):
            scaled = np.log2(size * row_scale[matrix.indices] * column_scale[column_of_entry])
            row_scale *= np.exp2(-_middle(scaled, matrix.indices, form.num_rows))
            scaled = np.log2(size * row_scale[matrix.indices] * column_scale[column_of_entry])
            middle = _middle(scaled, column_of_entry, form.num_columns)
            column_scale *= np.where(form.integer, 1.0, np.exp2(-middle))
    largest = float(np.max(np.abs(form.cost * column_scale), initial=0.0))
    ordinary = largest == 0 or SMALLEST_UNSCALED <= largest <= LARGEST_UNSCALED
    cost_scale = 1.0 if ordinary else float(np.exp2(-np.clip(np.round(np.log2(largest)), -1000, 1000)))
    return row_scale, column_scale, cost_scale


def _scaled(form: StandardForm, row_scale: FloatArray, column_scale: FloatArray, cost_scale: float) -> StandardForm:
    if not np.any(row_scale != 1.0) and not np.any(column_scale != 1.0) and cost_scale == 1.0:
        return form
    matrix = form.matrix
    data = matrix.data * row_scale[matrix.indices] * np.repeat(column_scale, np.diff(matrix.indptr))
    return replace(
        form,
        cost=form.cost * column_scale * cost_scale,
        matrix=csc_array((data, matrix.indices, matrix.indptr), shape=matrix.shape),
        row_lower=form.row_lower * row_scale,
        row_upper=form.row_upper * row_scale,
        lower=form.lower / column_scale,
        upper=form.upper / column_scale,
    )


def _middle(exponents: FloatArray, groups: npt.NDArray[np.integer], count: int) -> FloatArray:
    """Per group (count,), the whole number midway between its least and greatest exponent; 0 for an empty one."""
    least, greatest = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(least, groups, exponents)
    np.maximum.at(greatest, groups, exponents)
    empty = np.isinf(least)
    least[empty] = greatest[empty] = 0.0
    middle: FloatArray = np.round((least + greatest) / 2)
    return middle


def rays(form: StandardForm) -> StandardForm:
    """The linear program of the directions within ±1 that leave a feasible program feasible and lower its cost most.

    Its optimum is 0 if no ray lowers the cost; it is always feasible and never unbounded. For integer
    programs with rational data the relaxation's rays are rays as well (Meyer, 1974).
    """
    return replace(
        form,
        row_lower=np.where(np.isfinite(form.row_lower), 0.0, -np.inf),
        row_upper=np.where(np.isfinite(form.row_upper), 0.0, np.inf),
        lower=np.where(np.isfinite(form.lower), 0.0, -1.0),
        upper=np.where(np.isfinite(form.upper), 0.0, 1.0),
        integer=np.zeros_like(form.integer),
    )


def implied_upper_bounds(form: StandardForm) -> BoolArray:
    """Columns (n,) whose upper bound follows from a row and the lower bounds, and so can be left out.

    Row i implies ``x_j ≤ (U_i − Σ_{k≠j} a_ik l_k) / a_ij`` if all its entries are positive. Only lower
    bounds are used, so leaving out all these upper bounds together is sound. In allocation programs the
    time-share rows imply ``x ≤ 1``: an interior-point method then factors a third less.
    """
    matrix = form.matrix
    lower = np.where(np.isfinite(form.lower), form.lower, 0.0)
    column_of_entry = np.repeat(np.arange(form.num_columns), np.diff(matrix.indptr))
    unusable = (matrix.data < 0) | ~np.isfinite(form.lower)[column_of_entry]
    usable = np.isfinite(form.row_upper) & (np.bincount(matrix.indices[unusable], minlength=form.num_rows) == 0)
    slack = np.where(usable, form.row_upper - matrix @ lower, 0.0)
    entry = usable[matrix.indices]
    implied = np.full(form.num_columns, np.inf)
    np.minimum.at(
        implied,
        column_of_entry[entry],
        lower[column_of_entry[entry]] + slack[matrix.indices[entry]] / matrix.data[entry],
    )
    return implied <= form.upper
