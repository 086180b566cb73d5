"""Lexicographic max-min fairness, exactly and without a mixed-integer program.

The smallest value is made as large as possible, then the next smallest, and so on. Each stage finds the highest
water level t such that every free job reaches ``min(t, u_i)``, u_i being the most it can use; then jobs full at u_i,
and jobs whose row has a price (complementary slackness: no allocation gives them more), keep that level from
then on. A stage starts from a t that is too high and comes down by Newton's method on the cuts of the level
program, whose piecewise-linear roots are found by sorting.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from bloxopt.errors import FormulationError, InfeasibleError, SolverError
from bloxopt.formulations.expressions import ExpressionLike, build_affine
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.progress import depends_on_progress
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.levels import Cut, LevelProgram, LevelSolution
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import Outcome, Session, outcome_of
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import BoolArray, FloatArray
from bloxopt.solvers.base import Termination

_REACHED = 1e-7
"""A level counts as reached when θ is within this of 1; solvers promise no more."""
_HELD_BELOW = 1e-10
"""Fixed levels get this much relative slack where the solver calls them impossible, or fails, without any."""
_HELD_FAR_BELOW = 1e-5
"""... and ten times as much where that is not enough, up to this."""
_TOO_LOW = 1e-6
"""A level whose θ exceeds 1 by more than this is too low: rounding in a cut of an earlier stage."""
_SAME_LEVEL = 1e-8
_NO_LEVEL = 1e-9
"""Levels this small relative to what rows can reach or lose count as 0."""
_NO_PRICE = 1e-9
_MOST_STEPS = 50
_ABOVE_LAST = (1.002, 1.02)
"""Where a stage begins, times the height at which it ended in the allocation before: Newton's method comes from above,
so that what was too low is followed by the next."""
_SAME_STAGE = 1.001
"""Stages that end within this of each other count as one from one allocation to the next."""


@dataclass(frozen=True, eq=False)
class WaterFilling(Objective):
    """Leximin of an affine expression: raise the smallest value, then the next smallest, and so on.

    The reported value is the smallest; ``Allocation.levels`` has every job's. Needs a program without
    integer columns. Source: Gavel (OSDI 2020, §4.3), whose water filling solves a MIP per step.
    """

    expression: ExpressionLike
    curvature = "staged"

    @property
    def progress_dependent(self) -> bool:  # type: ignore[override]
        return depends_on_progress(self.expression)

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        rows = self._rows(space)
        return float(rows.at(x).min()) if rows.num_rows else 0.0

    def solve(self, session: Session) -> Outcome:
        rows = self._rows(session.space)
        if session.program().is_mip:
            raise FormulationError(
                "WaterFilling cannot be combined with constraints that make columns integer (OneConfiguration): use "
                "MaxMin, or TimeShare instead"
            )
        if not rows.num_rows:
            program = session.program()
            return outcome_of(session.solve(program, Affine.nothing()))
        shift = _shift_above_zero(session, rows)
        rows = rows.shifted(shift)
        outcome = fill(session, rows, CommonLevel(session.space, rows))
        if not shift:
            return outcome
        assert outcome.levels is not None
        assert outcome.bound is not None
        return replace(
            outcome, utility=outcome.utility - shift, bound=outcome.bound - shift, levels=outcome.levels - shift
        )

    def hold(self, session: Session, program: Program, outcome: Outcome, tolerance: float) -> None:
        rows = self._rows(session.space)
        program.block = program.unique_family("WaterFilling")
        assert outcome.levels is not None
        program.add_rows(rows, lower=outcome.levels - tolerance * np.maximum(np.abs(outcome.levels), 1e-9))

    def _rows(self, space: AllocationSpace) -> Affine:
        return build_affine(self.expression, space, "WaterFilling").only_counted().merged()


def _shift_above_zero(session: Session, rows: Affine) -> float:
    """What to add to every row so that all levels are positive; the order of values stays as it is.

    0 unless some row can be negative and the best smallest value is.
    """
    if float(rows.limits(session.exclusive_job)[0].min()) >= 0.0:
        return 0.0
    smallest = LevelProgram(session, rows, "WaterFilling", duals=False).solve(np.ones(rows.num_rows))
    worst = min(smallest.theta, float(rows.at(smallest.x).min()))
    return -2.0 * worst if worst < -_NO_LEVEL * float(np.abs(rows.limits()[0]).max()) else 0.0


class Profile(Protocol):
    """What rises: levels for all rows as a function of one height."""

    first_cut: Cut
    """What all rows can reach together, roughly: where the search starts, an upper bound if possible."""
    floor: FloatArray
    """Levels (rows,) at which the stage begins, 0 where the way from 0 up is as good."""
    bottom: float
    """The height of the floor."""

    def begin(self, level: FloatArray, cap: FloatArray, fixed: BoolArray) -> float:
        """A stage from ``level`` on, ``fixed`` rows staying and the others rising to ``cap``; the greatest height."""
        ...

    def at(self, height: float) -> FloatArray:
        """Levels (rows,) at a height; those of the fixed rows count for nothing."""
        ...

    def highest(self, cut: Cut, held: FloatArray) -> float:
        """The largest height that keeps ``cut`` when fixed rows have ``held``; +inf if all do."""
        ...


class CommonLevel:
    """Leximin: all free rows rise together, each up to its cap."""

    def __init__(self, space: AllocationSpace, rows: Affine) -> None:
        self.first_cut = gpu_guess(space, rows)
        self.floor = np.zeros(rows.num_rows)
        self.bottom = 0.0

    def begin(self, level: FloatArray, cap: FloatArray, fixed: BoolArray) -> float:
        self._cap, self._fixed = cap, fixed
        return float(cap[~fixed].max())

    def at(self, height: float) -> FloatArray:
        return np.minimum(height, self._cap)

    def highest(self, cut: Cut, held: FloatArray) -> float:
        return highest_level(cut, self._cap, held, self._fixed)


def fill(session: Session, rows: Affine, profile: Profile) -> Outcome:
    """Raise the rows along a profile; rows that are full, or that nothing can raise any more, stay as they are.

    ``rows`` are of one sign, ≥ 0. The value is the smallest row's. Each stage is looked for first where it ended in the
    allocation before, if the session knows that.
    """
    most = cap = np.maximum(rows.limits(session.exclusive_job)[1], 0.0)
    program = LevelProgram(session, rows, "WaterFilling", duals=True)
    fixed = cap <= 0.0
    level = np.zeros(rows.num_rows)
    cuts = [profile.first_cut]
    lowest: LevelSolution | None = None
    solution: LevelSolution | None = None
    complete = proven = True
    reached = 0.0
    while not fixed.all() and complete:
        top = height = profile.begin(level, cap, fixed.copy())
        # What the last allocation gives is possible together; asking for a hair less leaves room for rounding.
        given = level if solution is None else np.minimum(level, rows.at(solution.x))
        slack = 0.0
        held = given * (1.0 - slack)
        for cut in cuts:
            if _says_enough(cut, np.where(fixed, level, cap), fixed):
                height = min(height, profile.highest(cut, held))
        ceiling = height
        last = session.recall(f"{program.name} {program.stage}") or 0.0
        above = [last * factor for factor in _ABOVE_LAST if profile.bottom < last * factor < height]
        height, *above = [*above, height]
        if height - profile.bottom <= _SAME_LEVEL * height:
            height = top  # a program needs a way to go, even if only to tell who stands in it
        possible, missed = 0.0, np.inf
        on_profile = False
        for _ in range(_MOST_STEPS):
            target = np.where(fixed, held, _rounded(profile.at(height), most))
            try:
                solution = program.solve(target, fixed, np.minimum(profile.floor * (1.0 - slack), target))
            except (InfeasibleError, SolverError):
                if solution is not None and session.out_of_time:
                    height, complete = max(height, ceiling), False
                    break
                if solution is None or slack > _HELD_FAR_BELOW:
                    raise
                slack = max(10.0 * slack, _HELD_BELOW)
                held = given * (1.0 - slack)
                continue
            assert solution.cut is not None
            cuts.append(solution.cut)
            proven &= solution.solved.result.termination is Termination.OPTIMAL
            on_profile = abs(solution.theta - 1.0) <= 10 * _TOO_LOW
            if solution.theta >= 1.0 - _REACHED:
                if above:
                    height, *above = above
                    continue  # a guess that was too low may have stopped rows that can go on
                possible = height
                if solution.theta <= 1.0 + _TOO_LOW or height >= top:
                    break
            else:
                missed, above = min(missed, height), []
            # The cut bounds the level from above wherever it was made, also at a height that was too low.
            following = min(top, profile.highest(solution.cut, held))
            ceiling = min(ceiling, following)
            if following - profile.bottom <= _SAME_LEVEL * following:
                # Nothing can be raised from here: the program's optimum is the floor itself.
                height, on_profile = profile.bottom, True
                break
            if not possible < following < missed:
                following = 0.5 * (possible + missed) if np.isfinite(missed) else following
            if abs(following - height) <= _SAME_LEVEL * height or missed - possible <= _SAME_LEVEL * missed:
                break
            height = following
            if session.out_of_time:
                height, complete = max(height, ceiling), False
                break
        assert solution is not None
        if program.stage and height <= reached * _SAME_STAGE:
            program.stage -= 1
        session.remember(f"{program.name} {program.stage}", height)
        program.stage, reached = program.stage + 1, height
        lowest = lowest or solution
        level = np.where(fixed, level, _rounded(profile.at(height), most))
        full = ~fixed & (level >= cap * (1.0 - 1e-9))
        level[full] = cap[full]
        stuck = ~fixed & ~full & _saturated(solution, rows, target, np.where(fixed, target, profile.floor))
        fixed |= full | stuck
        if on_profile:
            # Jobs that can no longer have a scarce GPU type are full below what they could use of it.
            program.close_unused(solution)
            cap = np.where(fixed, cap, np.minimum(cap, program.rows.limits(session.exclusive_job)[1]))
            fixed |= cap <= level * (1.0 + 1e-9)
        complete = complete and not (session.out_of_time and not fixed.all())
    if solution is None or lowest is None:  # no row can be above 0
        lowest = solution = program.solve(level)
        proven = solution.solved.result.termination is Termination.OPTIMAL
    levels = rows.at(solution.x)
    smallest = float(levels.min())
    return Outcome(
        x=solution.x,
        utility=smallest,
        bound=max(smallest, float(np.where(fixed, level, cap).min())),
        termination=Termination.OPTIMAL if complete and proven else Termination.FEASIBLE,
        program=lowest.solved.program,
        prices=lowest.prices,
        levels=levels,
        message=solution.solved.result.message,
    )


def gpu_guess(space: AllocationSpace, rows: Affine) -> Cut:
    """Where to start: as if all GPUs were one pool and every row used the columns that need fewest of them.

    An upper bound where Capacity holds; where it does not, just a start that the first solve corrects.
    """
    useful = rows.value > 0
    row, column, value = rows.row[useful], rows.column[useful], rows.value[useful]
    need = np.full(rows.num_rows, np.inf)
    np.minimum.at(need, row, space.gpu_demand[column] / value)
    need[np.isinf(need)] = 0.0
    # A GPU that serves several rows at once is worth as much to each, and counts once.
    served = sum_by(column, need[row] * value, space.num_columns) / space.gpu_demand
    need /= max(1.0, float(served.max(initial=0.0)))
    return Cut(need, float(space.capacity.sum()) + float(need @ rows.constant))


def _saturated(solution: LevelSolution, rows: Affine, target: FloatArray, floor: FloatArray) -> BoolArray:
    """Free rows that no allocation can raise at this water level: their price is not 0.

    Strict complementarity: of price (of e_i relative to its rise from the ``floor``; prices add up to 1) and room above
    the level one is 0 and the other is not. Interior-point methods leave both slightly above 0, the product
    far below either, so the larger one tells. A simplex method leaves 0 for both where it cannot tell: such rows
    stay free for another stage. The largest price always counts, so that every stage makes progress.
    """
    assert solution.cut is not None
    rise = target - floor
    price = solution.cut.weight * rise
    reached = floor + solution.theta * rise
    room = rows.at(solution.x) / np.where(reached > 0, reached, 1.0) - 1.0
    clear: BoolArray = (price > _NO_PRICE) & (price > room) | (price >= 0.5 * float(price.max()))
    return clear & (rise > 0)


def _rounded(level: FloatArray, most: FloatArray) -> FloatArray:
    """Levels, 0 where they are rounding beside what the row can reach."""
    return np.where(level > _NO_LEVEL * most, level, 0.0)


def _says_enough(cut: Cut, level: FloatArray, fixed: BoolArray) -> bool:
    """False for a cut that is mostly about rows fixed since: what it says of the others is rounding."""
    worth = cut.weight * level
    return float(worth[~fixed].sum()) > 1e-3 * float(worth.sum())


def highest_level(cut: Cut, cap: FloatArray, level: FloatArray, fixed: BoolArray) -> float:
    """The largest t with ``Σ_free λ_i min(t, u_i) + Σ_fixed λ_i ℓ_i ≤ reach``; +inf if no t breaks the cut."""
    weight, room = cut.weight[~fixed], cut.reach - float(cut.weight[fixed] @ level[fixed])
    most = cap[~fixed]
    if float(weight @ most) <= room or not weight.any():
        return np.inf
    order = np.argsort(most)
    weight, most = weight[order], most[order]
    # At t = most[k] rows up to k are full and the others take t each.
    full = np.cumsum(weight * most)
    rest = float(weight.sum()) - np.cumsum(weight)
    k = min(int(np.searchsorted(full + rest * most, room, side="left")), len(most) - 1)
    below = float(full[k - 1]) if k else 0.0
    remaining = float(weight[k:].sum())
    return max(0.0, (room - below) / remaining)
