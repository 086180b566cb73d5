"""Consolidated (best fit): as few nodes as possible, and the ones that leave the least over."""

from __future__ import annotations

import numpy as np

from bloxopt.placement.fewest_nodes import fewest_nodes
from bloxopt.placement.strategy import Found, Offer

_FULL = np.iinfo(np.int64).max


def consolidated(offer: Offer, need: int) -> Found | None:
    """Use the fewest nodes: the fullest one that fits, else the emptiest ones and a best fit for the rest."""
    available = offer.available
    return fewest_nodes(available, need, lambda fits, rest: int(np.where(fits, available, _FULL).argmin()))
