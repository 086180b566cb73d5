"""The independent check that every answer passes before anyone sees it: solvers lie at limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bloxopt.jobs import FloatArray
from bloxopt.solvers.base import Termination
from bloxopt.solvers.bounds import tightened
from bloxopt.solvers.presolve import Answer

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm

DEFAULT_MIP_GAP = 1e-4
"""The largest relative gap that a back end's own default may leave in a MIP called optimal."""


DUAL_ROUNDING = 1e-6
"""A reduced cost this small relative to its terms is a rounding error."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Stated accuracy of a back end, relative.

    ``objective``: how far an optimal objective may be from the true one, relative to its terms.
    ``feasibility``: how far a row or bound may be violated, relative to ``max(1, |bound|, Σ_j |a_ij x_j|)``.
    """

    objective: float = 1e-6
    feasibility: float = 1e-6


def checked(form: StandardForm, answer: Answer, tolerance: Tolerance, mip_gap: float | None) -> Answer:
    """The answer with x clipped into its bounds and integers rounded, or an ERROR that says what is wrong.

    A point that the solver calls optimal and that breaks a row becomes an ERROR; one it merely had at
    hand at a limit becomes LIMIT_NO_SOLUTION. Optimality is decided by the duals of an LP, whatever was
    claimed, and checked against the bound of a MIP; without proof it becomes FEASIBLE. ``bound`` is None
    where a claimed bound is refuted by x.
    """
    if answer.termination not in (Termination.OPTIMAL, Termination.FEASIBLE):
        return replace(answer, x=None, row_duals=None, bound=None)
    if answer.x is None or answer.x.shape != form.cost.shape or not np.all(np.isfinite(answer.x)):
        return _rejected(Termination.ERROR, answer, "the solver returned no solution or one that is not finite")
    x = np.clip(answer.x, form.lower, form.upper)
    x[form.integer] = np.round(x[form.integer])
    moved = np.abs(x - answer.x) / np.maximum(1.0, np.abs(x))
    violation = np.append(moved, relative_row_violation(form, x))
    if np.any(violation > tolerance.feasibility):
        worst = int(np.argmax(violation))
        where = f"column {worst}" if worst < len(x) else f"row {worst - len(x)}"
        size, allowed = violation[worst], tolerance.feasibility
        message = f"the solver's answer violates {where} by {size:.2g}, more than {allowed:.2g} allows"
        failed = Termination.ERROR if answer.termination is Termination.OPTIMAL else Termination.LIMIT_NO_SOLUTION
        return _rejected(failed, answer, message)
    if form.is_mip:
        return _checked_mip(form, replace(answer, x=x, row_duals=None), tolerance, mip_gap)
    return _checked_lp(form, replace(answer, x=x), tolerance)


def relative_row_violation(form: StandardForm, x: FloatArray) -> FloatArray:
    """How far x (n,) leaves each row (m,), relative to ``max(1, |bound|, Σ_j |a_ij x_j|)``; 0 inside."""
    activity = form.matrix @ x
    with np.errstate(invalid="ignore"):
        violation = np.maximum(np.maximum(form.row_lower - activity, activity - form.row_upper), 0.0)
        nearest = np.clip(activity, form.row_lower, form.row_upper)
    scale: FloatArray = np.maximum(np.maximum(1.0, np.abs(nearest)), abs(form.matrix) @ np.abs(x))
    relative: FloatArray = violation / scale
    return relative


@dataclass(frozen=True, eq=False)
class DualBound:
    """``bound`` proven by ``row_duals`` (m,); rounding errors in it scale with ``terms``, the size of what cancels."""

    bound: float
    row_duals: FloatArray
    terms: float


def dual_bound(form: StandardForm, row_duals: FloatArray, x: FloatArray) -> DualBound:
    """The lower bound on an LP's minimum that row duals (m,) prove; duals of an impossible sign count as 0.

    ``Σ_i y_i b_i + Σ_j d_j l_j or u_j`` with ``d = c − Aᵀy``, each term at the bound its sign points to.
    A column without that bound has the one its rows imply; where they imply none, the bound is −∞, unless
    ``d_j`` is a rounding error of its terms and counts by the column's size in the answer x.
    """
    no_lower, no_upper = np.isneginf(form.row_lower), np.isposinf(form.row_upper)
    y = np.where((no_lower & (row_duals > 0)) | (no_upper & (row_duals < 0)), 0.0, row_duals)
    side = np.where(y > 0, form.row_lower, np.where(y < 0, form.row_upper, 0.0))
    reduced = form.cost - form.matrix.T @ y
    terms = np.abs(form.cost) + abs(form.matrix).T @ np.abs(y)
    at = np.where(reduced > 0, form.lower, form.upper)
    large = np.abs(reduced) > DUAL_ROUNDING * np.maximum(terms, np.max(np.abs(form.cost), initial=0.0))
    if np.any(~np.isfinite(at) & large):
        implied = tightened(form)
        at = np.where(np.isfinite(at), at, np.where(reduced > 0, implied.lower, implied.upper))
        if np.any(~np.isfinite(at) & large):
            return DualBound(-np.inf, y, 0.0)
    at = np.where(np.isfinite(at), at, x)
    return DualBound(_dot(y, side) + _dot(reduced, at), y, _dot(terms, np.maximum(1.0, np.abs(at))))


def _checked_lp(form: StandardForm, answer: Answer, tolerance: Tolerance) -> Answer:
    assert answer.x is not None
    value = _dot(form.cost, answer.x)
    if answer.row_duals is None:
        return replace(answer, bound=value if answer.termination is Termination.OPTIMAL else answer.bound)
    if not np.all(np.isfinite(answer.row_duals)):
        return _withdrawn(answer, "the solver's duals are not finite")
    proof = dual_bound(form, answer.row_duals, answer.x)
    scale = max(_dot(np.abs(form.cost), np.abs(answer.x)), abs(proof.bound))
    allowed = tolerance.objective * (10 * scale + 0.1 * proof.terms)
    if abs(value - proof.bound) <= allowed or not form.cost.any():
        return replace(answer, termination=Termination.OPTIMAL, row_duals=proof.row_duals, bound=value)
    if answer.termination is Termination.OPTIMAL:
        return _withdrawn(
            answer, f"the solver claims optimality at {value:.9g}, its duals prove only {proof.bound:.9g}"
        )
    return replace(answer, row_duals=None, bound=_not_above(answer.bound, value, tolerance))


def _checked_mip(form: StandardForm, answer: Answer, tolerance: Tolerance, mip_gap: float | None) -> Answer:
    assert answer.x is not None
    value = _dot(form.cost, answer.x)
    bound = _not_above(answer.bound, value, tolerance)
    if answer.termination is not Termination.OPTIMAL:
        return replace(answer, bound=bound)
    if bound is None:
        return _withdrawn(
            replace(answer, bound=None), "the solver's bound on the optimum is missing or above its own answer"
        )
    allowed = max(DEFAULT_MIP_GAP if mip_gap is None else mip_gap, tolerance.objective)
    terms = _dot(np.abs(form.cost), np.abs(answer.x))
    if value - bound > allowed * abs(value) + tolerance.objective * max(terms, abs(bound)) + 1e-9:
        return _withdrawn(
            replace(answer, bound=bound), f"the solver claims optimality at {value:.9g}, its bound is {bound:.9g}"
        )
    return replace(answer, bound=bound)


def _not_above(bound: float | None, value: float, tolerance: Tolerance) -> float | None:
    """A claimed lower bound cut to the objective within tolerance; None if absent or refuted by it."""
    if bound is None or not np.isfinite(bound) or bound > value + 10 * tolerance.objective * max(1.0, abs(value)):
        return None
    return min(bound, value)


def _withdrawn(answer: Answer, reason: str) -> Answer:
    bound = None if answer.row_duals is not None else answer.bound
    return replace(answer, termination=Termination.FEASIBLE, row_duals=None, bound=bound, message=reason)


def _rejected(termination: Termination, answer: Answer, reason: str) -> Answer:
    message = f"{reason} ({answer.message})" if answer.message else reason
    return Answer(termination, message=message)


def _dot(first: FloatArray, second: FloatArray) -> float:
    """``Σ first second``, without the threads of a BLAS: on a busy machine they take longer to meet than to add up."""
    return float((first * second).sum())
