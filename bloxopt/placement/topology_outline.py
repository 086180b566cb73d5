"""A topology as people want to see it: equal nodes together, equal racks together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from bloxopt.placement.topology import Topology

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class NodeGroup:
    """Equal nodes of a rack. ``slowest`` and ``fastest`` GB/s between two of a node's GPUs, NaN for one GPU.

    ``conditions`` says who may use them: drained, reserved, taints.
    """

    names: tuple[str, ...] = field(compare=False)
    count: int
    gpu_type: str
    num_gpus: int
    island_gpus: int
    slowest: float
    fastest: float
    conditions: tuple[str, ...]

    @property
    def description(self) -> str:
        """GPUs, islands, links and conditions in a line."""
        parts = [f"{self.num_gpus} × {self.gpu_type}"]
        if self.island_gpus < self.num_gpus:
            parts.append(f"islands of {self.island_gpus}")
        if self.num_gpus > 1:
            same = self.slowest == self.fastest
            parts.append(f"{self.fastest:g} GB/s" if same else f"{self.slowest:g} to {self.fastest:g} GB/s")
        return " · ".join([*parts, *self.conditions])


@dataclass(frozen=True)
class RackGroup:
    """Equal racks of a data centre: ``within`` GB/s between their nodes, ``uplink`` GB/s to other racks."""

    names: tuple[str, ...] = field(compare=False)
    count: int
    within: float
    uplink: float
    nodes: tuple[NodeGroup, ...]

    @property
    def num_nodes(self) -> int:
        """Nodes of one rack."""
        return sum(group.count for group in self.nodes)


@dataclass(frozen=True)
class DatacenterGroup:
    """Equal data centres."""

    names: tuple[str, ...] = field(compare=False)
    count: int
    racks: tuple[RackGroup, ...]


def outline(topology: Topology, join_racks: bool = True) -> tuple[DatacenterGroup, ...]:
    """The data centres of a topology with equal parts joined, in order of first appearance.

    The nodes of joined racks are those of the first; ``join_racks=False`` joins nodes alone, and no name is lost.
    """
    nodes = _by_parent(topology.node_rack, len(topology.rack_names))
    racks = _by_parent(topology.rack_datacenter, len(topology.datacenter_names))
    kinds: dict[Any, tuple[str, int, int, float, float]] = {}

    def rack_group(rack: int) -> RackGroup:
        name, network = topology.rack_names[rack], topology.network
        groups = _joined((_node_group(topology, node, kinds) for node in nodes[rack]), _join_nodes)
        return RackGroup((name,), 1, network.within_rack(name), network.uplink(name), groups)

    def datacenter_group(number: int) -> DatacenterGroup:
        groups = tuple(rack_group(rack) for rack in racks[number])
        if join_racks:
            groups = _joined(groups, _join_racks)
        return DatacenterGroup((topology.datacenter_names[number],), 1, groups)

    centers = tuple(datacenter_group(number) for number in range(len(racks)))
    return _joined(centers, _join_datacenters) if join_racks else centers


def outline_document(topology: Topology) -> dict[str, Any]:
    """All racks with their nodes as plain values, for JSON."""
    return {
        "cluster": topology.cluster.describe(),
        "parts": {str(level): count for level, count in topology.levels.items()},
        "network": {
            "node": topology.network.node,
            "rack": topology.network.rack,
            "datacenter": topology.network.datacenter,
        },
        "datacenters": [
            {
                "name": center.names[0],
                "racks": [
                    {
                        "name": rack.names[0],
                        "within": rack.within,
                        "uplink": rack.uplink,
                        "nodes": [
                            {
                                "names": list(group.names),
                                "gpu_type": group.gpu_type,
                                "num_gpus": group.num_gpus,
                                "island_gpus": group.island_gpus,
                                "slowest_link": group.slowest if group.num_gpus > 1 else None,
                                "fastest_link": group.fastest if group.num_gpus > 1 else None,
                                "conditions": list(group.conditions),
                            }
                            for group in rack.nodes
                        ],
                    }
                    for rack in center.racks
                ],
            }
            for center in outline(topology, join_racks=False)
        ],
    }


def shown_names(names: Sequence[str], most: int = 3) -> str:
    """A few names in full, many as the first and the last."""
    return ", ".join(names) if len(names) <= most else f"{names[0]} … {names[-1]}"


def group_label(rack: RackGroup, group: NodeGroup) -> str:
    """The names of equal nodes, or how many there are where ``rack`` stands for several racks."""
    if rack.count > 1:
        return f"{group.count:,} node{'' if group.count == 1 else 's'} each"
    return shown_names(group.names, 2) + (f" ({group.count:,} nodes)" if group.count > 1 else "")


def _by_parent(parent: Iterable[int], parents: int) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in range(parents)]
    for child, above in enumerate(parent):
        children[above].append(child)
    return children


def _node_group(topology: Topology, number: int, kinds: dict[Any, tuple[str, int, int, float, float]]) -> NodeGroup:
    node = topology.cluster.nodes[number]
    key = (node.gpu_type, node.num_gpus, node.island_gpus, node.links)
    if key not in kinds:
        links = topology.links(number)
        pairs = links[~np.eye(len(links), dtype=bool)]
        low, high = (float(pairs.min()), float(pairs.max())) if len(pairs) else (math.nan, math.nan)
        kinds[key] = (node.gpu_type, node.num_gpus, node.island_gpus or node.num_gpus, low, high)
    conditions = (
        *(("drained",) if node.drained else ()),
        *((f"reserved for {node.reserved_for}",) if node.reserved_for else ()),
        *((f"taints {', '.join(node.taints)}",) if node.taints else ()),
    )
    gpu_type, num_gpus, island_gpus, slowest, fastest = kinds[key]
    return NodeGroup((node.name,), 1, gpu_type, num_gpus, island_gpus, slowest, fastest, conditions)


def _join_nodes(names: tuple[str, ...], one: NodeGroup) -> NodeGroup:
    return NodeGroup(
        names, len(names), one.gpu_type, one.num_gpus, one.island_gpus, one.slowest, one.fastest, one.conditions
    )


def _join_racks(names: tuple[str, ...], one: RackGroup) -> RackGroup:
    return RackGroup(names, len(names), one.within, one.uplink, one.nodes)


def _join_datacenters(names: tuple[str, ...], one: DatacenterGroup) -> DatacenterGroup:
    return DatacenterGroup(names, len(names), one.racks)


def _joined(parts: Iterable[_Part], join: Callable[[tuple[str, ...], _Part], _Part]) -> tuple[_Part, ...]:
    """Equal parts as one with all their names."""
    names: dict[_Part, list[str]] = {}
    for part in parts:
        names.setdefault(part, []).extend(part.names)  # type: ignore[attr-defined]
    return tuple(join(tuple(all_names), part) for part, all_names in names.items())
