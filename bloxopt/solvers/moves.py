"""What prices leave of an integer program of choices is made to fit by moving one group at a time."""

from __future__ import annotations

import numpy as np

from bloxopt.jobs import FloatArray
from bloxopt.solvers.choices import ROUNDING, Choices, Decision

MOST_MOVES = 300
"""Groups moved at most to make an answer of what the prices leave, and columns looked at beyond one a group."""


def moved(choices: Choices, decision: Decision, target: float, begin: FloatArray) -> FloatArray | None:
    """An answer made of ``begin`` (columns,) by moving one group at a time, None if none was found.

    First the moves that take away most of what breaks the shared rows for the least excess, then those that lower the
    cost most, until it is at most ``target``. Only columns of little excess are looked at, and none at all.
    """
    form = choices.form
    look = choices.nearest(decision, MOST_MOVES)
    groups = len(choices.start)
    # One option more for every group: none of its columns.
    column = np.append(choices.column[look], np.full(groups, -1))
    group = np.append(choices.group[look], np.arange(groups))
    use = np.hstack([choices.shared[:, choices.column[look]].toarray(), np.zeros((len(choices.lower), groups))])
    cost = np.append(form.cost[choices.column[look]], np.zeros(groups))
    reduced = np.append(decision.reduced[choices.column[look]], np.zeros(groups))
    options = np.argsort(group, kind="stable")
    first = np.searchsorted(group[options], np.arange(groups + 1))

    seen = np.zeros(form.num_columns, dtype=bool)
    seen[column[: len(look)]] = True
    x = begin.copy()
    x[choices.column[~seen[choices.column]]] = 0.0
    chosen = np.arange(len(look), len(column))
    taken = np.flatnonzero(x[column[: len(look)]] > 0)
    chosen[group[taken]] = taken
    more = use - use[:, chosen[group]]
    worse = np.maximum(reduced - reduced[chosen[group]], 0.0)
    dearer = cost - cost[chosen[group]]

    activity = choices.shared @ x
    upper, lower = choices.upper[:, None], choices.lower[:, None]
    size = np.maximum(1.0, np.abs(np.where(np.isfinite(upper), upper, lower)))
    for _ in range(MOST_MOVES):
        amount = _broken(activity[:, None] + more, lower, upper, size)
        now = float(_broken(activity[:, None], lower, upper, size)[0])
        if now > ROUNDING:
            gain = now - amount
            able = gain > ROUNDING
            if not able.any():
                return None
            move = int(np.argmin(np.where(able, (worse + 1e-12) / np.maximum(gain, ROUNDING), np.inf)))
        else:
            if float((form.cost * x).sum()) <= target:
                break
            change = np.where(amount <= ROUNDING, dearer, np.inf)
            move = int(np.argmin(change))
            if change[move] >= -ROUNDING:
                break
        before = chosen[group[move]]
        if column[before] >= 0:
            x[column[before]] = 0.0
        if column[move] >= 0:
            x[column[move]] = 1.0
        activity = activity + more[:, move]
        chosen[group[move]] = move
        mine = options[first[group[move]] : first[group[move] + 1]]
        more[:, mine] = use[:, mine] - use[:, move : move + 1]
        worse[mine] = np.maximum(reduced[mine] - reduced[move], 0.0)
        dearer[mine] = cost[mine] - cost[move]
    return x if choices.fits(x) else None


def _broken(activity: FloatArray, lower: FloatArray, upper: FloatArray, size: FloatArray) -> FloatArray:
    """By how much each column of ``activity`` (shared rows, columns) leaves the bounds, relative to their size."""
    beyond: FloatArray = (np.maximum(activity - upper, 0.0) + np.maximum(lower - activity, 0.0)) / size
    total: FloatArray = beyond.sum(axis=0)
    return total
