"""Which job holds which GPUs; an assignment that oversubscribes a GPU or splits a gang cannot be built.

Nor can one in which a job that wants its nodes for itself has company, two of an anti-affinity group meet, or more CPUs
or memory are shared out on a node than it has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from bloxopt.cluster import Cluster
from bloxopt.errors import CheckError
from bloxopt.jobs import JobTable
from bloxopt.placement.mig import SliceMap
from bloxopt.runtime.many_grants import MANY, ManyGrants
from bloxopt.runtime.resources import HALF_GPU, WHOLE_GPU, Grant, Resources


class HostShare(NamedTuple):
    """CPUs and GiB that a job gets on each node of its grant, in the order of ``Grant.nodes``."""

    cpus: tuple[float, ...]
    memory_gib: tuple[float, ...]


class Assignment(Mapping[int, Grant]):
    """Grants by job row. Immutable: :meth:`change` gives the next one and checks what changed.

    ``free`` is what is left and ``grants`` the plain dictionary behind the mapping, for hot loops; neither may
    be written to. ``hosts`` has the CPUs and memory of each job where a host allocation divides them
    (:meth:`with_hosts`), None where jobs have what they need: ``free`` always counts their needs, which is what
    placement goes by.
    """

    __slots__ = ("_cluster", "_jobs", "free", "grants", "hosts")

    def __init__(self, cluster: Cluster, jobs: JobTable) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self.grants: dict[int, Grant] = {}
        self.free = Resources(cluster, jobs)
        self.hosts: dict[int, HostShare] | None = None

    def change(self, stop: Collection[int], start: Mapping[int, Grant]) -> Assignment:
        """The assignment after the jobs in ``stop`` gave up their GPUs and those in ``start`` got theirs.

        Raises :class:`CheckError` for a job that starts twice, a gang of the wrong size or type, a share
        that is not the job's, a GPU or node with less than nothing left, a node shared against a job's needs, and one
        of a pair that is not on the GPUs of the other.
        """
        if not stop and not start:
            return self
        after = object.__new__(Assignment)
        after._cluster, after._jobs = self._cluster, self._jobs
        grants = after.grants = self.grants.copy()
        after.free = self.free.copy()
        for row in stop:
            after.free.give_back(row, grants.pop(row))
        if not self._start_many(start, after):
            for row, grant in start.items():
                if row in grants:
                    raise CheckError(f"job {self._jobs.job_id[row]!r} was given GPUs twice")
                self._check_shape(row, grant)
                if after.free.slices is not None or grant.slices:
                    self._check_slices(row, grant, after.free.slices)
                grants[row] = grant
                after.free.take(row, grant)
            self._check_free(after.free, start, grants)
        kept = self.hosts
        after.hosts = kept and {row: share for row, share in kept.items() if grants.get(row) is self.grants[row]}
        return after

    def _start_many(self, start: Mapping[int, Grant], after: Assignment) -> bool:
        """Start very many at once, if all is well with them; else nothing has changed."""
        if len(start) < MANY or after.free.slices is not None or not after.grants.keys().isdisjoint(start):
            return False
        many = ManyGrants.of(start)
        if many is None or not many.are_gangs(self._cluster, self._jobs):
            return False
        free = after.free.copy()
        many.take_from(free)
        if not many.fit(free):
            return False
        free.touched = after.free.touched + free.touched
        after.free = free
        after.grants.update(start)
        return True

    def with_hosts(self, hosts: Mapping[int, HostShare]) -> Assignment:
        """The same grants with the CPUs and memory of every job in place of those before.

        Raises :class:`CheckError` for a job without a share, a share for a job that does not run or not for each of
        its nodes, an amount that is no number >= 0, and a node of which more is given than it has.
        """
        cluster, grants = self._cluster, self.grants
        if hosts.keys() != grants.keys():
            row = min(hosts.keys() ^ grants.keys())
            fault = "runs without CPUs and memory" if row in grants else "has CPUs and memory and does not run"
            raise CheckError(f"job {self._jobs.job_id[row]!r} {fault}")
        for row, share in hosts.items():
            if len(share.cpus) != len(grants[row].nodes) or len(share.memory_gib) != len(grants[row].nodes):
                raise CheckError(f"job {self._jobs.job_id[row]!r}: {share} is not for its nodes {grants[row].nodes}")
        nodes = [node for row in hosts for node in grants[row].nodes]
        cpus = [amount for share in hosts.values() for amount in share.cpus]
        memory = [amount for share in hosts.values() for amount in share.memory_gib]
        for what, amounts, stock in (
            ("CPUs", cpus, cluster.node_cpus),
            ("GiB of memory", memory, cluster.node_memory_gib),
        ):
            given = np.bincount(nodes, weights=amounts, minlength=len(stock)) if nodes else np.zeros(len(stock))
            if not all(0 <= amount < np.inf for amount in amounts) or (given > stock * (1 + 1e-9) + 1e-6).any():
                node = int(np.argmax(np.where(np.isnan(given), np.inf, given - stock)))
                name = cluster.nodes[node].name
                raise CheckError(f"{given[node]:g} {what} are shared out on node {name!r}, which has {stock[node]:g}")
        after = object.__new__(Assignment)
        after._cluster, after._jobs, after.grants, after.free = cluster, self._jobs, grants, self.free
        after.hosts = dict(hosts)
        return after

    def _check_shape(self, row: int, grant: Grant) -> None:
        """The grant is one gang of the job's size and share, on GPUs of one type, each on the node it is said to be."""
        jobs, cluster = self._jobs, self._cluster
        name, low, high = jobs.job_id[row], jobs.min_gpus[row], jobs.max_gpus[row]
        if not low <= len(grant.gpus) <= high or sum(grant.counts) != len(grant.gpus) or min(grant.counts) < 1:
            raise CheckError(f"job {name!r} needs {low} to {high} GPUs and was given {grant.counts}")
        wanted = jobs.gpu_milli[row]
        if grant.partner >= 0 and wanted == WHOLE_GPU:
            wanted = HALF_GPU
        if grant.milli != wanted:
            raise CheckError(f"job {name!r} needs {wanted}/1000 of each GPU and was given {grant.milli}/1000")
        node_of = [int(cluster.gpu_node[gpu]) for gpu in grant.gpus]
        said = [node for node, count in zip(grant.nodes, grant.counts, strict=True) for _ in range(count)]
        if node_of != said or len(set(grant.gpus)) < len(grant.gpus) or len(set(grant.nodes)) < len(grant.nodes):
            raise CheckError(
                f"job {name!r}: the GPUs {grant.gpus} are not {grant.counts} different ones on {grant.nodes}"
            )
        if any(cluster.node_gpu_type[node] != grant.gpu_type for node in grant.nodes):
            raise CheckError(f"job {name!r} was given GPUs of more than one type: {grant}")

    def _check_slices(self, row: int, grant: Grant, slices: SliceMap | None) -> None:
        """A share of a partitioned GPU is an instance of its profile at a place where nothing else is."""
        if grant.milli == WHOLE_GPU and not grant.slices:
            return
        fault = "is not partitioned" if slices is None else slices.fault(grant.gpus[0], grant.milli, grant.slices)
        if fault is not None:
            host = self._cluster.nodes[grant.nodes[0]].name
            raise CheckError(f"GPU {grant.gpus[0]} on node {host!r} {fault}: job {self._jobs.job_id[row]!r}")

    def _check_free(self, free: Resources, start: Mapping[int, Grant], grants: Mapping[int, Grant]) -> None:
        restricted = free.exclusive is not None or free.group_jobs is not None
        for row, grant in start.items():
            for gpu in grant.gpus:
                if free.milli[gpu] < 0:
                    host = self._cluster.nodes[int(self._cluster.gpu_node[gpu])].name
                    raise CheckError(
                        f"GPU {gpu} on node {host!r} is oversubscribed by {-free.milli[gpu]}/1000 with job "
                        f"{self._jobs.job_id[row]!r}"
                    )
            for what, left in (("CPUs", free.cpus), ("GiB of memory", free.memory_gib)):
                for node in grant.nodes if left is not None else ():
                    if left is not None and left[node] < -1e-6:
                        name = self._cluster.nodes[node].name
                        raise CheckError(f"node {name!r} is short of {-left[node]:g} {what}")

            if grant.partner >= 0:
                _check_partner(row, grant, grants, self._jobs)
            if restricted:
                self._check_company(row, grant, free)

    def _check_company(self, row: int, grant: Grant, free: Resources) -> None:
        group = -1 if free.group_jobs is None else free.groups[self._jobs.needs[row]]
        for node in grant.nodes:
            if free.exclusive is not None and free.exclusive[node] and free.jobs[node] > 1:
                raise CheckError(
                    f"node {self._cluster.nodes[node].name!r} has {free.jobs[node]} jobs with job "
                    f"{self._jobs.job_id[row]!r}, and one of them wants it for itself"
                )
            if free.group_jobs is not None and group >= 0 and free.group_jobs[group, node] > 1:
                name = self._jobs.need_kinds[self._jobs.needs[row]].anti_affinity
                raise CheckError(
                    f"node {self._cluster.nodes[node].name!r} has {free.group_jobs[group, node]} jobs of the "
                    f"anti-affinity group {name!r} with job {self._jobs.job_id[row]!r}"
                )

    def __getitem__(self, row: int) -> Grant:
        return self.grants[row]

    def __contains__(self, row: object) -> bool:
        return row in self.grants

    def __iter__(self) -> Iterator[int]:
        return iter(self.grants)

    def __len__(self) -> int:
        return len(self.grants)


def _check_partner(row: int, grant: Grant, grants: Mapping[int, Grant], jobs: JobTable) -> None:
    """The job that shares these GPUs has the other half of each of them."""
    other = grants.get(grant.partner)
    if other is None or other.partner != row or other.gpus != grant.gpus:
        name, partner = jobs.job_id[row], jobs.job_id[grant.partner]
        has = "none" if other is None else f"{other.gpus}, beside row {other.partner}"
        raise CheckError(
            f"job {name!r} was given half of the GPUs {grant.gpus} beside job {partner!r}, which has {has}"
        )
