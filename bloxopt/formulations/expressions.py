"""Expressions: what a program measures, declared without a cluster and built for each allocation space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.affine import Affine, Reciprocal
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray

Built: TypeAlias = Affine | Reciprocal
Weights: TypeAlias = float | Mapping[str, float] | FloatArray


class Expression:
    """Base of all expressions: add, subtract and scale them; ``2 * e``, ``e1 - e2``, ``e * {"job-7": 3.0}``.

    A user's own overrides :meth:`build`. It returns one coefficient per column of the space (the value of
    a job is then Σ coefficient × time share over its columns) or an :class:`Affine` with rows of its own.
    """

    __array_ufunc__ = None  # NumPy arrays on the left leave the product to us

    def build(self, space: AllocationSpace) -> Affine | Reciprocal | FloatArray:
        """The rows over the columns of ``space``."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built: override build(space)")

    def __add__(self, other: Expression | float) -> Expression:
        return _Sum(self, other)

    __radd__ = __add__

    def __sub__(self, other: Expression | float) -> Expression:
        return _Sum(self, -1.0 * other)

    def __rsub__(self, other: float) -> Expression:
        return _Sum(-1.0 * self, other)

    def __mul__(self, weights: Weights) -> Expression:
        return _Scaled(self, weights)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Expression:
        return _Scaled(self, 1.0 / divisor)

    def __neg__(self) -> Expression:
        return _Scaled(self, -1.0)


ExpressionLike: TypeAlias = Expression | Callable[[AllocationSpace], Any]
"""An expression, or a plain function of the space that returns what ``build`` may return."""


def build_expression(expression: ExpressionLike, space: AllocationSpace) -> Built:
    """Build and check one expression; raises :class:`FormulationError` naming it."""
    name = describe_expression(expression)
    if isinstance(expression, Expression):
        built = expression.build(space)
    elif callable(expression) and not isinstance(expression, type):
        built = expression(space)
    else:
        hint = " (an instance is needed: add parentheses)" if isinstance(expression, type) else ""
        raise FormulationError(f"{name} is not an expression or a function of the allocation space{hint}")
    if isinstance(built, Reciprocal):
        return built
    if not isinstance(built, Affine):
        built = per_job(space, _coefficients(name, built, space.num_columns))
    if not (np.isfinite(built.value).all() and np.isfinite(built.constant).all()):
        raise FormulationError(f"expression {name} has a coefficient that is not a finite number")
    return built


def build_affine(expression: ExpressionLike, space: AllocationSpace, user: str) -> Affine:
    """Like :func:`build_expression` for a ``user`` block that needs affine rows."""
    built = build_expression(expression, space)
    if isinstance(built, Reciprocal):
        raise FormulationError(
            f"{user} needs an affine expression but {describe_expression(expression)} is a reciprocal of the time "
            "shares, which only MinMax can take"
        )
    return built


def describe_expression(expression: Any) -> str:
    """A short name for messages."""
    return getattr(expression, "__name__", None) or type(expression).__name__.lstrip("_")


def per_job(space: AllocationSpace, coefficient: FloatArray) -> Affine:
    """One row per active job from one coefficient per column."""
    return Affine(
        row=space.job,
        column=np.arange(space.num_columns),
        value=coefficient,
        constant=np.zeros(space.num_jobs),
        labels=lambda: list(space.job_ids),
        counted=space.runnable,
    )


def job_weights(weights: Weights, space: AllocationSpace, rows: int, user: str) -> float | FloatArray:
    """A scale per row: a number, an array (rows,), or a mapping from job id (others keep 1)."""
    if isinstance(weights, Mapping):
        if rows != space.num_jobs:
            raise FormulationError(f"{user}: weights by job id need an expression with a row per job")
        position = space.catalog.position
        for job_id, weight in weights.items():
            if job_id not in position:
                raise FormulationError(f"{user}: weight for job {job_id!r}, which is not in the trace")
            _finite(f"{user}: weight of job {job_id!r}", weight)
        return np.array([weights.get(job_id, 1.0) for job_id in space.job_ids], dtype=np.float64)
    if isinstance(weights, (int, float, np.number)) and not isinstance(weights, bool):
        return _finite(f"{user}: weight", float(weights))
    try:
        array = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise FormulationError(f"{user}: cannot scale by {weights!r}: give a number, array or mapping") from None
    if array.shape != (rows,) or not np.isfinite(array).all():
        raise FormulationError(f"{user}: weights of shape {array.shape} must be {rows} finite numbers, one per row")
    return array


@dataclass(frozen=True, eq=False)
class _Scaled(Expression):
    inner: Expression
    weights: Weights

    def build(self, space: AllocationSpace) -> Built:
        built = build_expression(self.inner, space)
        rows = built.num_rows if isinstance(built, Affine) else len(built.offset)
        return built.scaled(job_weights(self.weights, space, rows, describe_expression(self.inner)))

    @property
    def __name__(self) -> str:
        return describe_expression(self.inner)


@dataclass(frozen=True, eq=False)
class _Sum(Expression):
    left: Expression
    right: Expression | float

    def build(self, space: AllocationSpace) -> Built:
        left = build_expression(self.left, space)
        if not isinstance(self.right, Expression):
            return left.shifted(_finite(describe_expression(self.left), self.right))
        right = build_expression(self.right, space)
        if isinstance(left, Affine) and isinstance(right, Affine):
            return left.plus(right)
        raise FormulationError(
            f"cannot add {describe_expression(self.left)} and {describe_expression(self.right)}: a reciprocal "
            "expression can only be scaled or shifted by numbers"
        )

    @property
    def __name__(self) -> str:
        return f"{describe_expression(self.left)} + {describe_expression(self.right)}"


def _coefficients(name: str, built: Any, columns: int) -> FloatArray:
    try:
        array = np.asarray(built, dtype=np.float64)
    except (TypeError, ValueError):
        raise FormulationError(f"expression {name} gave {type(built).__name__}, not an array or Affine") from None
    if array.shape != (columns,):
        raise FormulationError(f"expression {name} gave shape {array.shape}, expected one per column: ({columns},)")
    return array


def _finite(what: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not np.isfinite(number):
        raise FormulationError(f"{what} is {value!r}, must be a finite number")
    return number
