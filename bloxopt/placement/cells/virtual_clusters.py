"""Virtual clusters: the cells that each tenant is guaranteed, and whether a cluster can guarantee them all."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bloxopt.errors import ClusterError, UnknownNameError
from bloxopt.jobs import JobTable
from bloxopt.placement.cells.hierarchy import CellHierarchy

Demand = dict[str, dict[int, int]]
"""Cells of each kind (by number) that each tenant is guaranteed."""


@dataclass(frozen=True, eq=False)
class VirtualClusters:
    """What each tenant is guaranteed: ``{"vision": {"node:V100": 4, "gpu:V100": 2}}``.

    A cell is named by level (gpu, island, node, rack, datacenter) and GPU type, or by its shape where a level
    has several (``rack:4x8xV100``). Tenants without an entry have no guarantee: all their jobs are
    opportunistic. Raises :class:`ClusterError` for a count that is not a whole number ≥ 0.
    Source: Zhao et al., "HiveD", OSDI 2020, section 3.
    """

    cells: Mapping[str, Mapping[str, int]]

    def __post_init__(self) -> None:
        if not isinstance(self.cells, Mapping):
            raise ClusterError(f"virtual clusters are {self.cells!r}, must map tenants to cells and their number")
        for tenant, cells in self.cells.items():
            if not isinstance(tenant, str) or not isinstance(cells, Mapping):
                raise ClusterError(f"virtual cluster {tenant!r}: must map cells such as 'node:V100' to their number")
            for name, count in cells.items():
                if not isinstance(name, str) or isinstance(count, bool) or not isinstance(count, int) or count < 0:
                    raise ClusterError(
                        f"virtual cluster {tenant!r}: {name!r} is {count!r}, must be a whole number of cells >= 0"
                    )

    @classmethod
    def from_toml(cls, path: str | Path) -> VirtualClusters:
        """Read tables ``[virtual_clusters.TENANT]`` of cells: ``"node:V100" = 4``."""
        path = Path(path)
        try:
            document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ClusterError(f"{path}: cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ClusterError(f"{path}: not valid TOML: {error}") from error
        if set(document) != {"virtual_clusters"}:
            unknown = sorted(set(document) - {"virtual_clusters"})
            found = f"unknown key {unknown[0]!r}" if unknown else "it has none"
            raise ClusterError(f"{path}: expected tables [virtual_clusters.TENANT]; {found}")
        try:
            return cls(document["virtual_clusters"])
        except ClusterError as error:
            raise ClusterError(f"{path}: {error}") from error

    def check_tenants(self, jobs: JobTable) -> None:
        """Raise :class:`ClusterError` for a tenant without jobs in a trace, so that a misspelt one is not lost.

        On a live cluster the cells of a tenant without jobs at present stay set aside for it.
        """
        tenant = jobs.unknown_tenant(self.cells)
        if tenant is not None:
            close = difflib.get_close_matches(tenant, jobs.tenants, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the jobs' tenants are {', '.join(jobs.tenants[:10])}"
            raise ClusterError(f"virtual cluster {tenant!r}: no job has this tenant; {hint}")

    def demand(self, hierarchy: CellHierarchy) -> Demand:
        """The guaranteed cells by kind of cell, checked: the cluster can give all of them at once.

        Larger cells are set aside first; what they leave is split for the smaller ones, which is possible
        exactly if no level then lacks cells. Raises :class:`ClusterError` naming the cells that are too many and
        how many would fit.
        """
        demand: Demand = {}
        for tenant, cells in self.cells.items():
            demand[tenant] = {}
            for name, count in cells.items():
                try:
                    kind = hierarchy.kind(name)
                except (ClusterError, UnknownNameError) as error:
                    raise ClusterError(f"virtual cluster {tenant!r}: {error}") from error
                demand[tenant][kind] = demand[tenant].get(kind, 0) + count
        total = [sum(cells.get(kind, 0) for cells in demand.values()) for kind in range(len(hierarchy.kinds))]
        free = [0] * len(hierarchy.kinds)
        for cell in hierarchy.tops:
            free[hierarchy.kind_of[cell]] += 1
        spare = spare_cells(hierarchy, free, total)
        for kind, left in enumerate(spare):
            if left < 0:
                name = hierarchy.kinds[kind].name
                asked = ", ".join(f"{tenant} {cells[kind]}" for tenant, cells in demand.items() if cells.get(kind))
                larger = ", once the larger cells are set aside," if hierarchy.count[kind] > total[kind] + left else ""
                raise ClusterError(
                    f"virtual clusters ask for {total[kind]} cells {name} ({asked}) but {hierarchy.cluster.describe()} "
                    f"has {total[kind] + left}{larger}: ask for at most {total[kind] + left}, or for fewer larger cells"
                )
        return demand


def spare_cells(hierarchy: CellHierarchy, free: list[int], reserved: list[int]) -> list[int]:
    """Cells of each kind that may be split or given away while ``reserved`` ones can still be had; < 0 if they cannot.

    ``free`` counts the unbroken free cells of each kind, ``reserved`` those that must remain obtainable. From
    the largest kind down, what is not reserved is counted as its parts: nothing else could use it better, so
    reserved cells can be had together if and only if no number is negative.
    """
    spare = [have - keep for have, keep in zip(free, reserved, strict=True)]
    for kind, entry in enumerate(hierarchy.kinds):
        if spare[kind] > 0:
            for part, count in entry.parts:
                spare[part] += spare[kind] * count
    return spare
