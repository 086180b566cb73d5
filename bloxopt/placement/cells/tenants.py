"""The gangs inside each tenant's guaranteed cells: where the next one fits, and what each one holds."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

from bloxopt.jobs import IntArray
from bloxopt.placement.cells.buddy import BuddyAllocator
from bloxopt.placement.cells.hierarchy import CellHierarchy
from bloxopt.placement.cells.virtual_clusters import Demand


class Gang(NamedTuple):
    """A guaranteed gang: its tenant, GPU type, GPUs in order of number, and the guaranteed cells they lie in."""

    tenant: str
    gpu_type: int
    gpus: tuple[int, ...]
    cells: tuple[int, ...]


class TenantCells:
    """Guaranteed gangs by job row. A cell is bound while a gang is in it and belongs wholly to its tenant.

    Whether a gang fits is a question of its tenant's own gangs alone, as on a private cluster; it may use
    several cells.
    """

    def __init__(self, hierarchy: CellHierarchy, demand: Demand) -> None:
        self.hierarchy = hierarchy
        self.allocator = BuddyAllocator(hierarchy, demand)
        self.gangs: dict[int, Gang] = {}
        self._held = [0] * len(hierarchy.parent)
        self._bound: defaultdict[str, list[int]] = defaultdict(list)
        self._room: defaultdict[tuple[str, int], int] = defaultdict(int)
        for tenant, cells in demand.items():
            for kind, count in cells.items():
                entry = hierarchy.kinds[kind]
                self._room[tenant, entry.gpu_type] += count * entry.num_gpus
        self.total = dict(self._room)

    def room(self, tenant: str, gpu_type: int) -> int:
        """GPUs of a type in the tenant's guaranteed cells, bound or not, that none of its gangs uses."""
        return self._room.get((tenant, gpu_type), 0)

    def find(self, tenant: str, gpu_type: int, need: int, available: IntArray) -> Gang | None:
        """A place for a gang of ``need`` GPUs in the tenant's cells, None if there is none; nothing changes.

        ``available`` (nodes,) is how many GPUs the gang may use on each node were there no opportunistic jobs. The
        cell that fits best is taken; if none holds the gang, the largest ones and a best fit for the rest.
        """
        if self.room(tenant, gpu_type) < need:
            return None
        allocator, kinds = self.allocator, self.hierarchy.kinds
        left: list[int] = available.tolist()
        bound = sorted(
            (usable, allocator.disturbed[cell], cell)
            for cell in self._bound[tenant]
            if kinds[self.hierarchy.kind_of[cell]].gpu_type == gpu_type and (usable := self._usable(cell, left)) > 0
        )
        unbound = {k: n for k, n in allocator.unbound[tenant].items() if n > 0 and kinds[k].gpu_type == gpu_type}
        gpus: list[int] = []
        cells: list[int] = []
        fresh: list[int] = []
        try:
            while need > 0:
                at = _best(bound, need)
                kind = min(unbound, key=lambda kind: _misfit(kinds[kind].num_gpus, need), default=-1)
                if at < 0 and kind < 0:
                    return None
                if at >= 0 and (kind < 0 or _misfit(bound[at][0], need) <= _misfit(kinds[kind].num_gpus, need)):
                    cell = bound.pop(at)[2]
                else:
                    new = self._find_cell(kind, need, left)
                    if new is None:
                        del unbound[kind]
                        continue
                    cell = new
                    allocator.bind(tenant, cell)
                    fresh.append(cell)
                    unbound[kind] -= 1
                    if not unbound[kind]:
                        del unbound[kind]
                # Two cells of one node share what the node has left.
                taken = min(need, self._usable(cell, left))
                if taken > 0:
                    self._pick(cell, taken, left, gpus)
                    cells.append(cell)
                    need -= taken
        finally:
            for cell in reversed(fresh):
                allocator.release(cell)
        return Gang(tenant, gpu_type, tuple(sorted(gpus)), tuple(cells))

    def start(self, row: int, gang: Gang) -> None:
        """Give a gang the place that :meth:`find` found."""
        for cell in gang.cells:
            if cell not in self.allocator.tenant_of:
                self.allocator.bind(gang.tenant, cell)
                self._bound[gang.tenant].append(cell)
        self._hold(gang, 1)
        self.gangs[row] = gang

    def stop(self, row: int) -> Gang:
        """Take a gang away; cells that are then empty are unbound."""
        gang = self.gangs.pop(row)
        self._hold(gang, -1)
        for cell in gang.cells:
            if not self._held[cell]:
                self._bound[gang.tenant].remove(cell)
                self.allocator.release(cell)
        return gang

    def _hold(self, gang: Gang, sign: int) -> None:
        parent, held = self.hierarchy.parent, self._held
        for cell in gang.gpus:
            while cell >= 0:
                held[cell] += sign
                cell = parent[cell]
        self._room[gang.tenant, gang.gpu_type] -= sign * len(gang.gpus)

    def _usable(self, cell: int, left: list[int]) -> int:
        """GPUs of a cell that no guaranteed gang holds, at most ``left`` on each node."""
        node = self.hierarchy.node_of[cell]
        free = self.hierarchy.size[cell] - self._held[cell]
        if node >= 0 or not free:
            return min(free, left[node])
        return sum(self._usable(part, left) for part in self.hierarchy.children[cell])

    def _find_cell(self, kind: int, need: int, left: list[int]) -> int | None:
        """A free cell that holds the gang or, if it is larger than the cell, as much as it can; else any that helps."""
        wanted = min(need, self.hierarchy.kinds[kind].num_gpus)
        find = self.allocator.find
        cell = find(kind, lambda cell: self._usable(cell, left) >= wanted)
        return find(kind, lambda cell: self._usable(cell, left) > 0) if cell is None else cell

    def _pick(self, cell: int, need: int, left: list[int], gpus: list[int]) -> None:
        """Append ``need`` GPUs of a cell that are as close together as its parts allow; ``left`` shrinks."""
        parts = self.hierarchy.children[cell]
        if not parts:
            gpus.append(cell)
            left[self.hierarchy.node_of[cell]] -= 1
            return
        disturbed = self.allocator.disturbed
        options = sorted((usable, disturbed[part], part) for part in parts if (usable := self._usable(part, left)) > 0)
        while need > 0:
            part = options.pop(_best(options, need))[2]
            taken = min(need, self._usable(part, left))
            if taken > 0:
                self._pick(part, taken, left, gpus)
                need -= taken


def _misfit(size: int, need: int) -> tuple[bool, int]:
    """Orders sizes: those that hold the gang first, the tightest of them; then the others, the largest."""
    return (size < need, abs(size - need))


def _best(options: list[tuple[int, int, int]], need: int) -> int:
    """Position in sorted (size, disturbance, cell) of the best fit, the least disturbed of equals; -1 if empty."""
    if not options:
        return -1
    at = bisect_left(options, (need,))
    return at if at < len(options) else bisect_left(options, (options[-1][0],))
