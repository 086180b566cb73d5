"""Fairness among entities, and within each of them, on several levels: hierarchical water filling.

All entities fill at speeds proportional to their weights; what an entity gets is split among its children (entities
or jobs) in the same way, or goes to its jobs first in, first out. A child that is full, or that nothing can raise any
more, stops, and its speed goes to its siblings. Between two such moments the levels of all jobs are known functions of
the total volume given out: the stages of water filling (:func:`~bloxopt.formulations.objectives.water_filling.fill`)
apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.expressions import ExpressionLike, build_affine
from bloxopt.formulations.measures import NormalizedThroughput
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.objectives.water_filling import fill, gpu_guess
from bloxopt.formulations.progress import depends_on_progress
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.levels import Cut
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import Outcome, Session
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.formulations.space import AllocationSpace
from bloxopt.formulations.systems.entities import EntityTree
from bloxopt.jobs import BoolArray, FloatArray, IntArray

_ROOT_STEPS = 200


@dataclass(frozen=True, eq=False)
class HierarchicalFairness(Objective):
    """Water filling over a tree of ``entities`` (see :class:`~bloxopt.formulations.systems.entities.EntityTree`).

    ``expression`` measures each job, without its weight: jobs of a ``fairness`` leaf rise at speeds proportional to
    their priority weights, those of a ``fifo`` leaf one after another in order of arrival. ``entities`` None makes
    each tenant one of weight 1; ``default`` names the leaf of tenants that the tree does not mention. The value is
    the smallest (sum of an active top-level entity's jobs) / weight; ``Allocation.levels`` has the jobs'.
    Source: Gavel (OSDI 2020, §4.3), which finds bottlenecked jobs by a MIP per step; here none.
    """

    entities: Mapping[str, Any] | None = None
    default: str | None = None
    expression: ExpressionLike = field(default_factory=lambda: NormalizedThroughput(weighted=False))
    curvature = "staged"

    def __post_init__(self) -> None:
        if self.entities is None and self.default is not None:
            raise FormulationError("HierarchicalFairness: a default entity needs entities")
        tree = None if self.entities is None else EntityTree.from_data(self.entities, _NAME, self.default)
        object.__setattr__(self, "_tree", tree)

    @property
    def progress_dependent(self) -> bool:  # type: ignore[override]
        return depends_on_progress(self.expression)

    @property
    def unserved(self) -> str:  # type: ignore[override]
        tree: EntityTree | None = self._tree  # type: ignore[attr-defined]
        return "" if tree is None else tree.unserved

    def solve(self, session: Session) -> Outcome:
        rows, jobs = self._rows(session.space)
        if session.program().is_mip:
            raise FormulationError(
                f"{_NAME} cannot be combined with constraints that make columns integer (OneConfiguration): use "
                "TimeShare instead"
            )
        outcome = fill(session, rows, TreeProfile(session.space, rows, jobs, *self._hierarchy(session.space, jobs)))
        return replace(outcome, utility=self.utility(session.space, outcome.x), bound=None)

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        """The smallest volume per weight among the top-level entities with jobs."""
        rows, jobs = self._rows(space)
        tree, leaf = self._hierarchy(space, jobs)
        top = leaf
        while (tree.parent[top] >= 0).any():
            top = np.where(tree.parent[top] >= 0, tree.parent[top], top)
        volume = sum_by(top, rows.at(x), len(tree.names)) / tree.weight
        return float(volume[np.unique(top)].min(initial=np.inf)) if len(top) else 0.0

    def hold(self, session: Session, program: Program, outcome: Outcome, tolerance: float) -> None:
        rows, _ = self._rows(session.space)
        program.block = program.unique_family(_NAME)
        assert outcome.levels is not None
        program.add_rows(rows, lower=outcome.levels * (1.0 - tolerance))

    def _rows(self, space: AllocationSpace) -> tuple[Affine, IntArray]:
        """The rows of the jobs that can run, and which jobs those are."""
        rows = build_affine(self.expression, space, _NAME).merged()
        if rows.num_rows != space.num_jobs or (rows.value < 0).any() or (rows.constant != 0).any():
            raise FormulationError(f"{_NAME} needs an expression with one row per job that is 0 without GPUs and >= 0")
        counted = np.ones(rows.num_rows, dtype=bool) if rows.counted is None else rows.counted
        return rows.only_counted(), np.flatnonzero(counted)

    def _hierarchy(self, space: AllocationSpace, jobs: IntArray) -> tuple[EntityTree, IntArray]:
        """The tree and the leaf of each of the ``jobs``."""
        tenants = space.catalog.table.tenants
        tree: EntityTree = self._tree or EntityTree.flat(tenants)  # type: ignore[attr-defined]
        return tree, tree.leaves(tenants, np.unique(space.tenant), _NAME)[space.tenant[jobs]]


_NAME = "HierarchicalFairness"


class TreeProfile:
    """Levels of the jobs as a function of the volume (sum of all levels) that the tree of entities has given out.

    The tree is kept by depth: ``steps`` lead from the entities of one depth to those of the next, the last from
    leaves to jobs. Jobs that stand directly below are worked on together, whatever entity they belong to.
    """

    def __init__(self, space: AllocationSpace, rows: Affine, jobs: IntArray, tree: EntityTree, leaf: IntArray) -> None:
        self.first_cut = gpu_guess(space, rows)
        self._leaf = leaf
        self._job_weight = space.weight[jobs]
        self._in_order = np.array(tree.fifo, dtype=bool)[leaf]
        self._arrival = space.arrival[jobs]
        depth = np.zeros(len(tree.names), dtype=np.int64)
        above = tree.parent.copy()
        while (above >= 0).any():
            depth += above >= 0
            above = np.where(above >= 0, tree.parent[above], -1)
        self._tree = tree
        self._by_depth = [np.flatnonzero(depth == level) for level in range(int(depth.max(initial=0)) + 1)]

    def begin(self, level: FloatArray, cap: FloatArray, fixed: BoolArray) -> float:
        """See :class:`~bloxopt.formulations.objectives.water_filling.Profile`; heights are total volumes."""
        tree = self._tree
        self.floor, self._fixed = level, fixed
        room = np.where(fixed, 0.0, np.maximum(cap - level, 0.0))
        self.bottom = float(level.sum())
        room_of = sum_by(self._leaf, room, len(tree.names))
        for entities in reversed(self._by_depth[1:]):
            np.add.at(room_of, tree.parent[entities], room_of[entities])
        root = len(tree.names)
        self._splits = [
            (
                entities,
                FairSplit(np.where(depth, tree.parent[entities], root), tree.weight[entities], room_of[entities]),
            )
            for depth, entities in enumerate(self._by_depth)
        ]
        fair, queued = np.flatnonzero(~self._in_order), np.flatnonzero(self._in_order)
        self._fair_jobs = fair, FairSplit(self._leaf[fair], self._job_weight[fair], room[fair])
        order = queued[np.lexsort((queued, self._arrival[queued], self._leaf[queued]))]
        self._queued_jobs = order, QueueSplit(self._leaf[order], room[order])
        return self.bottom + float(room.sum())

    def at(self, height: float) -> FloatArray:
        volume = np.zeros(len(self._tree.names) + 1)
        volume[-1] = height - self.bottom
        for entities, split in self._splits:
            volume[entities] = split.parts(volume)
        level = self.floor.copy()
        for jobs, parts in (self._fair_jobs, self._queued_jobs):
            level[jobs] += parts.parts(volume)
        return level

    def highest(self, cut: Cut, held: FloatArray) -> float:
        def excess(height: float) -> float:
            return float(cut.weight @ np.where(self._fixed, held, self.at(height))) - cut.reach

        low, high = self.bottom, self.bottom + float(sum(split.room.sum() for _, split in self._splits[:1]))
        over, under = excess(high), excess(low)
        if over <= 0:
            return np.inf
        if under >= 0:
            return low
        # The excess rises, piecewise linear: false position with halving (Illinois) finds its root exactly.
        for _ in range(_ROOT_STEPS):
            middle = low - under * (high - low) / (over - under)
            value = excess(middle)
            if abs(value) <= 1e-15 * max(1.0, abs(cut.reach)) or high - low <= 1e-14 * high:
                return middle
            if value < 0:
                low, under, over = middle, value, 0.5 * over
            else:
                high, over, under = middle, value, 0.5 * under
        return low


class FairSplit:
    """Volumes of groups split among their items in proportion to weights, none beyond its room: nested water filling.

    ``group`` (items,) position of each item's group in the volumes given; ``weight`` > 0 and ``room`` ≥ 0 (items,).
    """

    def __init__(self, group: IntArray, weight: FloatArray, room: FloatArray) -> None:
        self.room = room
        self._group, self._weight = group, weight
        ratio = room / weight
        order = np.lexsort((ratio, group))
        self._order = order
        group, weight, room = group[order], weight[order], room[order]
        self._sorted_group = group
        first = np.flatnonzero(np.diff(group, prepend=-1)) if len(group) else np.zeros(0, dtype=np.int64)
        length = np.diff(np.append(first, len(group)))
        start = np.repeat(first, length)
        full = np.cumsum(room)
        self._full_before = full - room - (full - room)[start]
        taken = np.cumsum(weight)
        total = np.repeat(np.add.reduceat(weight, first) if len(first) else weight, length)
        self._weight_left = np.maximum(total - (taken - weight - (taken - weight)[start]), weight)

    def parts(self, volume: FloatArray) -> FloatArray:
        """What each item gets of its group's ``volume`` (groups,)."""
        if not len(self._order):
            return np.zeros(0)
        # With the first k items full the clock of the others is (volume − rooms of the k) / (weights of the others).
        # The largest over k is the right one: any other k counts an item as full too early or too late.
        clock = (volume[self._sorted_group] - self._full_before) / self._weight_left
        time = np.zeros(len(volume))
        np.maximum.at(time, self._sorted_group, clock)
        parts: FloatArray = np.minimum(self._weight * time[self._group], self.room)
        return parts


class QueueSplit:
    """Volumes of groups handed to their items one after another; items sorted by group, then by turn."""

    def __init__(self, group: IntArray, room: FloatArray) -> None:
        self._group, self._room = group, room
        first = np.flatnonzero(np.diff(group, prepend=-1)) if len(group) else np.zeros(0, dtype=np.int64)
        start = np.repeat(first, np.diff(np.append(first, len(group))))
        before = np.cumsum(room) - room
        self._before = before - before[start]

    def parts(self, volume: FloatArray) -> FloatArray:
        """What each item gets of its group's ``volume`` (groups,)."""
        return np.clip(volume[self._group] - self._before, 0.0, self._room)
