"""Rack-aware: a gang crosses as few data centres, racks and nodes as it can, in this order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bloxopt.placement.consolidated import consolidated
from bloxopt.placement.grouping import best_groups
from bloxopt.placement.strategy import Found, Offer
from bloxopt.placement.topology import Topology


def rack_aware(offer: Offer, need: int) -> Found | None:
    """Use the fewest racks, in them the fewest nodes, and where racks are equal the one with the least free.

    A gang that no rack can hold fills racks whole, the emptiest first, and goes with what is left where it fits
    best; it keeps to one data centre if one can hold it.
    """
    topology = Topology.of(offer.workspace.cluster)
    available, rack, datacenter = offer.available, topology.node_rack, topology.rack_datacenter
    racks, centers = len(topology.rack_names), len(topology.datacenter_names)
    free = np.bincount(rack, weights=available, minlength=racks).astype(np.int64)
    if free.sum() < need:
        return None
    if centers > 1 and free.max() < need and len(homes := best_groups(free, datacenter, centers, need)):
        free = np.where(datacenter == homes[0], free, 0)
        available = np.where(datacenter[rack] == homes[0], available, 0)
    whole = np.zeros(racks, dtype=bool)
    while free.max() < need:
        largest = int(free.argmax())
        whole[largest] = True
        need -= int(free[largest])
        free[largest] = 0
    full = np.where(whole[rack], available, 0)
    available = available - full
    home = best_groups(available, rack, racks, need)[0]
    rest = consolidated(replace(offer, available=np.where(rack == home, available, 0)), need)
    if rest is None:
        return None
    nodes = full.nonzero()[0].tolist()
    return Found((*nodes, *rest[0]), (*full[nodes].tolist(), *rest[1]))
