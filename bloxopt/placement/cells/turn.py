"""A round's first half: gangs start in their tenants' guaranteed cells, and who was in the way stops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bloxopt.jobs import BoolArray, IntArray, JobTable
from bloxopt.placement.cells.tenants import Gang, TenantCells
from bloxopt.placement.strategy import Found, Offer, Strategy
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.resources import WHOLE_GPU, Grant, Resources


class Want(NamedTuple):
    """GPUs that a job asks for and the types it takes, best first."""

    num_gpus: int
    kinds: Sequence[int]


class Turn:
    """One pass over the jobs of tenants with guarantees.

    ``guaranteed`` and ``opportunistic`` are the grants of running jobs by row, and at the end those that are to
    run. ``may_evict``: a job may stop gangs of its own tenant that are ranked after it, if it would have to
    wait otherwise.
    """

    def __init__(
        self,
        cells: TenantCells,
        assignment: Assignment,
        workspace: Workspace,
        strategy: Strategy,
        wants: Mapping[int, Want],
        may_evict: bool,
    ) -> None:
        """``assignment`` holds jobs that are to go on, ``wants`` all jobs, best rank first."""
        self.cells = cells
        self.wants = wants
        self.may_evict = may_evict
        self._jobs = workspace.jobs
        self._rank = {row: rank for rank, row in enumerate(wants)}
        self._found: dict[tuple[int, ...], Gang] = {}
        self.guaranteed = {row: grant for row, grant in assignment.grants.items() if row in cells.gangs}
        self.opportunistic = {row: grant for row, grant in assignment.grants.items() if row not in cells.gangs}
        self._guests: defaultdict[int, set[int]] = defaultdict(set)
        for row, grant in self.opportunistic.items():
            for node in grant.nodes:
                self._guests[node].add(row)
        self._displaced: set[int] = set()
        self._tell_allocator(workspace)
        # What is free but for guaranteed gangs, and what idles.
        self._without_others = workspace.over(assignment.change(list(self.opportunistic), {}), self._in_cells)
        self._idle = workspace.over(assignment, strategy)

    def serve(self, pending: Iterable[int]) -> None:
        """Start the waiting jobs that can be started, best rank first."""
        waiting = set(pending)
        while waiting:
            for row in self.wants:
                if row in waiting:
                    waiting.discard(row)
                    waiting |= self._start(row)
            # Their own tenants may have cells for those who made way.
            waiting, self._displaced = self._displaced, set()

    def _start(self, row: int) -> set[int]:
        """Start a job in its tenant's cells if it fits; returns the gangs of the same tenant stopped for it."""
        need, kinds = self.wants[row]
        if not fits_by_size(self.cells, self._jobs, row, self.wants[row], self.may_evict):
            return set()
        if any(self._start_guaranteed(row, kind, need) for kind in kinds) or not self.may_evict:
            return set()
        if any(self._start_opportunistic(row, kind, need) for kind in kinds):
            return set()
        for kind in kinds:
            evicted = self._start_by_eviction(row, kind, need)
            if evicted:
                return evicted
        return set()

    def _start_guaranteed(self, row: int, kind: int, need: int) -> bool:
        """Start a job on GPUs of one type in its tenant's cells, if it fits there."""
        if self.cells.room(tenant_of(self._jobs, row), kind) < need:
            return False
        self._found.clear()
        grant = self._without_others.find(row, kind, need)
        if grant is None:
            return False
        self._run(row, grant, self._found[grant.gpus])
        return True

    def _start_opportunistic(self, row: int, kind: int, need: int) -> bool:
        """Start a job on GPUs that idle: better than to stop another of its tenant."""
        grant = self._idle.find(row, kind, need)
        if grant is None:
            return False
        self._idle.take(row, grant)
        self.opportunistic[row] = grant
        for node in grant.nodes:
            self._guests[node].add(row)
        return True

    def _start_by_eviction(self, row: int, kind: int, need: int) -> set[int]:
        """Start a job once gangs of its tenant have stopped, the last in rank first; none stops in vain."""
        cells, tenant = self.cells, tenant_of(self._jobs, row)
        victims = [
            other
            for other, gang in cells.gangs.items()
            if gang.tenant == tenant and gang.gpu_type == kind and self._rank[other] > self._rank[row]
        ]
        victims.sort(key=self._rank.__getitem__, reverse=True)
        if cells.room(tenant, kind) + sum(len(cells.gangs[other].gpus) for other in victims) < need:
            return set()
        evicted: dict[int, tuple[Grant, Gang]] = {}
        for victim in victims:
            grant = self.guaranteed.pop(victim)
            evicted[victim] = grant, cells.stop(victim)
            self._without_others.give_back(victim, grant)
            self._idle.give_back(victim, grant)
            if self._start_guaranteed(row, kind, need):
                return set(evicted)
        for victim, (grant, gang) in reversed(evicted.items()):
            self._run(victim, grant, gang)
        return set()

    def _run(self, row: int, grant: Grant, gang: Gang) -> None:
        self.cells.start(row, gang)
        self.guaranteed[row] = grant
        self._without_others.take(row, grant)
        gpus = set(grant.gpus)
        for guest in self._guests_of(grant):
            if not gpus.isdisjoint(self.opportunistic[guest].gpus):
                self._displace(guest)
        self._idle.take(row, grant)
        for guest in self._guests_of(grant):
            if any(_overbooked(self._idle.free, node) for node in grant.nodes):
                self._displace(guest)

    def _guests_of(self, grant: Grant) -> list[int]:
        """Opportunistic jobs on the nodes of a gang, last rank first."""
        guests = set().union(*(self._guests[node] for node in grant.nodes))
        return sorted(guests, key=self._rank.__getitem__, reverse=True)

    def _displace(self, row: int) -> None:
        grant = self.opportunistic.pop(row)
        for node in grant.nodes:
            self._guests[node].discard(row)
        self._idle.give_back(row, grant)
        self._displaced.add(row)

    def _in_cells(self, offer: Offer, need: int) -> Found | None:
        """A strategy: GPUs in the tenant's cells, on nodes whose CPUs and memory a GPU the job does not exceed."""
        jobs, cluster, row = self._jobs, offer.workspace.cluster, offer.row
        available = offer.available
        for stock, wanted in (
            (cluster.node_cpus, jobs.cpus_per_gpu[row]),
            (cluster.node_memory_gib, jobs.memory_gib_per_gpu[row]),
        ):
            if wanted > 0:
                available = np.where(wanted <= stock / cluster.node_gpus * (1 + 1e-9), available, 0)
        gang = self.cells.find(tenant_of(jobs, row), offer.gpu_type, need, available)
        if gang is None:
            return None
        self._found[gang.gpus] = gang
        nodes, counts = np.unique(cluster.gpu_node[list(gang.gpus)], return_counts=True)
        return Found(tuple(nodes.tolist()), tuple(counts.tolist()), gang.gpus)

    def _tell_allocator(self, workspace: Workspace) -> None:
        """Which GPUs are failed or drained, and what it costs to free those that opportunistic jobs run on."""
        cluster = workspace.cluster
        down: BoolArray = np.array([node.drained for node in cluster.nodes])
        for kind in range(len(cluster.gpu_types)):
            down |= np.equal(cluster.node_gpu_type, kind) & ~workspace.usable(kind)
        self.cells.allocator.set_down(down[cluster.gpu_node])
        # Few GPUs first, then those of jobs ranked last: stopped jobs of better rank would stop others in turn.
        cost: IntArray = np.zeros(cluster.num_gpus, dtype=np.int64)
        jobs = len(self._rank)
        for row, grant in self.opportunistic.items():
            cost[list(grant.gpus)] += 2 * jobs - self._rank[row]
        self.cells.allocator.set_disturbance(cost)


def tenant_of(jobs: JobTable, row: int) -> str:
    """Name of a job's tenant."""
    return jobs.tenants[int(jobs.tenant[row])]


def fits_by_size(cells: TenantCells, jobs: JobTable, row: int, want: Want, emptied: bool) -> bool:
    """Whether a job's size alone allows it in its tenant's cells as they are, or once ``emptied``."""
    if jobs.gpu_milli[row] != WHOLE_GPU:
        return False
    tenant = tenant_of(jobs, row)
    return any(
        want.num_gpus <= (cells.total.get((tenant, kind), 0) if emptied else cells.room(tenant, kind))
        for kind in want.kinds
    )


def _overbooked(free: Resources, node: int) -> bool:
    """Whether jobs of a node lack CPUs or memory, or have company that they refuse; GPUs are not looked at."""
    return bool(
        (free.cpus is not None and free.cpus[node] < -1e-6)
        or (free.memory_gib is not None and free.memory_gib[node] < -1e-6)
        or (free.exclusive is not None and free.exclusive[node] > 0 and free.jobs[node] > 1)
        or (free.group_jobs is not None and (free.group_jobs[:, node] > 1).any())
    )
