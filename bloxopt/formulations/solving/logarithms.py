"""Sums of logarithms in a linear program: each ``log e`` becomes the smallest of its tangents, with a stated error.

The tangent at g is ``log g + (e − g)/g``, never below ``log e``; the smallest of several is a concave
piecewise-linear function, so maximising it needs only columns with bounds, no integers. Between two tangents
whose points differ by a factor r it exceeds the logarithm by at most ``(ln r)²/8`` to leading order, below the
first and beyond the last point by more and more.
"""

from __future__ import annotations

import numpy as np

from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.program import Program
from bloxopt.jobs import FloatArray


def add_logarithms(program: Program, rows: Affine, weight: FloatArray, points: FloatArray) -> Affine:
    """``Σ_r weight_r log e_r``, overestimated by tangents, as one row over the program's columns.

    ``weight`` (rows,) ≥ 0; ``points`` (rows, k) > 0, ascending along each row: where the tangents touch. Adds k
    columns a row (none where k is 1), which need no integrality as long as the sum is maximised.
    """
    count, tangents = points.shape
    constant = float(weight @ (np.log(points[:, 0]) - 1.0))
    if tangents == 1:
        whole = rows.scaled(weight / points[:, 0]).total()
        return whole.shifted(constant)
    # Row r is a sum of segments that end where neighbouring tangents cross; the steeper come first by themselves.
    slope = 1.0 / points
    crossing = np.diff(np.log(points), axis=1) / (slope[:, :-1] - slope[:, 1:])
    length = np.diff(crossing, axis=1, prepend=0.0, append=np.inf)
    # Measured in the last point, so that rows in steps/s of very different models are of one size.
    unit = points[:, -1]
    segments = program.add_columns(count * tangents, 0.0, (length / unit[:, None]).ravel())
    row = np.repeat(np.arange(count), tangents)
    scaled = rows.scaled(1.0 / unit)
    filled = Affine(
        np.concatenate([scaled.row, row]),
        np.concatenate([scaled.column, segments]),
        np.concatenate([scaled.value, -np.ones(len(segments))]),
        scaled.constant,
        scaled.labels,
    )
    program.add_rows(filled, lower=0.0)
    value = (weight * unit)[:, None] * slope
    return Affine(np.zeros(len(segments), np.int64), segments, value.ravel(), np.array([constant]))


def tangent_points(lowest: FloatArray, highest: FloatArray, count: int) -> FloatArray:
    """``count`` points (rows, count) from ``lowest`` to ``highest`` (rows,), each the same factor above the last."""
    if count == 1:
        return np.sqrt(lowest * highest)[:, None]
    part = np.linspace(0.0, 1.0, count)
    return np.asarray(lowest[:, None] * (highest / lowest)[:, None] ** part, dtype=np.float64)
