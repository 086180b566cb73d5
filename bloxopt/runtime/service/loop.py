"""The thread that decides rounds, one after the other, whatever goes wrong in one of them."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial

from bloxopt.anytime import Ladder
from bloxopt.decisions import Round
from bloxopt.errors import BloxoptError
from bloxopt.experiments.store import versions
from bloxopt.explanations.reasons import Explanation, Reason
from bloxopt.formulations.allocation import Allocation
from bloxopt.rounds import Scheduler
from bloxopt.runtime.backend import ClusterState
from bloxopt.runtime.live import LiveBackend
from bloxopt.runtime.live.memory import memory_data
from bloxopt.runtime.messages import JobStatus
from bloxopt.runtime.service.config import ServiceConfig
from bloxopt.runtime.service.copies import Copy
from bloxopt.runtime.service.explaining import Explainer
from bloxopt.runtime.service.logging import log
from bloxopt.runtime.service.metrics import Metrics
from bloxopt.runtime.store import JobRecord

_PAUSE = 1.0
"""Seconds after a round that failed, or while no node has registered."""

_OVER = {
    JobStatus.SUCCEEDED: "it has succeeded",
    JobStatus.FAILED: "it has failed",
    JobStatus.CANCELLED: "it was cancelled",
    JobStatus.REJECTED: "it was rejected",
}


class RoundLoop:
    """Rounds over a live backend in a thread of their own.

    A round that fails is logged and counted; jobs go on as they are, and the next one starts with a scheduler that
    remembers nothing.
    """

    def __init__(self, config: ServiceConfig, backend: LiveBackend, metrics: Metrics) -> None:
        self.config, self.backend, self.metrics = config, backend, metrics
        self.failure = ""
        """Why the last round failed, "" if it did not."""
        self._scheduler: Scheduler | None = None
        self._ladder = None if not config.rounds.budget else Ladder(config.rounds.budget)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rounds", daemon=True)
        self._layout_version = 0
        self.explainer = Explainer()
        self._copied: Copy | None = None
        backend.recording.header = {"config": config.decisions(), "versions": versions()}

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, after the round that is being decided. Jobs go on."""
        self._stopped.set()
        self.backend.close()
        self._thread.join()
        if self._ladder is not None:
            self._ladder.close()
        self.explainer.close()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.turn()
            except Exception as error:
                self.note_failure(error)
                self._stopped.wait(_PAUSE)

    def note_failure(self, error: Exception) -> None:
        """A round ended in an error: the next one begins anew."""
        known = isinstance(error, BloxoptError)
        self.failure = str(error) if known else f"{type(error).__name__}: {error}"
        log.error("a round failed", exc_info=None if known else error, extra={"reason": self.failure})
        self.metrics.failures.inc()
        self._scheduler = self._copied = None
        self.backend.fail(self.failure)

    def turn(self) -> Round | None:
        """One round; None while there is no node to decide for."""
        if self._scheduler is None:
            if not self.backend.start_over():
                self.backend.idle(_PAUSE)
                return None
            self._scheduler = self.config.make_scheduler(self.backend, self._ladder)
            self._scheduler.before_round = self._before
            self._scheduler.inspect = self._planned
            self._layout_version = self.backend.layout_version
        record = self._scheduler.run_round()
        self.metrics.observe(record)
        self.failure = ""
        if record.started or record.stopped or record.late_seconds > 0:
            made = record.allocation
            log.info(
                "round",
                extra={
                    "active": record.active,
                    "running": record.running,
                    "started": record.started,
                    "stopped": record.stopped,
                    "decide_seconds": round(record.decide_seconds, 4),
                    "late_seconds": round(record.late_seconds, 4),
                    "rung": None if made is None else made.rung,
                    "solver": None if made is None else made.solver,
                    "build_seconds": None if made is None else round(made.build_seconds, 4),
                    "solve_seconds": None if made is None else round(made.solve_seconds, 4),
                },
            )
        return record

    def _before(self, scheduler: Scheduler, state: ClusterState) -> None:
        if self.backend.layout_version != self._layout_version:
            # A placement may have worked something out for the cluster as it was.
            scheduler.placement = self.config.make_placement()
            self._layout_version = self.backend.layout_version
        told = self.backend.recording.remember(partial(memory_data, scheduler, state))
        if told and scheduler.resolver is not None:
            # What solvers begin from is not told: whoever goes on from the record has nothing either.
            scheduler.resolver.forget()

    def _planned(self, allocation: Allocation, _: object) -> None:
        self.backend.recording.planned(allocation)

    def explain(self, job: JobRecord, remedies: bool, horizon: float) -> Explanation:
        """Why a job waits, worked out in another process on a copy of the scheduler that is made once a round.

        Raises what :meth:`~bloxopt.runtime.service.explaining.Explainer.answer` raises.
        """
        answer = Explanation(job.job_id, self.backend.live.clock.now(), Reason.NOT_SUBMITTED, "")
        if job.final:
            reason = Reason.REJECTED if job.status is JobStatus.REJECTED else Reason.FINISHED
            detail = f"{_OVER[job.status]}: {job.reason}" if job.reason else _OVER[job.status]
            return replace(answer, reason=reason, detail=detail)
        if job.outcome is not None:
            return replace(answer, reason=Reason.FINISHED, detail=f"it is being stopped: {job.reason}")
        # A round that has failed would fail on a copy too.
        found = None
        if not self.failure:
            found = self.explainer.answer(partial(self._copy, job.job_id), job.job_id, remedies, horizon)
        if found is not None:
            return found
        why = self._no_round()
        if not why:
            return replace(answer, detail="it was submitted a moment ago, and the next round decides on it")
        if job.wanted:
            return replace(answer, reason=Reason.RUNNING, detail=f"it goes on as it is: {why}")
        return replace(answer, reason=Reason.NO_ROUND, detail=why)

    def _no_round(self) -> str:
        """Why no round is decided, "" if rounds are."""
        if self.failure:
            return f"the last round failed, and it is tried again: {self.failure}"
        live = self.backend.live
        with live.lock:
            if live.layout() is None:
                return "no node has registered yet"
            awaited = sorted(name for name in live.nodes if live.awaits(name))
        if self._scheduler is None and awaited:
            shown = ", ".join(awaited[:8]) + (", …" if len(awaited) > 8 else "")
            return f"no round is decided before nodes that were there are heard from: {shown}"
        return ""

    def copy(self) -> Copy | None:
        """A copy of the scheduler and what it sees now, in the jobs of the last round; None before the first."""
        with self.backend.turn:
            return None if self._scheduler is None else Copy.of(self._scheduler, self.backend.snapshot())

    def _copy(self, job_id: str) -> Copy | None:
        """A copy that may be a moment old; None where the job is not in it yet."""
        last = self._copied
        if last is None or last.scheduler is not self._scheduler or self._age(last) > _PAUSE:
            last = self._copied = self.copy()
        return last if last is not None and job_id in last.position else None

    def _age(self, copied: Copy) -> float:
        return self.backend.live.clock.now() - copied.made_at
