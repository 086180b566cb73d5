"""The tree that a cluster is: datacenter → rack → node → NVLink island → GPU, with bandwidths."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bloxopt.cluster import Cluster, Node
from bloxopt.errors import ClusterError
from bloxopt.jobs import FloatArray, IntArray
from bloxopt.network import Network
from bloxopt.wording import shown

if TYPE_CHECKING:
    import networkx as nx


class Level(IntEnum):
    """The smallest part of a cluster that holds a set of GPUs; larger is farther apart."""

    GPU = 0
    ISLAND = 1
    NODE = 2
    RACK = 3
    DATACENTER = 4
    CLUSTER = 5

    def __str__(self) -> str:
        return self.name.lower()


class Topology:
    """Where every GPU is. Immutable; built once per cluster: use :meth:`of`.

    Arrays of numbers, in the cluster's order: ``gpu_node`` and ``gpu_island`` (GPUs,), ``island_node``
    (islands,), ``node_rack`` and ``node_datacenter`` (nodes,), ``rack_datacenter`` (racks,). Names:
    ``node_names``, ``rack_names``, ``datacenter_names``. Racks and data centres are numbered by first
    appearance. ``links`` and ``graph`` are made when first asked for.
    Raises :class:`~bloxopt.errors.ClusterError` for GPUs and nodes that the cluster does not have.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.network: Network = cluster.network
        nodes = cluster.nodes
        self.node_names: tuple[str, ...] = tuple(node.name for node in nodes)
        self.node_rack, self.rack_names = _numbered([node.rack for node in nodes])
        self.node_datacenter, self.datacenter_names = _numbered([node.datacenter for node in nodes])
        first = np.unique(self.node_rack, return_index=True)[1]
        self.rack_datacenter: IntArray = self.node_datacenter[first]
        self.gpu_node: IntArray = cluster.gpu_node
        sizes = np.array([node.island_gpus or node.num_gpus for node in nodes], dtype=np.int64)
        islands = cluster.node_gpus // sizes
        start = np.concatenate([[0], np.cumsum(islands)])
        self.island_node: IntArray = np.repeat(np.arange(len(nodes)), islands)
        local = np.arange(cluster.num_gpus) - cluster.gpu_offset[self.gpu_node]
        self.gpu_island: IntArray = (start[self.gpu_node] + local // sizes[self.gpu_node]).astype(np.int64)
        self._links: dict[Hashable, FloatArray] = {}

    @staticmethod
    def of(cluster: Cluster) -> Topology:
        """The topology of a cluster, built when first asked for and kept with it."""
        if not isinstance(cluster, Cluster):
            raise ClusterError(f"Topology.of: cluster is {cluster!r}, must be a Cluster: bx.load_cluster makes one")
        return cluster.topology

    @property
    def levels(self) -> dict[Level, int]:
        """How many parts each level has."""
        return {
            Level.DATACENTER: len(self.datacenter_names),
            Level.RACK: len(self.rack_names),
            Level.NODE: len(self.node_names),
            Level.ISLAND: len(self.island_node),
            Level.GPU: len(self.gpu_node),
        }

    @cached_property
    def rack_capacity(self) -> IntArray:
        """GPUs of each type in each rack, shape (racks, types)."""
        capacity = np.zeros((len(self.rack_names), len(self.cluster.gpu_types)), dtype=np.int64)
        np.add.at(capacity, (self.node_rack, self.cluster.node_gpu_type), self.cluster.node_gpus)
        return capacity

    def links(self, node: int) -> FloatArray:
        """GB/s between the GPUs of a node, (GPUs, GPUs), +inf on the diagonal; read-only.

        As measured where the node came with ``links``; else NVLink inside an island and PCIe across.
        Equal nodes share one array.
        """
        entry = self.cluster.nodes[int(_numbers("node", node, len(self.node_names)))]
        key = (entry.gpu_type, entry.num_gpus, entry.island_gpus, entry.links)
        found = self._links.get(key)
        if found is None:
            found = self._links[key] = _links_of(entry, self.network)
        return found

    def span(self, gpus: Sequence[int] | IntArray) -> Level:
        """The level at which a set of GPUs meets: NODE if it spans several islands of one node, and so on."""
        return self._span(_numbers("GPU", gpus, len(self.gpu_node), listed=True))

    def _span(self, numbers: IntArray) -> Level:
        if len(numbers) <= 1:
            return Level.GPU
        node = self.gpu_node[numbers]
        parts = (
            (Level.ISLAND, self.gpu_island[numbers]),
            (Level.NODE, node),
            (Level.RACK, self.node_rack[node]),
            (Level.DATACENTER, self.node_datacenter[node]),
        )
        return next((level for level, part in parts if (part == part[0]).all()), Level.CLUSTER)

    def node_span(self, nodes: Sequence[int] | IntArray) -> Level:
        """The level at which a set of nodes meets, NODE for one."""
        numbers = _numbers("node", nodes, len(self.node_names), listed=True)
        if not len(numbers):
            raise ClusterError("node_span needs at least one node")
        parts = (
            (Level.NODE, numbers),
            (Level.RACK, self.node_rack[numbers]),
            (Level.DATACENTER, self.node_datacenter[numbers]),
        )
        return next((level for level, part in parts if (part == part[0]).all()), Level.CLUSTER)

    def bandwidth(self, gpus: Sequence[int] | IntArray) -> float:
        """GB/s of the narrowest link that a collective over these GPUs must cross; +inf for one GPU.

        Inside a node it takes the best tree over them (relays through other GPUs of the set are
        allowed, as rings do); between nodes the network of the level at which they meet decides, unless some
        node's own links are narrower.
        """
        numbers = _numbers("GPU", gpus, len(self.gpu_node), listed=True)
        level = self._span(numbers)
        node = self.gpu_node[numbers]
        inside = [
            widest_tree(self.links(int(host)), numbers[node == host] - int(self.cluster.gpu_offset[host]))
            for host in np.unique(node)
        ]
        return min([*inside, self._network(level, np.unique(self.node_rack[node]))])

    def _network(self, level: Level, racks: IntArray) -> float:
        names = [self.rack_names[rack] for rack in racks]
        if level <= Level.NODE:
            return float("inf")
        if level == Level.RACK:
            return self.network.within_rack(names[0])
        uplink = min(self.network.uplink(name) for name in names)
        return uplink if level == Level.DATACENTER else min(uplink, self.network.datacenter)

    @cached_property
    def graph(self) -> nx.DiGraph[Any]:
        """The tree as a networkx graph, edges from the whole to its parts.

        Vertices are ``(level, number)`` with ``level``, ``name`` and, for nodes, ``gpu_type``; the root is
        ``(Level.CLUSTER, 0)``. An edge's ``bandwidth`` is the GB/s with which the part reaches its siblings.
        Memory grows with the GPUs: the arrays are the way for large clusters.
        """
        from bloxopt.placement.topology_graph import build_graph

        return build_graph(self)


def widest_tree(links: FloatArray, members: IntArray) -> float:
    """The narrowest link of the widest tree over ``members`` (Prim's algorithm); +inf for one."""
    among = links[np.ix_(members, members)]
    reach = among[0].copy()
    outside = np.ones(len(members), dtype=bool)
    outside[0] = False
    narrowest = float("inf")
    while outside.any():
        best = int(np.where(outside, reach, -1.0).argmax())
        narrowest = min(narrowest, float(reach[best]))
        outside[best] = False
        reach = np.maximum(reach, among[best])
    return narrowest


def _numbers(what: str, given: object, count: int, *, listed: bool = False) -> IntArray:
    """Numbers of GPUs or nodes as an array, of one dimension if ``listed``; raises unless all are there."""
    try:
        numbers = np.asarray(given)
    except ValueError:
        numbers = np.empty((0, 0))
    if listed and numbers.shape == (0,):
        return numbers.astype(np.int64)
    if numbers.ndim != listed or numbers.dtype.kind not in "iu" or ((numbers < 0) | (numbers >= count)).any():
        many, wanted = ("numbers are", "whole numbers") if listed else ("number is", "a whole number")
        raise ClusterError(f"{what} {many} {shown(given)}, must be {wanted} from 0 to {count - 1}")
    return numbers.astype(np.int64)


def _numbered(names: Sequence[str]) -> tuple[IntArray, tuple[str, ...]]:
    """Numbers by first appearance, and the names they stand for."""
    number: dict[str, int] = {}
    codes = np.array([number.setdefault(name, len(number)) for name in names], dtype=np.int64)
    return codes, tuple(number)


def _links_of(node: Node, network: Network) -> FloatArray:
    if node.links is not None:
        links = np.array(node.links, dtype=np.float64)
    else:
        speeds = network.links_of(node.gpu_type)
        island = np.arange(node.num_gpus) // (node.island_gpus or node.num_gpus)
        same = island[:, None] == island[None, :]
        links = np.where(same, max(speeds.nvlink, speeds.pcie), speeds.pcie)
    np.fill_diagonal(links, np.inf)
    links.setflags(write=False)
    return links
