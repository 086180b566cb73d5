"""First fit: the gang takes what is free, node by node."""

from __future__ import annotations

import numpy as np

from bloxopt.placement.strategy import Found, Offer


def first_fit(offer: Offer, need: int) -> Found | None:
    """Fill node after node in their order; a gang may span nodes."""
    available = offer.available
    nodes = available.nonzero()[0]
    have = available[nodes]
    total = have.cumsum()
    last = int(np.searchsorted(total, need))
    if last == len(total):
        return None
    counts = have[: last + 1].tolist()
    counts[-1] -= int(total[last]) - need
    return Found(tuple(nodes[: last + 1].tolist()), tuple(counts))
