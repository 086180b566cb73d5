"""The cells of a cluster: every GPU, island, node, rack and data centre, and which of them are interchangeable."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bloxopt.cluster import Cluster
from bloxopt.errors import ClusterError, UnknownNameError
from bloxopt.jobs import IntArray
from bloxopt.placement.topology import Level, Topology

LEVELS = (Level.GPU, Level.ISLAND, Level.NODE, Level.RACK, Level.DATACENTER)
"""Levels that have cells, smallest first."""


@dataclass(frozen=True, slots=True)
class CellKind:
    """Cells that can stand in for each other: same level, GPU type and shape.

    ``parts`` says what one splits into: (kind, count) pairs. ``shape`` is such as ``4x8xV100`` (four nodes of
    eight); ``name`` is what people write: ``node:V100`` where the level has one shape, else ``node:8xV100``.
    """

    level: Level
    gpu_type: int
    shape: str
    name: str
    num_gpus: int
    parts: tuple[tuple[int, int], ...]


class CellHierarchy:
    """All cells of a cluster as flat lists; immutable.

    GPU number ``g`` is cell ``g``; islands, nodes, racks and data centres follow. Each GPU type has a hierarchy of
    its own: of a rack with two types, the nodes of either type are one cell. Racks may differ: cells of
    different shape are of different kinds.

    ``kinds`` largest level first · ``kind_of``, ``parent`` (-1 at the top), ``children``, ``size`` (GPUs) and
    ``node_of`` (-1 for racks and data centres) by cell · ``tops`` the cells without parent ·
    ``cell_at[level]`` (GPUs,) the cell around each GPU · ``count`` cells of each kind.
    Source: Zhao et al., "HiveD", OSDI 2020, section 3.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.cell_at = _cells_around(cluster)
        number = 1 + max(int(cells.max()) for cells in self.cell_at.values())
        self.parent: list[int] = [-1] * number
        children: list[list[int]] = [[] for _ in range(number)]
        self.size: list[int] = [0] * number
        level_of = np.zeros(number, dtype=np.int64)
        for level in LEVELS:
            cells = self.cell_at[level]
            level_of[cells] = level
            for cell, size in enumerate(np.bincount(cells, minlength=number).tolist()):
                self.size[cell] += size
        for below, above in pairwise(LEVELS):
            inner, first = np.unique(self.cell_at[below], return_index=True)
            for cell, around in zip(inner.tolist(), self.cell_at[above][first].tolist(), strict=True):
                self.parent[cell] = around
                children[around].append(cell)
        self.node_of: list[int] = [-1] * number
        for level in (Level.GPU, Level.ISLAND, Level.NODE):
            for cell, node in zip(self.cell_at[level].tolist(), cluster.gpu_node.tolist(), strict=True):
                self.node_of[cell] = node
        self.children: list[tuple[int, ...]] = [tuple(inner) for inner in children]
        self.kind_of, self.kinds = self._classify(level_of.tolist())
        self.count: list[int] = np.bincount(self.kind_of, minlength=len(self.kinds)).tolist()
        self.tops: list[int] = [cell for cell in range(number) if self.parent[cell] < 0]

    def _classify(self, level_of: list[int]) -> tuple[list[int], tuple[CellKind, ...]]:
        """Kind of each cell, and the kinds from the top level down, so that parts follow what they are parts of."""
        type_of_gpu = self.cluster.node_gpu_type[self.cluster.gpu_node].tolist()
        known: dict[tuple[int, int, tuple[tuple[int, int], ...]], int] = {}
        kind_of = [0] * len(self.parent)
        gpu_type = [*type_of_gpu, *([0] * (len(self.parent) - len(type_of_gpu)))]
        # Cells are numbered level after level, so the parts of a cell are classified before it is.
        for cell, inner in enumerate(self.children):
            if inner:
                gpu_type[cell] = gpu_type[inner[0]]
            parts = tuple(sorted(Counter(kind_of[part] for part in inner).items()))
            kind_of[cell] = known.setdefault((level_of[cell], gpu_type[cell], parts), len(known))
        shapes: list[str] = []
        sizes: list[int] = []
        for level, kind, parts in known:
            shapes.append(_shape(Level(level), self.cluster.gpu_types[kind], [(shapes[p], n) for p, n in parts]))
            sizes.append(sum(sizes[part] * count for part, count in parts) or 1)
        alone = Counter((level, kind) for level, kind, _ in known)
        # Turned around: the largest cells come first.
        last = len(known) - 1
        kinds = [
            CellKind(
                Level(level),
                kind,
                shape,
                f"{Level(level)}:{self.cluster.gpu_types[kind] if alone[level, kind] == 1 else shape}",
                size,
                tuple((last - part, count) for part, count in parts),
            )
            for (level, kind, parts), shape, size in zip(known, shapes, sizes, strict=True)
        ]
        return [last - kind for kind in kind_of], tuple(reversed(kinds))

    def kind(self, name: str) -> int:
        """The number of the kind called ``level:GPU_TYPE`` or ``level:SHAPE``, whatever the letter case.

        Raises :class:`UnknownNameError` for an unknown level or type, :class:`ClusterError` where the level has
        several shapes and none is named.
        """
        level, colon, rest = name.partition(":")
        levels = [str(entry) for entry in LEVELS]
        if not colon or not rest:
            raise ClusterError(f"cell {name!r}: write LEVEL:GPU_TYPE, such as node:{self.cluster.gpu_types[0]}")
        if level.lower() not in levels:
            raise UnknownNameError("cell level", level, levels)
        here = [kind for kind in self.kinds if str(kind.level) == level.lower()]
        matching = [kind for kind in here if kind.shape.lower() == rest.lower()] or [
            kind for kind in here if self.cluster.gpu_types[kind.gpu_type].lower() == rest.lower()
        ]
        if not matching:
            shapes = [kind.shape for kind in here]
            raise UnknownNameError(f"GPU type or shape of a {level} cell", rest, {*self.cluster.gpu_types, *shapes})
        if len(matching) > 1:
            found = ", ".join(f"{self.count[self.kinds.index(kind)]} {kind.name}" for kind in matching)
            raise ClusterError(f"cell {name!r} could be of several shapes: name one of them ({found})")
        return self.kinds.index(matching[0])

    def gpus_of(self, cell: int) -> list[int]:
        """Numbers of the GPUs in a cell."""
        inner = self.children[cell]
        return [gpu for part in inner for gpu in self.gpus_of(part)] if inner else [cell]

    def per_cell(self, of_gpu: IntArray) -> list[int]:
        """Sums of a number a GPU over each cell."""
        total = np.zeros(len(self.parent), dtype=np.int64)
        for cells in self.cell_at.values():
            total += np.bincount(cells, weights=of_gpu, minlength=len(total)).astype(np.int64)
        sums: list[int] = total.tolist()
        return sums


def _cells_around(cluster: Cluster) -> dict[Level, IntArray]:
    """Number of the cell of each level around each GPU; numbers are unique over all levels."""
    topology = Topology.of(cluster)
    node = topology.gpu_node
    gpu_type = cluster.node_gpu_type[node]
    types = len(cluster.gpu_types)
    place = {
        Level.GPU: np.arange(len(node)),
        Level.ISLAND: topology.gpu_island,
        Level.NODE: node,
        Level.RACK: topology.node_rack[node] * types + gpu_type,
        Level.DATACENTER: topology.node_datacenter[node] * types + gpu_type,
    }
    cells: dict[Level, IntArray] = {}
    start = 0
    for level in LEVELS:
        numbers, inverse = np.unique(place[level], return_inverse=True)
        cells[level] = (start + inverse).astype(np.int64)
        start += len(numbers)
    return cells


def _shape(level: Level, gpu_type: str, parts: list[tuple[str, int]]) -> str:
    """Such as 4x8xV100; a node that is one island is called by that island's shape."""
    if not parts:
        return gpu_type
    if level == Level.NODE and len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    return "+".join(f"{count}x({part})" if "+" in part else f"{count}x{part}" for part, count in parts)
