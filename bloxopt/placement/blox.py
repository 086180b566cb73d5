"""The node searches of the published Blox simulator, kept exactly, to reproduce its results.

Source: Blox, EuroSys 2024, as its simulator behaves. Use ``first_fit`` or ``consolidated`` for new work.
"""

from __future__ import annotations

import numpy as np

from bloxopt.placement.strategy import Found, Offer


def scattered(offer: Offer, need: int) -> Found | None:
    """Blox' scattered search: succeeds only if whole steps of up to ``need`` GPUs a node add up to it exactly.

    Each node offers its first ``need`` free GPUs, never fewer, so free counts (1, 4) cannot serve 2.
    """
    available = offer.available
    nodes = available.nonzero()[0]
    offered = np.minimum(available[nodes], need)
    total = offered.cumsum()
    last = int(total.searchsorted(need))
    if last == len(total) or total[last] != need:
        return None
    return Found(tuple(nodes[: last + 1].tolist()), tuple(offered[: last + 1].tolist()))


def consolidated(offer: Offer, need: int) -> Found | None:
    """Blox' consolidated search: the first node whose free GPUs equal the gang exactly."""
    exact = (offer.available == need).nonzero()[0]
    return Found((int(exact[0]),), (need,)) if len(exact) else None
