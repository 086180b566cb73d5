"""A gang on as few nodes as possible, with the choice among nodes that fit left to a strategy."""

from __future__ import annotations

from collections.abc import Callable

from bloxopt.jobs import BoolArray, IntArray
from bloxopt.placement.strategy import Found


def fewest_nodes(available: IntArray, need: int, choose: Callable[[BoolArray, int], int]) -> Found | None:
    """Whole nodes, emptiest first, while no node has room for what is left; ``choose`` picks the one for the rest.

    ``choose(fits, rest)`` gets the nodes with at least ``rest`` GPUs available, (nodes,), and answers with one of
    them. None if ``need`` GPUs are not available in all.
    """
    nodes: list[int] = []
    counts: list[int] = []
    fits = available >= need
    if not fits.any():
        available = available.copy()
        while not fits.any():
            node = int(available.argmax())
            taken = int(available[node])
            if taken <= 0:
                return None
            nodes.append(node)
            counts.append(taken)
            available[node] = 0
            need -= taken
            fits = available >= need
    return Found((*nodes, choose(fits, need)), (*counts, need))
