"""A linear program in the one-sided form of interior-point and splitting methods: ``A x = b``, ``G x ≤ h``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array, eye_array, vstack

from bloxopt.jobs import BoolArray, FloatArray
from bloxopt.solvers.presolve import implied_upper_bounds

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm


@dataclass(frozen=True, eq=False)
class OneSided:
    """Rows of a program split by side: equalities, upper sides, lower sides (negated), column bounds as rows.

    ``matrix`` (k, n) and ``right`` (k,) hold the ``num_equal`` equalities first and then the inequalities
    ``≤``. Bounds on columns that a row implies are left out: they bind nothing.
    """

    matrix: csr_array
    right: FloatArray
    num_equal: int
    equal: BoolArray
    at_most: BoolArray
    at_least: BoolArray

    def row_duals(self, multipliers: FloatArray) -> FloatArray:
        """Duals (m,) of the program's rows from multipliers (k,) of ``c + matrixᵀ multipliers = 0``."""
        duals = np.zeros(len(self.equal))
        end_at_most = self.num_equal + int(self.at_most.sum())
        end_at_least = end_at_most + int(self.at_least.sum())
        duals[self.equal] -= multipliers[: self.num_equal]
        duals[self.at_most] -= multipliers[self.num_equal : end_at_most]
        duals[self.at_least] += multipliers[end_at_most:end_at_least]
        return duals


def one_sided(form: StandardForm) -> OneSided:
    """Split the rows of a linear program; integrality is not looked at."""
    rows = form.matrix.tocsr()
    equal = form.row_lower == form.row_upper
    at_most = ~equal & np.isfinite(form.row_upper)
    at_least = ~equal & np.isfinite(form.row_lower)
    identity = csr_array(eye_array(form.num_columns, format="csr"))
    bounded_above = np.isfinite(form.upper) & ~implied_upper_bounds(form)
    bounded_below = np.isfinite(form.lower)
    matrix = vstack(
        [rows[equal], rows[at_most], -rows[at_least], identity[bounded_above], -identity[bounded_below]], format="csr"
    )
    right = np.concatenate(
        [
            form.row_upper[equal],
            form.row_upper[at_most],
            -form.row_lower[at_least],
            form.upper[bounded_above],
            -form.lower[bounded_below],
        ]
    )
    return OneSided(csr_array(matrix), right, int(equal.sum()), equal, at_most, at_least)
