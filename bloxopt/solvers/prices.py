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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csc_array

from bloxopt.jobs import BoolArray, FloatArray, IntArray
from bloxopt.solvers.backend import BackEnd
from bloxopt.solvers.base import SolverOptions, Start, Termination
from bloxopt.solvers.check import DEFAULT_MIP_GAP
from bloxopt.solvers.highs_direct import HIGHS, highs_termination, prepared_highspy, run_highs
from bloxopt.solvers.presolve import Answer

if TYPE_CHECKING:
    from bloxopt.formulations.standard_form import StandardForm

MOST_SHARED = 60
"""Shared rows up to which prices are looked for: cutting planes take many steps in more dimensions."""

SMALL = 2000
"""Columns below which HiGHS needs no help."""

CORE = 400
"""Columns of least excess, beyond one a group, that the small integer program is made of."""

MOST_MOVES = 300
"""Groups moved at most to make an answer of what the prices leave, and columns looked at beyond one a group."""

_PRICE_STEPS = 200
_START_RADIUS = 0.01
"""Size of the box around the prices of an earlier answer, in units of what prices are of."""
_LARGEST_RADIUS = 1e9
_SMALLEST_GAP = 1e-7
_ROUNDING = 1e-9
_PART_FOR_PRICES = 0.25
"""Part of the wanted gap within which the prices' own bound is settled; the rest is for rounding."""


def _run(form: StandardForm, options: SolverOptions, warm_start: FloatArray | None) -> Answer:
    return _solved(form, options, warm_start, None)


def _resume(form: StandardForm, options: SolverOptions, start: Start) -> Answer | None:
    """From an earlier answer and the prices that proved it: both are close where few jobs came and went."""
    if not form.is_mip:
        return None
    x = np.clip(np.where(form.integer, np.round(start.x), start.x), form.lower, form.upper)
    return _solved(form, options, x if form.max_violation(x) <= _ROUNDING else None, start.row_duals)


def _solved(
    form: StandardForm, options: SolverOptions, warm_start: FloatArray | None, prices: FloatArray | None
) -> Answer:
    started = time.perf_counter()
    choices = _Choices.of(form) if form.is_mip and form.num_columns >= SMALL else None
    gap = DEFAULT_MIP_GAP if options.mip_gap is None else options.mip_gap
    if choices is None or gap < _SMALLEST_GAP:
        return run_highs(form, options, warm_start)
    bound, decision, best = _best_prices(choices, gap, None if prices is None else -prices[choices.rows])
    multipliers = np.zeros(form.num_rows)
    multipliers[choices.rows] = -best
    target = bound + gap * abs(bound) / (1.0 + gap)
    known = decision.x if _fits(choices, decision.x) else None
    if warm_start is not None and prices is not None and (known is None or not _proven(form, known, bound, gap)):
        known = _better(form, known, _rounded(choices, decision, target, warm_start))
    if known is None or not _proven(form, known, bound, gap):
        known = _better(form, known, _rounded(choices, decision, target, decision.x))
    if known is None or not _proven(form, known, bound, gap):
        known = _better(form, known, _restricted(choices, decision, target, _left(options, started)))
    if known is not None and _proven(form, known, bound, gap):
        return Answer(Termination.OPTIMAL, x=known, row_duals=multipliers, bound=bound, message="by prices")
    if known is None:
        return run_highs(form, _left(options, started), warm_start)
    # What no answer better than the known one can use stays closed: the proof holds with the remaining columns alone.
    value = float(form.cost @ known)
    excess = choices.excess(decision.reduced)
    closed = choices.column[excess > value - bound + _ROUNDING * max(1.0, abs(bound))]
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
    return second if form.cost @ second < form.cost @ first else first


def _proven(form: StandardForm, x: FloatArray, bound: float, gap: float) -> bool:
    value = float(form.cost @ x)
    return value - bound <= gap * abs(value)


def _left(options: SolverOptions, started: float) -> SolverOptions:
    if options.time_limit is None:
        return options
    return replace(options, time_limit=max(options.time_limit - (time.perf_counter() - started), 1e-3))


def _at(values: FloatArray, index: IntArray, value: float) -> FloatArray:
    changed = values.copy()
    changed[index] = value
    return changed


@dataclass(frozen=True, eq=False)
class _Decision:
    """What every group does on its own at some prices.

    ``bound`` on the program's minimum, its ``slope`` (shared rows,), ``x`` (columns,) and ``reduced`` costs (columns,).
    """

    bound: float
    slope: FloatArray
    x: FloatArray
    reduced: FloatArray


@dataclass(frozen=True, eq=False)
class _Choices:
    """A program as choices: of the columns of a group at most one is 1.

    ``column`` (entries,) of each group in turn, ``group`` (entries,) and ``start`` (groups,) delimit them. ``alone``
    are the other columns, bounded on their own. ``shared`` (rows, columns) with bounds ``lower`` and ``upper`` is what
    ties them together: the ``rows`` of the program that are no choices.
    """

    form: StandardForm
    column: IntArray
    group: IntArray
    start: IntArray
    alone: IntArray
    rows: IntArray
    shared: csc_array
    lower: FloatArray
    upper: FloatArray

    @classmethod
    def of(cls, form: StandardForm) -> _Choices | None:
        """None unless few rows are left beside those by which each group of binary columns has a sum of at most 1."""
        matrix = form.matrix
        binary = form.integer & (form.lower == 0.0) & (form.upper >= 1.0)
        if not (np.isfinite(form.lower).all() and np.isfinite(form.upper).all()):
            return None
        owner = np.repeat(np.arange(form.num_columns), np.diff(matrix.indptr))
        rows = matrix.indices
        # Columns closed at 0 are no choices and stand in nobody's way.
        live = ~((form.lower == 0.0) & (form.upper == 0.0))[owner]
        owner, rows, data = owner[live], rows[live], matrix.data[live]
        least = np.full(form.num_rows, np.inf)
        np.minimum.at(least, rows, data)
        largest = np.full(form.num_rows, -np.inf)
        np.maximum.at(largest, rows, data)
        choice: BoolArray = (least > 0) & (largest == least) & (form.row_lower <= 0)
        choice &= (form.row_upper >= least) & (form.row_upper < 2 * least)
        choice[rows[~binary[owner]]] = False
        claims = np.bincount(owner[choice[rows]], minlength=form.num_columns)
        choice[rows[choice[rows] & (claims[owner] > 1)]] = False
        shared = np.flatnonzero(~choice)
        if len(shared) > MOST_SHARED or choice.sum() < 2 * len(shared):
            return None
        mine = choice[rows]
        column, row = owner[mine], rows[mine]
        order = np.argsort(row, kind="stable")
        column, row = column[order], row[order]
        first = np.diff(row, prepend=-1) != 0
        return cls(
            form=form,
            column=column,
            group=np.cumsum(first) - 1,
            start=np.flatnonzero(first),
            alone=np.setdiff1d(np.arange(form.num_columns), column),
            rows=shared,
            shared=csc_array(matrix.tocsr()[shared]),
            lower=form.row_lower[shared],
            upper=form.row_upper[shared],
        )

    def decide(self, prices: FloatArray) -> _Decision:
        """The best that every group and every column alone can do at the prices of the shared rows."""
        reduced = self.form.cost + self.shared.T @ prices
        chosen = reduced[self.column]
        least = np.minimum.reduceat(chosen, self.start)
        best = np.flatnonzero(chosen == least[self.group])
        first = best[np.diff(self.group[best], prepend=-1) != 0]
        x = np.zeros(self.form.num_columns)
        x[self.column[first[least < 0]]] = 1.0
        x[self.alone] = np.where(reduced[self.alone] > 0, self.form.lower[self.alone], self.form.upper[self.alone])
        used = np.flatnonzero(x)
        activity = self.shared[:, used] @ x[used]
        # A priced row is used up to the bound that its price points to; one without a price, as it comes.
        room = np.where(prices > 0, self.upper, np.where(prices < 0, self.lower, activity))
        room = np.clip(room, self.lower, self.upper)
        return _Decision(float(reduced[used] @ x[used] - prices @ room), activity - room, x, reduced)

    def excess(self, reduced: FloatArray) -> FloatArray:
        """By how much an answer that uses each entry's column is at least above the bound, (entries,)."""
        chosen = reduced[self.column]
        above: FloatArray = chosen - np.minimum(np.minimum.reduceat(chosen, self.start), 0.0)[self.group]
        return above


def _best_prices(choices: _Choices, gap: float, start: FloatArray | None = None) -> tuple[float, _Decision, FloatArray]:
    """The best bound that prices prove (to a part of the gap), what the groups do at these prices, and the prices.

    Cutting planes within a box around the best prices so far (boxstep: Marsten, Hogan and Blankenship, 1975).
    """
    count = len(choices.lower)
    least = np.where(np.isfinite(choices.lower), -np.inf, 0.0)
    most = np.where(np.isfinite(choices.upper), np.inf, 0.0)
    weight = np.bincount(choices.shared.indices, np.abs(choices.shared.data), count)
    used = np.bincount(choices.shared.indices, minlength=count)
    unit = np.abs(choices.form.cost).mean() * used / np.maximum(weight, 1e-300)
    master = _Planes(count)
    at, radius = (np.zeros(count), 1.0) if start is None else (np.clip(start, least, most), _START_RADIUS)
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

    def add(self, decision: _Decision, prices: FloatArray) -> None:
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


def _rounded(choices: _Choices, decision: _Decision, target: float, begin: FloatArray) -> FloatArray | None:
    """An answer made of ``begin`` (columns,) by moving one group at a time, None if none was found.

    First the moves that take away most of what breaks the shared rows for the least excess, then those that lower the
    cost most, until it is at most ``target``. Only columns of little excess are looked at, and none at all.
    """
    form = choices.form
    excess = choices.excess(decision.reduced)
    look = np.argsort(excess, kind="stable")[: len(choices.start) + MOST_MOVES]
    groups = len(choices.start)
    # One option more for every group: none of its columns.
    column = np.append(choices.column[look], np.full(groups, -1))
    group = np.append(choices.group[look], np.arange(groups))
    use = np.vstack([choices.shared[:, choices.column[look]].toarray().T, np.zeros((groups, len(choices.lower)))])
    cost = np.append(form.cost[choices.column[look]], np.zeros(groups))
    reduced = np.append(decision.reduced[choices.column[look]], np.zeros(groups))
    x = begin.copy()
    x[np.setdiff1d(choices.column, column)] = 0.0
    chosen = np.arange(len(look), len(column))
    taken = np.flatnonzero((column >= 0) & (x[column] > 0))
    chosen[group[taken]] = taken
    activity = choices.shared @ x
    size = np.maximum(1.0, np.abs(np.where(np.isfinite(choices.upper), choices.upper, choices.lower)))
    for _ in range(MOST_MOVES):
        after = activity + use - use[chosen][group]
        broken = (np.maximum(after - choices.upper, 0.0) + np.maximum(choices.lower - after, 0.0)) / size
        amount = broken.sum(axis=1)
        now = float(
            ((np.maximum(activity - choices.upper, 0.0) + np.maximum(choices.lower - activity, 0.0)) / size).sum()
        )
        if now > _ROUNDING:
            gain = now - amount
            able = gain > _ROUNDING
            if not able.any():
                return None
            worse = np.maximum(reduced - reduced[chosen][group], 0.0)
            move = int(np.argmin(np.where(able, (worse + 1e-12) / np.maximum(gain, _ROUNDING), np.inf)))
        else:
            if float(form.cost @ x) <= target:
                break
            change = np.where(amount <= _ROUNDING, cost - cost[chosen][group], np.inf)
            move = int(np.argmin(change))
            if change[move] >= -_ROUNDING:
                break
        before = chosen[group[move]]
        if column[before] >= 0:
            x[column[before]] = 0.0
        if column[move] >= 0:
            x[column[move]] = 1.0
        activity = activity + use[move] - use[before]
        chosen[group[move]] = move
    return x if _fits(choices, x) else None


def _restricted(choices: _Choices, decision: _Decision, target: float, options: SolverOptions) -> FloatArray | None:
    """The best answer that uses only columns of little excess, or one of at most ``target``; None if none was found."""
    form = choices.form
    excess = choices.excess(decision.reduced)
    entry = np.argsort(excess, kind="stable")[: len(choices.start) + CORE]
    kept = np.sort(np.append(choices.column[entry], choices.alone))
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
    return x if _fits(choices, x) else None


def _fits(choices: _Choices, x: FloatArray) -> bool:
    """Whether the shared rows hold; those of the choices do by construction."""
    activity = choices.shared @ x
    slack = _ROUNDING * np.maximum(1.0, abs(choices.shared) @ np.abs(x))
    return bool(((activity >= choices.lower - slack) & (activity <= choices.upper + slack)).all())


PRICES = BackEnd(
    name="prices",
    package="highspy",
    module="highspy",
    capabilities=HIGHS.capabilities,
    run=_run,
    resume=_resume,
)
"""For programs of many choices and few shared rows; HiGHS for all others."""
