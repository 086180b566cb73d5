"""Spread: the gang is dealt out one GPU at a time, so that all nodes keep the same room."""

from __future__ import annotations

import numpy as np

from bloxopt.placement.strategy import Found, Offer


def spread(offer: Offer, need: int) -> Found | None:
    """Take one GPU at a time from the node with the most left: load, heat and failures are spread evenly."""
    available = offer.available
    if available.sum() < need:
        return None
    # All nodes end at the same level, or below it where they start there; a GPU above the level is taken.
    low, high = 0, int(available.max())
    while low < high:
        level = (low + high) // 2
        if np.maximum(available - level, 0).sum() <= need:
            high = level
        else:
            low = level + 1
    counts = np.maximum(available - low, 0)
    rest = need - int(counts.sum())
    if rest:
        counts[(available >= low).nonzero()[0][:rest]] += 1
    nodes = counts.nonzero()[0]
    return Found(tuple(nodes.tolist()), tuple(counts[nodes].tolist()))
