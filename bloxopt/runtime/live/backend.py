"""The backend over real nodes: what policies see of the live cluster, and what becomes of their decisions."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bloxopt.errors import CheckError, StoreError
from bloxopt.formulations.space import EVERY_COUNT_UP_TO, ConfigurationCatalog
from bloxopt.jobs import IntArray
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.backend import ClusterState, Ran
from bloxopt.runtime.live.cluster import LiveCluster
from bloxopt.runtime.live.nodes import Layout
from bloxopt.runtime.live.recording import Made, Noted, Recording, Seen, last_round
from bloxopt.runtime.live.table import in_order, job_table, next_table, show_progress
from bloxopt.runtime.live.throughput import LearnedThroughput
from bloxopt.runtime.resources import Grant
from bloxopt.runtime.store import JobRecord
from bloxopt.simulation.options import SimulationOptions
from bloxopt.state import JobLedger, JobStatus

MOST_TOGETHER = 256
"""Jobs that are admitted, stopped or started in one transaction."""

_GIVE_WAY = 0.001
"""Seconds between two of them: whoever takes a lock again at once takes it before those who wait for it wake up."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """How rounds go by. ``end`` ``next_event``: a round ends early, though not before ``shortest`` (s), when
    something changed and GPUs are idle; ``fixed``: it lasts ``seconds`` (s) always. ``tick`` (s) is how often leases
    and nodes are looked at."""

    seconds: float = 60.0
    end: Literal["next_event", "fixed"] = "next_event"
    shortest: float = 1.0
    tick: float = 1.0
    every_gpu_count_up_to: int = EVERY_COUNT_UP_TO


class LiveBackend:
    """A :class:`~bloxopt.runtime.backend.Backend` over a :class:`LiveCluster`.

    ``turn`` is held from when a round is observed until it is applied: whoever else wants the table, the ledger and
    the cluster to fit each other takes it. ``layout_version`` counts changes of the cluster.
    """

    def __init__(
        self, live: LiveCluster, rounds: Rounds | None = None, oracle: LearnedThroughput | None = None
    ) -> None:
        self.live = live
        self.rounds = Rounds() if rounds is None else rounds
        self.oracle = LearnedThroughput() if oracle is None else oracle
        self.round_seconds = self.rounds.seconds
        self.options = SimulationOptions(
            round_seconds=self.rounds.seconds, every_gpu_count_up_to=self.rounds.every_gpu_count_up_to
        )
        self.turn = threading.Lock()
        self.layout_version = 0
        self.catalog: ConfigurationCatalog
        self.ledger: JobLedger
        self._event = threading.Event()
        self._stopping = False
        self._deciding = False
        self._layout: Layout | None = None
        self._jobs: list[JobRecord] = []
        self._position: dict[str, int] = {}
        self._asked: set[str] = set()
        self._observed: Mapping[int, Grant] = {}
        self._attempts: list[int] = []
        self._unadmitted: set[int] = set()
        self._loads = -1
        self._grants: dict[str, tuple[int, Grant]] = {}
        self._rates_version = -1
        self._fresh = True
        self.recording = Recording(self.oracle, last_round(live.store))
        self._began = 0.0
        self._applying = False
        live.on_change = self._event.set

    def close(self) -> None:
        """End the round that is waited for, and let no other one wait."""
        self._stopping = True
        self._event.set()

    def fail(self, reason: str) -> None:
        """The round failed: note that, as far as the store can be written, and give back the turn."""
        # A store that does not work is why rounds fail: it cannot be told that they do.
        with suppress(StoreError):
            self._store(self.recording.failed(reason, deciding=not self._applying))
        self.abandon()

    def abandon(self) -> None:
        """Give back the turn, if a round has it."""
        if self._deciding:
            self._deciding = False
            self.turn.release()

    def start_over(self) -> bool:
        """Get ready for a new scheduler, which remembers nothing.

        False while no node has registered, or, after a start, one that is known has not been heard from yet: jobs
        would be preempted for want of GPUs that are about to be there.
        """
        with self.live.lock:
            self.live.tick()
            if self.live.layout() is None or any(map(self.live.awaits, self.live.nodes)):
                return False
            # The ledger too is made anew, whatever policies may have left in it.
            self._jobs, self._position, self._layout = [], {}, None
            self._grants.clear()
            self._loads = -1
            self._asked.clear()
            self._fresh = True
            self.recording.start_over()
            self._rebuild(*self._look())
            return True

    def idle(self, seconds: float) -> None:
        """Let time pass, at most ``seconds``, until something happens."""
        self.live.clock.wait(self._event, seconds)
        self._event.clear()

    # -- the protocol --------------------------------------------------------------------------------------------------

    def observe(self) -> ClusterState:
        """What there is now; from here on ``turn`` is held."""
        self.turn.acquire()
        self._deciding = True
        self._event.clear()
        self.live.tick()
        # The cluster is held for moments only: agents and people want answers while thousands of jobs are gone through.
        rows, changed = self._rebuild(*self._look())
        assignment = self._assignment(self._wanted())
        self._show(assignment)
        with self.live.lock:
            unadmitted = [row for row, job in enumerate(self._jobs) if job.admitted_at is None]
            submitted = [row for row in unadmitted if self._jobs[row].job_id not in self._asked]
            self._asked.update(self._jobs[row].job_id for row in submitted)
            self._unadmitted = set(unadmitted)
            self._observed = assignment.grants
            self._attempts = [job.attempt for job in self._jobs]
        fresh, self._fresh = self._fresh, False
        assert self._layout is not None
        state = ClusterState(
            self.live.clock.now(),
            np.array(submitted, dtype=np.int64),
            assignment,
            self._layout.node_up,
            changed or fresh,
            None if fresh else rows,
        )
        self.recording.observed(Seen(state, self._jobs, self._layout, self.ledger, fresh or rows is not None))
        self._applying, self._began = False, time.monotonic()
        return state

    def apply(self, assignment: Assignment) -> None:
        """Admit, stop and start jobs; what has come to an end meanwhile stays so.

        A few hundred of them are one transaction, so that heartbeats are answered in between. The last one has the
        round too.
        """
        live, ledger = self.live, self.ledger
        seconds, self._applying = time.monotonic() - self._began, True
        before, after = self._observed, assignment.grants
        stop = [row for row, grant in before.items() if after.get(row) != grant]
        start = [row for row, grant in after.items() if before.get(row) != grant]
        started: list[int] = []
        noted: list[Noted] = []

        def begin(row: int) -> None:
            # What has just stopped is out of the way.
            live.settle()
            if self._start(row, after[row]):
                started.append(row)

        steps = [(self._admit, row) for row in ledger.active.tolist() if row in self._unadmitted]
        steps += [(self._reject, row) for row in np.flatnonzero(ledger.status == JobStatus.REJECTED).tolist()]
        steps += [(self._stop, row) for row in stop] + [(begin, row) for row in start]
        groups = [steps[first : first + MOST_TOGETHER] for first in range(0, len(steps), MOST_TOGETHER)] or [[]]
        self.recording.prepare()
        for number, group in enumerate(groups, 1):
            if number > 1:
                time.sleep(_GIVE_WAY)
            with live.change():
                for step, row in group:
                    step(row)
                if number == len(groups):
                    noted = self.recording.decided(Made(stop, {row: after[row] for row in start}, started), seconds)
                    self._note(noted)
        assignment = self._assignment(self._wanted(), assignment)
        self._show(assignment)
        if noted:
            self.recording.keep()
            self.recording.applied(assignment)

    def wait(self, order_changes: float = math.inf) -> Ran:
        """Let the round go by; see :class:`Rounds`."""
        self.abandon()
        live, clock = self.live, self.live.clock
        begin = ticked = clock.monotonic()
        end = begin + min(self.round_seconds, max(order_changes - clock.now(), self.rounds.shortest))
        happened, looked = False, -math.inf
        while (left := end - clock.monotonic()) > 0 and not self._stopping:
            if happened and (pause := looked + self.rounds.tick / 10 - clock.monotonic()) > 0:
                # Much may happen in a second: looking costs as much as deciding a little.
                clock.wait(_NEVER, min(pause, left))
                continue
            looked = clock.monotonic() if happened else looked
            if happened and self.rounds.end == "next_event" and self._has_idle_gpus():
                pause = self.rounds.shortest - (clock.monotonic() - begin)
                if pause <= 0:
                    break
                clock.wait(_NEVER, min(pause, left))
                continue
            happened = clock.wait(self._event, min(self.rounds.tick, left))
            self._event.clear()
            if clock.monotonic() - ticked >= self.rounds.tick or not happened:
                live.tick()
                ticked = clock.monotonic()
        with self.turn:
            return self._book()

    def snapshot(self) -> ClusterState:
        """The present state in the rows of the present table; only while ``turn`` is held."""
        assert self._layout is not None
        none, now = np.zeros(0, dtype=np.int64), self.live.clock.now()
        return ClusterState(now, none, self._assignment(self._wanted()), self._layout.node_up, False)

    def knows(self, job_id: str) -> bool:
        """Whether the job is in the present table."""
        return job_id in self._position

    # -- how they work -------------------------------------------------------------------------------------------------

    def _look(self) -> tuple[list[JobRecord], Layout]:
        """The jobs that may run, and the cluster."""
        with self.live.lock:
            jobs = [job for job in self.live.jobs.values() if job.outcome is None]
            layout = self.live.layout()
        assert layout is not None
        return in_order(jobs), layout

    def _rebuild(self, jobs: list[JobRecord], layout: Layout) -> tuple[IntArray | None, bool]:
        """Make table, catalog and ledger anew if jobs, nodes or rates have changed.

        Returns which row each job had, None if it is as before, and whether nodes have changed.
        """
        live = self.live
        same_nodes = self._layout is not None and _same(layout, self._layout)
        if (
            same_nodes
            and self._rates_version == self.oracle.version
            and [job.job_id for job in jobs] == [job.job_id for job in self._jobs]
        ):
            self._jobs = jobs
            return None, False
        if not same_nodes:
            self._grants.clear()
            self._layout = layout
            self.layout_version += 1
        assert self._layout is not None
        rows = np.array([self._position.get(job.job_id, -1) for job in jobs], dtype=np.int64)
        table = next_table(self.ledger.table, rows, jobs) if self._position else job_table(jobs)
        self._rates_version = self.oracle.version
        self.oracle.allow({job.job_id: job.spec.gpu_types for job in jobs if job.spec.gpu_types})
        for job in self._jobs:
            if job.job_id not in live.jobs:
                self.oracle.forget(job.job_id, job.spec.job_type)
        self.catalog = ConfigurationCatalog(
            table, self._layout.cluster, self.oracle, every_count_up_to=self.rounds.every_gpu_count_up_to
        )
        self.ledger = self.ledger.renumbered(rows, table) if self._position else JobLedger(table)
        self._jobs, self._position = jobs, {job.job_id: row for row, job in enumerate(jobs)}
        kept = set(self._position)
        self._asked &= kept
        admitted = np.isin(self.ledger.status, (JobStatus.WAITING, JobStatus.RUNNING))
        back = [row for row in np.flatnonzero(~admitted).tolist() if jobs[row].admitted_at is not None]
        if back:
            # Let in before this scheduler started.
            back.sort(key=lambda row: jobs[row].admitted_at or 0.0)
            self.ledger.admit(np.array(back, dtype=np.int64))
        return rows, not same_nodes

    def _wanted(self) -> dict[int, Grant]:
        """What should run by now, in the rows and GPU numbers of the present table and cluster."""
        position = self._position
        with self.live.lock:
            wanted = {position[job.job_id]: job for job in self.live.going() if job.wanted and job.job_id in position}
            grants = {row: self._grant(wanted[row]) for row in sorted(wanted)}
            self._grants = {wanted[row].job_id: (wanted[row].attempt, grant) for row, grant in grants.items()}
        return grants

    def _assignment(self, grants: Mapping[int, Grant], near: Assignment | None = None) -> Assignment:
        """The assignment with these grants; ``near`` is one over the same table that may have most of them."""
        empty = Assignment(self.catalog.cluster, self.catalog.table)
        try:
            if near is None:
                return empty.change((), grants)
            stop = [row for row, grant in near.grants.items() if grants.get(row) != grant]
            return near.change(stop, {row: grant for row, grant in grants.items() if near.grants.get(row) != grant})
        except CheckError:
            return self._what_fits(empty, grants)

    def _what_fits(self, assignment: Assignment, grants: Mapping[int, Grant]) -> Assignment:
        """The grants that a node can still hold that has fewer CPUs or less memory by now; the others are stopped."""
        with self.live.change():
            for row, grant in grants.items():
                try:
                    assignment = assignment.change((), {row: grant})
                except CheckError as error:
                    if (job := self._current(row)) is not None and job.wanted:
                        self.live.stop(job, f"its node has less than it needs: {error}")
        return assignment

    def _grant(self, job: JobRecord) -> Grant:
        layout = self._layout
        assert layout is not None
        attempt, known = self._grants.get(job.job_id, (0, None))
        if attempt == job.attempt and known is not None:
            return known
        runs = self.live.runs_of(job)
        nodes, gpus = [], []
        for run in runs:
            place = layout.position[run.node, run.gpu_type]
            slot, offset = layout.slots[place], int(layout.cluster.gpu_offset[place])
            nodes.append(place)
            gpus += [offset + slot.gpus.index(index) for index in run.gpus]
        kind = int(layout.cluster.node_gpu_type[nodes[0]])
        return Grant(kind, tuple(nodes), tuple(len(run.gpus) for run in runs), tuple(gpus))

    def _moved(self) -> Iterable[int]:
        """Rows of the jobs that have changed since this was last asked for; their records are those of now.

        The records of jobs that are over are as they were last.
        """
        live = self.live
        with live.lock:
            moved, live.moved = live.moved, set()
            if self._loads != live.loads:
                self._jobs = [live.jobs.get(job.job_id, job) for job in self._jobs]
                self._loads = live.loads
                return range(len(self._jobs))
        return [row for job_id in moved if (row := self._position.get(job_id)) is not None]

    def _admit(self, row: int) -> None:
        job = self._current(row)
        if job is not None and job.admitted_at is None:
            self.live.admit(job)

    def _reject(self, row: int) -> None:
        job = self._current(row)
        if job is not None and job.outcome is None:
            self.live.reject(job, self.ledger.refusals.get(row, "the admission turned it away"))

    def _stop(self, row: int) -> None:
        job = self._current(row)
        if job is not None and job.wanted and job.attempt == self._attempts[row]:
            self.live.preempt(job)

    def _current(self, row: int) -> JobRecord | None:
        """The job of a row as it is now; None if it is over."""
        return self.live.jobs.get(self._jobs[row].job_id)

    def _start(self, row: int, grant: Grant) -> bool:
        job, layout = self._current(row), self._layout
        if job is None or layout is None or job.attempt != self._attempts[row]:
            return False
        places: dict[str, list[int]] = {}
        at = 0
        for node, count in zip(grant.nodes, grant.counts, strict=True):
            slot, offset = layout.slots[node], int(layout.cluster.gpu_offset[node])
            places[slot.node] = sorted(slot.gpus[gpu - offset] for gpu in grant.gpus[at : at + count])
            at += count
        return self.live.start(job, layout.cluster.gpu_types[grant.gpu_type], places)

    def _show(self, assignment: Assignment) -> None:
        """Bring the ledger up to what the records say."""
        ledger, grants = self.ledger, assignment.grants
        running = np.fromiter(grants, dtype=np.int64, count=len(grants))
        ledger.status[ledger.active] = JobStatus.WAITING
        ledger.status[running] = JobStatus.RUNNING
        ledger.gpu_type[:], ledger.gpus[:] = -1, 0
        ledger.gpu_type[running] = [grant.gpu_type for grant in grants.values()]
        ledger.gpus[running] = [len(grant.gpus) for grant in grants.values()]
        ledger.nodes[running] = [len(grant.nodes) for grant in grants.values()]
        self._show_progress()

    def _show_progress(self) -> None:
        moved = self._moved()  # before self._jobs: that may put other records there
        show_progress(self.ledger, self._jobs, moved, self.round_seconds)
        self.ledger.num_finished = self.live.finished_jobs

    def _has_idle_gpus(self) -> bool:
        """Whether GPUs that may be used are free, or other nodes are there than the round was decided for."""
        with self.live.lock:
            layout = self.live.layout()
            if layout is None or self._layout is None or not _same(layout, self._layout):
                return True
            held = sum(map(len, self.live.held_gpus().values()))
            return sum(len(slot.gpus) for slot in layout.slots if slot.up) > held

    def _book(self) -> Ran:
        """Note what ran since the last time, and learn from it."""
        live = self.live
        with live.lock:
            going = [job.job_id for job in live.going()]
        for first in range(0, len(going), MOST_TOGETHER):
            time.sleep(_GIVE_WAY)
            with live.change():
                live.book_some(going[first : first + MOST_TOGETHER])
        with live.change():
            live.store_booked()
            spells = live.take_spells()
        spells = [spell for spell in spells if spell.job_id in self._position]
        for job_id in going:
            if (job := live.jobs.get(job_id)) is not None and job.wanted:
                self._learn(job)
        self._show_progress()
        self.recording.ran(spells, self.ledger.num_finished)
        code = {name: index for index, name in enumerate(self.catalog.cluster.gpu_types)}
        return Ran(
            np.array([self._position[spell.job_id] for spell in spells], dtype=np.int64),
            np.array([code[spell.gpu_type] for spell in spells], dtype=np.int64),
            np.array([spell.num_gpus for spell in spells], dtype=np.int64),
            np.array([spell.seconds for spell in spells], dtype=np.float64),
        )

    def _learn(self, job: JobRecord) -> None:
        """What the job reports of its rate, if it is counted in the steps of its user's word."""
        runs = self.live.runs_of(job)
        if job.spec.total_steps is None or not runs:
            return
        rates = [rate for run in runs if (rate := self.live.watches[run.key].steps_per_second) is not None]
        if rates:
            gpus = sum(len(run.gpus) for run in runs)
            self.oracle.learn(job.job_id, job.spec.job_type, runs[0].gpu_type, gpus, max(rates))

    def _store(self, noted: list[Noted]) -> None:
        """Store the events of a round in a change of their own."""
        if noted:
            with self.live.change():
                self._note(noted)
            self.recording.keep()

    def _note(self, noted: Iterable[Noted]) -> None:
        """Within a change: add the events of a round."""
        for event in noted:
            self.live.note(event.kind, "", **event.data)


def _same(one: Layout, other: Layout) -> bool:
    return one is other or (one.slots == other.slots and one.cluster.nodes == other.cluster.nodes)


_NEVER = threading.Event()
"""Is never set: for pauses."""
