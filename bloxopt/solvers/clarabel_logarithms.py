"""Where a sum of logarithms is largest, by Clarabel's exponential cones: a suggestion for those who then prove it."""

from __future__ import annotations

import importlib.util
import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csc_matrix, csr_array, hstack, vstack

from bloxopt.jobs import FloatArray
from bloxopt.solvers.conic import one_sided

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm


def suggest_logarithms(
    form: StandardForm, rows: csr_array, constant: FloatArray, weight: FloatArray, time_limit: float | None = None
) -> FloatArray | None:
    """About the values ``v = rows x + constant`` with the largest ``Σ weight log v`` within a linear program.

    ``form``: rows and bounds alone matter; ``rows`` (k, n), best scaled to values of about 1; ``weight`` (k,) > 0.
    None if Clarabel is not installed or does not solve it. Nothing is proven.
    """
    if importlib.util.find_spec("clarabel") is None:
        return None
    import clarabel

    count, columns = rows.shape
    program = one_sided(form)
    linear = hstack([program.matrix, csr_array((len(program.right), count))])
    # Each cone holds (t, 1, e): t ≤ log e.
    place = 3 * np.arange(count)
    value = csr_array((-np.ones(count), (place, np.arange(count))), shape=(3 * count, count))
    entries = rows.tocoo()
    affine = csr_array((-entries.data, (3 * entries.row + 2, entries.col)), shape=(3 * count, columns))
    matrix = csc_matrix(vstack([linear, hstack([affine, value])]))
    right = np.zeros((count, 3))
    right[:, 1], right[:, 2] = 1.0, constant
    cones = [clarabel.ZeroConeT(program.num_equal)] if program.num_equal else []
    if unequal := len(program.right) - program.num_equal:
        cones.append(clarabel.NonnegativeConeT(unequal))
    cones += [clarabel.ExponentialConeT()] * count
    cost = np.concatenate([np.zeros(columns), -weight / weight.sum()])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    if time_limit is not None and math.isfinite(time_limit):
        settings.time_limit = float(time_limit)
    nothing = csc_matrix((columns + count,) * 2)
    right_side = np.concatenate([program.right, right.ravel()])
    solution = clarabel.DefaultSolver(nothing, cost, matrix, right_side, cones, settings).solve()
    if str(solution.status) != "Solved":
        return None
    reached: FloatArray = rows @ np.array(solution.x)[:columns] + constant
    return reached if (reached > 0).all() else None
