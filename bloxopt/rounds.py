"""The round loop: observe, admit, plan, select, place, apply. The same for simulated and for real nodes."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from bloxopt.admission.base import AcceptAll, Admission, checked_decision
from bloxopt.anytime import Ladder, Rung, collection_put_off
from bloxopt.decisions import Decided, Round, delivered, moves, running
from bloxopt.formulations.allocation import Allocation
from bloxopt.formulations.policy import Policy
from bloxopt.formulations.solving.resuming import Resolver
from bloxopt.formulations.space import AllocationSpace
from bloxopt.hosts import Hosts
from bloxopt.jobs import BoolArray, IntArray
from bloxopt.placement.rules import Rules
from bloxopt.placement.strategy import Strategy
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.backend import Backend, ClusterState, Ran
from bloxopt.selection.base import Plan, RoundSelector
from bloxopt.solvers.base import Solver, SolverOptions

_LONGEST_START = 60.0
"""Seconds that the processes of a watched solver get to come up before the first round."""

_SHORTEST_ROUND = 1e-3
"""Seconds that lie at least between two changes of a policy's order: rounding errors must not give endless rounds."""


class Memory(NamedTuple):
    """What a scheduler remembers from round to round: its plan, the rows that ask for admission, and whether a plan is
    due, nothing ran in the last round, and how many jobs were done by then."""

    plan: Plan | None
    pending: IntArray
    stale: bool
    ran_nothing: bool
    finished: int


@dataclass(eq=False)
class Scheduler:
    """Runs rounds of one policy over one backend.

    ``solver`` and ``solver_options`` override the policy's own. A new plan is made when jobs or nodes
    changed (or every round for policies whose keys follow progress), at least ``solve_interval``
    seconds after the one before. Every allocation is checked by its policy, every assignment by its
    own construction, before anything is applied.

    A gang that is selected but finds no place, or not the one its plan promises, is cut out of the round, and
    the round is selected again, at most ``placement_retries`` times; the try that delivers most counts.

    ``ladder`` gives every round a deadline that is met whatever the solver does; None: a round takes as long as it
    takes, and a solver that fails is an error.

    ``inspect`` is shown every allocation as soon as it is made, with :meth:`allocate`, to judge it. ``before_round`` is
    called with the scheduler and what it has observed before anything is decided.

    ``hosts`` divides CPUs and memory between the jobs of a round once they have their GPUs; None where jobs simply have
    what they need.

    ``resolver`` keeps each round's answers for the solves of the next; None: every solve begins anew.

    ``event_driven``: the backend is told when the policy's order changes, for rounds that end at events.
    """

    backend: Backend
    policy: Policy
    selector: RoundSelector
    placement: Strategy
    admission: Admission = field(default_factory=AcceptAll)
    solver: str | Solver | None = None
    solver_options: SolverOptions | None = None
    solve_interval: float = 0.0
    placement_retries: int = 3
    event_driven: bool = False
    hosts: Hosts | None = None
    inspect: Callable[[Allocation, Callable[[AllocationSpace], Allocation]], None] | None = None
    ladder: Ladder | None = None
    resolver: Resolver | None = field(default_factory=Resolver)
    before_round: Callable[[Scheduler, ClusterState], None] | None = None

    def __post_init__(self) -> None:
        self._plan: Plan | None = None
        self._stale = True
        self._pending: IntArray = np.zeros(0, dtype=np.int64)
        cluster = self.backend.catalog.cluster
        self._rules = Rules.of(cluster, self.backend.ledger.table)
        self._capacity: IntArray = cluster.capacity_of(~cluster.node_drained)
        self._finished = 0
        self._rates_version = 0
        self._ran_nothing = False
        self._deadline = math.inf
        if self.ladder is not None:
            self.ladder.start(self.policy.solver if self.solver is None else self.solver, wait=_LONGEST_START)
            for part in (self.selector, self.placement):
                if hasattr(part, "ladder") and hasattr(part, "solver"):
                    self.ladder.start(part.solver, wait=_LONGEST_START)

    @property
    def plan(self) -> Plan | None:
        """The allocation in force, None before the first."""
        return self._plan

    def run_round(self) -> Round:
        """One pass of the loop; afterwards the backend has let the round go by."""
        state = self.backend.observe()
        if self.before_round is not None:
            self.before_round(self, state)
        began = time.monotonic()
        if self.ladder is not None:
            self._deadline = began + self.ladder.budget
            for part in (self.selector, self.placement):
                if hasattr(part, "deadline"):
                    part.deadline = self._deadline
                if hasattr(part, "ladder"):
                    part.ladder = self.ladder
        with nullcontext() if self.ladder is None else collection_put_off():
            made = self.decide(state)
        assignment = made.assignment
        self.backend.apply(assignment)
        decided = time.monotonic()
        record = Round(
            state.now,
            made.admitted,
            made.space.num_jobs,
            len(assignment),
            made.started,
            made.stopped,
            assignment.free.gpus_used,
            int(self._capacity.sum()),
            made.allocation,
            made.retries,
            decided - began,
            max(decided - self._deadline, 0.0),
        )
        self._credit(self.backend.wait(self._order_changes(state) if self.event_driven else math.inf))
        self._ran_nothing = not len(assignment)
        return record

    def decide(self, state: ClusterState) -> Decided:
        """Admit, plan, select and place for ``state``, without applying anything."""
        if state.rows is not None:
            self._renumber(state.rows)
        if state.nodes_changed:
            cluster = self.backend.catalog.cluster
            self._capacity = cluster.capacity_of(state.node_up & ~cluster.node_drained)
            self._stale = True
        admitted = self._admit(state)
        space = self._space(state)
        if not space.num_jobs:
            return Decided(admitted, space, None, state.assignment)
        allocation = self._replan(space) if self.selector.needs_plan else None
        made = self._select_and_place(state, Decided(admitted, space, allocation, state.assignment))
        limits = self.policy.round_limits(space)
        if limits is not None:
            limits.check(running(made.assignment, self.backend.catalog))
        if self.hosts is not None and len(made.assignment):
            ranking = self.policy.rank(space)
            order = space.index if ranking is None else space.index[ranking]
            return replace(made, assignment=self.hosts.allocate(made.assignment, order.tolist(), space.node_up))
        return made

    def _renumber(self, rows: IntArray) -> None:
        """The backend has another table now: what was remembered by row is found under the new ones."""
        catalog = self.backend.catalog
        highest = max(int(rows.max(initial=-1)), *(int(part.max(initial=-1)) for part in self._remembered()))
        position = np.full(highest + 1, -1)
        position[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
        if self._plan is not None:
            planned = len(self._plan.row)
            self._plan = self._plan.renumbered(position)
            self._stale = self._stale or len(self._plan.row) < planned
        pending = position[self._pending]
        self._pending = pending[pending >= 0]
        self._rules = Rules.of(catalog.cluster, catalog.table)
        self._rates_version = catalog.version

    def _remembered(self) -> tuple[IntArray, ...]:
        """Rows of the table that are remembered here."""
        plan = self._plan
        if plan is None:
            return (self._pending,)
        return (self._pending, plan.row) if plan.ranked is None else (self._pending, plan.row, plan.ranked)

    @property
    def stale(self) -> bool:
        """Whether jobs or nodes have changed since the plan in force was made."""
        return self._stale

    @property
    def pending(self) -> IntArray:
        """Rows of the jobs that asked for admission and have no answer yet."""
        return self._pending

    def fork(
        self, backend: Backend, state: ClusterState, policy: Policy | None = None, changed: bool = False
    ) -> Scheduler:
        """A scheduler that goes on from here over another backend, with another policy if one is given.

        The backend has the same jobs in the same rows and the same GPU types; jobs submitted at ``state`` ask it for
        admission. With ``changed`` it plans anew at once. Neither scheduler changes the other from then on.
        """
        twin = copy.copy(self)
        twin.backend = backend
        twin.selector = copy.deepcopy(self.selector)
        if hasattr(twin.selector, "deadline"):
            twin.selector.deadline = math.inf
        if getattr(self.placement, "remembers", False):
            # It knows its table and cluster by identity.
            known = (self.backend.catalog.table, self.backend.catalog.cluster)
            twin.placement = copy.deepcopy(self.placement, {id(part): part for part in known})
        twin.inspect = twin.before_round = twin.ladder = None
        twin.resolver = None if self.resolver is None else Resolver(self.resolver.least_entries)
        twin.__post_init__()
        twin._plan = None if self._plan is None else self._plan.copy()
        twin.policy = self.policy if policy is None else policy
        changed = changed or policy is not None
        twin._stale = self._stale or changed
        # What changed is planned for at once, even while the interval between two plans has not passed.
        twin._ran_nothing = self._ran_nothing or changed
        cluster = backend.catalog.cluster
        up = np.ones(len(cluster.nodes), dtype=bool)
        up[: len(state.node_up)] = state.node_up
        twin._capacity = cluster.capacity_of(up & ~cluster.node_drained)
        twin._finished, twin._rates_version = backend.ledger.num_finished, backend.catalog.version
        twin._pending = np.concatenate([self._pending, state.submitted])
        return twin

    def remembered(self, rows: IntArray | None = None) -> Memory:
        """What it remembers beside the ledger, by the rows of the table that ``rows`` numbers anew, if given."""
        twin = copy.copy(self)
        if rows is not None:
            twin._renumber(rows)
        return Memory(twin._plan, twin._pending, twin._stale, twin._ran_nothing, twin._finished)

    def recall(self, memory: Memory, node_up: BoolArray) -> None:
        """Go on from there, with these nodes up."""
        self._plan, self._pending, self._stale, self._ran_nothing, self._finished = memory
        cluster = self.backend.catalog.cluster
        self._capacity = cluster.capacity_of(node_up & ~cluster.node_drained)

    def allocate(self, space: AllocationSpace, resume: Resolver | None = None) -> Allocation:
        """What the policy allocates in ``space``, with the solver and options of this scheduler.

        ``resume``: the answers to begin from, and to be replaced by those to this.
        """
        if self.ladder is None:
            return self.policy.allocate(space, solver=self.solver, options=self.solver_options, resume=resume)
        return self.ladder.allocate(
            self.policy,
            space,
            self._plan,
            deadline=self._deadline,
            solver=self.solver,
            options=self.solver_options,
            resume=resume,
        )

    def _select_and_place(self, state: ClusterState, made: Decided) -> Decided:
        """What runs and where, the best of a few tries."""
        space, before = made.space, state.assignment
        catalog = space.catalog
        best: Decided | None = None
        most, tries = -1.0, 0
        while True:
            workspace = Workspace(
                before, catalog.cluster, catalog.table, state.node_up, self.placement, self._rules, catalog.runs_on
            )
            selection = self.selector.select(self.policy, space, self._plan)
            stop, start = selection.place(before, workspace)
            after = before.change(stop, start)
            unmet = selection.unmet(after, catalog) if self.placement_retries else ()
            tried = Decided(
                made.admitted, made.space, made.allocation, after, *moves(before, after, start, stop, catalog)
            )
            if not len(unmet) and not tries:
                return tried
            value = delivered(after, catalog)
            if value > most + 1e-9:
                best, most = tried, value
            if not len(unmet) or tries == self.placement_retries or time.monotonic() > self._deadline:
                assert best is not None
                return replace(best, retries=tries)
            space = space.without(np.asarray(unmet))
            tries += 1

    def _space(self, state: ClusterState) -> AllocationSpace:
        """The active jobs and the GPUs that are up."""
        return AllocationSpace(
            self.backend.catalog,
            self.backend.ledger,
            self.backend.ledger.active,
            capacity=self._capacity,
            now=state.now,
            round_seconds=self.backend.round_seconds,
            node_up=state.node_up,
        )

    def _order_changes(self, state: ClusterState) -> float:
        """When the policy's order changes next (s) if what has just been applied goes on."""
        return state.now + max(self.policy.next_change(self._space(state)), _SHORTEST_ROUND)

    def _admit(self, state: ClusterState) -> int:
        asked = np.concatenate([self._pending, state.submitted]) if len(self._pending) else state.submitted
        if not len(asked):
            return 0
        ledger = self.backend.ledger
        admit, reject = checked_decision(self.admission, asked, self._space(state))
        ledger.admit(admit)
        ledger.reject(reject)
        decided = len(admit) + len(reject)
        self._pending = asked[:0] if decided == len(asked) else np.setdiff1d(asked, np.concatenate([admit, reject]))
        self._stale = self._stale or len(admit) > 0
        return len(admit)

    def _replan(self, space: AllocationSpace) -> Allocation | None:
        previous = self._plan
        if previous is not None:
            if not (self._stale or self.policy.progress_dependent):
                return None
            # As in Gavel, a plan made at time zero starts no interval, and a round in which nothing ran ends it.
            waits = not self.policy.decides_rounds and space.now - previous.made_at < self.solve_interval
            if waits and previous.made_at > 0 and not self._ran_nothing:
                return None
        _account_isolated_progress(space)
        allocation = self.allocate(space, self.resolver)
        if self.inspect is not None:
            self.inspect(allocation, self.allocate)
        plan = Plan(allocation, space.now)
        if previous is not None and not self._stale and plan.shares_time:
            plan.carry_on(previous)
        else:
            self.selector.replanned(previous, space)
        self._plan = plan
        # What no solver gave is planned again as soon as may be.
        self._stale = allocation.rung in (Rung.CARRIED_OVER, Rung.GREEDY)
        return allocation

    def _credit(self, ran: Ran) -> None:
        """Book the round just over on the plan; jobs that finished or came to another phase make it stale."""
        if self._plan is not None:
            self._plan.credit(*ran)
        finished, version = self.backend.ledger.num_finished, self.backend.catalog.version
        self._stale = self._stale or finished != self._finished or version != self._rates_version
        self._finished, self._rates_version = finished, version


def _account_isolated_progress(space: AllocationSpace) -> None:
    """Keep ``ledger.isolated_seconds``: how long the work done so far would have taken on an equal share.

    The progress since the last call is booked at the isolated rate that held then, and today's is noted.
    """
    index, ledger = space.index, space.ledger
    rates, remaining = ledger.memory("isolated.rate"), ledger.memory("isolated.remaining_steps")
    rate = rates[index]
    known: BoolArray = np.greater(rate, 0)
    progress = remaining[index] - space.remaining_steps
    ledger.isolated_seconds[index] += np.divide(progress, rate, out=np.zeros(len(index)), where=known)
    rates[index] = space.isolated_rate
    remaining[index] = space.remaining_steps
