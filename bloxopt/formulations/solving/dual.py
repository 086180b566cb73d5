"""Row prices from any LP solver: the dual program, itself a standard form, solved like any other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.sparse import csc_array, hstack

from bloxopt.errors import SolverError
from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.jobs import FloatArray, IntArray
from bloxopt.solvers.base import SolverResult


def dual_form(form: StandardForm) -> tuple[StandardForm, list[tuple[int, IntArray, FloatArray]]]:
    """The dual of ``min cᵀx, L ≤ Ax ≤ U, l ≤ x ≤ u`` as a minimisation.

    ``max Lᵀy⁺ − Uᵀy⁻ + lᵀd⁺ − uᵀd⁻`` with ``Aᵀ(y⁺ − y⁻) + d⁺ − d⁻ = c``, all ≥ 0, one column per finite bound.
    """
    eye = csc_array((np.ones(form.num_columns), (np.arange(form.num_columns),) * 2))
    transposed = form.matrix.T.tocsc()
    blocks, costs = [], []
    parts: list[tuple[int, IntArray, FloatArray]] = []
    for bound, matrix, sign in (
        (form.row_lower, transposed, 1.0),
        (form.row_upper, transposed, -1.0),
        (form.lower, eye, 1.0),
        (form.upper, eye, -1.0),
    ):
        finite = np.flatnonzero(np.isfinite(bound))
        blocks.append(sign * matrix[:, finite])
        costs.append(-sign * bound[finite])
        parts.append((len(finite), finite, np.full(len(finite), sign)))
    cost = np.concatenate(costs)
    dual = StandardForm(
        cost=cost,
        matrix=csc_array(hstack(blocks)),
        row_lower=form.cost,
        row_upper=form.cost,
        lower=np.zeros(len(cost)),
        upper=np.full(len(cost), np.inf),
        integer=np.zeros(len(cost), dtype=bool),
    )
    return dual, parts


def with_duals(form: StandardForm, result: SolverResult, run: Callable[[StandardForm], SolverResult]) -> SolverResult:
    """``result`` with the row duals that an optimal solution of the dual program gives."""
    dual, parts = dual_form(form)
    answer = run(dual)
    if answer.x is None:
        raise SolverError(
            f"solver {answer.solver!r} gives no duals and could not solve the dual program "
            f"({answer.termination.value}): choose a solver with duals (bloxopt solvers)"
        )
    row_duals = np.zeros(form.num_rows)
    start = 0
    for count, index, sign in parts[:2]:
        row_duals[index] += sign * answer.x[start : start + count]
        start += count
    return replace(result, row_duals=row_duals, reduced_costs=form.cost - form.matrix.T @ row_duals)
