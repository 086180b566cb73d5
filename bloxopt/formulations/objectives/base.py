"""Objectives: utilities to maximise, declared from expressions, that add, subtract and scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bloxopt.errors import FormulationError, guarded
from bloxopt.formulations.checks import checked_amount, finite_number, shown
from bloxopt.formulations.expressions import (
    Expression,
    ExpressionLike,
    build_affine,
    build_expression,
    describe_expression,
    is_nothing,
)
from bloxopt.formulations.measures import Restarts
from bloxopt.formulations.progress import ProgressDependent, depends_on_progress
from bloxopt.formulations.solving.affine import Affine, Reciprocal
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.reciprocal import minimise_largest
from bloxopt.formulations.solving.session import Outcome, Session, outcome_of
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray


class Objective(ProgressDependent):
    """Base of all objectives: a utility to maximise.

    Those that are one linear program implement :meth:`terms`; others (several solves, closed forms)
    override :meth:`solve`. Linear ones combine: ``MaxMin(e) - 0.05 * RestartPenalty()``. A user's own is solved
    anew in every round of a simulation unless it says ``progress_dependent = False``.
    """

    curvature: Literal["affine", "concave", "staged"] = "affine"
    """Affine utilities take any weight in a sum, concave ones none below 0, staged ones cannot be summed."""
    work_conserving = True
    """True if GPUs without a claim may go to any job; False if jobs must not overtake."""
    decides_rounds = False
    """True if its allocation says who runs in the coming round alone, so that it is asked in each, whatever interval
    between plans a simulation keeps."""
    uses_spread = False
    """True if the objective tells consolidated gangs from others, so that it needs columns for both."""
    minimised = False
    """True if people read the value as something to make small: it is reported with that sign."""
    unserved = ""
    """Which jobs make it fail for all, and the option that changes that; empty if it serves whatever jobs come."""

    def terms(self, space: AllocationSpace, program: Program) -> Affine:
        """The utility as one row over the program's columns, after adding what it needs to the program."""
        raise FormulationError(f"{describe_objective(self)} cannot be a term of a sum: it is not one linear program")

    def utility(self, space: AllocationSpace, x: FloatArray) -> float | None:
        """The utility at the time shares ``x``; None if it is only known to the solver."""
        return None

    def solve(self, session: Session) -> Outcome:
        """Find the best allocation."""
        program = session.program()
        program.block = program.unique_family(describe_objective(self))
        return outcome_of(session.solve(program, built_terms(self, session.space, program)))

    def hold(self, session: Session, program: Program, outcome: Outcome, tolerance: float) -> None:
        """Add rows that keep this objective within ``tolerance`` (relative) of what was found."""
        floor = outcome.utility - tolerance * max(1e-9, abs(outcome.utility))
        program.block = program.unique_family(describe_objective(self))
        program.add_rows(built_terms(self, session.space, program), lower=floor, labels=("at least",))

    def rank(self, space: AllocationSpace) -> IntArray | None:
        """Active jobs in the order in which they are served, None for objectives that are not an order."""
        return None

    def next_change(self, space: AllocationSpace) -> float:
        """Seconds until the answer changes next if what runs now goes on and no job comes or ends; inf if unknown."""
        return math.inf

    def __add__(self, other: Objective | Literal[0]) -> Objective:
        return self if is_nothing(other) else WeightedSum(_parts(self) + _parts(other))

    __radd__ = __add__

    def __sub__(self, other: Objective) -> Objective:
        return WeightedSum(_parts(self) + tuple((-weight, part) for weight, part in _parts(other)))

    def __mul__(self, weight: float) -> Objective:
        number = finite_number(f"{describe_objective(self)}: weight", weight)
        return WeightedSum(tuple((number * w, part) for w, part in _parts(self)))

    __rmul__ = __mul__

    def __neg__(self) -> Objective:
        return self * -1.0


def describe_objective(objective: Objective) -> str:
    """A short name for messages and row families."""
    return type(objective).__name__


def built_terms(objective: Objective, space: AllocationSpace, program: Program) -> Affine:
    """The utility of an objective as one row; raises :class:`FormulationError` naming one that gives anything else."""
    name = describe_objective(objective)
    with guarded(f"objective {name}: terms(space, program)", FormulationError):
        row = objective.terms(space, program)
    if not isinstance(row, Affine) or row.num_rows != 1:
        gave = f"an Affine of {row.num_rows} rows" if isinstance(row, Affine) else shown(row)
        raise FormulationError(
            f"objective {name}: terms(space, program) gave {gave}: it must give an Affine of one row, the utility "
            "(a block of expressions is built by build_affine(...).total())"
        )
    return row


def _parts(objective: object) -> tuple[tuple[float, Objective], ...]:
    if not isinstance(objective, Objective):
        what = "an expression: wrap it in MaxSum, MaxMin or MinMax" if isinstance(objective, Expression) else "not one"
        raise FormulationError(f"objectives add to objectives; {describe_expression(objective)} is {what}")
    return objective.parts if isinstance(objective, WeightedSum) else ((1.0, objective),)


@dataclass(frozen=True, eq=False)
class WeightedSum(Objective):
    """``Σ_k weight_k objective_k``, what ``+``, ``-`` and ``*`` make.

    Raises :class:`FormulationError` for a negative weight on a concave term (its maximum would not be a
    linear program) and for objectives that are not one linear program.
    """

    parts: tuple[tuple[float, Objective], ...]

    def __post_init__(self) -> None:
        for weight, part in self.parts:
            name = describe_objective(part)
            if part.curvature == "staged":
                raise FormulationError(
                    f"{name} cannot be added to or scaled: it is solved in stages; combine it with others by "
                    "Lexicographic([...])"
                )
            if part.curvature == "concave" and weight < 0:
                raise FormulationError(
                    f"{name} has weight {weight:g}: a concave objective cannot be scaled by a negative number "
                    "(MinMax is already -max; subtract an affine penalty such as MaxSum or RestartPenalty instead)"
                )

    @property
    def curvature(self) -> Literal["affine", "concave", "staged"]:  # type: ignore[override]
        return "concave" if any(part.curvature == "concave" for _, part in self.parts) else "affine"

    @property
    def progress_dependent(self) -> bool:  # type: ignore[override]
        return any(part.progress_dependent for _, part in self.parts)

    @property
    def uses_spread(self) -> bool:  # type: ignore[override]
        return any(part.uses_spread for _, part in self.parts)

    @property
    def unserved(self) -> str:  # type: ignore[override]
        return next((part.unserved for _, part in self.parts if part.unserved), "")

    def terms(self, space: AllocationSpace, program: Program) -> Affine:
        whole = Affine.nothing()
        for weight, part in self.parts:
            program.block = program.unique_family(describe_objective(part))
            whole = whole.plus(built_terms(part, space, program).scaled(weight))
        return whole

    def utility(self, space: AllocationSpace, x: FloatArray) -> float | None:
        total = 0.0
        for weight, part in self.parts:
            value = part.utility(space, x)
            if value is None:
                return None
            total += weight * value
        return total


@dataclass(frozen=True, eq=False)
class MaxSum(Objective):
    """Maximise the sum of an affine expression over its rows."""

    expression: ExpressionLike

    @property
    def progress_dependent(self) -> bool:  # type: ignore[override]
        return depends_on_progress(self.expression)

    def terms(self, space: AllocationSpace, program: Program) -> Affine:
        return build_affine(self.expression, space, "MaxSum").total()

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        return float(build_affine(self.expression, space, "MaxSum").at(x).sum())


@dataclass(frozen=True, eq=False)
class MaxMin(Objective):
    """Maximise the smallest value of an affine expression: ``max θ, e_i(x) ≥ θ``.

    Jobs without a column take no part. With no row at all the value is 0.
    """

    expression: ExpressionLike
    curvature = "concave"

    @property
    def progress_dependent(self) -> bool:  # type: ignore[override]
        return depends_on_progress(self.expression)

    def terms(self, space: AllocationSpace, program: Program) -> Affine:
        rows = build_affine(self.expression, space, "MaxMin").only_counted()
        return _epigraph(rows, program)

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        rows = build_affine(self.expression, space, "MaxMin").only_counted()
        return float(rows.at(x).min()) if rows.num_rows else 0.0


@dataclass(frozen=True, eq=False)
class MinMax(Objective):
    """Minimise the largest value of an expression; as a utility it is ``-max_i e_i(x)``.

    An affine expression is one linear program. A reciprocal (RemainingTime, FinishTimeRatio) is solved
    exactly by a few (:func:`~bloxopt.formulations.solving.reciprocal.minimise_largest`), with a certified bound.
    """

    expression: ExpressionLike
    curvature = "concave"
    minimised = True

    @property
    def progress_dependent(self) -> bool:  # type: ignore[override]
        return depends_on_progress(self.expression)

    def terms(self, space: AllocationSpace, program: Program) -> Affine:
        built = build_expression(self.expression, space)
        if isinstance(built, Reciprocal):
            raise FormulationError(
                f"MinMax({describe_expression(self.expression)}) cannot be a term of a sum: the reciprocal of a time "
                "share is not linear; combine it with others by Lexicographic([...])"
            )
        return _epigraph(built.only_counted().scaled(-1.0), program)

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        values = build_expression(self.expression, space).only_counted().at(x)
        return -float(values.max()) if len(values) else 0.0

    def solve(self, session: Session) -> Outcome:
        built = build_expression(self.expression, session.space)
        if isinstance(built, Reciprocal):
            return minimise_largest(session, built.only_counted())
        return super().solve(session)

    def hold(self, session: Session, program: Program, outcome: Outcome, tolerance: float) -> None:
        built = build_expression(self.expression, session.space)
        if not isinstance(built, Reciprocal):
            super().hold(session, program, outcome, tolerance)
            return
        rows = built.only_counted()
        program.block = program.unique_family("MinMax")
        program.add_rows(rows.base, lower=rows.required(-outcome.utility * (1.0 + tolerance)))


@dataclass(frozen=True)
class RestartPenalty(Objective):
    """Expected time lost to restarts in a round, in rounds, summed over running jobs; subtract it.

    ``Σ_i (restart_cost_i / round_seconds) (1 − x_i,current)``: a running job loses its restart cost unless it
    goes on with its present configuration, whose time share is x_i,current. Linear in x and ≥ 0.
    ``seconds`` sets one restart cost for all jobs, None takes each job's own ``restart_cost``.
    """

    seconds: float | None = None
    progress_dependent = False

    def __post_init__(self) -> None:
        if self.seconds is not None:
            checked_amount("RestartPenalty", "seconds", self.seconds)

    def terms(self, space: AllocationSpace, program: Program) -> Affine:
        return Restarts(self.seconds).build(space).total().scaled(1.0 / space.round_seconds)

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        return float(Restarts(self.seconds).build(space).at(x).sum()) / space.round_seconds


def _epigraph(rows: Affine, program: Program) -> Affine:
    """The minimum of the rows as one column: ``θ`` with ``rows − θ ≥ 0``."""
    if not rows.num_rows:
        return Affine.nothing()
    bounded = rows.column < program.space.num_columns
    if bounded.all():
        low, high = rows.limits()
        theta = program.add_columns(1, float(low.min()), float(high.min()))
    else:
        theta = program.add_columns(1, -np.inf, np.inf)
    program.add_rows(rows.plus_column(int(theta[0]), -1.0), lower=0.0)
    return Affine.one_column(int(theta[0]))


def check_objective(objective: object, user: str) -> Objective:
    """``objective`` itself, or a :class:`FormulationError` that says what it is instead."""
    if isinstance(objective, Objective):
        return objective
    if isinstance(objective, Expression):
        raise FormulationError(
            f"{user}: {describe_expression(objective)} is an expression, not an objective: wrap it in MaxMin, MaxSum "
            "or MinMax"
        )
    if isinstance(objective, type) and issubclass(objective, Objective):
        raise FormulationError(f"{user}: the objective is the class {objective.__name__}: add parentheses")
    raise FormulationError(f"{user}: the objective is {shown(objective)}, not an Objective")


def check_stages(stages: Sequence[object], user: str) -> tuple[Objective, ...]:
    """Several objectives, at least one."""
    if not isinstance(stages, Iterable) or isinstance(stages, str):
        raise FormulationError(f"{user}: the objectives are {shown(stages)}, must be a list of them")
    stages = tuple(stages)
    if not stages:
        raise FormulationError(f"{user} needs at least one objective")
    return tuple(check_objective(stage, user) for stage in stages)
