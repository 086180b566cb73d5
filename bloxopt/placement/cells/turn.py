"""A round's first half: gangs start in their tenants' guaranteed cells, and who was in the way stops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bloxopt.jobs import BoolArray, IntArray, JobTable
from bloxopt.placement.cells.tenants import Gang, TenantCells
from bloxopt.placement.strategy import Found, Offer, Strategy
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.resources import WHOLE_GPU, Grant


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
            # Whom the guaranteed gangs leave no room must stop; its own tenant may have cells for it.
            waiting = self._stop_displaced()

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
        self._idle.take(row, grant)

    def _stop_displaced(self) -> set[int]:
        """Stop the opportunistic jobs that cannot stay where they are beside the guaranteed gangs, last rank first."""
        scratch = self._without_others
        kept = []
        displaced = set()
        for row in sorted(self.opportunistic, key=self._rank.__getitem__):
            grant = self.opportunistic[row]
            if _fits(row, grant, scratch):
                scratch.take(row, grant)
                kept.append(row)
            else:
                displaced.add(row)
        for row in kept:
            scratch.give_back(row, self.opportunistic[row])
        for row in displaced:
            self._idle.give_back(row, self.opportunistic.pop(row))
        return displaced

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


def _fits(row: int, grant: Grant, scratch: Workspace) -> bool:
    """Whether a running job can keep its GPUs, CPUs, memory and company."""
    free, jobs, nodes = scratch.free, scratch.jobs, list(grant.nodes)
    if (free.milli[list(grant.gpus)] < grant.milli).any():
        return False
    for stock, need in ((free.cpus, jobs.cpus_per_gpu[row]), (free.memory_gib, jobs.memory_gib_per_gpu[row])):
        if stock is not None and (stock[nodes] + 1e-6 < need * np.array(grant.counts)).any():
            return False
    if scratch.rules is None:
        return True
    # A node that was drained since keeps its jobs: only their company is in question.
    welcome = scratch.rules.open_nodes(Offer(free.gpus, row, grant.gpu_type, scratch)) | ~scratch.rules.allowed(row)
    return bool(welcome[nodes].all())
