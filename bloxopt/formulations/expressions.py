"""Expressions: what a program measures, declared without a cluster and built for each allocation space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from bloxopt.errors import FormulationError, guarded
from bloxopt.formulations.checks import finite_number, real_numbers, shown
from bloxopt.formulations.progress import ProgressDependent, depends_on_progress
from bloxopt.formulations.solving.affine import Affine, Reciprocal
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray

Built: TypeAlias = Affine | Reciprocal
Weights: TypeAlias = float | Mapping[str, float] | FloatArray


class Expression(ProgressDependent):
    """Base of all expressions: add, subtract and scale them; ``2 * e``, ``e1 - e2``, ``e * {"job-7": 3.0}``.

    A user's own overrides :meth:`build`. It returns one coefficient per column of the space (the value of
    a job is then Σ coefficient × time share over its columns) or an :class:`Affine` with rows of its own.
    Unless it says ``progress_dependent = False`` it is built anew in every round of a simulation.
    """

    __array_ufunc__ = None  # NumPy arrays on the left leave the product to us

    def build(self, space: AllocationSpace) -> Affine | Reciprocal | FloatArray:
        """The rows over the columns of ``space``."""
        raise FormulationError(f"expression {type(self).__name__} does not say how it is built: override build(space)")

    def __add__(self, other: Expression | float) -> Expression:
        return self if is_nothing(other) else _Sum(self, other)

    __radd__ = __add__

    def __sub__(self, other: Expression | float) -> Expression:
        return self + (-other if isinstance(other, Expression) else -finite_number("a number subtracted", other))

    def __rsub__(self, other: float) -> Expression:
        return _Sum(-1.0 * self, other)

    def __mul__(self, weights: Weights) -> Expression:
        return _Scaled(self, weights)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Expression:
        number = finite_number(f"{describe_expression(self)}: the divisor", divisor)
        if number == 0:
            raise FormulationError(f"{describe_expression(self)} is divided by 0")
        return _Scaled(self, 1.0 / number)

    def __neg__(self) -> Expression:
        return _Scaled(self, -1.0)


def is_nothing(term: object) -> bool:
    """Whether a term is the number 0, with which ``sum`` begins."""
    return isinstance(term, (int, float)) and not isinstance(term, bool) and term == 0


ExpressionLike: TypeAlias = Expression | Callable[[AllocationSpace], Any]
"""An expression, or a plain function of the space that returns what ``build`` may return."""


def build_expression(expression: ExpressionLike, space: AllocationSpace) -> Built:
    """Build and check one expression; raises :class:`FormulationError` naming it."""
    name = describe_expression(expression)
    if isinstance(expression, Expression):
        with guarded(f"expression {name}: build(space)", FormulationError):
            built = expression.build(space)
    elif callable(expression) and not isinstance(expression, type):
        with guarded(f"expression {name}", FormulationError):
            built = expression(space)
    else:
        hint = " (an instance is needed: add parentheses)" if isinstance(expression, type) else ""
        raise FormulationError(f"{name} is not an expression or a function of the allocation space{hint}")
    if isinstance(built, Reciprocal):
        return built
    if not isinstance(built, Affine):
        return per_job(space, _coefficients(name, built, space.num_columns))
    _check_affine(name, built)
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
    return str(getattr(expression, "__name__", None) or type(expression).__name__.lstrip("_"))


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
            finite_number(f"{user}: weight of job {job_id!r}", weight)
        return np.array([weights.get(job_id, 1.0) for job_id in space.job_ids], dtype=np.float64)
    if isinstance(weights, (int, float, np.number)) and not isinstance(weights, bool):
        return finite_number(f"{user}: weight", weights)
    array = real_numbers(f"{user}: weight", weights, "a number, an array with one per row, or a mapping from job id")
    if array.shape != (rows,) or not np.isfinite(array).all():
        raise FormulationError(f"{user}: weights of shape {array.shape} must be {rows} finite numbers, one per row")
    return array.astype(np.float64)


@dataclass(frozen=True, eq=False)
class _Scaled(Expression):
    inner: Expression
    weights: Weights

    @property
    def progress_dependent(self) -> bool:  # type: ignore[override]
        return depends_on_progress(self.inner)

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

    @property
    def progress_dependent(self) -> bool:  # type: ignore[override]
        terms = (self.left, self.right)
        return any(isinstance(term, Expression) and depends_on_progress(term) for term in terms)

    def build(self, space: AllocationSpace) -> Built:
        left = build_expression(self.left, space)
        if not isinstance(self.right, Expression):
            return left.shifted(finite_number(f"what is added to {describe_expression(self.left)}", self.right))
        right = build_expression(self.right, space)
        if isinstance(left, Affine) and isinstance(right, Affine):
            return left.plus(right)
        raise FormulationError(
            f"cannot add {describe_expression(self.left)} and {describe_expression(self.right)}: a reciprocal "
            "expression can only be scaled or shifted by numbers"
        )

    @property
    def __name__(self) -> str:
        right = describe_expression(self.right) if isinstance(self.right, Expression) else shown(self.right)
        return f"{describe_expression(self.left)} + {right}"


def _coefficients(name: str, built: Any, columns: int) -> FloatArray:
    wanted = f"an array of {columns} finite numbers, one per column of the space, or an Affine"
    array = real_numbers(f"expression {name} gave {type(built).__name__}: it", built, wanted)
    if array.shape != (columns,):
        raise FormulationError(f"expression {name} gave shape {array.shape}, expected one per column: ({columns},)")
    if not np.isfinite(array).all():
        raise FormulationError(f"expression {name} has a coefficient that is not a finite number")
    return array.astype(np.float64, copy=False)


def _check_affine(name: str, built: Affine) -> None:
    """Raise for entries that do not fit together: an Affine may come from a user."""
    if not (len(built.row) == len(built.column) == len(built.value)):
        raise FormulationError(
            f"expression {name} gave an Affine of {len(built.row)} rows, {len(built.column)} columns and "
            f"{len(built.value)} values: each entry needs all three"
        )
    for what, part in (("value", built.value), ("constant", built.constant)):
        numbers = real_numbers(f"the {what} of expression {name}'s Affine", part, "finite numbers")
        if not np.isfinite(numbers).all():
            raise FormulationError(f"expression {name} has a coefficient that is not a finite number")
    if len(built.row) and not 0 <= built.row.min() <= built.row.max() < built.num_rows:
        raise FormulationError(f"expression {name} gave an Affine with an entry outside its {built.num_rows} rows")
