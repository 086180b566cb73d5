"""Placement: which nodes a gang gets.

A strategy is one function ``(offer, need) -> Found | None`` in a file of its own and
one line in :data:`PLACEMENTS`; the passes apply it to all jobs of a round.
"""

from __future__ import annotations

from bloxopt.placement.strategy import Found, Offer, Strategy
from bloxopt.registry import Registry

PLACEMENTS = Registry(
    "placement",
    {
        "first_fit": "bloxopt.placement.first_fit:first_fit",
        "consolidated": "bloxopt.placement.consolidated:consolidated",
        "spread": "bloxopt.placement.spread:spread",
        "rack_aware": "bloxopt.placement.rack_aware:rack_aware",
        "blox_scattered": "bloxopt.placement.blox:scattered",
        "blox_consolidated": "bloxopt.placement.blox:consolidated",
    },
)


def get_placement(placement: str | Strategy) -> Strategy:
    """The strategy registered under a name; a function is returned as it is."""
    strategy: Strategy = PLACEMENTS.get(placement) if isinstance(placement, str) else placement
    return strategy


def placement_table() -> list[dict[str, str]]:
    """Name and one-line description of every registered strategy."""
    return [
        {"name": name, "description": (PLACEMENTS.get(name).__doc__ or "").strip().splitlines()[0]}
        for name in PLACEMENTS
    ]


__all__ = ["PLACEMENTS", "Found", "Offer", "Strategy", "get_placement", "placement_table"]
