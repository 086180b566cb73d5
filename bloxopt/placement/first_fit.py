"""First fit: the gang takes what is free, node by node."""

from __future__ import annotations

import numpy as np

from bloxopt.jobs import IntArray
from bloxopt.placement.strategy import NodeCounts


def first_fit(available: IntArray, need: int) -> NodeCounts | None:
    """Fill node after node in their order; a gang may span nodes."""
    nodes = available.nonzero()[0]
    have = available[nodes]
    total = have.cumsum()
    last = int(np.searchsorted(total, need))
    if last == len(total):
        return None
    counts = have[: last + 1].tolist()
    counts[-1] -= int(total[last]) - need
    return tuple(nodes[: last + 1].tolist()), tuple(counts)
