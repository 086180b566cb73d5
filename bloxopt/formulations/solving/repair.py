"""Takes back what a solver overspent within its tolerance."""

from __future__ import annotations

import numpy as np

from bloxopt.formulations.allocation import violations_of
from bloxopt.formulations.solving.session import Session
from bloxopt.jobs import FloatArray

_LARGEST_REPAIR = 1e-3
"""Relative excess up to which a limit counts as overspent by rounding; more is left to the check."""


def repaired(session: Session, x: FloatArray, tolerance: float) -> FloatArray:
    """``x`` with the columns of overspent limits ``Σ a x ≤ b`` (a ≥ 0) scaled down to fit.

    First-order solvers stop with limits exceeded by 1e-4 or so. Shares of 0 or 1 are rounded where columns are
    integer. Points within ``tolerance`` are returned as they are.
    """
    if session.program().is_mip:
        rounded = np.round(x)
        return rounded if np.abs(rounded - x).max(initial=0.0) <= _LARGEST_REPAIR else x
    space = session.space
    if all(
        float(violations_of(name, block, space, x).max(initial=0.0)) <= 0.1 * tolerance
        for name, block in session.constraints.items()
    ):
        return x
    form = session.program().compile_rows()
    if form.num_columns != space.num_columns:
        return x
    activity = form.matrix @ x
    least = np.full(form.num_rows, np.inf)
    np.minimum.at(least, form.matrix.indices, form.matrix.data)
    over = (activity > form.row_upper) & (form.row_upper > 0) & (least >= 0)
    over &= activity <= form.row_upper * (1.0 + _LARGEST_REPAIR)
    if not over.any():
        return x
    factor = np.where(over, form.row_upper / np.where(over, activity, 1.0), 1.0)
    column = np.repeat(np.arange(form.num_columns), np.diff(form.matrix.indptr))
    scale = np.ones(form.num_columns)
    np.minimum.at(scale, column, factor[form.matrix.indices])
    return x * scale
