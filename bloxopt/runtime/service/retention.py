"""The thread that forgets what is old: output, events and finished jobs, a little at a time."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bloxopt.errors import StoreError
from bloxopt.runtime.live import Clock
from bloxopt.runtime.service.config import RetentionSection
from bloxopt.runtime.service.logging import log
from bloxopt.runtime.service.logs import LogFolder
from bloxopt.runtime.service.metrics import Metrics
from bloxopt.runtime.service.tokens import Tokens
from bloxopt.runtime.store import Store
from bloxopt.runtime.store.pruning import ROWS, delete_jobs, over_before, prunable_jobs, prune_events, shrink

_DAY = 86_400.0
_FIRST = 60.0
"""Seconds after its start that the scheduler has for itself."""
_SHARE = 4.0
"""The pause after a step, in times of what the step took."""
_TOGETHER = 500
"""Folders of output that are looked up at once."""


@dataclass(slots=True)
class Pruned:
    """What was deleted: output of ``outputs`` jobs of ``output_bytes``, ``events``, ``jobs`` and ``tokens``;
    ``file_bytes`` by which the database has become smaller."""

    outputs: int = 0
    output_bytes: int = 0
    events: int = 0
    jobs: int = 0
    tokens: int = 0
    file_bytes: int = 0


class Retention:
    """Prunes the store, tokens and the output of jobs from time to time, and stores when tokens were used.

    A turn that fails is logged and counted, and the next one goes on from there.
    """

    def __init__(
        self, limits: RetentionSection, store: Store, logs: LogFolder, tokens: Tokens, clock: Clock, metrics: Metrics
    ) -> None:
        self.limits, self._store, self._logs, self._tokens = limits, store, logs, tokens
        self._clock, self._metrics = clock, metrics
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, after the step that is being made."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        interval = self.limits.interval_seconds
        pause = min(_FIRST, interval)
        while not self._stopped.wait(pause):
            pause = interval
            try:
                self._tokens.save_use()
                self.turn()
            except Exception as error:
                known = isinstance(error, StoreError)
                log.error("old data was not pruned", exc_info=None if known else error, extra={"reason": str(error)})
                self._metrics.retention_failures.inc()

    def turn(self) -> Pruned:
        """Prune all that is old by now; raises :class:`~bloxopt.errors.StoreError` where that fails."""
        now, done = self._clock.now(), Pruned()
        try:
            for _ in self._steps(now, done):
                pass
            self._metrics.last_retention.set(now)
        finally:
            self._tell(done)
        return done

    def _steps(self, now: float, done: Pruned) -> Iterator[None]:
        """One short step after the other, each with a pause that leaves the store to others."""
        parts = (self._output, self._jobs, self._events, self._old_tokens)
        steps = itertools.chain.from_iterable(part(now, done) for part in parts)
        began = time.monotonic()
        for _ in itertools.chain(steps, self._file(done)):
            if self._stopped.wait(_SHARE * (time.monotonic() - began)):
                return
            yield
            began = time.monotonic()

    def _output(self, now: float, done: Pruned) -> Iterator[None]:
        if not self.limits.output_days:
            return
        before = now - self.limits.output_days * _DAY
        names = self._logs.jobs()
        while together := list(itertools.islice(names, _TOGETHER)):
            for job_id in over_before(self._store, together, before):
                done.output_bytes += self._logs.prune(job_id)
                done.outputs += 1
                yield
            yield

    def _jobs(self, now: float, done: Pruned) -> Iterator[None]:
        if not self.limits.jobs_days:
            return
        for job_ids in prunable_jobs(self._store, now - self.limits.jobs_days * _DAY):
            for job_id in job_ids:
                done.output_bytes += self._logs.prune(job_id)
            delete_jobs(self._store, job_ids)
            for job_id in job_ids:
                self._logs.forget(job_id)
            done.jobs += len(job_ids)
            yield

    def _events(self, now: float, done: Pruned) -> Iterator[None]:
        if not self.limits.events_days:
            return
        for count in prune_events(self._store, now - self.limits.events_days * _DAY):
            done.events += count
            yield

    def _old_tokens(self, now: float, done: Pruned) -> Iterator[None]:
        if not self.limits.tokens_days:
            return
        while count := self._tokens.prune(now - self.limits.tokens_days * _DAY, ROWS):
            done.tokens += count
            yield

    def _file(self, done: Pruned) -> Iterator[None]:
        for count in shrink(self._store):
            done.file_bytes += count
            yield

    def _tell(self, done: Pruned) -> None:
        metrics = self._metrics
        counts = {"output": done.outputs, "events": done.events, "jobs": done.jobs, "tokens": done.tokens}
        for what, count in counts.items():
            metrics.pruned.labels(what).inc(count)
        metrics.pruned_bytes.inc(done.output_bytes)
        if done != Pruned():
            log.info(
                "old data was pruned",
                extra={
                    "outputs": done.outputs,
                    "output_bytes": done.output_bytes,
                    "events": done.events,
                    "jobs": done.jobs,
                    "tokens": done.tokens,
                    "file_bytes": done.file_bytes,
                },
            )
