"""The level program: how far can all rows be raised together towards given levels, and what bounds them.

``max θ`` with ``e_i(x) ≥ f_i + θ (ℓ_i − f_i)`` for the free rows (floor f is 0 as a rule), ``e_i(x) ≥ ℓ_i`` for the
fixed ones, and all constraint blocks. Its prices λ on those rows give a *cut*: no x that satisfies the blocks has
``Σ λ_i e_i(x)`` above ``reach``. Newton's method on such cuts solves programs whose levels depend on one number: the
finish-time ratio (:mod:`~bloxopt.formulations.solving.reciprocal`) and the water level
(:mod:`~bloxopt.formulations.objectives.water_filling`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.certificate import Proof
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import Session, Solved
from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.jobs import BoolArray, FloatArray

_NO_REDUCED_COST = 1e-8
"""Loss of θ per unit of a time share below which it counts as rounding."""


@dataclass(frozen=True, eq=False)
class Cut:
    """``Σ_i weight_i e_i(x) ≤ reach`` for every x that satisfies the constraint blocks (weight ≥ 0)."""

    weight: FloatArray
    reach: float


@dataclass(frozen=True, eq=False)
class LevelSolution:
    """``theta`` reached by ``x`` and, from solvers with duals, the cut that proves it and row ``prices``."""

    theta: float
    theta_bound: float | None
    x: FloatArray
    cut: Cut | None
    prices: FloatArray | None
    solved: Solved


class LevelProgram:
    """Solves level programs over the same rows ``e`` for different levels."""

    def __init__(self, session: Session, rows: Affine, name: str, *, duals: bool) -> None:
        self.session = session
        self.rows = rows
        self.name = name
        self.duals = duals
        self.stage = 0
        """Which of several sets of fixed rows this is about: see :attr:`.solving.program.Program.stage`."""
        self._base = session.program()

    def solve(
        self, levels: FloatArray, fixed: BoolArray | None = None, floor: FloatArray | None = None
    ) -> LevelSolution:
        """Raise the free rows from ``floor`` (None: 0) towards ``levels`` (rows,) while the ``fixed`` keep theirs."""
        program, theta, first, scale = self._program(levels, fixed, floor)
        solved = self.session.solve(program, Affine.one_column(theta), duals=self.duals)
        assert solved.result.x is not None
        cut = None
        duals = solved.result.row_duals
        if duals is not None:
            weight = np.maximum(duals[first:], 0.0) * scale
            cut = Cut(weight, self._reach(solved.form, duals, first, weight))
        return LevelSolution(
            theta=float(solved.result.x[theta]),
            theta_bound=solved.utility_bound,
            x=solved.x,
            cut=cut,
            prices=None if duals is None else -duals,
            solved=solved,
        )

    def proof(self, levels: FloatArray, reached: LevelSolution, priced: LevelSolution) -> Proof | None:
        """That no x raises the rows above ``levels`` together, where ``reached`` has them, by the prices of ``priced``.

        None without prices, or if those say nothing of these levels. The program is not solved again: by weak duality
        prices are valid for any levels, once they are worth 1 together.
        """
        duals, x = priced.solved.result.row_duals, reached.solved.result.x
        if priced.cut is None or duals is None or x is None:
            return None
        worth = priced.cut.weight * levels
        total = float(worth.sum())
        if not total > 0:
            return None
        program, theta, first, _ = self._program(levels)
        point = x.copy()
        point[theta] = 1.0
        form = program.compile(Affine.one_column(theta))
        return Proof(form, point, np.append(duals[:first], worth) / total)

    def _program(
        self, levels: FloatArray, fixed: BoolArray | None = None, floor: FloatArray | None = None
    ) -> tuple[Program, int, int, FloatArray]:
        """The level program, its column θ, its first level row and what the level rows are multiplied by."""
        # Rows are divided by their level: steps/s differ by orders of magnitude between models.
        scale = 1.0 / np.where(levels > 0, levels, 1.0)
        free = np.ones(len(levels), bool) if fixed is None else ~fixed
        program = self._base.copy()
        program.block = program.unique_family(self.name)
        program.stage = self.stage
        rows = self.rows.scaled(scale)
        target = levels * scale
        least = np.where(free, 0.0 if floor is None else floor * scale, target)
        theta = int(program.add_columns(1, *self._theta_bounds(rows, least, target))[0])
        first = program.num_rows
        program.add_rows(rows.plus_column(theta, least - target), lower=least)
        return program, theta, first, scale

    def close_unused(self, solution: LevelSolution) -> None:
        """Fix at 0 the time shares that no solution reaching these levels uses, for all later solves.

        By complementary slackness those are the columns with a reduced cost: while the priced rows keep
        their levels, any use of such a column would break the cut.
        """
        count = self.session.space.num_columns
        reduced = solution.solved.result.reduced_costs
        if reduced is None:
            return
        # Both factors of a complementary pair end slightly above 0 in interior-point methods: the larger tells.
        unused = (reduced[:count] > _NO_REDUCED_COST) & (reduced[:count] > solution.x)
        self._base.restrict(np.flatnonzero(unused), 0.0, 0.0)
        closed = unused[self.rows.column]
        self.rows = replace(self.rows, value=np.where(closed, 0.0, self.rows.value))

    def _theta_bounds(self, rows: Affine, least: FloatArray, target: FloatArray) -> tuple[float, float]:
        low, high = rows.limits(self.session.exclusive_job)
        rising = target > least
        if not rising.any():
            return 0.0, 1.0
        low, high, least = low[rising], high[rising], least[rising]
        rise = target[rising] - least
        return (
            min(0.0, float(((low - least) / rise).min())),
            max(1.0, float(((high - least) / rise).min()) * (1.0 + 1e-6)),
        )

    def _reach(self, form: StandardForm, duals: FloatArray, first: int, weight: FloatArray) -> float:
        """An upper bound on ``Σ weight_i e_i(x)`` over the blocks, valid however inexact the duals are.

        Weak duality: with any prices of the right sign, ``Σ price·bound`` plus the best each column can
        still add within its own bounds (Neumaier & Shcherbina, 2004).
        """
        price = -duals[:first]
        price = np.where((price > 0) & ~np.isfinite(form.row_upper[:first]), 0.0, price)
        price = np.where((price < 0) & ~np.isfinite(form.row_lower[:first]), 0.0, price)
        bound = np.where(price > 0, form.row_upper[:first], form.row_lower[:first])
        total = float(weight @ self.rows.constant) + float(price @ np.where(price == 0, 0.0, bound))
        columns = form.num_columns - 1  # all but θ, which the blocks do not know
        gain = sum_by(self.rows.column, self.rows.value * weight[self.rows.row], columns)
        padded = np.zeros(form.num_rows)
        padded[:first] = price
        gain = gain - (form.matrix.T @ padded)[:columns]
        lower, upper = form.lower[:columns], form.upper[:columns]
        best = np.where(gain > 0, upper, lower)
        # Unbounded columns of other blocks have no gain at an optimum; what is left of it is rounding.
        return total + float(gain @ np.where(np.isfinite(best), best, 0.0))
