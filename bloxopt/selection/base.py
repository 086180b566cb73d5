"""From shares of time to this round: what a selector is given and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bloxopt.formulations.solving.sums import sum_by
from bloxopt.formulations.space import AllocationSpace, ConfigurationCatalog
from bloxopt.jobs import BoolArray, FloatArray, IntArray
from bloxopt.placement.passes import Changes, place_decision, place_queue
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment

if TYPE_CHECKING:
    from bloxopt.formulations.allocation import Allocation
    from bloxopt.formulations.policy import Policy
    from bloxopt.formulations.round_limits import RoundLimits


class Selection(Protocol):
    """What should run this round, ready to be placed."""

    def place(self, assignment: Assignment, workspace: Workspace) -> Changes: ...

    def unmet(self, assignment: Assignment, catalog: ConfigurationCatalog) -> IntArray:
        """Rows that ``assignment``, the outcome, leaves without GPUs, or on more nodes than they were promised."""
        ...


@dataclass(frozen=True, eq=False)
class Decision:
    """Exactly these jobs run: ``row`` of the ledger, ``gpu_type``, ``num_gpus``.

    ``promised`` marks gangs that the plan counts on to get the fewest nodes: they are placed first. None: none.
    ``partner`` is the row of the job that shares its GPUs, -1 for none: both must be in the decision, each with the
    other as its partner. None: nobody shares. ``rank`` is each one's place in the policy's order (None: it has none),
    for placements that look at it.
    """

    row: IntArray
    gpu_type: IntArray
    num_gpus: IntArray
    promised: BoolArray | None = None
    partner: IntArray | None = None
    rank: IntArray | None = None

    def place(self, assignment: Assignment, workspace: Workspace) -> Changes:
        gangs = (self.row, self.gpu_type, self.num_gpus)
        return place_decision(*gangs, assignment, workspace, self.promised, self.partner, self.rank)

    def unmet(self, assignment: Assignment, catalog: ConfigurationCatalog) -> IntArray:
        if self.promised is None and len(assignment) == len(self.row):
            return np.zeros(0, dtype=np.int64)
        nodes = np.array([len(assignment[row].nodes) if row in assignment else 0 for row in self.row.tolist()])
        missed = nodes == 0
        if self.promised is not None:
            missed |= self.promised & (nodes > catalog.fewest_nodes(self.gpu_type, self.num_gpus))
        rows: IntArray = self.row[missed]
        return rows


@dataclass(frozen=True, eq=False)
class Queue:
    """Jobs in order of claim (``row``); who runs is settled while placing: see :func:`place_queue`.

    Those that are ``barred`` have no claim in this round: they stop first if they run.
    """

    row: IntArray
    num_gpus: Sequence[int]
    preference: Sequence[Sequence[int]]
    barred: Sequence[int] = ()

    def place(self, assignment: Assignment, workspace: Workspace) -> Changes:
        barred = [row for row in self.barred if row in assignment.grants]
        for row in barred:
            workspace.give_back(row, assignment.grants[row])
        stop, start = place_queue(self.row, self.num_gpus, self.preference, assignment.change(barred, {}), workspace)
        return barred + stop, start

    def unmet(self, assignment: Assignment, catalog: ConfigurationCatalog) -> IntArray:
        return np.zeros(0, dtype=np.int64)


class Plan:
    """The latest allocation with the time that each of its columns has received since it was made.

    Flat arrays per column: ``row`` (job row of the ledger), ``gpu_type``, ``num_gpus``, ``gpu_demand``, ``share`` of
    time, ``received`` seconds, ``due`` seconds promised by the plans that this one continues. ``made_at`` seconds.
    ``partner`` is the kind of the job it shares its GPUs with, -1 for none. ``ranked`` has the rows of the jobs in the
    policy's order, None where it has none.
    Columns that differ in ``spread`` alone are one here; ``promised`` marks those that the allocation gives the fewest
    nodes for most of their time (None: it does not say).
    """

    COLUMNS = ("row", "gpu_type", "num_gpus", "gpu_demand", "share", "partner", "received", "due", "promised")

    def __init__(self, allocation: Allocation, made_at: float) -> None:
        space = allocation.space
        self.allocation = allocation
        self.made_at = made_at
        self.row: IntArray = space.index[space.job]
        self.gpu_type: IntArray = space.gpu_type
        self.num_gpus: IntArray = space.num_gpus
        self.gpu_demand = space.gpu_demand
        self.share: FloatArray = np.clip(allocation.x, 0.0, 1.0)
        self.partner: IntArray = space.partner
        self.ranked: IntArray | None = None if allocation.ranking is None else space.index[allocation.ranking]
        key = _column_key(self.row, self.gpu_type, self.num_gpus, self.partner)
        self.promised: BoolArray | None = None
        if space.has_twin.any():
            key, first, merged = np.unique(key, return_index=True, return_inverse=True)
            together = sum_by(merged, self.share * (space.has_twin & (space.spread == 0)), len(key))
            self.share = sum_by(merged, self.share, len(key))
            self.promised = together > 0.5 * self.share
            self.row, self.gpu_type, self.num_gpus = self.row[first], self.gpu_type[first], self.num_gpus[first]
            self.gpu_demand, self.partner = self.gpu_demand[first], self.partner[first]
        self.received: FloatArray = np.zeros(len(self.row))
        self.due: FloatArray = np.zeros(len(self.row))
        self._sort(key)

    def _sort(self, key: IntArray) -> None:
        self._order: IntArray = np.argsort(key)
        self._sorted_key: IntArray = key[self._order]

    @classmethod
    def restored(
        cls, allocation: Allocation, made_at: float, columns: Mapping[str, Any], ranked: IntArray | None
    ) -> Plan:
        """A plan of ``columns`` as :attr:`COLUMNS` names them; of ``allocation`` only its properties count."""
        plan = object.__new__(cls)
        plan.allocation, plan.made_at, plan.ranked = allocation, made_at, ranked
        for name in cls.COLUMNS:
            setattr(plan, name, columns[name])
        plan._sort(_column_key(plan.row, plan.gpu_type, plan.num_gpus, plan.partner))
        return plan

    def renumbered(self, position: IntArray) -> Plan:
        """The same plan where job r of the table has become job ``position[r]``, or is gone where that is -1."""
        twin = copy(self)
        row = position[self.row]
        kept = row >= 0
        for name in self.COLUMNS[1:]:
            column = getattr(self, name)
            setattr(twin, name, None if column is None else column[kept])
        twin.row = row[kept]
        if self.ranked is not None:
            ranked = position[self.ranked]
            twin.ranked = ranked[ranked >= 0]
        twin._sort(_column_key(twin.row, twin.gpu_type, twin.num_gpus, twin.partner))
        return twin

    def copy(self) -> Plan:
        """The same plan, to be credited apart from this one."""
        twin = copy(self)
        twin.received, twin.due = self.received.copy(), self.due.copy()
        return twin

    @property
    def shares_time(self) -> bool:
        """Whether some column has part of the time, so that who runs must change from round to round."""
        return bool(((self.share > NO_SHARE) & (self.share < 1.0 - NO_SHARE)).any())

    def owed(self, now: float) -> FloatArray:
        """Seconds that each column is behind (> 0) or ahead of its share at the time ``now``."""
        owed: FloatArray = self.due + self.share * (now - self.made_at) - self.received
        return owed

    def carry_on(self, previous: Plan) -> None:
        """Go on counting where a plan for the same jobs and nodes stopped: what it still owes stays owed.

        A plan made anew in every round would otherwise forget each time that the others had their turn, and always
        run the job with the largest share.
        """
        at = previous.position(self.row, self.gpu_type, self.num_gpus, self.partner)
        known = at >= 0
        self.due[known] = (previous.due + previous.share * (self.made_at - previous.made_at))[at[known]]
        self.received[known] = previous.received[at[known]]

    def position(
        self, row: IntArray, gpu_type: IntArray, num_gpus: IntArray, partner: IntArray | None = None
    ) -> IntArray:
        """Where the plan has these columns, -1 for those it does not have; without ``partner`` all are alone."""
        key = _column_key(row, gpu_type, num_gpus, partner)
        at = np.minimum(np.searchsorted(self._sorted_key, key), len(self._sorted_key) - 1)
        return np.where(self._sorted_key[at] == key, self._order[at], -1)

    def rank(self, row: IntArray) -> IntArray | None:
        """Place of jobs in the policy's order, one past the last for those that it did not rank; None without order."""
        if self.ranked is None:
            return None
        rows = max(int(self.ranked.max(initial=-1)), int(row.max(initial=-1))) + 1
        place = np.full(rows, len(self.ranked), dtype=np.int64)
        place[self.ranked] = np.arange(len(self.ranked))
        ranks: IntArray = place[row]
        return ranks

    def credit(
        self,
        row: IntArray,
        gpu_type: IntArray,
        num_gpus: IntArray,
        seconds: FloatArray,
        partner: IntArray | None = None,
    ) -> None:
        """Add the time that jobs ran in the round just over."""
        if len(row) and len(self.row):
            at = self.position(row, gpu_type, num_gpus, partner)
            known = at >= 0
            self.received[at[known]] += seconds[known]


NO_SHARE = 1e-6
"""Shares of time this close to 0 or 1 are none, or all, up to the solver's rounding."""


def _column_key(row: IntArray, gpu_type: IntArray, num_gpus: IntArray, partner: IntArray | None = None) -> IntArray:
    """One number per (job, GPU type, GPU count, kind of the partner)."""
    key: IntArray = (row << 26) | (gpu_type << 20) | num_gpus
    # Kinds are at most as many as jobs; a column without a partner keeps its number.
    return key if partner is None else key + (partner + 1) * _PER_KIND


_PER_KIND = 1 << 46
"""Room for a million jobs, of which pairs can be of 130,000 kinds."""


class RoundSelector(Protocol):
    """Chooses what runs in a round. A selector may keep state and lives for one run of the scheduler."""

    @property
    def needs_plan(self) -> bool:
        """False for a selector that only follows the policy's ranking, so that no program is solved."""
        ...

    def replanned(self, previous: Plan | None, space: AllocationSpace) -> None:
        """Told that the plan used so far (if any) is about to be replaced by one for ``space``."""
        ...

    def select(self, policy: Policy, space: AllocationSpace, plan: Plan | None) -> Selection: ...


_ROUNDING = 1e-6
"""GPUs by which shares may exceed what is left: far below 1/1000, the smallest share."""


def greedy_fill(demand: IntArray | FloatArray, capacity: float) -> tuple[list[int], float]:
    """Positions taken when items are tried in order and each that still fits is taken, and what is left.

    The same as a loop over all items, but each step takes the longest prefix that fits, so the steps are
    as many as the distinct sizes that fail, not the items. Shares of GPUs add up to a rounding error.
    """
    if demand.dtype.kind == "f":
        capacity += _ROUNDING
    taken: list[int] = []
    candidates = (demand <= capacity).nonzero()[0]
    while len(candidates) and capacity > 0:
        total = demand[candidates].cumsum()
        fits = int(total.searchsorted(capacity, side="right"))
        taken.extend(candidates[:fits].tolist())
        if fits:
            capacity -= total[fits - 1].item()
        candidates = candidates[fits:]
        candidates = candidates[demand[candidates] <= capacity]
    return taken, capacity


def fill(
    row: IntArray,
    gpu_type: int,
    num_gpus: IntArray,
    demand: IntArray | FloatArray,
    capacity: float,
    limits: RoundLimits | None,
) -> tuple[list[int], float]:
    """:func:`greedy_fill` with columns of one GPU type, which keep the round's ``limits`` too, if it has any."""
    if limits is None:
        return greedy_fill(demand, capacity)
    taken: list[int] = []
    for position, (job, gpus, size) in enumerate(zip(row.tolist(), num_gpus.tolist(), demand.tolist(), strict=True)):
        if size <= capacity + 1e-9 and limits.admit(job, gpu_type, gpus):
            taken.append(position)
            capacity -= size
            if capacity <= 0:
                break
    return taken, capacity


def first_of_each(row: IntArray) -> IntArray:
    """Positions of the first occurrence of each value, in order of position."""
    _, first = np.unique(row, return_index=True)
    return np.sort(first)
