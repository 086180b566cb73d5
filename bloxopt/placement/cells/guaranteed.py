"""Placement with guarantees: a tenant's gangs run in its guaranteed cells, all others wherever there is room."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from bloxopt.errors import CheckError
from bloxopt.jobs import IntArray, JobTable
from bloxopt.placement import passes
from bloxopt.placement.cells.hierarchy import CellHierarchy
from bloxopt.placement.cells.tenants import TenantCells
from bloxopt.placement.cells.turn import Turn, Want, fits_by_size
from bloxopt.placement.cells.virtual_clusters import VirtualClusters
from bloxopt.placement.strategy import Changes, Found, Offer, Requests, Strategy, WholeQueue
from bloxopt.placement.user_strategy import trusted
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.resources import Grant


class GuaranteedCells(WholeQueue):
    """Placement for a cluster shared by tenants with virtual clusters.

    A gang that fits its tenant's guaranteed cells runs there; opportunistic jobs on those GPUs are stopped. Any
    other job is opportunistic: ``strategy`` places it on whatever is free. At any time every tenant can have all
    its guaranteed cells that no guaranteed gang is in, whatever the others do, by stopping opportunistic jobs
    alone; cells with failed or drained nodes are the exception.

    Which jobs run, and in what order, is still the policy's choice: with the ``ranking`` selector a tenant's jobs
    take its cells in that order (a guaranteed gang may be stopped for a better ranked one of its own tenant,
    never for another's); the other selectors first choose the jobs. Jobs with a share of a GPU, and those that
    ask for more CPUs or memory a GPU than the node has for each of its own, are always opportunistic.

    ``virtual_clusters`` may be a mapping or a TOML file; without any, all jobs are opportunistic. Raises
    :class:`ClusterError` in the first round for cells that the cluster does not have and for a tenant without jobs,
    and :class:`InputError` for a strategy that is none; what a strategy of your own answers is checked. The object
    keeps what is bound and serves one run at a time. Source: Zhao et al., "HiveD", OSDI 2020.
    """

    def __init__(
        self,
        virtual_clusters: VirtualClusters | Mapping[str, Mapping[str, int]] | str | Path | None = None,
        strategy: str | Strategy = "consolidated",
    ) -> None:
        from bloxopt.placement import get_placement

        if isinstance(virtual_clusters, (str, Path)):
            virtual_clusters = VirtualClusters.from_toml(virtual_clusters)
        elif not isinstance(virtual_clusters, VirtualClusters):
            virtual_clusters = VirtualClusters({} if virtual_clusters is None else virtual_clusters)
        self.virtual_clusters = virtual_clusters
        self.strategy = trusted(get_placement(strategy, "guaranteed cells: strategy"))
        self._jobs: JobTable | None = None
        self._cells: TenantCells | None = None
        self._grants: dict[int, Grant] = {}

    @property
    def remembers(self) -> bool:
        """Whether a round depends on the rounds before by more than the ledger and the plan: on what is bound."""
        return True

    @property
    def cells(self) -> TenantCells | None:
        """The guaranteed gangs and the cells they are in, None before the first round."""
        return self._cells

    def __call__(self, offer: Offer, need: int) -> Found | None:
        """The answer of the strategy for opportunistic jobs."""
        return self.strategy(offer, need)

    def place_round(self, requests: Requests, assignment: Assignment, workspace: Workspace) -> Changes:
        """Run exactly the listed jobs, largest gang first: guaranteed where it fits, else opportunistically."""
        row, gpu_type, num_gpus = requests.row, requests.gpu_type, requests.num_gpus
        chosen = zip(row.tolist(), gpu_type.tolist(), num_gpus.tolist(), strict=True)
        wants = {r: Want(n, (kind,)) for r, kind, n in sorted(chosen, key=lambda job: -job[2])}
        stop = [
            r
            for r, grant in assignment.grants.items()
            if r not in wants or wants[r] != Want(grant.num_gpus, (grant.gpu_type,))
        ]
        now = assignment.change(*self._guarantee(wants, stop, assignment, workspace, may_evict=False))
        rest = passes.place_decision(
            row, gpu_type, num_gpus, now, workspace.over(now, self.strategy), requests.promised
        )
        return _changes(assignment.grants, now.change(*rest).grants)

    def place_queue(
        self,
        order: IntArray,
        num_gpus: Sequence[int],
        preference: Sequence[Sequence[int]],
        assignment: Assignment,
        workspace: Workspace,
    ) -> Changes:
        """Serve each tenant's jobs in order within its cells, then the rest in order as a queue of its own."""
        wants = {row: Want(num_gpus[row], preference[row]) for row in order.tolist()}
        now, may_evict = assignment, True
        # Every pass after the first one adds a gang to the guaranteed ones.
        for _ in range(len(wants) + 2):
            first = self._guarantee(wants, (), now, workspace, may_evict=may_evict)
            if not may_evict and not first[1]:
                return _changes(assignment.grants, now.grants)
            now = now.change(*first)
            others = np.array([row for row in wants if row not in self._grants], dtype=np.int64)
            rest = passes.place_queue(others, num_gpus, preference, now, workspace.over(now, self.strategy))
            now = now.change(*rest)
            # There may by now be cells for a job that the queue stopped.
            may_evict = False
        name = getattr(self.strategy, "__qualname__", type(self.strategy).__qualname__)
        raise CheckError(
            f"guaranteed cells: no round of {len(wants)} jobs comes about, for the strategy {name} stops jobs in "
            "guaranteed cells: it may place and stop only the jobs in the order that it is given"
        )

    def _guarantee(
        self,
        wants: Mapping[int, Want],
        stop: Collection[int],
        assignment: Assignment,
        workspace: Workspace,
        *,
        may_evict: bool,
    ) -> Changes:
        """Start gangs in their tenants' cells; what stops are the jobs in ``stop`` and those that had to make way."""
        cells = self._prepare(workspace)
        going_on = assignment.change(stop, {})
        for row, grant in list(self._grants.items()):
            if going_on.grants.get(row) != grant:
                cells.stop(row)
                del self._grants[row]
        pending = [row for row in wants if row not in going_on.grants]
        if not any(fits_by_size(cells, workspace.jobs, row, wants[row], may_evict) for row in pending):
            return list(stop), {}
        turn = Turn(cells, going_on, workspace, self.strategy, wants, may_evict)
        turn.serve(pending)
        self._grants = turn.guaranteed
        return _changes(assignment.grants, turn.guaranteed | turn.opportunistic)

    def _prepare(self, workspace: Workspace) -> TenantCells:
        """The cells of this run; made anew, and checked, when a run begins."""
        jobs, cluster = workspace.jobs, workspace.cluster
        if self._cells is None or self._jobs is not jobs or self._cells.hierarchy.cluster is not cluster:
            self.virtual_clusters.check_tenants(jobs)
            hierarchy = CellHierarchy(cluster)
            self._cells = TenantCells(hierarchy, self.virtual_clusters.demand(hierarchy))
            self._jobs = jobs
            self._grants = {}
        return self._cells


def _changes(before: Mapping[int, Grant], after: Mapping[int, Grant]) -> Changes:
    """What stops and starts between two sets of grants; a job that ends where it was is left alone."""
    return (
        [row for row, grant in before.items() if after.get(row) != grant],
        {row: grant for row, grant in after.items() if before.get(row) != grant},
    )
