"""Submissions: what many threads submit at once is stored together, and what comes again is known."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bloxopt.errors import BloxoptError
from bloxopt.runtime.live.faults import ConflictError
from bloxopt.runtime.live.state import LiveState
from bloxopt.runtime.messages import JobSpec
from bloxopt.runtime.store import JobRecord


@dataclass(slots=True)
class Submission:
    """Jobs to be stored, and what became of that."""

    user: str
    specs: Sequence[JobSpec]
    key: str | None
    jobs: list[JobRecord] | None = None
    error: BloxoptError | None = None

    def name_of(self, number: int) -> str:
        """What a job of it is known by, for the submission to be known when it comes again."""
        return f"{self.user}/{self.key}/{number}"


class Submissions:
    """New jobs for a live cluster."""

    def __init__(self, live: LiveState) -> None:
        self.live = live
        self._waiting: list[Submission] = []
        self._lock = threading.Lock()

    def submit(self, user: str, specs: Sequence[JobSpec], key: str | None = None) -> list[JobRecord]:
        """New jobs of a user, all or none. Under a ``key`` that was used before, the jobs of that time.

        What many threads submit at once is stored together. Raises
        :class:`~bloxopt.runtime.live.faults.ConflictError` for a key under which other jobs were submitted, and
        :class:`~bloxopt.errors.StoreError` if the jobs could not be stored: then they may be submitted again.
        """
        mine = Submission(user, specs, key)
        with self._lock:
            self._waiting.append(mine)
        with self.live.lock:
            # Whoever had the lock before may have stored these with its own.
            if mine.jobs is None and mine.error is None:
                with self._lock:
                    together, self._waiting = self._waiting, []
                self._submit(together)
        if mine.error is not None:
            raise mine.error
        assert mine.jobs is not None
        return mine.jobs

    def _submit(self, together: list[Submission]) -> None:
        made: list[tuple[Submission, list[JobRecord]]] = []
        try:
            with self.live.change():
                stored = self._submitted_before(together)
                for submission in together:
                    try:
                        jobs = self._repeated(submission, stored)
                        if jobs is None:
                            jobs = self._enter(submission)
                            for number, job in enumerate(jobs):
                                if job.submission_key is not None:
                                    stored[submission.name_of(number)] = job.job_id
                        made.append((submission, jobs))
                    except ConflictError as error:
                        submission.error = error
                self.live.changed()
        except BloxoptError as error:
            for submission in together:
                submission.error = submission.error or error
            return
        for submission, jobs in made:
            submission.jobs = jobs

    def _submitted_before(self, together: list[Submission]) -> dict[str, str]:
        # One more for each than it has jobs: jobs beyond these would be another submission.
        names = [
            submission.name_of(number)
            for submission in together
            if submission.key is not None
            for number in range(len(submission.specs) + 1)
        ]
        return self.live.store.submitted(names) if names else {}

    def _repeated(self, submission: Submission, stored: Mapping[str, str]) -> list[JobRecord] | None:
        """The jobs of a submission that was made before; None for a new one."""
        specs = submission.specs
        found = [stored.get(submission.name_of(number)) for number in range(len(specs) + 1)]
        if submission.key is None or not any(found):
            return None
        jobs = [self.live.find(job_id) for job_id in found if job_id is not None]
        if [job.spec for job in jobs] != list(specs):
            raise ConflictError(
                f"other jobs were submitted with the idempotency key {submission.key!r}: use a new key for other jobs"
            )
        return jobs

    def _enter(self, submission: Submission) -> list[JobRecord]:
        now = self.live.clock.now()
        jobs: list[JobRecord] = []
        for number, spec in enumerate(submission.specs):
            job_id = f"{spec.name[:48]}-{secrets.token_hex(5)}"
            key = None if submission.key is None else submission.name_of(number)
            # Jobs that come together keep their order.
            job = JobRecord(job_id, submission.user, spec, now + number * 1e-6, submission_key=key)
            self.live.jobs[job_id] = job
            self.live.save_job(job, new=True)
            plain = spec.model_dump(mode="json", exclude_defaults=True)
            self.live.note("job.submitted", job_id, user=job.user, submitted_at=job.submitted_at, spec=plain)
            jobs.append(job)
        return jobs
