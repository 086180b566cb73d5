"""Column bounds that follow from the rows: what a solver over finite domains needs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bloxopt.jobs import FloatArray

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm

ROUNDS = 5
ROUNDING = 1e-9


def tightened(form: StandardForm) -> StandardForm:
    """The program with infinite column bounds replaced by those its rows imply, where they imply any.

    Activity-based bound propagation, a few rounds; finite bounds stay as they are. Integer columns get
    whole bounds.
    """
    lower, upper = form.lower, form.upper
    for _ in range(ROUNDS):
        if np.isfinite(lower).all() and np.isfinite(upper).all():
            break
        implied_lower, implied_upper = _implied(form, lower, upper)
        lower = np.where(np.isfinite(lower), lower, implied_lower)
        upper = np.where(np.isfinite(upper), upper, implied_upper)
    lower = np.where(form.integer, np.ceil(lower - ROUNDING * np.maximum(1.0, np.abs(lower))), lower)
    upper = np.where(form.integer, np.floor(upper + ROUNDING * np.maximum(1.0, np.abs(upper))), upper)
    return replace(form, lower=lower, upper=upper)


def _implied(form: StandardForm, lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Bounds (n,) that each column gets from the least and greatest activity of the other columns in its rows."""
    matrix = form.matrix
    row = matrix.indices
    column = np.repeat(np.arange(form.num_columns), np.diff(matrix.indptr))
    positive = matrix.data > 0
    least = matrix.data * np.where(positive, lower[column], upper[column])
    greatest = matrix.data * np.where(positive, upper[column], lower[column])
    below = (form.row_upper[row] - _others(least, row, form.num_rows)) / matrix.data
    above = (form.row_lower[row] - _others(greatest, row, form.num_rows)) / matrix.data
    at_most = np.where(positive, below, above)
    at_least = np.where(positive, above, below)
    implied_lower = np.full(form.num_columns, -np.inf)
    implied_upper = np.full(form.num_columns, np.inf)
    np.minimum.at(implied_upper, column, np.where(np.isnan(at_most), np.inf, at_most))
    np.maximum.at(implied_lower, column, np.where(np.isnan(at_least), -np.inf, at_least))
    return implied_lower, implied_upper


def _others(activity: FloatArray, row: npt.NDArray[np.integer], num_rows: int) -> FloatArray:
    """For each entry, the summed activity of the other entries in its row; nan if one of them is infinite."""
    infinite = ~np.isfinite(activity)
    finite = np.where(infinite, 0.0, activity)
    total = np.bincount(row, finite, minlength=num_rows)
    count = np.bincount(row, infinite, minlength=num_rows)
    return np.where(count[row] > infinite, np.nan, total[row] - finite)
