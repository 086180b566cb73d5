"""Proportional fairness (weighted Nash welfare): the largest product of values, to a proven gap, by linear programs.

Each program overestimates the logarithms by tangents (:mod:`~bloxopt.formulations.solving.logarithms`), so its optimum
bounds the sum from above and its solution bounds it from below; tangents are then drawn closer around that
solution. A dozen a row close the gap to 1e-6 in four or five programs, of any solver. Integer columns are allowed.
Of larger programs Clarabel's exponential cones suggest where to draw them, whatever the solver, which then proves it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.sparse import csr_array

from bloxopt.errors import FormulationError, InfeasibleError, SolverError
from bloxopt.formulations.checks import checked_amount, shown
from bloxopt.formulations.expressions import ExpressionLike, Weights, build_affine, job_weights
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.progress import depends_on_progress
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.logarithms import add_logarithms, tangent_points
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import Outcome, Session, Solved
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray
from bloxopt.solvers.base import Termination
from bloxopt.solvers.clarabel_logarithms import suggest_logarithms

GAP = 1e-6
"""Distance between the mean logarithm and its bound at which to stop: the relative gap of the geometric mean."""
SMALLEST_GAP = 1e-9
"""Solvers of linear programs promise no more."""
_TANGENTS = 16
"""Tangents a row in each program: more make programs larger, fewer make more of them."""
_TANGENTS_IN_A_SUM = 64
"""Tangents a row where the objective is a term of a sum, which is one program and cannot draw them closer."""
_GOOD_STEP = 0.25
"""Part of a gap that the next program may leave for tangents to be drawn between neighbours, which is a guess."""
_CLOSEST = 1e-5
"""Smallest relative distance of tangents: their error is then 1e-11."""
_NEAR = 1.3
"""Factor by which values may be off that are said to be near."""
_LARGE = 100
"""Rows from which a suggestion by exponential cones saves more than it costs."""
_SUGGESTED = 1.001
_FEW_TANGENTS = 6
"""Factor by which suggested values may be off, and tangents a row around them."""
_MOST_SOLVES = 40
_LARGEST_EXPONENT = 300.0
"""Values further apart than this power of e are as good as unknown."""


@dataclass(frozen=True, eq=False)
class ProportionalFairness(Objective):
    """Maximise ``Σ_r weight_r log e_r(x)``, the weighted product of an affine expression's rows (Nash welfare).

    ``weight``: a number, one per row, a mapping from job id (others keep 1), or ``"priority"`` for the weights of the
    jobs. Rows of weight 0 take no part; each other must be able to be positive. The value is the weighted sum of
    logarithms, ``Allocation.levels`` has the rows. Solved alone, the bound is within ``gap`` of it per unit of weight:
    the geometric mean is optimal to that, single rows to about its root. As a term of a sum it is one program whose
    tangents touch at 64 points between the share that proportional fairness guarantees each row and the most it can
    reach: an overestimate by at most ``weight_r (ln(2 Σ weight / weight_r) / 63)² / 8`` a row. Source: Nash (1950);
    Kelly, Maulloo & Tan (1998).
    """

    expression: ExpressionLike
    weight: Weights | Literal["priority"] = 1.0
    gap: float = GAP
    curvature = "concave"

    def __post_init__(self) -> None:
        if isinstance(self.weight, str) and self.weight != "priority":
            raise FormulationError(
                f"ProportionalFairness: weight is {shown(self.weight)}, must be 'priority', a number, an array or a "
                "mapping from job id"
            )
        checked_amount("ProportionalFairness", "gap", self.gap, lowest=SMALLEST_GAP, highest=1.0)

    @property
    def progress_dependent(self) -> bool:  # type: ignore[override]
        return depends_on_progress(self.expression)

    def terms(self, space: AllocationSpace, program: Program) -> Affine:
        rows, weight = self._rows(space)
        if not rows.num_rows:
            return Affine.nothing()
        lowest, highest = _reach(rows, weight, rows.limits(space.job)[1])
        return add_logarithms(program, rows, weight, tangent_points(lowest, highest, _TANGENTS_IN_A_SUM))

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        rows, weight = self._rows(space)
        return log_sum(rows.at(x), weight)

    def solve(self, session: Session) -> Outcome:
        return maximise_logarithms(session, *self._rows(session.space), gap=self.gap)

    def hold(self, session: Session, program: Program, outcome: Outcome, tolerance: float) -> None:
        # The logarithm is strictly concave: all optima share the values of the rows.
        rows, _ = self._rows(session.space)
        program.block = program.unique_family("ProportionalFairness")
        program.add_rows(rows, lower=rows.at(outcome.x) * (1.0 - tolerance))

    def _rows(self, space: AllocationSpace) -> tuple[Affine, FloatArray]:
        """The rows that count and their weights."""
        rows = build_affine(self.expression, space, "ProportionalFairness").merged()
        user = "ProportionalFairness"
        if isinstance(self.weight, str):
            given: float | FloatArray = job_weights(space.weight, space, rows.num_rows, user)
        else:
            given = job_weights(self.weight, space, rows.num_rows, user)
        weight = np.broadcast_to(np.asarray(given, np.float64), rows.num_rows)
        if (weight < 0).any():
            raise FormulationError(f"{user}: a weight is {weight.min():g}: weights must be >= 0")
        counted = weight > 0 if rows.counted is None else rows.counted & (weight > 0)
        chosen = Affine(rows.row, rows.column, rows.value, rows.constant, rows.labels, counted)
        return chosen.only_counted(), weight[counted]


def maximise_logarithms(
    session: Session,
    rows: Affine,
    weight: FloatArray,
    *,
    gap: float = GAP,
    near: FloatArray | None = None,
    without: IntArray | None = None,
) -> Outcome:
    """The x with the largest ``Σ_r weight_r log rows_r(x)`` within the session's blocks; ``weight`` (rows,) > 0.

    ``near`` (rows,): values not far from the optimum's, which save a program or two. ``without``: columns that stay 0.
    Raises :class:`~bloxopt.errors.SolverError` naming a row that is never above 0.
    """
    if not rows.num_rows:
        program = session.program()
        solved = session.solve(program, Affine.nothing())
        return Outcome(solved.x, 0.0, 0.0, solved.result.termination, program)
    total = float(weight.sum())
    part = weight / total
    lowest, highest = _reach(rows, weight, rows.limits(session.exclusive_job)[1])
    least = _least_of_whole_columns(session.program(), rows)
    lowest = np.where(least > 0, np.minimum(lowest, least), lowest)
    everywhere = points = tangent_points(lowest, highest, _TANGENTS)
    suggested = _suggestion(session, rows, part, highest, without) if rows.num_rows >= _LARGE else None
    if suggested is not None:
        points = tangent_points(suggested / _SUGGESTED, suggested * _SUGGESTED, _FEW_TANGENTS)
    elif near is not None:
        points = tangent_points(near / _NEAR, near * _NEAR, _TANGENTS)
    best: Solved | None = None
    most, bound, left = -np.inf, np.inf, np.inf
    for _ in range(_MOST_SOLVES):
        program = session.program()
        if without is not None:
            program.restrict(without, 0.0, 0.0)
        program.block = program.unique_family("ProportionalFairness")
        if best is not None and not np.isfinite(most) and least.any():
            # Of whole columns a row may get none, however dear that is by the tangents: it must have one then.
            program.add_rows(rows, lower=np.where(least > 0, least * (1.0 - 1e-6), -np.inf))
        utility = add_logarithms(program, rows, part, points)
        try:
            solved = session.solve(program, utility)
        except InfeasibleError:
            if best is None:
                raise
            raise _never_positive(rows, int(np.argmin(rows.at(best.x)))) from None
        value = rows.at(solved.x)
        reached = log_sum(value, part)
        if best is None or reached > most:
            best, most = solved, reached
        if solved.utility_bound is not None:
            bound = min(bound, solved.utility_bound)
        before, left = left, bound - most
        closest = float(np.log(points[:, 1] / points[:, 0]).max()) <= _CLOSEST
        if left <= gap or closest or session.out_of_time:
            break
        inside = ((value >= points[:, 0]) & (value <= points[:, -1])).all()
        if suggested is not None:
            # What was suggested either proves itself at once or was no help.
            points, suggested = everywhere, None
        elif program.is_mip or (inside and left <= _GOOD_STEP * before):
            points = _closer(points, value)
        else:
            points = _certain(rows.at(best.x), left, part, lowest, highest)
    assert best is not None
    if not np.isfinite(most):
        worst = int(np.argmin(rows.at(best.x)))
        raise _never_positive(rows, worst)
    ending = best.result.termination
    if ending is Termination.OPTIMAL and not bound - most <= 10.0 * gap:
        ending = Termination.FEASIBLE
    duals = best.result.row_duals
    return Outcome(
        x=best.x,
        utility=most * total,
        bound=max(most, bound) * total if np.isfinite(bound) else None,
        termination=ending,
        program=best.program,
        prices=None if duals is None else -duals * total,
        levels=rows.at(best.x),
        message=best.result.message,
    )


def _suggestion(
    session: Session, rows: Affine, weight: FloatArray, most: FloatArray, without: IntArray | None
) -> FloatArray | None:
    """Values not far from the optimum's, None if there is no suggestion."""
    program = session.program()
    if program.is_mip:
        return None
    if without is not None:
        program.restrict(without, 0.0, 0.0)
    scaled = rows.scaled(1.0 / most)
    shape = (rows.num_rows, program.num_columns)
    matrix = csr_array((scaled.value, (scaled.row, scaled.column)), shape=shape)
    started = time.perf_counter()
    form = program.compile(Affine.nothing())
    found = suggest_logarithms(form, matrix, scaled.constant, weight, session.options.time_limit)
    session.solve_seconds += time.perf_counter() - started
    return None if found is None else found * most


def log_sum(value: FloatArray, weight: FloatArray) -> float:
    """``Σ weight log value``; −inf if a value is not positive."""
    if not (value > 0).all():
        return -np.inf
    return float(weight @ np.log(value))


def _reach(rows: Affine, weight: FloatArray, most: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Least value of each row at an optimum where ``most`` is what it can reach, and that most.

    At the optimum ``Σ_r w_r e_r(y) / e_r ≤ Σ w`` for every y, so also for the best y of one row alone.
    """
    if (most <= 0).any():
        raise _never_positive(rows, int(np.argmin(most)))
    # Half of that, so that there is a range even for a single row.
    return 0.5 * most * weight / weight.sum(), most


def _closer(points: FloatArray, value: FloatArray) -> FloatArray:
    """Points around ``value``: from one neighbour to the other, or as far apart as before where it lies outside."""
    step = np.log(points[:, 1] / points[:, 0])
    outside = (value < points[:, 0]) | (value > points[:, -1])
    width = np.exp(np.where(outside, 0.5 * (points.shape[1] - 1) * step, np.maximum(step, _CLOSEST)))
    centre = np.maximum(value, 0.1 * points[:, 0])
    return tangent_points(centre / width, centre * width, points.shape[1])


def _certain(value: FloatArray, gap: float, weight: FloatArray, lowest: FloatArray, highest: FloatArray) -> FloatArray:
    """Points over all that rows can be at the optimum of a convex program, given values within ``gap`` of it.

    ``weight`` (rows,) sums to 1. With t the values over those of the optimum, ``Σ w t ≤ 1`` and ``Σ w log t ≥ −gap``.
    So each ``w (t − 1 − log t)`` is at most the gap, and ``|log t| ≤ d + √(2d)`` with ``d = gap / w``. The next gap is
    then at most 1/16 of this one up to 250 rows.
    """
    count = int(np.clip(1 + np.ceil(4 * np.sqrt(len(value))), _TANGENTS, _TANGENTS_IN_A_SUM))
    if not (np.isfinite(gap) and (value > 0).all()):
        return tangent_points(lowest, highest, count)
    surplus = np.maximum(gap / weight, _CLOSEST**2)
    width = np.exp(np.minimum(surplus + np.sqrt(2.0 * surplus), _LARGEST_EXPONENT))
    low = np.clip(value / width, lowest, highest)
    return tangent_points(low, np.clip(value * width, low * np.exp(_CLOSEST), 2.0 * highest), count)


def _least_of_whole_columns(program: Program, rows: Affine) -> FloatArray:
    """The least positive value of each row, (rows,), if all its columns are integer; 0 for others."""
    if not program.is_mip:
        return np.zeros(rows.num_rows)
    # A column that is not whole, or takes something away, counts as one of value 0.
    integer = program.compile_rows().integer[rows.column]
    least = np.where(rows.constant == 0.0, np.inf, 0.0)
    np.minimum.at(least, rows.row, np.where(integer, np.maximum(rows.value, 0.0), 0.0))
    return np.where(np.isfinite(least), least, 0.0)


def _never_positive(rows: Affine, row: int) -> SolverError:
    name = str(rows.labels()[row]) if rows.labels else f"row {row}"
    return SolverError(
        f"ProportionalFairness: {name!r} gets nothing in any allocation found, and the logarithm of 0 has no bound; "
        "relax the constraints, give it weight 0 or leave it out"
    )
