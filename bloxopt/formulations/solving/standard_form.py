"""The neutral program that every solver accepts: ``min cᵀx, L ≤ Ax ≤ U, l ≤ x ≤ u``, some x integer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array

from bloxopt.jobs import BoolArray, FloatArray


@dataclass(frozen=True, eq=False)
class StandardForm:
    """A linear or mixed-integer program over n columns and m rows.

    ``cost`` (n,), ``matrix`` (m, n) in CSC, ``row_lower`` and ``row_upper`` (m,), ``lower`` and
    ``upper`` (n,), ``integer`` (n,) bool, ``constant`` added to the objective. Absent bounds are
    ±inf. The objective is minimised. Never changed after it was built.
    """

    cost: FloatArray
    matrix: csc_array
    row_lower: FloatArray
    row_upper: FloatArray
    lower: FloatArray
    upper: FloatArray
    integer: BoolArray
    constant: float = 0.0

    @property
    def num_columns(self) -> int:
        return len(self.cost)

    @property
    def num_rows(self) -> int:
        return len(self.row_lower)

    @property
    def is_mip(self) -> bool:
        """True if some column must be integer."""
        return bool(self.integer.any())

    def objective(self, x: FloatArray) -> float:
        """``cᵀx + constant``."""
        return float((self.cost * x).sum()) + self.constant  # no BLAS: see ``solvers.check``

    def max_violation(self, x: FloatArray) -> float:
        """Largest amount by which ``x`` leaves a row, a bound or integrality; 0 for a feasible x, inf for a NaN."""
        if x.shape != self.cost.shape or not np.all(np.isfinite(x)):
            return float("inf")
        activity = self.matrix @ x
        parts = [
            self.row_lower - activity,
            activity - self.row_upper,
            self.lower - x,
            x - self.upper,
            np.abs(x - np.round(x))[self.integer],
        ]
        return max((float(part.max()) for part in parts if part.size), default=0.0) if x.size or activity.size else 0.0
