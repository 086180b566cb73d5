"""The simulated cluster: moves its own clock and lets jobs make progress at the rates of the oracle."""

from __future__ import annotations

import math

import numpy as np

from bloxopt.formulations.space import ConfigurationCatalog
from bloxopt.hosts import Hosts
from bloxopt.jobs import BoolArray, FloatArray, IntArray
from bloxopt.pairing import PAIR_SHARE
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.backend import ClusterState, Ran
from bloxopt.runtime.resources import Grant
from bloxopt.simulation.failures import NodeEvents
from bloxopt.simulation.options import SimulationOptions
from bloxopt.simulation.sharing import stays, until_partners_leave
from bloxopt.state import JobLedger, JobStatus


class SimulatedBackend:
    """A :class:`~bloxopt.runtime.backend.Backend` over simulated nodes.

    ``spells`` collects (job row, node, GPUs, gpu_type, start, end) of everything that ran.
    """

    def __init__(
        self,
        catalog: ConfigurationCatalog,
        options: SimulationOptions,
        events: NodeEvents,
        ledger: JobLedger | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        table = catalog.table
        self.catalog = catalog
        self.options = options
        self.ledger = JobLedger(table) if ledger is None else ledger
        self.round_seconds = options.round_seconds
        self.now = options.first_round
        self.spells: list[tuple[int, int, int, int, float, float]] = []
        self._events = events
        self._assignment = Assignment(catalog.cluster, table)
        self._arrival: FloatArray = table.arrival
        self._submitted = 0
        self._node_up: BoolArray = np.ones(len(catalog.cluster.nodes), dtype=bool)
        self._nodes_changed = False
        self._rate: FloatArray = np.zeros(len(table))
        self._stall: FloatArray = np.zeros(len(table))
        self._asked_phase: IntArray = catalog.phase.copy()
        self._cost: FloatArray = (
            table.restart_cost if options.restart_cost is None else np.full(len(table), options.restart_cost)
        )
        self._share: FloatArray | None = table.gpu_share if table.has_shares else None
        self._since: dict[int, float] = {}
        self.rounds_without_progress = 0
        self._rows: IntArray = np.zeros(0, dtype=np.int64)
        self._hosts = hosts
        if hosts is not None:
            self.ledger.host_factor = hosts.expected.copy()
        self._process_node_events(self.now)

    @property
    def finished(self) -> bool:
        """True when every job has arrived and none is active or waits for admission."""
        return self._submitted == len(self._arrival) and not len(self.ledger.active) and not self.waiting_for_admission

    @property
    def waiting_for_admission(self) -> int:
        """Jobs that have been submitted and are neither admitted nor turned away."""
        return int((self.ledger.status[: self._submitted] == JobStatus.NOT_ADMITTED).sum())

    @property
    def next_change(self) -> float:
        """Time of the next arrival or repair: when a cluster on which nothing runs can change; inf if never."""
        return min(self._next_arrival, self._events.next_repair)

    @property
    def _next_arrival(self) -> float:
        return float(self._arrival[self._submitted]) if self._submitted < len(self._arrival) else math.inf

    def resume(self, now: float, assignment: Assignment, node_up: BoolArray, nodes_changed: bool = True) -> None:
        """Go on from a moment at which the active jobs of the ledger were in and those of ``assignment`` ran.

        These go on without a restart; no other job comes.
        """
        self.now = now
        self._submitted = len(self._arrival)
        self._node_up, self._nodes_changed = node_up, nodes_changed
        self._assignment = assignment
        ledger = self.ledger
        ledger.status[ledger.active] = JobStatus.WAITING
        ledger.gpu_type[:], ledger.gpus[:] = -1, 0
        rows = self._rows = np.fromiter(assignment.grants, dtype=np.int64, count=len(assignment))
        ledger.status[rows] = JobStatus.RUNNING
        for row, grant in assignment.grants.items():
            ledger.gpu_type[row], ledger.gpus[row], ledger.nodes[row] = grant.gpu_type, grant.num_gpus, len(grant.nodes)
            ledger.partner[row] = grant.partner
            self._since[row] = now
        if len(rows):
            self._set_rates(rows)

    def continue_as(self, other: SimulatedBackend) -> None:
        """Take over how long jobs of ``other`` that restart still stall, after :meth:`resume`."""
        self._stall = other._stall.copy()

    def observe(self) -> ClusterState:
        due = max(int(self._arrival.searchsorted(self.now, side="right")), self._submitted)
        submitted = np.arange(self._submitted, due)
        self._submitted = due
        changed, self._nodes_changed = self._nodes_changed, False
        return ClusterState(self.now, submitted, self._assignment, self._node_up, changed)

    def apply(self, assignment: Assignment) -> None:
        """Stop, move and start jobs; a job that stops without having finished was preempted."""
        if assignment is self._assignment:
            return
        before, after = self._assignment.grants, assignment.grants
        ledger = self.ledger
        started = [row for row, grant in after.items() if before.get(row) is not grant]
        # Who goes on with the same GPUs and only gets, changes or loses a partner.
        staying: set[int] = set()
        if self.catalog.pairing is not None:
            staying = {row for row in started if stays(before.get(row), after[row])}
            started = [row for row in started if row not in staying]
        for row, grant in before.items():
            if after.get(row) is not grant and row not in staying:
                self._end_spell(row, grant, self.now)
                ledger.preemptions[row] += 1
                ledger.status[row] = JobStatus.WAITING
                ledger.gpu_type[row] = -1
                ledger.gpus[row] = 0
        for row in started:
            grant = after[row]
            self._since[row] = self.now
            ledger.status[row] = JobStatus.RUNNING
            ledger.gpu_type[row] = grant.gpu_type
            ledger.gpus[row] = grant.num_gpus
            if math.isnan(ledger.start[row]):
                ledger.start[row] = self.now
                self._stall[row] = self.options.start_cost
            else:
                ledger.restarts[row] += 1
                self._stall[row] = self._cost[row]
        self._assignment = assignment
        started += staying
        if self.catalog.pairing is not None:
            stopped = [row for row in before if row not in after]
            ledger.partner[stopped] = -1
            ledger.partner[started] = [after[row].partner for row in started]
        if started:
            rows = np.array(started, dtype=np.int64)
            if self.catalog.slowdown is not None or self.catalog.knows_placements:
                ledger.nodes[rows] = [len(after[row].nodes) for row in started]
            self._set_rates(rows)
        self._rows = np.fromiter(after, dtype=np.int64, count=len(after))
        if self._hosts is not None:
            ledger.host_factor = self._hosts.factors(assignment)
            self._set_rates(self._rows)

    def _set_rates(self, rows: IntArray) -> None:
        """Note the steps/s of running jobs on what they have now, in the phase they are in."""
        ledger, catalog = self.ledger, self.catalog
        kind, gpus = ledger.gpu_type[rows], ledger.gpus[rows]
        if catalog.knows_placements:
            grants = self._assignment.grants
            self._rate[rows] = catalog.rate_placed(rows, kind, [grants[row].counts for row in rows.tolist()])
        elif catalog.slowdown is None:
            self._rate[rows] = catalog.rate_of(rows, kind, gpus)
        else:
            self._rate[rows] = catalog.rate_on_nodes(rows, kind, gpus, ledger.nodes[rows])
        if ledger.host_factor is not None:
            self._rate[rows] *= ledger.host_factor[rows]
        if catalog.pairing is not None:
            self._rate[rows] *= catalog.pairing.factors(rows, ledger.partner[rows], kind)

    def wait(self, order_changes: float = math.inf) -> Ran:
        """Let a round pass: progress, completions, then the node changes that fell into it."""
        rows = self._rows
        open_jobs = len(self.ledger.active) or self.waiting_for_admission
        self.rounds_without_progress = self.rounds_without_progress + 1 if open_jobs else 0
        if not len(rows):
            self._skip_idle_time(order_changes)
            return Ran(rows, rows, rows, np.zeros(0))
        begin = self.now
        length = self.round_seconds
        end = begin + length
        if self.options.round_end == "next_event":
            length, end = self._until_next_event(order_changes)
        running: FloatArray | float = length
        if self._events.next_time <= end:
            running = self._seconds_until_failure(end)
        ledger = self.ledger
        rate, remaining = self._rate[rows], ledger.remaining_steps[rows]
        stall = self._stall[rows]
        moving = np.maximum(running - stall, 0.0)
        if self.catalog.phases is not None and self._within_rounds:
            steps, moved = self._through_phases(rows, moving)
            rate = self._rate[rows]
        elif self.catalog.pairing is not None and self.options.progress == "exact":
            steps, moved = self._beside_partners(rows, running)
        else:
            possible = rate * moving
            if self.options.progress == "whole_steps":
                possible = np.floor(possible)
            elif self.options.progress == "whole_steps_in_whole_rounds":
                possible = np.floor(possible + 1e-9)  # 300 s at 0.6 s a step are 500 steps, whatever the rounding
            steps = np.minimum(possible, remaining)
            moved = steps / rate
            if self.options.progress == "whole_seconds":
                moved = np.where(steps < remaining, moved, np.minimum(np.rint(moved), moving))
        if steps.any():
            self.rounds_without_progress = 0
        after = remaining - steps
        if self.options.progress in ("whole_rounds", "whole_steps_in_whole_rounds"):
            done = after <= 0.0
            spent = np.full(len(rows), running)
        else:
            # What is left of a job may be rounding error: less than a nanosecond of work is none.
            done = after <= rate * 1e-9
            worked = np.minimum(stall, running) + moved
            spent = worked if self.options.progress == "whole_steps" else np.where(done, worked, running)
        ran = Ran(rows, ledger.gpu_type[rows], ledger.gpus[rows], spent, self._partner_kinds(rows))
        ledger.remaining_steps[rows] = after
        ledger.attained_seconds[rows] += spent
        held = ran.num_gpus if self._share is None else ran.num_gpus * self._share[rows]
        if self.catalog.pairing is not None:
            held = np.where(ledger.partner[rows] >= 0, PAIR_SHARE, 1.0) * held
        ledger.attained_service[rows] += spent * held
        self._stall[rows] = np.maximum(stall - running, 0.0)
        if self.catalog.phases is not None and not self._within_rounds:
            self._enter_phases(rows[~done])
        self.now = begin + float(spent.max()) if self.options.round_end == "last_job" else end
        if done.any():
            self._complete(rows[done], begin + spent[done])
        self._process_node_events(self.now)
        return ran

    def _beside_partners(self, rows: IntArray, running: FloatArray | float) -> tuple[FloatArray, FloatArray]:
        """Steps that jobs make in a round, and how many seconds they take, faster once their partner has finished."""
        ledger, pairing = self.ledger, self.catalog.pairing
        assert pairing is not None
        position = np.full(len(ledger.partner), -1)
        position[rows] = np.arange(len(rows))
        partner = np.where(ledger.partner[rows] >= 0, position[ledger.partner[rows]], -1)
        alone = self._rate[rows] / pairing.factors(rows, ledger.partner[rows], ledger.gpu_type[rows])
        return until_partners_leave(
            self._rate[rows], alone, ledger.remaining_steps[rows], self._stall[rows], running, partner
        )

    def _partner_kinds(self, rows: IntArray) -> IntArray | None:
        """Kind of the job beside each, -1 for none; None where no jobs share GPUs."""
        if self.catalog.pairing is None:
            return None
        partner = self.ledger.partner[rows]
        return np.where(partner >= 0, self.catalog.pairing.kind[partner], -1)

    def _leave_alone(self, rows: IntArray) -> None:
        """Jobs ``rows`` stop: those that shared GPUs with them have these for themselves."""
        if self.catalog.pairing is None:
            return
        ledger = self.ledger
        left = ledger.partner[rows]
        left = left[left >= 0]
        ledger.partner[rows] = -1
        if len(left):
            ledger.partner[left] = -1
            self._set_rates(left[ledger.gpu_type[left] >= 0])

    @property
    def _within_rounds(self) -> bool:
        """Whether phases change at the moment inside a round at which jobs come to them."""
        return self.options.progress in ("exact", "whole_seconds")

    def _through_phases(self, rows: IntArray, moving: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Steps that jobs make in ``moving`` seconds each, and how many of these they take, through their phases."""
        phases, catalog = self.catalog.phases, self.catalog
        assert phases is not None
        remaining = self.ledger.remaining_steps[rows]
        done = self.ledger.table.total_steps[rows] - remaining
        whole = self.options.progress == "whole_seconds"
        steps, left = np.zeros(len(rows)), moving.astype(np.float64)
        while True:
            rate = self._rate[rows]
            possible = rate * left
            ahead = np.maximum(phases.ends(rows, catalog.phase[rows]) - done - steps, 0.0)
            work = remaining - steps
            crossing = (possible >= ahead) & (ahead < work)
            stretch = np.minimum(np.where(crossing, ahead, possible), work)
            seconds = stretch / rate
            if whole:
                seconds = np.where(crossing | (possible >= work), np.rint(seconds), seconds)
            steps += stretch
            left = np.maximum(left - seconds, 0.0)
            if not crossing.any():
                return steps, moving - left
            changed = rows[crossing]
            catalog.enter_phase(changed, catalog.phase[changed] + 1)
            self._set_rates(changed)

    def _enter_phases(self, rows: IntArray) -> None:
        """Jobs that have come to another phase in a round run at its rates from the next round on, or the one after."""
        catalog = self.catalog
        assert catalog.phases is not None
        phase = catalog.phases.phase_at(rows, self.ledger.table.total_steps[rows] - self.ledger.remaining_steps[rows])
        if self.options.phase_change == "round_after_next":
            phase, self._asked_phase[rows] = self._asked_phase[rows], phase
        changed = phase != catalog.phase[rows]
        if changed.any():
            catalog.enter_phase(rows[changed], phase[changed])
            self._set_rates(rows[changed])

    def _complete(self, rows: IntArray, times: FloatArray) -> None:
        for row, time in zip(rows.tolist(), times.tolist(), strict=True):
            self._end_spell(row, self._assignment[row], time)
        self._assignment = self._assignment.change(rows.tolist(), {})
        self._leave_alone(rows)
        self.ledger.complete(rows, times)
        self._rows = np.fromiter(self._assignment.grants, dtype=np.int64, count=len(self._assignment))

    def close(self) -> None:
        """Note what still runs up to now, for a simulation that ends early."""
        for row, grant in self._assignment.grants.items():
            self._end_spell(row, grant, self.now)

    @property
    def highest_restart_cost(self) -> float:
        """Seconds that the dearest start of any job takes."""
        return float(self._cost.max(initial=self.options.start_cost))

    def _end_spell(self, row: int, grant: Grant, end: float) -> None:
        begin = self._since.pop(row)
        for node, count in zip(grant.nodes, grant.counts, strict=True):
            self.spells.append((row, node, count, grant.gpu_type, begin, end))

    def _until_next_event(self, order_changes: float) -> tuple[float, float]:
        """Length of the round that starts now and its end: the next arrival, completion, node or order change.

        At most ``round_seconds``. Lengths are exact where a job ends, times where something else does.
        """
        rows, ahead = self._rows, self.ledger.remaining_steps[self._rows]
        phases = self.catalog.phases
        if phases is not None:
            # Rates change where a phase ends; one that is as good as over must not give a round of no length.
            done = self.ledger.table.total_steps[rows] - ahead
            ends = phases.ends(rows, self.catalog.phase[rows]) - done
            ahead = np.minimum(ahead, ends + 1e-9 * self._rate[rows])
        first = float((self._stall[rows] + ahead / self._rate[rows]).min())
        event = min(self._next_arrival, self._events.next_time, order_changes, self.now + self.round_seconds)
        return (first, self.now + first) if self.now + first <= event else (event - self.now, event)

    def _skip_idle_time(self, order_changes: float) -> None:
        """Move on to the next round start at which something can have changed."""
        change = self.next_change
        if self.options.round_end == "last_job":
            # A round without jobs takes no time, as in Gavel's simulator.
            self.now = max(self.now, change) if math.isfinite(change) else self.now
        elif self.options.round_end == "next_event":
            event = min(change, order_changes)
            self.now = event if math.isfinite(event) else self.now + self.round_seconds
        else:
            rounds = math.ceil((change - self.now) / self.round_seconds) if math.isfinite(change) else 1
            if self.waiting_for_admission:
                rounds = 1  # an admission may look at the time
            self.now += max(1, rounds) * self.round_seconds
        self._process_node_events(self.now)

    def _seconds_until_failure(self, end: float) -> FloatArray:
        """Seconds that each running job gets in this round before one of its nodes fails."""
        fails_at: dict[int, float] = {}
        for time, node, up in self._events.peek(end):
            if not up:
                fails_at.setdefault(node, time)
        return np.array(
            [
                max(min(fails_at.get(node, end) for node in self._assignment[row].nodes) - self.now, 0.0)
                for row in self._rows.tolist()
            ]
        )

    def _process_node_events(self, end: float) -> None:
        """Apply node failures and repairs up to ``end``; jobs on a node that failed stop and wait."""
        for time, node, up in self._events.until(end):
            self._nodes_changed = True
            self._node_up = self._node_up.copy()
            self._node_up[node] = up
            if up:
                continue
            hit = [row for row, grant in self._assignment.grants.items() if node in grant.nodes]
            for row in hit:
                self._end_spell(row, self._assignment[row], min(max(time, self._since[row]), end))
            if hit:
                rows = np.array(hit, dtype=np.int64)
                self._assignment = self._assignment.change(hit, {})
                self._leave_alone(rows)
                self.ledger.status[rows] = JobStatus.WAITING
                self.ledger.gpu_type[rows] = -1
                self.ledger.gpus[rows] = 0
                self.ledger.preemptions[rows] += 1
                self._rows = np.fromiter(self._assignment.grants, dtype=np.int64, count=len(self._assignment))
