"""Buddy cell allocation: binds guaranteed cells to physical ones such that all other guarantees still hold."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

import numpy as np

from bloxopt.jobs import BoolArray, IntArray
from bloxopt.placement.cells.hierarchy import CellHierarchy
from bloxopt.placement.cells.virtual_clusters import Demand, spare_cells


class BuddyAllocator:
    """Binds guaranteed cells to physical ones, splitting larger free cells and merging buddies again.

    A cell is split only if it is spare: if all guaranteed cells not bound yet can still be had without it.
    So they always can, whatever has been bound and released before. Where every kind of cell has one
    parent kind this is the paper's algorithm: the smallest free cell is split, and it is always spare; racks of
    different shape need the test. Opportunistic jobs take no part in it: they are preempted.

    ``tenant_of`` the bound cells · ``unbound`` guaranteed cells that each tenant has not bound, by kind.
    Source: Zhao et al., "HiveD", OSDI 2020, Algorithm 1 and Theorem 1.
    """

    def __init__(self, hierarchy: CellHierarchy, demand: Demand) -> None:
        self.hierarchy = hierarchy
        self.unbound: Demand = {tenant: dict(cells) for tenant, cells in demand.items()}
        self.tenant_of: dict[int, str] = {}
        kinds = range(len(hierarchy.kinds))
        self._reserved = [sum(cells.get(kind, 0) for cells in demand.values()) for kind in kinds]
        self._free: list[list[int]] = [[] for _ in kinds]
        self._is_free = [False] * len(hierarchy.parent)
        for cell in hierarchy.tops:
            self._add_free(cell)
        self._larger = _larger_kinds(hierarchy)
        self.down = [0] * len(hierarchy.parent)
        self.disturbed = [0] * len(hierarchy.parent)

    def set_down(self, gpu_down: BoolArray) -> None:
        """Tell which GPUs (GPUs,) have failed: such cells are bound last and split first."""
        self.down = self.hierarchy.per_cell(gpu_down.astype(np.int64))

    def set_disturbance(self, of_gpu: IntArray) -> None:
        """Tell what it costs to free each GPU (GPUs,) of opportunistic jobs: cells with a low sum are bound first."""
        self.disturbed = self.hierarchy.per_cell(of_gpu)

    def spare(self) -> list[int]:
        """Cells of each kind that no tenant's unbound guarantee needs; never negative."""
        return spare_cells(self.hierarchy, [len(cells) for cells in self._free], self._reserved)

    def free_cells(self, kind: int) -> tuple[int, ...]:
        """Unbroken free cells of a kind; free cells inside larger free ones are not listed."""
        return tuple(self._free[kind])

    def find(self, kind: int, accepts: Callable[[int], bool] | None = None) -> int | None:
        """The cell to bind next for a guaranteed cell of ``kind``, without binding it.

        ``accepts`` says which cells will do (default: those without a failed GPU). None if there is no such cell
        that leaves the others their guarantee; without failures and with the default there always is one.
        """
        suits = accepts if accepts is not None else lambda cell: not self.down[cell]
        spare = self.spare()
        for larger in self._larger[kind]:
            if larger == kind or spare[larger] > 0:
                for root in self._in_order(self._free[larger], larger != kind):
                    cell = self._inside(root, kind, suits, spare)
                    if cell is not None:
                        return cell
        return None

    def _inside(self, cell: int, kind: int, suits: Callable[[int], bool], spare: list[int]) -> int | None:
        """A cell of ``kind`` in a free cell, reached by splitting only spare cells."""
        here = self.hierarchy.kind_of[cell]
        if here == kind:
            return cell if suits(cell) else None
        if spare[here] <= 0 or here not in self._larger[kind]:
            return None
        parts = self.hierarchy.children[cell]
        for part in self._in_order(parts, self.hierarchy.kind_of[parts[0]] != kind):
            found = self._inside(part, kind, suits, spare)
            if found is not None:
                return found
        return None

    def _in_order(self, cells: Sequence[int], to_split: bool) -> Sequence[int]:
        """The least disturbed cells first; of those to be split, the ones with the most failed GPUs before all."""
        down, disturbed = self.down, self.disturbed
        if not any(down[top] or disturbed[top] for top in self.hierarchy.tops):
            return cells
        return sorted(cells, key=lambda cell: (-down[cell] if to_split else 0, disturbed[cell]))

    def bind(self, tenant: str, cell: int) -> None:
        """Make a free cell one of the tenant's guaranteed cells, splitting the larger free cells around it."""
        hierarchy = self.hierarchy
        kind = hierarchy.kind_of[cell]
        path = [cell]
        while not self._is_free[path[-1]]:
            path.append(hierarchy.parent[path[-1]])
        self._remove_free(path[-1])
        for split, kept in zip(path[:0:-1], path[-2::-1], strict=True):
            for part in hierarchy.children[split]:
                if part != kept:
                    self._add_free(part)
        self.tenant_of[cell] = tenant
        self.unbound[tenant][kind] -= 1
        self._reserved[kind] -= 1

    def release(self, cell: int) -> None:
        """Give a bound cell back; buddies that are all free become one larger cell again."""
        hierarchy = self.hierarchy
        kind = hierarchy.kind_of[cell]
        self.unbound[self.tenant_of.pop(cell)][kind] += 1
        self._reserved[kind] += 1
        around = hierarchy.parent[cell]
        while around >= 0 and all(self._is_free[part] for part in hierarchy.children[around] if part != cell):
            for part in hierarchy.children[around]:
                if part != cell:
                    self._remove_free(part)
            cell, around = around, hierarchy.parent[around]
        self._add_free(cell)

    def _add_free(self, cell: int) -> None:
        self._is_free[cell] = True
        insort(self._free[self.hierarchy.kind_of[cell]], cell)

    def _remove_free(self, cell: int) -> None:
        self._is_free[cell] = False
        cells = self._free[self.hierarchy.kind_of[cell]]
        del cells[bisect_left(cells, cell)]


def _larger_kinds(hierarchy: CellHierarchy) -> list[tuple[int, ...]]:
    """The kinds in which cells of each kind are found: itself, then the others, smallest level first."""
    around: list[set[int]] = [{kind} for kind in range(len(hierarchy.kinds))]
    for kind, entry in enumerate(hierarchy.kinds):
        for part, _ in entry.parts:
            around[part] |= around[kind]
    return [tuple(sorted(kinds, reverse=True)) for kinds in around]
