"""Best fit over all resources: the node that is left with the least."""

from __future__ import annotations

import numpy as np

from bloxopt.placement.fewest_nodes import fewest_nodes
from bloxopt.placement.free_vectors import free_vectors
from bloxopt.placement.strategy import Found, Offer


def best_fit(offer: Offer, need: int) -> Found | None:
    """Leave the least on the node: the smallest weighted sum of free GPUs, CPUs and memory.

    ``Σ_r (free_r − demand_r) / largest_r`` over the resources r that jobs state needs of. A gang takes as few nodes as
    possible; a share takes the fullest GPU that has room. Source: the best-fit baseline of Weng et al., ATC 2023.
    """
    free, _ = free_vectors(offer, need)
    left = free.sum(axis=0)
    return fewest_nodes(offer.available, need, lambda fits, rest: int(np.where(fits, left, np.inf).argmin()))
