"""Dot product: nodes whose free resources are least aligned with what the job takes."""

from __future__ import annotations

import numpy as np

from bloxopt.placement.fewest_nodes import fewest_nodes
from bloxopt.placement.free_vectors import free_vectors
from bloxopt.placement.strategy import Found, Offer


def dot_product(offer: Offer, need: int) -> Found | None:
    """Use the node with the smallest dot product of free resources and demand, as fractions of the largest node.

    Packs: the scarcer what the job takes is on a node, the better. As the baseline of Weng et al., ATC 2023, after
    the packing score of Tetris (Grandl et al., SIGCOMM 2014), which takes the largest product instead. A
    gang takes as few nodes as possible; a share takes the fullest GPU that has room.
    """
    free, demand = free_vectors(offer, need)
    score = demand @ free
    return fewest_nodes(offer.available, need, lambda fits, rest: int(np.where(fits, score, np.inf).argmin()))
