"""Integer programs of many choices and few shared resources, solved by prices on the resources.

Most scheduling programs of whole configurations are of this kind: every job takes one of its columns or none, and only
a few rows (GPUs of a type, a budget) tie the jobs together. With a price on each of these rows every job decides on its
own, so the bound that prices prove costs one pass over the columns, and the best prices prove as much as the linear
relaxation (Geoffrion, 1974). What the jobs decide is then made to fit by moving a few of them, or by an integer program
over the columns that the prices leave in question. Where the wanted gap is not reached so, HiGHS gets the whole program
less the columns that no answer better than the known one can use.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csc_array

from bloxopt.jobs import FloatArray, IntArray
from bloxopt.solvers.backend import BackEnd
from bloxopt.solvers.base import SolverOptions, Start, Termination
from bloxopt.solvers.check import DEFAULT_MIP_GAP
from bloxopt.solvers.choices import ROUNDING, Choices, Decision
from bloxopt.solvers.highs_direct import HIGHS, highs_termination, prepared_highspy, run_highs
from bloxopt.solvers.moves import moved
from bloxopt.solvers.presolve import Answer

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm

SMALL = 2000
"""Columns below which HiGHS needs no help."""

CORE = 400
"""Columns of least excess, beyond one a group, that the small integer program is made of."""

_PRICE_STEPS = 200
_START_RADIUS = 0.01
"""Size of the box around the prices of an earlier answer, in units of what prices are of."""
_LARGEST_RADIUS = 1e9
_SMALLEST_GAP = 1e-7
_PART_FOR_PRICES = 0.25
"""Part of the wanted gap within which the prices' own bound is settled; the rest is for rounding."""


def _run(form: StandardForm, options: SolverOptions, warm_start: FloatArray | None) -> Answer:
    return _solved(form, options, warm_start, None)


def _resume(form: StandardForm, options: SolverOptions, start: Start) -> Answer | None:
    """From an earlier answer and the prices that proved it: both are close where few jobs came and went."""
    if not form.is_mip:
        return None
    x = np.clip(np.where(form.integer, np.round(start.x), start.x), form.lower, form.upper)
    return _solved(form, options, x if form.max_violation(x) <= ROUNDING else None, start.row_duals)


def _solved(
    form: StandardForm, options: SolverOptions, warm_start: FloatArray | None, prices: FloatArray | None
) -> Answer:
    started = time.perf_counter()
    choices = Choices.of(form) if form.is_mip and form.num_columns >= SMALL else None
    gap = DEFAULT_MIP_GAP if options.mip_gap is None else options.mip_gap
    if choices is None or gap < _SMALLEST_GAP:
        return run_highs(form, options, warm_start)
    last = None if prices is None else choices.signed(-prices[choices.rows])
    if last is not None:
        # Where little has changed the prices of the earlier answer prove another within the gap at once.
        decision = choices.decide(last)
        bound = decision.bound
        known = moved(choices, decision, _target(bound, gap), decision.x)
        if known is not None and _proven(form, known, bound, gap):
            return Answer(Termination.OPTIMAL, known, choices.multipliers(last), bound, "by prices")
    bound, decision, best = _best_prices(choices, gap, last)
    multipliers, target = choices.multipliers(best), _target(bound, gap)
    known = decision.x if choices.fits(decision.x) else None
    if warm_start is not None and prices is not None and (known is None or not _proven(form, known, bound, gap)):
        known = _better(form, known, moved(choices, decision, target, warm_start))
    if known is None or not _proven(form, known, bound, gap):
        known = _better(form, known, moved(choices, decision, target, decision.x))
    if known is None or not _proven(form, known, bound, gap):
        known = _better(form, known, _restricted(choices, decision, target, _left(options, started)))
    if known is not None and _proven(form, known, bound, gap):
        return Answer(Termination.OPTIMAL, x=known, row_duals=multipliers, bound=bound, message="by prices")
    if known is None:
        return run_highs(form, _left(options, started), warm_start)
    # What no answer better than the known one can use stays closed: the proof holds with the remaining columns alone.
    value = _value(form, known)
    excess = choices.excess(decision.reduced)
    closed = choices.column[excess > value - bound + ROUNDING * max(1.0, abs(bound))]
    rest = replace(form, upper=_at(form.upper, closed, 0.0))
    answer = run_highs(rest, _left(options, started), known)
    if answer.x is None and answer.termination is not Termination.ERROR:
        return Answer(Termination.FEASIBLE, x=known, bound=bound, message=answer.message)
    answer = replace(answer, row_duals=multipliers)
    return answer if answer.bound is None else replace(answer, bound=max(bound, min(answer.bound, value)))


def _better(form: StandardForm, first: FloatArray | None, second: FloatArray | None) -> FloatArray | None:
    """The one of lower cost, the first if they are equal."""
    if first is None or second is None:
        return second if first is None else first
    return second if _value(form, second) < _value(form, first) else first


def _value(form: StandardForm, x: FloatArray) -> float:
    return float((form.cost * x).sum())  # no BLAS: see ``solvers.check``


def _proven(form: StandardForm, x: FloatArray, bound: float, gap: float) -> bool:
    value = _value(form, x)
    return value - bound <= gap * abs(value)


def _target(bound: float, gap: float) -> float:
    """The largest value that a bound proves within a gap."""
    return bound + gap * abs(bound) / (1.0 + gap)


def _left(options: SolverOptions, started: float) -> SolverOptions:
    if options.time_limit is None:
        return options
    return replace(options, time_limit=max(options.time_limit - (time.perf_counter() - started), 1e-3))


def _at(values: FloatArray, index: IntArray, value: float) -> FloatArray:
    changed = values.copy()
    changed[index] = value
    return changed


def _best_prices(choices: Choices, gap: float, start: FloatArray | None = None) -> tuple[float, Decision, FloatArray]:
    """The best bound that prices prove (to a part of the gap), what the groups do at these prices, and the prices.

    Cutting planes within a box around the best prices so far (boxstep: Marsten, Hogan and Blankenship, 1975).
    """
    count = len(choices.lower)
    least, most = choices.sign
    weight = np.bincount(choices.shared.indices, np.abs(choices.shared.data), count)
    used = np.bincount(choices.shared.indices, minlength=count)
    unit = np.abs(choices.form.cost).mean() * used / np.maximum(weight, 1e-300)
    master = _Planes(count)
    at, radius = (np.zeros(count), 1.0) if start is None else (start, _START_RADIUS)
    best = choices.decide(at)
    master.add(best, at)
    for _ in range(_PRICE_STEPS):
        low, high = np.maximum(least, at - radius * unit), np.minimum(most, at + radius * unit)
        reach, prices = master.highest(low, high)
        if prices is None:
            break
        edge = ((prices <= low) & (low > least)) | ((prices >= high) & (high < most))
        if reach - best.bound <= _PART_FOR_PRICES * gap * abs(best.bound):
            if not edge.any() or radius > _LARGEST_RADIUS:
                break
            radius *= 4.0
            continue
        decision = choices.decide(prices)
        master.add(decision, prices)
        if decision.bound > best.bound:
            best, at = decision, prices
            radius *= 2.0 if edge.any() else 1.0
        else:
            radius *= 0.7
    return best.bound, best, at


class _Planes:
    """Planes ``bound + slope · (p − prices)`` above the bound as a function of the prices p, and their peak."""

    def __init__(self, count: int) -> None:
        self._highs = prepared_highspy(SolverOptions()).Highs()
        self._highs.setOptionValue("output_flag", False)
        self._count = count
        infinity = self._highs.inf
        for _ in range(count):
            self._highs.addVar(-infinity, infinity)
        self._highs.addVar(-infinity, infinity)
        self._highs.changeColCost(count, -1.0)

    def add(self, decision: Decision, prices: FloatArray) -> None:
        height = decision.bound - float(decision.slope @ prices)
        index = np.arange(self._count + 1, dtype=np.int32)
        self._highs.addRow(-self._highs.inf, height, len(index), index, np.append(-decision.slope, 1.0))

    def highest(self, low: FloatArray, high: FloatArray) -> tuple[float, FloatArray | None]:
        """The highest point within a box: its height and prices (None if it was not found)."""
        for column, (least, most) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            self._highs.changeColBounds(column, least, most)
        self._highs.run()
        if highs_termination(self._highs) is not Termination.OPTIMAL:
            return np.inf, None
        value = np.array(self._highs.getSolution().col_value)
        return float(value[-1]), np.clip(value[:-1], low, high)


def _restricted(choices: Choices, decision: Decision, target: float, options: SolverOptions) -> FloatArray | None:
    """The best answer that uses only columns of little excess, or one of at most ``target``; None if none was found."""
    form = choices.form
    kept = np.sort(np.append(choices.column[choices.nearest(decision, CORE)], choices.alone))
    part = replace(
        form,
        cost=form.cost[kept],
        matrix=csc_array(form.matrix[:, kept]),
        lower=form.lower[kept],
        upper=form.upper[kept],
        integer=form.integer[kept],
    )
    answer = run_highs(part, options, None, target)
    if answer.x is None:
        return None
    x = np.zeros(form.num_columns)
    x[kept] = np.clip(np.where(part.integer, np.round(answer.x), answer.x), part.lower, part.upper)
    return x if choices.fits(x) else None


PRICES = BackEnd(
    name="prices",
    package="highspy",
    module="highspy",
    capabilities=HIGHS.capabilities,
    run=_run,
    resume=_resume,
)
"""For programs of many choices and few shared rows; HiGHS for all others."""
