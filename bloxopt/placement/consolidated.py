"""Consolidated (best fit): as few nodes as possible, and the ones that leave the least over."""

from __future__ import annotations

import numpy as np

from bloxopt.placement.strategy import Found, Offer


def consolidated(offer: Offer, need: int) -> Found | None:
    """Use the fewest nodes: the fullest one that fits, else the emptiest ones and a best fit for the rest."""
    nodes: list[int] = []
    counts: list[int] = []
    left = offer.available.copy()
    while need > 0:
        fits = left >= need
        if fits.any():
            node = int(np.where(fits, left, np.iinfo(np.int64).max).argmin())
            taken = need
        else:
            node = int(left.argmax())
            taken = int(left[node])
            if taken <= 0:
                return None
        nodes.append(node)
        counts.append(taken)
        left[node] = 0
        need -= taken
    return Found(tuple(nodes), tuple(counts))
