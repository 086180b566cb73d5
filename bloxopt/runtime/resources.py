"""What is free on every GPU and node, and how a grant takes from it and gives back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bloxopt.cluster import Cluster
from bloxopt.jobs import FloatArray, IntArray, JobTable

WHOLE_GPU = 1000
"""A GPU in thousandths: the unit in which shares of a GPU are booked."""


class Grant(NamedTuple):
    """The GPUs of one job: ``counts[k]`` on node ``nodes[k]``, all of one type.

    ``gpus`` are their numbers in the cluster (see ``Cluster.gpu_offset``), node after node. ``milli`` is
    the part of each that the job gets, in thousandths.
    """

    gpu_type: int
    nodes: tuple[int, ...]
    counts: tuple[int, ...]
    gpus: tuple[int, ...]
    milli: int = WHOLE_GPU

    @property
    def num_gpus(self) -> int:
        return len(self.gpus)


class Resources:
    """Free GPUs, CPUs and memory.

    ``milli`` (GPUs,) thousandths free of each GPU · ``gpus`` (nodes,) GPUs wholly free · ``jobs`` (nodes,)
    jobs running on each node · ``cpus`` and ``memory_gib`` (nodes,), None for workloads that state no need.
    """

    __slots__ = ("cpus", "gpus", "jobs", "memory_gib", "milli", "node_of", "table")

    def __init__(self, cluster: Cluster, table: JobTable) -> None:
        self.table = table
        self.node_of: IntArray = cluster.gpu_node
        self.milli: IntArray = np.full(cluster.num_gpus, WHOLE_GPU, dtype=np.int64)
        self.gpus: IntArray = cluster.node_gpus.copy()
        self.jobs: IntArray = np.zeros(len(cluster.nodes), dtype=np.int64)
        needs = bool(table.cpus_per_gpu.any() or table.memory_gib_per_gpu.any())
        self.cpus: FloatArray | None = cluster.node_cpus.copy() if needs else None
        self.memory_gib: FloatArray | None = cluster.node_memory_gib.copy() if needs else None

    def copy(self) -> Resources:
        other = object.__new__(Resources)
        other.table, other.node_of = self.table, self.node_of
        other.milli, other.gpus, other.jobs = self.milli.copy(), self.gpus.copy(), self.jobs.copy()
        other.cpus = None if self.cpus is None else self.cpus.copy()
        other.memory_gib = None if self.memory_gib is None else self.memory_gib.copy()
        return other

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
        self._book_node(row, grant, 1)

    def give_back(self, row: int, grant: Grant) -> None:
        """Undo :meth:`take`."""
        for gpu in grant.gpus:
            self.milli[gpu] += grant.milli
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
            if self.cpus is not None and self.memory_gib is not None:
                self.cpus[node] -= sign * count * self.table.cpus_per_gpu[row]
                self.memory_gib[node] -= sign * count * self.table.memory_gib_per_gpu[row]
