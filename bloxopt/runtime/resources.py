"""What is free on every GPU and node, and how a grant takes from it and gives back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bloxopt.cluster import Cluster
from bloxopt.jobs import FloatArray, IntArray, JobTable
from bloxopt.placement.mig import SliceMap

WHOLE_GPU = 1000
"""A GPU in thousandths: the unit in which shares of a GPU are booked."""

HALF_GPU = 500
"""What each of a pair of jobs holds of the GPUs that both run on."""


class Grant(NamedTuple):
    """The GPUs of one job: ``counts[k]`` on node ``nodes[k]``, all of one type.

    ``gpus`` are their numbers in the cluster (see ``Cluster.gpu_offset``), node after node. ``milli`` is
    the part of each that the job gets, in thousandths. ``slices`` are the memory slices of a share on a partitioned
    GPU, as a bit mask (see :mod:`bloxopt.placement.mig`). ``partner`` is the row of the job that holds the other half
    of the same GPUs, -1 for none.
    """

    gpu_type: int
    nodes: tuple[int, ...]
    counts: tuple[int, ...]
    gpus: tuple[int, ...]
    milli: int = WHOLE_GPU
    slices: int = 0
    partner: int = -1

    @property
    def num_gpus(self) -> int:
        return len(self.gpus)


class Resources:
    """Free GPUs, CPUs and memory.

    ``milli`` (GPUs,) thousandths free of each GPU · ``gpus`` (nodes,) GPUs wholly free · ``jobs`` (nodes,)
    jobs running on each node · ``cpus`` and ``memory_gib`` (nodes,), ``exclusive`` (nodes,) jobs that want the
    node for themselves, ``group_jobs`` (groups, nodes) jobs of each anti-affinity group (``groups`` has the group of
    each kind of needs, -1 for none): None for workloads that state no such need. ``touched`` lists the nodes of every
    change since this object was made. ``slices`` are those taken of partitioned GPUs, None if no node is.
    """

    __slots__ = (
        "cpus",
        "exclusive",
        "gpus",
        "group_jobs",
        "groups",
        "jobs",
        "memory_gib",
        "milli",
        "node_of",
        "slices",
        "table",
        "touched",
    )

    def __init__(self, cluster: Cluster, table: JobTable) -> None:
        self.table = table
        self.node_of: IntArray = cluster.gpu_node
        self.milli: IntArray = np.full(cluster.num_gpus, WHOLE_GPU, dtype=np.int64)
        self.gpus: IntArray = cluster.node_gpus.copy()
        self.jobs: IntArray = np.zeros(len(cluster.nodes), dtype=np.int64)
        self.touched: list[int] = []
        self.slices: SliceMap | None = SliceMap.of(cluster)
        needs = bool(table.cpus_per_gpu.any() or table.memory_gib_per_gpu.any())
        self.cpus: FloatArray | None = cluster.node_cpus.copy() if needs else None
        self.memory_gib: FloatArray | None = cluster.node_memory_gib.copy() if needs else None
        alone = any(kind.exclusive_node for kind in table.need_kinds)
        self.exclusive: IntArray | None = np.zeros(len(cluster.nodes), dtype=np.int64) if alone else None
        names = sorted({kind.anti_affinity for kind in table.need_kinds if kind.anti_affinity is not None})
        self.groups = [
            -1 if kind.anti_affinity is None else names.index(kind.anti_affinity) for kind in table.need_kinds
        ]
        self.group_jobs: IntArray | None = np.zeros((len(names), len(cluster.nodes)), dtype=np.int64) if names else None

    def copy(self) -> Resources:
        other = object.__new__(Resources)
        other.table, other.node_of, other.groups = self.table, self.node_of, self.groups
        other.milli, other.gpus, other.jobs = self.milli.copy(), self.gpus.copy(), self.jobs.copy()
        other.touched = []
        other.slices = None if self.slices is None else self.slices.copy()
        other.cpus = None if self.cpus is None else self.cpus.copy()
        other.memory_gib = None if self.memory_gib is None else self.memory_gib.copy()
        other.exclusive = None if self.exclusive is None else self.exclusive.copy()
        other.group_jobs = None if self.group_jobs is None else self.group_jobs.copy()
        return other

    @property
    def gpus_used(self) -> float:
        """GPUs in use, a share counting as its part; a whole number if no job shares."""
        if self.table.has_shares:
            return float(len(self.milli) - self.milli.sum() / WHOLE_GPU)
        return len(self.milli) - int(self.gpus.sum())

    def take(self, row: int, grant: Grant) -> None:
        """Book a grant of job ``row``."""
        gpus = grant.gpus
        if grant.milli == WHOLE_GPU:
            for node, count in zip(grant.nodes, grant.counts, strict=True):
                self.gpus[node] -= count
        else:
            for gpu in gpus:
                self.gpus[self.node_of[gpu]] -= self.milli[gpu] == WHOLE_GPU
        for gpu in gpus:
            self.milli[gpu] -= grant.milli
        if grant.slices and self.slices is not None:
            self.slices.taken[gpus[0]] |= grant.slices
        self._book_node(row, grant, 1)

    def give_back(self, row: int, grant: Grant) -> None:
        """Undo :meth:`take`."""
        for gpu in grant.gpus:
            self.milli[gpu] += grant.milli
        if grant.slices and self.slices is not None:
            self.slices.taken[grant.gpus[0]] &= ~grant.slices
        if grant.milli == WHOLE_GPU:
            for node, count in zip(grant.nodes, grant.counts, strict=True):
                self.gpus[node] += count
        else:
            for gpu in grant.gpus:
                self.gpus[self.node_of[gpu]] += self.milli[gpu] == WHOLE_GPU
        self._book_node(row, grant, -1)

    def _book_node(self, row: int, grant: Grant, sign: int) -> None:
        for node, count in zip(grant.nodes, grant.counts, strict=True):
            self.jobs[node] += sign
            self.touched.append(node)
            if self.cpus is not None and self.memory_gib is not None:
                self.cpus[node] -= sign * count * self.table.cpus_per_gpu[row]
                self.memory_gib[node] -= sign * count * self.table.memory_gib_per_gpu[row]
        if self.exclusive is not None and self.table.need_kinds[self.table.needs[row]].exclusive_node:
            self.exclusive[list(grant.nodes)] += sign
        if self.group_jobs is not None and (group := self.groups[self.table.needs[row]]) >= 0:
            self.group_jobs[group, list(grant.nodes)] += sign
