"""Power means: one objective from the sum (exponent 1) over the geometric and harmonic mean to the minimum (−∞)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.checks import finite_number
from bloxopt.formulations.expressions import ExpressionLike, build_affine, describe_expression
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.progress import depends_on_progress
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import Outcome, Session
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray

_WIDEST_RANGE = 1e10
"""Largest over smallest power: of sums that span more, solvers cannot tell the small terms from rounding."""


@dataclass(frozen=True, eq=False)
class PowerMean(Objective):
    """Maximise ``(Σ_i w_i e_i(x)^p / Σ_i w_i)^(1/p)`` over the jobs i; p = 0 is the geometric mean.

    Where a job has one configuration or none (:class:`~bloxopt.formulations.OneConfiguration`), ``e_i`` is its constant
    plus the value of the configuration, so that every power is a sum over columns and the program is linear in x,
    exactly. The smaller the exponent p ≤ 1, the more it is about those that have least. ``weighted`` takes the jobs'
    priority weights for w, else all are 1. Jobs without a column take no part; with no job at all the value is 0.

    Raises :class:`FormulationError` without whole configurations, for a row that is not of one job, and where a value
    would be 0 or less (add a number that a job without a configuration is worth) or its power out of all proportion.
    Source: Pollux (OSDI 2021).
    """

    expression: ExpressionLike
    exponent: float = -1.0
    weighted: bool = True
    work_conserving = False
    """The program decides on every GPU: what it leaves idle is no use to anyone."""

    def __post_init__(self) -> None:
        exponent = finite_number("PowerMean: exponent", self.exponent)
        if not -100.0 <= exponent <= 1.0:
            raise FormulationError(
                f"PowerMean: exponent is {exponent:g}, must be between -100 and 1: above 1 the mean prefers those that "
                "have most; for the smallest value use MaxMin"
            )

    @property
    def progress_dependent(self) -> bool:  # type: ignore[override]
        return depends_on_progress(self.expression)

    def terms(self, space: AllocationSpace, program: Program) -> Affine:
        if not program.is_mip:
            raise FormulationError(
                "PowerMean needs whole configurations: put OneConfiguration among the constraints (the power of "
                "a share of time is not the share of a power)"
            )
        rows = self._rows(space)
        value = self._power(rows.constant[rows.row] + rows.value) - self._power(rows.constant)[rows.row]
        weight = self._weight(space)
        assert rows.counted is not None
        constant = float((weight * self._power(rows.constant))[rows.counted].sum())
        # The sum without configurations is the cost of a column that is always 1, not a constant: relative gaps count
        # from the whole sum, of which jobs without a configuration can make up nearly all.
        whole = int(program.add_columns(1, 1.0, 1.0)[0])
        program.add_rows(Affine.one_column(whole), 1.0, 1.0, labels=["without configurations"])
        total = Affine(np.zeros_like(rows.row), rows.column, weight[rows.row] * value, np.zeros(1))
        return total.plus_column(whole, constant).merged()

    def solve(self, session: Session) -> Outcome:
        outcome = super().solve(session)
        bound = None if outcome.bound is None else self._mean(session.space, outcome.bound)
        return replace(outcome, utility=self._mean(session.space, outcome.utility), bound=bound, prices=None)

    def hold(self, session: Session, program: Program, outcome: Outcome, tolerance: float) -> None:
        total = self._sum(session.space, outcome.utility)
        super().hold(session, program, replace(outcome, utility=total), tolerance)

    def value(self, space: AllocationSpace, x: FloatArray) -> float:
        """The mean at whole configurations ``x`` (num_columns,)."""
        rows = self._rows(space)
        counted, weight = rows.counted, self._weight(space)
        held = rows.constant + sum_by(rows.row, rows.value * np.round(x)[rows.column], rows.num_rows)
        return self._mean(space, float((weight * self._power(held))[counted].sum()))

    def _rows(self, space: AllocationSpace) -> Affine:
        rows = build_affine(self.expression, space, "PowerMean").merged()
        name = describe_expression(self.expression)
        if rows.num_rows != space.num_jobs or not np.array_equal(space.job[rows.column], rows.row):
            raise FormulationError(f"PowerMean: {name} must have one row per job, over columns of that job alone")
        counted = space.runnable if rows.counted is None else rows.counted & space.runnable
        if self.exponent <= 0:
            for what, value, job in (
                ("without a configuration", rows.constant[counted], counted.nonzero()[0]),
                ("with a configuration", rows.constant[rows.row] + rows.value, rows.row),
            ):
                if len(value) and not value.min() > 0:
                    worst = int(np.argmin(value))
                    raise FormulationError(
                        f"PowerMean: {name} of job {space.job_ids[job[worst]]!r} {what} is {value[worst]:g}, whose "
                        f"power {self.exponent:g} is not finite: add a small number to the expression"
                    )
            self._check_range(np.append(rows.constant[counted], rows.constant[rows.row] + rows.value))
        return replace(rows, counted=counted)

    def _check_range(self, values: FloatArray) -> None:
        if not len(values):
            return
        least, most = float(values.min()), float(values.max())
        # In logarithms, since the powers themselves may be too large for numbers.
        if -self.exponent * np.log(most / least) > np.log(_WIDEST_RANGE):
            raise FormulationError(
                f"PowerMean: values from {least:g} to {most:g} to the power {self.exponent:g} differ by more than a "
                f"factor of {_WIDEST_RANGE:g}, which solvers cannot tell from rounding: use an exponent closer to 0, a "
                "larger smallest value, or MaxMin"
            )

    def _power(self, value: FloatArray) -> FloatArray:
        """Increasing in the value: the logarithm at exponent 0, minus the power below."""
        if self.exponent == 0:
            return np.log(value)
        sign = 1.0 if self.exponent > 0 else -1.0
        powers: FloatArray = sign * np.maximum(value, 0.0 if sign > 0 else -np.inf) ** self.exponent
        return powers

    def _weight(self, space: AllocationSpace) -> FloatArray:
        return space.weight if self.weighted else np.ones(space.num_jobs)

    def _total_weight(self, space: AllocationSpace) -> float:
        return float(self._weight(space)[space.runnable].sum())

    def _mean(self, space: AllocationSpace, total: float) -> float:
        weight = self._total_weight(space)
        if weight == 0:
            return 0.0
        if self.exponent == 0:
            return float(np.exp(total / weight))
        average = abs(total) / weight
        return float(average ** (1.0 / self.exponent)) if average > 0 else (0.0 if self.exponent > 0 else np.inf)

    def _sum(self, space: AllocationSpace, mean: float) -> float:
        power: float = self._power(np.array([mean]))[0]
        return power * self._total_weight(space)
