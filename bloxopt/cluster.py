"""Clusters: nodes with GPUs of one type each, and the network between them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bloxopt.arguments import is_finite_number
from bloxopt.errors import ClusterError
from bloxopt.jobs import MAX_GPUS, BoolArray, FloatArray, IntArray, JobTable
from bloxopt.network import DEFAULT_NETWORK, Network, link_keys

if TYPE_CHECKING:
    from bloxopt.placement.topology import Topology

MAX_NODES = 1_000_000
"""Most nodes of a cluster description: a larger count is a mistake, and would fill the memory."""

MIG_LABEL = "mig"
"""Label of nodes whose GPUs are partitioned: its value is the GPU model, such as ``A100-40GB``."""

BUILT_IN_LABELS = ("node", "rack", "datacenter", "gpu_type")
"""Labels that every node has of itself, so that its own cannot be named like them."""

_PART = re.compile(
    r"^(?:(?P<nodes>\d+)x)?(?P<gpus>\d+)x(?P<type>[A-Za-z][A-Za-z0-9_.\-]*)"
    r"(?::(?P<cpus>\d{1,12}(?:\.\d+)?)cpus)?(?::(?P<memory>\d{1,12}(?:\.\d+)?)gib)?$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A server with ``num_gpus`` GPUs of one type.

    ``cpus`` and ``memory_gib`` are ``None`` where unknown, which means that they never limit.
    ``island_gpus`` GPUs each are linked by NVLink (None: all of the node); ``links`` are the GB/s between each
    two of its GPUs, where measured (num_gpus rows of num_gpus). ``labels`` (name → value) are
    what a job's node selector looks for; a node with ``taints`` takes only jobs that tolerate them all;
    one ``reserved_for`` a tenant takes that tenant's jobs alone; one that is ``drained`` takes no new jobs.
    """

    name: str
    gpu_type: str
    num_gpus: int
    cpus: float | None = None
    memory_gib: float | None = None
    rack: str = "rack-0"
    datacenter: str = "datacenter-0"
    island_gpus: int | None = None
    links: tuple[tuple[float, ...], ...] | None = None
    labels: Mapping[str, str] | tuple[tuple[str, str], ...] = ()
    taints: tuple[str, ...] = ()
    reserved_for: str | None = None
    drained: bool = False

    def __post_init__(self) -> None:
        labels = _texts(self, "labels", self.labels, "a mapping from names to values", 2)
        if len({name for name, _ in labels}) < len(labels):
            raise ClusterError(f"node {self.name!r}: labels are {self.labels!r}, must name each label once")
        if reserved := [name for name, _ in labels if name in BUILT_IN_LABELS]:
            raise ClusterError(
                f"node {self.name!r}: label {reserved[0]!r} is reserved: every node has the labels "
                f"{', '.join(BUILT_IN_LABELS)} of itself; choose another name"
            )
        object.__setattr__(self, "labels", tuple(sorted(labels)))
        taints = {taint for (taint,) in _texts(self, "taints", self.taints, "a list of names", 1)}
        object.__setattr__(self, "taints", tuple(sorted(taints)))
        if not isinstance(self.drained, bool):
            raise ClusterError(f"node {self.name!r}: drained is {self.drained!r}, must be true or false")
        for field in (
            "name",
            "gpu_type",
            "rack",
            "datacenter",
            *(() if self.reserved_for is None else ("reserved_for",)),
        ):
            text = getattr(self, field)
            if not isinstance(text, str) or not text or not text.isprintable():
                raise ClusterError(f"node {self.name!r}: {field} is {text!r}, must be a non-empty printable string")
        if (
            not is_finite_number(self.num_gpus)
            or self.num_gpus != round(self.num_gpus)
            or not 1 <= self.num_gpus <= MAX_GPUS
        ):
            raise ClusterError(
                f"node {self.name!r}: num_gpus is {self.num_gpus!r}, must be a whole number from 1 to {MAX_GPUS}"
            )
        if self.links is not None:
            object.__setattr__(self, "links", _link_table(self))
        if self.island_gpus is not None and (
            not is_finite_number(self.island_gpus)
            or self.island_gpus != round(self.island_gpus)
            or self.island_gpus < 1
            or self.num_gpus % self.island_gpus
        ):
            raise ClusterError(
                f"node {self.name!r}: island_gpus is {self.island_gpus!r}, must be a whole number that divides its "
                f"{self.num_gpus} GPUs"
            )
        for field in ("cpus", "memory_gib"):
            value = getattr(self, field)
            if value is not None and not (is_finite_number(value) and value >= 0):
                raise ClusterError(f"node {self.name!r}: {field} is {value!r}, must be a finite number >= 0")
        for name, value in labels:
            if name == MIG_LABEL:
                from bloxopt.placement.mig import label_fault

                if fault := label_fault(value, self.gpu_type):
                    raise ClusterError(f"node {self.name!r}: label {MIG_LABEL} is {value!r}, {fault}")


@dataclass(frozen=True, eq=False)
class Cluster:
    """An ordered set of nodes and the network between them; GPU types keep the order in which they first appear."""

    nodes: tuple[Node, ...]
    network: Network = DEFAULT_NETWORK

    def __post_init__(self) -> None:
        if not isinstance(self.nodes, (tuple, list)) or not all(isinstance(node, Node) for node in self.nodes):
            raise ClusterError(
                f"cannot make a cluster of {self.nodes!r}: give Node objects, or a description such as 32x4xV100 to "
                "Cluster.from_string"
            )
        object.__setattr__(self, "nodes", tuple(self.nodes))
        if not isinstance(self.network, Network):
            raise ClusterError(f"network is {self.network!r}, must be a Network")
        if not self.nodes:
            raise ClusterError("a cluster needs at least one node")
        seen: set[str] = set()
        home: dict[str, str] = {}
        for node in self.nodes:
            if node.name in seen:
                raise ClusterError(f"node name {node.name!r} appears twice: node names must be unique")
            seen.add(node.name)
            if (datacenter := home.setdefault(node.rack, node.datacenter)) != node.datacenter:
                raise ClusterError(
                    f"rack {node.rack!r} is in two data centres, {datacenter!r} and {node.datacenter!r} (node "
                    f"{node.name!r}): give each data centre racks of its own"
                )
        for rack in self.network.racks:
            if rack not in home:
                raise ClusterError(f"network: rack {rack!r}: no node is in it; racks: {_some(home)}")
        if self.network.gpus:
            types = dict.fromkeys(node.gpu_type for node in self.nodes)
            used = {key for kind in types for key in link_keys(kind)}
            for kind in self.network.gpus:
                if kind not in used:
                    raise ClusterError(f"network: gpu {kind!r}: no node has GPUs of this type; types: {_some(types)}")

    @classmethod
    def from_string(cls, text: str) -> Cluster:
        """Parse ``[NODESx]GPUSxTYPE[:CPUScpus][:GIBgib]`` parts joined by ``+``.

        ``8xV100+16xP100`` is one node with 8 V100 and one with 16 P100; ``32x4xV100`` is 32 nodes
        with 4 V100 each; ``4x8xV100:24cpus:500gib`` says what each of 4 nodes has beside its GPUs.
        """
        nodes: list[Node] = []
        for part in text.split("+"):
            match = _PART.match(part.strip())
            if match is None:
                raise ClusterError(
                    f"cluster {text!r}: cannot read {part.strip()!r}; write [NODESx]GPUSxTYPE parts joined "
                    "by '+', such as 8xV100+16xP100, 32x4xV100 or 4x8xV100:24cpus:500gib, or name an existing .toml "
                    "or .csv file (see docs/clusters.md)"
                )
            # Long digit strings are refused before int(), which has a limit of its own.
            digits = max(len(match["nodes"] or ""), len(match["gpus"]))
            count, gpus = (int(match["nodes"] or 1), int(match["gpus"])) if digits < 20 else (0, 0)
            if not (1 <= count <= MAX_NODES - len(nodes) and 1 <= gpus <= MAX_GPUS):
                raise ClusterError(
                    f"cluster {text!r}: {part.strip()!r} is out of range; use 1 to {MAX_NODES} nodes in all "
                    f"and 1 to {MAX_GPUS} GPUs a node"
                )
            cpus, memory = (None if match[key] is None else float(match[key]) for key in ("cpus", "memory"))
            for _ in range(count):
                name = f"node-{len(nodes)}"
                nodes.append(Node(name=name, gpu_type=match["type"], num_gpus=gpus, cpus=cpus, memory_gib=memory))
        return cls(tuple(nodes))

    @classmethod
    def from_toml(cls, path: str | Path) -> Cluster:
        """Read a cluster file: see :func:`bloxopt.cluster_files.read_toml`."""
        from bloxopt.cluster_files import read_toml

        return read_toml(Path(path))

    @classmethod
    def from_csv(cls, path: str | Path) -> Cluster:
        """Read a table of nodes: see :func:`bloxopt.cluster_files.read_csv`."""
        from bloxopt.cluster_files import read_csv

        return read_csv(Path(path))

    @cached_property
    def gpu_types(self) -> tuple[str, ...]:
        """GPU types in order of first appearance."""
        return tuple(dict.fromkeys(node.gpu_type for node in self.nodes))

    @cached_property
    def node_gpu_type(self) -> IntArray:
        """Code of each node's GPU type, shape (nodes,)."""
        code = {name: index for index, name in enumerate(self.gpu_types)}
        return np.array([code[node.gpu_type] for node in self.nodes], dtype=np.int64)

    @cached_property
    def node_gpus(self) -> IntArray:
        """GPUs of each node, shape (nodes,)."""
        return np.array([node.num_gpus for node in self.nodes], dtype=np.int64)

    @cached_property
    def gpu_offset(self) -> IntArray:
        """First GPU number of each node and, last, the number of GPUs in all; shape (nodes + 1,)."""
        return np.concatenate([[0], np.cumsum(self.node_gpus)]).astype(np.int64)

    @cached_property
    def gpu_node(self) -> IntArray:
        """Node of each GPU, shape (GPUs,)."""
        return np.repeat(np.arange(len(self.nodes)), self.node_gpus)

    @cached_property
    def node_cpus(self) -> FloatArray:
        """CPUs of each node, +inf where unknown."""
        return np.array([np.inf if n.cpus is None else n.cpus for n in self.nodes], dtype=np.float64)

    @cached_property
    def node_memory_gib(self) -> FloatArray:
        """Memory of each node in GiB, +inf where unknown."""
        return np.array([np.inf if n.memory_gib is None else n.memory_gib for n in self.nodes], dtype=np.float64)

    @cached_property
    def capacity(self) -> IntArray:
        """GPUs of each type, shape (types,)."""
        return self.capacity_of(np.ones(len(self.nodes), dtype=bool))

    @cached_property
    def node_drained(self) -> BoolArray:
        """Nodes that take no new jobs, shape (nodes,)."""
        return np.array([node.drained for node in self.nodes], dtype=bool)

    def capacity_of(self, nodes: BoolArray) -> IntArray:
        """GPUs of each type on the nodes of a mask (nodes,), shape (types,)."""
        gpus = np.where(nodes, self.node_gpus, 0)
        return np.bincount(self.node_gpu_type, weights=gpus, minlength=len(self.gpu_types)).astype(np.int64)

    @property
    def num_gpus(self) -> int:
        """GPUs in all."""
        return int(self.node_gpus.sum())

    @cached_property
    def topology(self) -> Topology:
        """The tree of data centres, racks, nodes and islands, built when first asked for."""
        from bloxopt.placement.topology import Topology

        return Topology(self)

    def describe(self) -> str:
        """The cluster in a line, such as ``32x4xV100``."""
        parts: list[list[Any]] = []
        for node in self.nodes:
            key = (node.num_gpus, node.gpu_type)
            if parts and parts[-1][1] == key:
                parts[-1][0] += 1
            else:
                parts.append([1, key])
        return "+".join(f"{f'{count}x' if count > 1 else ''}{gpus}x{kind}" for count, (gpus, kind) in parts)

    def check_fits(self, jobs: JobTable) -> None:
        """Raise if some job's smallest gang is larger than all GPUs of every type together."""
        largest = int(self.capacity.max())
        too_large = np.flatnonzero(jobs.min_gpus > largest)
        if too_large.size:
            i = int(too_large[0])
            more = f" ({too_large.size} such jobs)" if too_large.size > 1 else ""
            raise ClusterError(
                f"job {jobs.job_id[i]!r} needs {jobs.min_gpus[i]} GPUs of one type but the largest pool of "
                f"{self.describe()} has {largest}{more}: use a larger cluster, or drop such jobs "
                "(--set trace.where.max_gpus=N or trace.where in an experiment, trace.where(max_gpus=N) in Python)"
            )


def load_cluster(source: str | Path | Cluster) -> Cluster:
    """A cluster from a short string (``8xV100+16xP100``, ``32x4xV100``), a ``.toml`` or a ``.csv`` file."""
    if isinstance(source, Cluster):
        return source
    if not isinstance(source, (str, Path)):
        raise ClusterError(f"cannot make a cluster of {type(source).__name__}: give a string, a path or a Cluster")
    path = Path(source)
    if path.suffix.lower() == ".toml":
        return Cluster.from_toml(path)
    if path.suffix.lower() == ".csv":
        return Cluster.from_csv(path)
    return Cluster.from_string(str(source))


def _texts(node: Node, field: str, value: Any, wanted: str, size: int) -> tuple[tuple[str, ...], ...]:
    """Labels as pairs, taints as tuples of one; raises unless all are non-empty strings."""
    if isinstance(value, Mapping) and size == 2:
        entries: list[Any] = list(value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        entries = [(entry,) for entry in value] if size == 1 else list(value)
    else:
        raise ClusterError(f"node {node.name!r}: {field} is {value!r}, must be {wanted}")
    for entry in entries:
        pair = isinstance(entry, (tuple, list)) and len(entry) == size
        if not pair or not all(isinstance(part, str) and part for part in entry):
            raise ClusterError(f"node {node.name!r}: {field} must be non-empty strings, not {entry!r}")
    return tuple(tuple(entry) for entry in entries)


def _link_table(node: Node) -> tuple[tuple[float, ...], ...]:
    """The links of a node as tuples, kept as they are where they are some."""
    try:
        table = np.asarray(node.links)
    except ValueError:
        table = np.empty(0)
    if table.shape != (node.num_gpus, node.num_gpus) or table.dtype.kind not in "iuf" or not (table > 0).all():
        raise ClusterError(
            f"node {node.name!r}: links must be {node.num_gpus} rows of {node.num_gpus} GB/s > 0, one for each GPU"
        )
    # What a GPU reaches itself with is of no interest.
    if not np.isfinite(table[~np.eye(node.num_gpus, dtype=bool)]).all():
        raise ClusterError(f"node {node.name!r}: links between two GPUs must be finite numbers of GB/s")
    uneven = np.argwhere(table != table.T)
    if uneven.size:
        i, j = uneven[0]
        raise ClusterError(
            f"node {node.name!r}: links are {table[i, j]} GB/s from GPU {i} to GPU {j}, but {table[j, i]} from GPU {j} "
            f"to GPU {i}: give both directions the same"
        )
    rows = tuple(tuple(row) for row in table.tolist())
    return node.links if isinstance(node.links, tuple) and node.links == rows else rows


def _some(names: Mapping[str, Any]) -> str:
    return ", ".join([*list(names)[:10], *(["…"] if len(names) > 10 else [])])
