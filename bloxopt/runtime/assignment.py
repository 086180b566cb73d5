"""Which job holds how many GPUs of which node; an assignment that oversubscribes a node cannot be built."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from bloxopt.cluster import Cluster
from bloxopt.errors import CheckError
from bloxopt.jobs import FloatArray, IntArray, JobTable


class Grant(NamedTuple):
    """The GPUs of one job: ``counts[k]`` GPUs on node number ``nodes[k]``, all of one type."""

    gpu_type: int
    nodes: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def num_gpus(self) -> int:
        return sum(self.counts)


class Assignment(Mapping[int, Grant]):
    """Grants by job row. Immutable: :meth:`change` gives the next one and checks what changed.

    ``free_gpus`` (nodes,) is what is left; ``free_cpus`` and ``free_memory_gib`` are None for
    workloads that state no CPU or memory needs. The arrays must not be written to.
    """

    __slots__ = ("_cluster", "_grants", "_jobs", "free_cpus", "free_gpus", "free_memory_gib")

    def __init__(self, cluster: Cluster, jobs: JobTable) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._grants: dict[int, Grant] = {}
        self.free_gpus: IntArray = cluster.node_gpus
        needs = bool(jobs.cpus_per_gpu.any() or jobs.memory_gib_per_gpu.any())
        self.free_cpus: FloatArray | None = cluster.node_cpus if needs else None
        self.free_memory_gib: FloatArray | None = cluster.node_memory_gib if needs else None

    def change(self, stop: Collection[int], start: Mapping[int, Grant]) -> Assignment:
        """The assignment after the jobs in ``stop`` gave up their GPUs and those in ``start`` got theirs.

        Raises :class:`CheckError` for a job that starts twice, a gang of the wrong size or type, and
        a node with less than nothing left.
        """
        if not stop and not start:
            return self
        after = object.__new__(Assignment)
        after._cluster, after._jobs = self._cluster, self._jobs
        grants = after._grants = self._grants.copy()
        free = after.free_gpus = self.free_gpus.copy()
        cpus = after.free_cpus = None if self.free_cpus is None else self.free_cpus.copy()
        memory = after.free_memory_gib = None if self.free_memory_gib is None else self.free_memory_gib.copy()

        def book(row: int, grant: Grant, sign: int) -> None:
            for node, count in zip(grant.nodes, grant.counts, strict=True):
                free[node] -= sign * count
                if cpus is not None and memory is not None:
                    cpus[node] -= sign * count * self._jobs.cpus_per_gpu[row]
                    memory[node] -= sign * count * self._jobs.memory_gib_per_gpu[row]

        for row in stop:
            book(row, grants.pop(row), -1)
        node_type = self._cluster.node_gpu_type
        low, high = self._jobs.min_gpus, self._jobs.max_gpus
        for row, grant in start.items():
            name = self._jobs.job_id[row]
            if row in grants:
                raise CheckError(f"job {name!r} was given GPUs twice")
            if not low[row] <= grant.num_gpus <= high[row] or min(grant.counts) < 1:
                raise CheckError(f"job {name!r} needs {low[row]} to {high[row]} GPUs and was given {grant.num_gpus}")
            if len(set(grant.nodes)) < len(grant.nodes) or any(node_type[n] != grant.gpu_type for n in grant.nodes):
                raise CheckError(f"job {name!r} was given GPUs of more than one type, or one node twice: {grant}")
            grants[row] = grant
            book(row, grant, 1)
        if start:
            for what, left in (("GPUs", free), ("CPUs", cpus), ("GiB of memory", memory)):
                if left is not None and left.min() < -1e-6:
                    node = int(left.argmin())
                    raise CheckError(f"node {self._cluster.nodes[node].name!r} is short of {-left[node]:g} {what}")
        return after

    def __getitem__(self, row: int) -> Grant:
        return self._grants[row]

    def __contains__(self, row: object) -> bool:
        return row in self._grants

    def __iter__(self) -> Iterator[int]:
        return iter(self._grants)

    def __len__(self) -> int:
        return len(self._grants)
