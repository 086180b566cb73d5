"""Placement: which nodes a gang gets.

A strategy is one function ``(offer, need) -> Found | None``, or a class whose instances are such functions, in a file
of its own and one line in :data:`PLACEMENTS`; the passes apply it to all jobs of a round.
"""

from __future__ import annotations

from typing import Any

from bloxopt.arguments import check_options
from bloxopt.errors import InputError
from bloxopt.placement.strategy import Found, Offer, Strategy
from bloxopt.registry import Registry

PLACEMENTS = Registry(
    "placement",
    {
        "first_fit": "bloxopt.placement.first_fit:first_fit",
        "consolidated": "bloxopt.placement.consolidated:consolidated",
        "emptiest_first": "bloxopt.placement.emptiest_first:EmptiestFirst",
        "spread": "bloxopt.placement.spread:spread",
        "rack_aware": "bloxopt.placement.rack_aware:rack_aware",
        "best_fit": "bloxopt.placement.best_fit:best_fit",
        "dot_product": "bloxopt.placement.dot_product:dot_product",
        "tiresias_skew": "bloxopt.placement.tiresias_skew:TiresiasSkew",
        "bandwidth_aware": "bloxopt.placement.bandwidth_aware:BandwidthAware",
        "fragmentation_gradient": "bloxopt.placement.fragmentation_gradient:FragmentationGradient",
        "exact": "bloxopt.placement.exact:ExactPlacement",
        "guaranteed_cells": "bloxopt.placement.cells.guaranteed:GuaranteedCells",
        "blox_scattered": "bloxopt.placement.blox:scattered",
        "blox_consolidated": "bloxopt.placement.blox:consolidated",
    },
)


def get_placement(placement: str | Strategy, what: str = "placement", /, **options: Any) -> Strategy:
    """The strategy registered under a name, with ``options`` if it takes any; a function is returned as it is.

    A registered class is one that takes options or remembers what it worked out: every call makes a new one, for one
    run. Raises :class:`~bloxopt.errors.InputError`, which says ``what`` it is about, for what is neither, such as a
    class instead of an object of it, and for options that the placement does not take.
    """
    if isinstance(placement, str):
        found: Any = PLACEMENTS.get(placement)
        if not isinstance(found, type):
            check_options(lambda: None, options, f"{what} {placement!r}")
            strategy: Strategy = found
            return strategy
        strategy = PLACEMENTS.make(placement, options, f"{what} {placement!r}")
        return strategy
    if isinstance(placement, type):
        name = placement.__qualname__
        raise InputError(f"{what} is the class {name}: give an object of it, such as {name}(), or a name")
    if not callable(placement) and not hasattr(placement, "place_round"):
        raise InputError(f"{what} is {placement!r}: it must be a name of `bloxopt placements` or a function")
    if options:
        raise InputError(f"{what} is an object already: it takes no options ({', '.join(options)})")
    return placement


def placement_table() -> list[dict[str, str]]:
    """Name and one-line description of every registered strategy."""
    return [
        {"name": name, "description": (PLACEMENTS.get(name).__doc__ or "").strip().splitlines()[0]}
        for name in PLACEMENTS
    ]


__all__ = ["PLACEMENTS", "Found", "Offer", "Strategy", "get_placement", "placement_table"]
