"""What jobs have had: time on GPUs, and steps."""

from __future__ import annotations

import math
from collections.abc import Iterable

from bloxopt.runtime.live.clock import Clock
from bloxopt.runtime.live.state import LiveState
from bloxopt.runtime.live.terms import LeaseTerms, Spell
from bloxopt.runtime.store import JobRecord, Store

STORED_EVERY = 60.0
"""Seconds after which what a running job has had is stored, if nothing else became of it. A scheduler that is killed
may forget so much of it; where a job is in its life is never forgotten."""


class Booking(LiveState):
    """Keeps account of the time that jobs have GPUs, and of the steps that they report."""

    def __init__(self, store: Store, terms: LeaseTerms | None = None, clock: Clock | None = None) -> None:
        super().__init__(store, terms, clock)
        self._booked_at = self.clock.monotonic()
        self._to_store: dict[str, None] = {}

    def book_some(self, job_ids: Iterable[str]) -> None:
        """Within a change: book those of the jobs that go on, to be stored when it is their turn."""
        now = self.clock.monotonic()
        for job_id in job_ids:
            if job_id in self._num_unended:
                self._book(self.jobs[job_id], now)
                self._to_store.setdefault(job_id)

    def store_booked(self) -> None:
        """Within a change: store what a part of the jobs have had, those first whose turn it is."""
        now = self.clock.monotonic()
        part = min((now - self._booked_at) / STORED_EVERY, 1.0)
        self._booked_at = now
        for job_id in list(self._to_store)[: math.ceil(part * len(self._num_unended))]:
            del self._to_store[job_id]
            if job_id in self._num_unended:
                self.save_job(self.jobs[job_id])

    def book(self, job: JobRecord) -> None:
        """Within a change: add the time since the last booking to what the job has had, and store that.

        A job has its GPUs from when an agent was told of it until its runs have ended. Steps are those that it reports.
        """
        if self._book(job, self.clock.monotonic()):
            self.save_job(job)

    def _book(self, job: JobRecord, now: float) -> bool:
        """Book the time up to ``now`` (monotonic s); False if there is nothing to book."""
        runs = [run for run in self._of_job.get(job.job_id, ()) if run.told and not run.ended]
        if not runs:
            self._booked.pop(job.job_id, None)
            return False
        seconds = now - self._booked.get(job.job_id, now)
        self._booked[job.job_id] = now
        gpus = sum(len(run.gpus) for run in runs)
        job.attained_seconds += seconds
        job.attained_service += seconds * gpus
        if seconds > 0:
            self._spells.append(Spell(job.job_id, runs[0].gpu_type, gpus, seconds))
        self.book_steps(job, runs[0].attempt)
        self.moved.add(job.job_id)
        return True

    def book_steps(self, job: JobRecord, attempt: int) -> None:
        """Within a change: the job is as far as its ``attempt`` has reported.

        Only the last attempt that was told reports anything: others wait until it is over.
        """
        watches = [self.watches[run.key] for run in self._of_job[job.job_id] if run.attempt == attempt]
        steps = [watch.steps for watch in watches if watch.steps is not None]
        if steps:
            job.steps = max(steps)
        rates = [watch.steps_per_second for watch in watches if watch.steps_per_second is not None]
        if rates:
            job.steps_per_second = max(rates)

    def take_spells(self) -> list[Spell]:
        """What ran and was booked since this was last asked for."""
        spells, self._spells = self._spells, []
        return spells
