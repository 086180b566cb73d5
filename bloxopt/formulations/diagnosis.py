"""Why there is no solution: which blocks conflict, and the least that must be given up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse import csc_array, hstack

from bloxopt.errors import InfeasibleError
from bloxopt.formulations.program import Program
from bloxopt.formulations.standard_form import StandardForm
from bloxopt.solvers.base import SolverResult

_NOTICEABLE = 1e-6
_MOST_ROWS_NAMED = 5


def infeasibility(program: Program, run: Callable[[StandardForm], SolverResult], solver: str) -> InfeasibleError:
    """The error to raise for blocks that cannot all hold, from one elastic solve.

    Every finite bound of every row gets a slack that costs 1 per unit relative to the bound; the least total
    slack names the rows to relax and by how much. Rows with a price in that program are those that conflict.
    """
    form = program.compile_rows()
    lower_rows = np.flatnonzero(np.isfinite(form.row_lower))
    upper_rows = np.flatnonzero(np.isfinite(form.row_upper))
    rows = np.concatenate([lower_rows, upper_rows])
    sign = np.concatenate([np.ones(len(lower_rows)), -np.ones(len(upper_rows))])
    bound = np.concatenate([form.row_lower[lower_rows], form.row_upper[upper_rows]])
    slack = csc_array((sign, (rows, np.arange(len(rows)))), shape=(form.num_rows, len(rows)))
    elastic = StandardForm(
        cost=np.concatenate([np.zeros(form.num_columns), 1.0 / np.maximum(1.0, np.abs(bound))]),
        matrix=csc_array(hstack([form.matrix, slack])),
        row_lower=form.row_lower,
        row_upper=form.row_upper,
        lower=np.concatenate([form.lower, np.zeros(len(rows))]),
        upper=np.concatenate([form.upper, np.full(len(rows), np.inf)]),
        integer=np.concatenate([form.integer, np.zeros(len(rows), dtype=bool)]),
    )
    names = list(dict.fromkeys(family.name for family in program.families))
    head = f"no allocation satisfies the constraints {', '.join(names)} together"
    result = run(elastic)
    if result.x is None:
        return InfeasibleError(f"{head} (solver {solver!r}); relax or drop one of them")
    given = result.x[form.num_columns :]
    short = np.flatnonzero(given > _NOTICEABLE * np.maximum(1.0, np.abs(bound)))
    if not len(short):
        return InfeasibleError(f"{head} (solver {solver!r}), though only within rounding; relax one of them slightly")
    short = short[np.argsort(-given[short] / np.maximum(1.0, np.abs(bound[short])), kind="stable")]
    relax = [f"{_row_name(program, int(rows[k]))} by {given[k]:.4g}" for k in short[:_MOST_ROWS_NAMED]]
    more = f" and {len(short) - _MOST_ROWS_NAMED} more rows" if len(short) > _MOST_ROWS_NAMED else ""
    if result.row_duals is not None:
        priced = np.abs(result.row_duals) > _NOTICEABLE
        conflicting = [f.name for f in program.families if priced[f.start : f.stop].any()]
        names = list(dict.fromkeys(conflicting)) or names
        head = f"no allocation satisfies {' and '.join(names)} together"
    return InfeasibleError(f"{head}: the least change that would is to relax {', '.join(relax)}{more}")


def _row_name(program: Program, row: int) -> str:
    """``Block('label')`` of a row."""
    family = next(f for f in program.families if f.start <= row < f.stop)
    return f"{family.name}({family.row_labels()[row - family.start]!r})"
