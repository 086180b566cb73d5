"""Virtual clusters in the allocation: jobs within their tenant's guaranteed cells first, all others on the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from bloxopt.cluster import Cluster
from bloxopt.errors import FormulationError
from bloxopt.formulations.checks import shown
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.orders.order_keys import Arrival, OrderKey, key_of
from bloxopt.formulations.solving.packing import Packing
from bloxopt.formulations.solving.session import Outcome, Session
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray
from bloxopt.placement.cells.hierarchy import CellHierarchy
from bloxopt.placement.cells.virtual_clusters import VirtualClusters
from bloxopt.solvers.base import Termination

Cells = VirtualClusters | Mapping[str, Mapping[str, int]] | str | Path | None


@dataclass(frozen=True, eq=False)
class GuaranteedFirst(Objective):
    """Serve first, in ``order``, the jobs that fit the GPUs of their tenant's cells, then all others, in order too.

    A tenant's jobs take the GPUs of its ``virtual_clusters`` (as :class:`~bloxopt.placement.cells.GuaranteedCells`
    takes them; None: nobody has any) on the fastest type that still has enough for the GPUs they ask for; a job that
    no longer fits is opportunistic, and others of its tenant may go ahead. Guaranteed jobs run on the GPUs they ask
    for, opportunistic ones on the configuration of highest throughput that is left, and stop when a guaranteed one
    comes. The reported value is the number of guaranteed jobs. Source: Zhao et al., "HiveD", OSDI 2020.

    Raises :class:`~bloxopt.errors.ClusterError` for cells that the cluster does not have and tenants without jobs.
    """

    virtual_clusters: Cells = None
    order: OrderKey = field(default_factory=Arrival)
    curvature = "staged"

    def __post_init__(self) -> None:
        if not isinstance(self.order, OrderKey):
            raise FormulationError(
                f"GuaranteedFirst: order is {shown(self.order)}, must be an order key such as Arrival()"
            )
        cells = self.virtual_clusters
        if isinstance(cells, (str, Path)):
            cells = VirtualClusters.from_toml(cells)
        elif not isinstance(cells, VirtualClusters):
            cells = VirtualClusters({} if cells is None else cells)
        object.__setattr__(self, "virtual_clusters", cells)

    @property
    def progress_dependent(self) -> bool:  # type: ignore[override]
        return self.order.progress_dependent

    def rank(self, space: AllocationSpace) -> IntArray:
        order, kind = self._guaranteed(space)
        return order[np.argsort(kind[order] < 0, kind="stable")]

    def solve(self, session: Session) -> Outcome:
        space = session.space
        program = session.program()
        program.make_integer()
        packing = Packing.of(program)
        if packing is None or not packing.forced_fit:
            raise FormulationError(
                "GuaranteedFirst takes constraint blocks that are upper limits, such as Capacity, TimeShare and "
                "TenantQuota: leave out those that promise somebody something else"
            )
        order, kind = self._guaranteed(space)
        ranking = order[np.argsort(kind[order] < 0, kind="stable")]
        asked = (space.num_gpus == space.requested_gpus[space.job]) & (space.gpu_type == kind[space.job])
        columns = np.lexsort((space.gpu_type, space.num_gpus, -space.rate, ~asked, space.job))
        first = np.concatenate([[0], np.cumsum(np.bincount(space.job, minlength=space.num_jobs))])
        x = packing.fill(ranking[space.runnable[ranking]], columns, first, backfill=True)
        served = float((kind >= 0).sum())
        return Outcome(x, served, None, Termination.FEASIBLE, ranking=ranking, message="guaranteed first")

    def _guaranteed(self, space: AllocationSpace) -> tuple[IntArray, IntArray]:
        """Active jobs in order, and the GPU type on which each has its guarantee, -1 for none."""
        order = np.argsort(key_of(self.order, space), kind="stable")
        kind = np.full(space.num_jobs, -1)
        assert isinstance(self.virtual_clusters, VirtualClusters)
        self.virtual_clusters.check_tenants(space.catalog.table)
        room = _guaranteed_gpus(self.virtual_clusters, space.cluster)
        tenants = {code: room[name].copy() for code, name in enumerate(space.catalog.table.tenants) if name in room}
        if not tenants:
            return order, kind
        fastest = np.argsort(-space.requested_rate, axis=1, kind="stable")
        whole = space.catalog.table.gpu_share[space.index] >= 1.0
        possible = np.zeros((space.num_jobs, len(space.gpu_types)), dtype=bool)
        asked = space.num_gpus == space.requested_gpus[space.job]
        possible[space.job[asked], space.gpu_type[asked]] = True
        for job in order[np.isin(space.tenant[order], list(tenants)) & whole[order]].tolist():
            left, need = tenants[int(space.tenant[job])], int(space.requested_gpus[job])
            for type_ in fastest[job].tolist():
                if possible[job, type_] and left[type_] >= need:
                    left[type_] -= need
                    kind[job] = type_
                    break
        return order, kind


@lru_cache(maxsize=16)
def _guaranteed_gpus(cells: VirtualClusters, cluster: Cluster) -> dict[str, FloatArray]:
    """GPUs of each type in each tenant's cells."""
    hierarchy = CellHierarchy(cluster)
    found = {}
    for tenant, kinds in cells.demand(hierarchy).items():
        found[tenant] = np.zeros(len(cluster.gpu_types))
        for kind, count in kinds.items():
            found[tenant][hierarchy.kinds[kind].gpu_type] += count * hierarchy.kinds[kind].num_gpus
    return found
