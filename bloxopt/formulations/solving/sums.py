"""Sums by group, the one arithmetic operation that blocks share."""

from __future__ import annotations

import numpy as np

from bloxopt.jobs import FloatArray, IntArray


def sum_by(group: IntArray, values: FloatArray, count: int) -> FloatArray:
    """``Σ values`` over the entries of each group 0 … count - 1, shape (count,)."""
    # NumPy returns whole numbers for an empty input, whatever the weights.
    return np.asarray(np.bincount(group, weights=values, minlength=count), dtype=np.float64)
