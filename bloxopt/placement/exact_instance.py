"""What the exact placement decides: gangs of one GPU type, the nodes they may use, and what an answer costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np

from bloxopt.errors import InputError
from bloxopt.jobs import BoolArray, FloatArray, IntArray

Where: TypeAlias = dict[int, int]
"""GPUs that a gang gets by node number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementWeights:
    """Prices of what a placement should avoid; only their ratios matter. All are >= 0.

    - ``node``: each node that a gang spans beyond the fewest its GPU type allows.
    - ``promised``: factor on ``node`` for gangs that the plan counts on to be consolidated (joint programs).
    - ``rack``: each rack that a gang spans beyond the fewest, and ``preferred_rack`` on top for a gang that
      prefers one rack.
    - ``migration``: each running job that is moved, and ``restart_second`` each second of restart cost it pays.
    - ``fragment``: each node left partly used.
    - ``unplaced``: each GPU of a gang that gets none; keep it far above the rest, or gangs are left out on purpose.

    Raises :class:`~bloxopt.errors.InputError` naming a weight that is negative or not a finite number.
    """

    node: float = 1.0
    promised: float = 10.0
    rack: float = 1.0
    preferred_rack: float = 4.0
    migration: float = 1.0
    restart_second: float = 1.0 / 60.0
    fragment: float = 0.1
    unplaced: float = 1000.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
            try:
                weight = float(value) if number else math.nan
            except OverflowError:
                weight = math.inf
            if not 0 <= weight < math.inf:
                raise InputError(f"placement weight {entry.name} is {repr(value)[:80]}, must be a finite number >= 0")
            object.__setattr__(self, entry.name, weight)


@dataclass(frozen=True, slots=True)
class Profile:
    """What gangs have in common for the nodes: needs a GPU (CPUs, GiB), the nodes allowed (nodes,) and manners.

    An ``exclusive`` gang shares its nodes with nobody; of one ``group`` (not None) a node takes one gang.
    """

    cpus: float
    memory_gib: float
    allowed: BoolArray
    exclusive: bool = False
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Gang:
    """A job to be placed on ``size`` GPUs; ``profile`` indexes the instance's profiles.

    ``held`` is where it runs now, None if it does not; moving it costs ``move_cost``. ``rack_weight`` is the
    price of each rack beyond the fewest, ``span_factor`` multiplies that of nodes.
    """

    size: int
    profile: int
    max_nodes: int | None = None
    one_rack: bool = False
    rack_weight: float = 0.0
    move_cost: float = 0.0
    held: Mapping[int, int] | None = None
    span_factor: float = 1.0


@dataclass(frozen=True, eq=False)
class Instance:
    """Nodes of one GPU type as they are without the gangs in ``gangs``.

    Per node (nodes,): ``total`` GPUs, ``free`` GPUs, ``cpus`` and ``memory_gib`` free (inf: no limit), ``rack``
    code, ``guests`` jobs that stay whatever happens, ``claimed`` True where such a guest wants the node alone;
    ``groups`` their anti-affinity groups.
    """

    total: IntArray
    free: IntArray
    cpus: FloatArray
    memory_gib: FloatArray
    rack: IntArray
    guests: IntArray
    claimed: BoolArray
    groups: Sequence[frozenset[str]]
    profiles: Sequence[Profile]
    gangs: Sequence[Gang]
    weights: PlacementWeights

    @property
    def num_nodes(self) -> int:
        return len(self.total)

    def fewest_nodes(self, size: int) -> int:
        """Nodes that a gang spans on an empty cluster at least."""
        return _fewest(self.total, size)

    def fewest_racks(self, size: int) -> int:
        """Racks that a gang spans on an empty cluster at least."""
        return _fewest(np.bincount(self.rack, weights=self.total).astype(np.int64), size)

    def span_cost(self, gang: Gang, nodes: int, racks: int) -> float:
        """Price of spanning that many nodes and racks."""
        excess = self.weights.node * gang.span_factor * (nodes - self.fewest_nodes(gang.size))
        return excess + gang.rack_weight * (racks - self.fewest_racks(gang.size))

    def cost(self, placement: Mapping[int, Where]) -> float:
        """Objective of a placement, gang number to nodes, worked out from the placement alone."""
        used = self.total - self.free
        cost = 0.0
        for number, gang in enumerate(self.gangs):
            where = placement.get(number)
            if gang.held is not None and where != gang.held:
                cost += gang.move_cost
            if where is None:
                cost += self.weights.unplaced * gang.size
                continue
            cost += self.span_cost(gang, len(where), len({int(self.rack[node]) for node in where}))
            for node, count in where.items():
                used[node] += count
        return cost + self.weights.fragment * int(((used > 0) & (used < self.total)).sum())


def _fewest(sizes: IntArray, need: int) -> int:
    total = np.sort(sizes)[::-1].cumsum()
    return min(int(np.searchsorted(total, need)) + 1, len(sizes))
