"""Joint placement: gangs that are promised the fewest nodes must fit onto nodes, not only into a number of GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.checks import checked_flag
from bloxopt.formulations.constraints.base import Constraint
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray
from bloxopt.placement.exact_patterns import Demand, Room, TooManyPatternsError, fillings

MOST_PATTERNS = 20_000
"""Ways to fill the nodes of one kind; beyond, the block refuses to build."""


@dataclass(frozen=True)
class NodeCapacity(Constraint):
    """Consolidated gangs fit whole onto the nodes that are up; the others take what is left of them.

    A consolidated column (``spread`` 0) makes pieces: of whole nodes, largest first, and one part. Of every node
    class (GPU type and number of GPUs) the nodes divide their time between *patterns*, multisets of pieces
    that fill a node:

        Σ_p z[n,p] ≤ nodes of class n,    Σ_c pieces(c,k) x_c ≤ Σ_n,p count(p,k) z[n,p]    for each size k

    The patterns are the vertices of what a node can hold, so that gang sizes that do not divide a node's (two gangs of
    5 on 8 GPUs) need no further cuts. Columns with ``spread`` 1 are only limited by Capacity, which must be among
    the constraints. With ``whole_nodes`` every z is a whole number: for policies with OneConfiguration, whose gangs
    run together and not in turn. Without slowdown columns all gangs count as consolidated.
    Source: cutting stock (Gilmore and Gomory, 1961).
    """

    whole_nodes: bool = False
    name: str | None = field(default=None, kw_only=True)
    uses_spread = True
    progress_dependent = False
    physical = True

    def __post_init__(self) -> None:
        checked_flag("NodeCapacity", "whole_nodes", self.whole_nodes)

    def build(self, space: AllocationSpace, program: Program) -> None:
        for kind, name in enumerate(space.gpu_types):
            packing = _Packing.of(space, kind)
            if packing is None:
                continue
            first = program.num_columns
            for patterns, nodes in zip(packing.patterns, packing.nodes, strict=True):
                z = program.add_columns(len(patterns), 0.0, float(nodes), integer=self.whole_nodes)
                ones = Affine(np.zeros(len(z), np.int64), z, np.ones(len(z)), np.zeros(1))
                program.add_rows(ones, upper=float(nodes), labels=[f"{name} nodes of {packing.label(patterns)}"])
            made = np.vstack(packing.patterns)
            pattern, piece = made.nonzero()
            rows = Affine(
                np.concatenate([packing.piece, piece]),
                np.concatenate([packing.column, first + pattern]),
                np.concatenate([packing.count, -made[pattern, piece].astype(np.float64)]),
                np.zeros(len(packing.sizes)),
            )
            program.add_rows(rows, upper=0.0, labels=[f"{name} pieces of {size}" for size in packing.sizes])

    def violations(self, space: AllocationSpace, x: FloatArray) -> FloatArray:
        """By which part of its nodes each GPU type is short of what the consolidated gangs need."""
        from scipy.optimize import linprog

        short = np.zeros(len(space.gpu_types))
        for kind in range(len(space.gpu_types)):
            packing = _Packing.of(space, kind)
            if packing is None:
                continue
            demand = sum_by(packing.piece, packing.count * x[packing.column], len(packing.sizes))
            total = sum(len(patterns) for patterns in packing.patterns)
            # Fewest nodes t, as a multiple of those there are, on which patterns can make all pieces.
            classes = np.zeros((len(packing.nodes), total + 1))
            start = 0
            for number, (patterns, nodes) in enumerate(zip(packing.patterns, packing.nodes, strict=True)):
                classes[number, start : start + len(patterns)] = 1.0
                classes[number, -1] = -float(nodes)
                start += len(patterns)
            cover = np.column_stack([-np.vstack(packing.patterns).T, np.zeros(len(packing.sizes))])
            found = linprog(
                np.append(np.zeros(total), 1.0),
                A_ub=np.vstack([classes, cover]),
                b_ub=np.concatenate([np.zeros(len(packing.nodes)), -demand]),
                method="highs",
            )
            # HiGHS meets rows to 1e-7: less than a millionth of a node is rounding.
            short[kind] = max(0.0, float(found.fun or 0.0) - 1.0 - 1e-7) if found.success else np.inf
        return short

    def labels(self, space: AllocationSpace) -> Sequence[str]:
        return list(space.gpu_types)


@dataclass(frozen=True, eq=False)
class _Packing:
    """The consolidated columns of a GPU type as pieces, and how nodes can be filled with those.

    ``sizes`` (pieces,) GPUs · ``nodes`` (classes,) how many nodes are up · ``patterns`` per class (patterns, pieces)
    counts · ``column``, ``piece``, ``count`` the entries: how many of which piece a column makes.
    """

    sizes: IntArray
    nodes: list[int]
    patterns: list[IntArray]
    column: IntArray
    piece: IntArray
    count: FloatArray

    @classmethod
    def of(cls, space: AllocationSpace, kind: int) -> _Packing | None:
        """None if nothing on the type needs to be packed: no consolidated gang of 2 GPUs or more."""
        cluster = space.cluster
        up = np.sort(cluster.node_gpus[(cluster.node_gpu_type == kind) & space.node_up])[::-1]
        # One GPU fits wherever one is free, which Capacity sees to, but it takes room that gangs could use.
        columns = ((space.gpu_type == kind) & (space.spread == 0)).nonzero()[0]
        if not len(up) or not (space.num_gpus[columns] > 1).any():
            return None
        gangs, gang_of = np.unique(space.num_gpus[columns], return_inverse=True)
        split = [_consolidated(up, int(gang)) for gang in gangs]
        sizes = np.unique([size for pieces in split for size in pieces])
        entries = [
            (gang, int(np.searchsorted(sizes, size)), count)
            for gang, pieces in enumerate(split)
            for size, count in pieces.items()
        ]
        column, piece, count = [], [], []
        for gang, number, many in entries:
            mine = columns[gang_of == gang]
            column.append(mine)
            piece.append(np.full(len(mine), number))
            # A share of a GPU takes its part of a piece.
            count.append(many * space.gpu_demand[mine] / space.num_gpus[mine])
        capacities, nodes = np.unique(up, return_counts=True)
        return cls(
            sizes=sizes.astype(np.int64),
            nodes=nodes.tolist(),
            patterns=[_patterns(int(capacity), sizes) for capacity in capacities],
            column=np.concatenate(column),
            piece=np.concatenate(piece),
            count=np.concatenate(count),
        )

    def label(self, patterns: IntArray) -> str:
        """What the fullest pattern holds, to name the class."""
        return f"up to {int((patterns @ self.sizes).max(initial=0))} GPUs in pieces"


def _consolidated(nodes: IntArray, gang: int) -> Counter[int]:
    """GPUs taken of each node by a gang on the fewest nodes: whole ones, largest first, and a part of one."""
    pieces: Counter[int] = Counter()
    for size in nodes.tolist():
        pieces[min(size, gang)] += 1
        gang -= min(size, gang)
        if gang == 0:
            break
    return pieces


def _patterns(capacity: int, sizes: IntArray) -> IntArray:
    """Every way to fill a node to which no further piece can be added, (patterns, pieces)."""
    usable = sizes[sizes <= capacity]
    candidates = [(Demand(int(size), 0.0, 0.0, False, None), capacity // int(size)) for size in usable]
    room = Room(capacity, np.inf, np.inf, False, False, frozenset())
    try:
        listed = list(fillings(room, candidates, MOST_PATTERNS))
    except TooManyPatternsError:
        raise FormulationError(
            f"NodeCapacity: more than {MOST_PATTERNS} ways to fill a node of {capacity} GPUs with gangs of "
            f"{len(usable)} sizes: place in two stages on such nodes"
        ) from None
    found = np.array(listed, dtype=np.int64).reshape(len(listed), len(usable))
    left = capacity - found @ usable
    maximal = found[left < usable.min(initial=capacity + 1)]
    return np.column_stack([maximal, np.zeros((len(maximal), len(sizes) - len(usable)), dtype=np.int64)])
