"""The free resources while a round is being placed: a scratch copy that jobs take from and give back to."""

from __future__ import annotations

import numpy as np

from bloxopt.cluster import Cluster
from bloxopt.jobs import BoolArray, IntArray, JobTable
from bloxopt.runtime.assignment import Assignment, Grant


class Workspace:
    """Free GPUs (CPUs, memory) per node of an assignment, counting only nodes that are up."""

    def __init__(self, assignment: Assignment, cluster: Cluster, jobs: JobTable, node_up: BoolArray) -> None:
        self._jobs = jobs
        self._free = assignment.free_gpus.copy()
        self._cpus = None if assignment.free_cpus is None else assignment.free_cpus.copy()
        self._memory = None if assignment.free_memory_gib is None else assignment.free_memory_gib.copy()
        uniform = len(cluster.gpu_types) == 1 and bool(node_up.all())
        self._usable: list[BoolArray] | None = (
            None
            if uniform
            else [np.equal(cluster.node_gpu_type, kind) & node_up for kind in range(len(cluster.gpu_types))]
        )

    def available(self, row: int, gpu_type: int) -> IntArray:
        """GPUs of a type on each node that job ``row`` could use, (nodes,): free, up, with its CPUs and memory."""
        free = self._free if self._usable is None else self._free * self._usable[gpu_type]
        for left, need in ((self._cpus, self._jobs.cpus_per_gpu), (self._memory, self._jobs.memory_gib_per_gpu)):
            if left is not None and need[row] > 0:
                fits = np.floor(np.minimum(left / need[row] + 1e-9, free))
                free = np.maximum(fits, 0).astype(np.int64)
        return free

    def take(self, row: int, grant: Grant) -> None:
        self._book(row, grant, -1)

    def give_back(self, row: int, grant: Grant) -> None:
        self._book(row, grant, 1)

    def _book(self, row: int, grant: Grant, sign: int) -> None:
        for node, count in zip(grant.nodes, grant.counts, strict=True):
            self._free[node] += sign * count
            if self._cpus is not None and self._memory is not None:
                self._cpus[node] += sign * count * self._jobs.cpus_per_gpu[row]
                self._memory[node] += sign * count * self._jobs.memory_gib_per_gpu[row]
