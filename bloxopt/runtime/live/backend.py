"""The backend over real nodes: rounds are observed, their decisions applied and recorded, and what ran is booked."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from bloxopt.errors import StoreError
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.backend import ClusterState, Ran
from bloxopt.runtime.live.cluster import LiveCluster
from bloxopt.runtime.live.observing import Observing
from bloxopt.runtime.live.recording import Made, Noted, Recording, Seen, last_round
from bloxopt.runtime.live.terms import Rounds
from bloxopt.runtime.live.throughput import LearnedThroughput
from bloxopt.runtime.resources import Grant
from bloxopt.simulation.options import SimulationOptions
from bloxopt.state import JobStatus

MOST_TOGETHER = 256
"""Jobs that are stopped or started in one transaction."""

_ANSWERS_TOGETHER = 1024
"""Jobs that are admitted or turned away in one, which is less work."""

_GIVE_WAY = 0.001
"""Seconds between two of them: whoever takes a lock again at once takes it before those who wait for it wake up."""


_Step = tuple[Callable[[int], None], int]
"""What is to be done with the job of a row."""


class LiveBackend(Observing):
    """A :class:`~bloxopt.runtime.backend.Backend` over a :class:`LiveCluster`.

    ``turn`` is held from when a round is observed until it is applied: whoever else wants the table, the ledger and
    the cluster to fit each other takes it.
    """

    def __init__(
        self, live: LiveCluster, rounds: Rounds | None = None, oracle: LearnedThroughput | None = None
    ) -> None:
        super().__init__(live, rounds, oracle)
        self.options = SimulationOptions(
            round_seconds=self.rounds.seconds, every_gpu_count_up_to=self.rounds.every_gpu_count_up_to
        )
        self.recording = Recording(self.oracle, last_round(live.store))
        self._event = threading.Event()
        self._stopping = False
        self._deciding = False
        self._learned: dict[str, tuple[int, float | None]] = {}
        self._observed: Mapping[int, Grant] = {}
        self._attempts: list[int] = []
        self._unadmitted: set[int] = set()
        self._began = 0.0
        self._applying = False
        live.on_change = self._event.set

    def start_over(self) -> bool:
        """Get ready for a new scheduler, as :meth:`Observing.start_over` says; the record begins anew too."""
        ready = super().start_over()
        if ready:
            self.recording.start_over()
        return ready

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

        answers = [(self._admit, row) for row in ledger.active.tolist() if row in self._unadmitted]
        answers += [(self._reject, row) for row in np.flatnonzero(ledger.status == JobStatus.REJECTED).tolist()]
        moves = [(self._stop, row) for row in stop] + [(begin, row) for row in start]
        groups = [*_groups(answers, _ANSWERS_TOGETHER), *_groups(moves, MOST_TOGETHER)] or [[]]
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

    # -- how they work -------------------------------------------------------------------------------------------------

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
        self._learn(going)
        self._show_progress()
        self.recording.ran(spells, self.ledger.num_finished)
        code = {name: index for index, name in enumerate(self.catalog.cluster.gpu_types)}
        return Ran(
            np.array([self._position[spell.job_id] for spell in spells], dtype=np.int64),
            np.array([code[spell.gpu_type] for spell in spells], dtype=np.int64),
            np.array([spell.num_gpus for spell in spells], dtype=np.int64),
            np.array([spell.seconds for spell in spells], dtype=np.float64),
        )

    def _learn(self, going: Iterable[str]) -> None:
        """What jobs report of their rates that is news, of those counted in the steps of their users' word."""
        live, before = self.live, self._learned
        self._learned = {}
        for job_id in going:
            job = live.jobs.get(job_id)
            if job is None or not job.wanted or job.spec.total_steps is None:
                continue
            said = (job.attempt, job.steps_per_second)
            if said != before.get(job_id):
                runs = live.runs_of(job)
                rates = [rate for run in runs if (rate := live.watches[run.key].steps_per_second) is not None]
                if not rates:
                    continue
                gpus = sum(len(run.gpus) for run in runs)
                self.oracle.learn(job_id, job.spec.job_type, runs[0].gpu_type, gpus, max(rates))
            self._learned[job_id] = said

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


def _groups(steps: Sequence[_Step], most: int) -> list[Sequence[_Step]]:
    """All of them in order, so many together at most."""
    return [steps[first : first + most] for first in range(0, len(steps), most)]


_NEVER = threading.Event()
"""Is never set: for pauses."""
