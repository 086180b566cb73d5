"""Choosing the part of a cluster (rack, data centre) in which a gang fits best."""

from __future__ import annotations

import numpy as np

from bloxopt.jobs import IntArray


def members_needed(free: IntArray, group: IntArray, groups: int, need: int) -> IntArray:
    """How many members of each group, emptiest first, hold ``need`` GPUs: (groups,), ``len(free) + 1`` if all do not.

    ``free`` (members,) GPUs of each member, ``group`` (members,) the group it is in.
    """
    order = np.lexsort([-free, group])
    sorted_group = group[order]
    total = np.cumsum(free[order])
    start = np.searchsorted(sorted_group, np.arange(groups))
    before = np.where(start > 0, total[start - 1], 0)
    enough = total - before[sorted_group] >= need
    needed = np.full(groups, len(free) + 1, dtype=np.int64)
    positions = enough.nonzero()[0][::-1]
    # Written last to first: what stays is the first member of each group with which it has enough.
    needed[sorted_group[positions]] = positions - start[sorted_group[positions]] + 1
    return needed


def best_groups(free: IntArray, group: IntArray, groups: int, need: int, most: int | None = None) -> IntArray:
    """The groups that hold ``need`` GPUs on at most ``most`` members: fewest members first, then least free in all."""
    room = np.bincount(group, weights=free, minlength=groups)
    if room.max(initial=0) < need:
        return np.zeros(0, dtype=np.int64)
    needed = members_needed(free, group, groups, need)
    order = np.lexsort([room, needed])
    fits = (room >= need) & (needed <= (len(free) if most is None else most))
    return order[fits[order]]
