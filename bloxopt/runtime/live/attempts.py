"""The life of attempts: when one begins, when agents may hear of it, how it ends, and what becomes of its job then."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from bloxopt.runtime.live.booking import Booking
from bloxopt.runtime.live.clock import Clock
from bloxopt.runtime.live.nodes import usable_gpus
from bloxopt.runtime.live.pace import Pace
from bloxopt.runtime.live.terms import LOST, LeaseTerms, Watch
from bloxopt.runtime.messages import GpuHealth, JobStatus, RunState
from bloxopt.runtime.store import JobRecord, RunRecord, Store

MASTER_PORTS = range(20_000, 28_000)
"""Ports at which the first rank of a job listens: below those that systems hand out by themselves."""


class Attempts(Booking):
    """Starts and stops attempts, and judges jobs by what their runs did."""

    def __init__(self, store: Store, terms: LeaseTerms | None = None, clock: Clock | None = None) -> None:
        super().__init__(store, terms, clock)
        self.pace = Pace(self.terms.heartbeat_seconds)

    def settle(self) -> None:
        """Within a change: see what becomes of the jobs whose runs have changed."""
        for job_id in list(self.touched):
            self._judge(self.jobs[job_id])
        self.touched.clear()

    def start(self, job: JobRecord, gpu_type: str, places: Mapping[str, Sequence[int]]) -> bool:
        """Within a change: a new attempt on GPUs ``places`` (indices by node) of one type; False if it cannot be.

        It cannot where a node or GPU is not usable any more, or another wanted attempt has it.
        """
        if job.final or job.outcome is not None or job.wanted:
            return False
        for name, gpus in places.items():
            there = set(gpus)
            if not there <= usable_gpus(self.nodes[name], self.state(name)):
                return False
            if not there.isdisjoint(self.held_gpus().get(name, ())):
                return False
        now = self.clock.now()
        job.attempt += 1
        job.wanted = True
        job.reason = ""
        job.started_at = now if job.started_at is None else job.started_at
        self._prune(job)
        per_gpu = job.spec.processes == "per_gpu"
        world = sum(map(len, places.values())) if per_gpu else len(places)
        first_node = next(iter(places))
        port = self._free_port(first_node)
        rank = 0
        for node_rank, (name, gpus) in enumerate(places.items()):
            run = RunRecord(
                job.job_id,
                job.attempt,
                name,
                node_rank,
                len(places),
                gpu_type,
                sorted(gpus),
                rank,
                world,
                self.nodes[first_node].address,
                port,
                now,
            )
            self._keep(run)
            self.watches[run.key] = Watch(self.clock.monotonic())
            self.pace.moved(name, self.clock.monotonic())
            self.save_run(run)
            rank += len(gpus) if per_gpu else 1
        self.save_job(job)
        self.touched.add(job.job_id)
        self.note(
            "attempt.started",
            job.job_id,
            attempt=job.attempt,
            gpu_type=gpu_type,
            gpus={name: sorted(gpus) for name, gpus in places.items()},
        )
        return True

    def _free_port(self, node: str) -> int:
        used = {run.master_port for run in self._on_node[node].values()}
        offset = secrets.randbelow(len(MASTER_PORTS))
        return next(
            port
            for k in range(len(MASTER_PORTS))
            if (port := MASTER_PORTS[(offset + k) % len(MASTER_PORTS)]) not in used
        )

    def _prune(self, job: JobRecord) -> None:
        """Forget former attempts that are over."""
        runs = self._of_job[job.job_id]
        going = {run.attempt for run in runs if not run.ended}
        self._of_job[job.job_id] = [run for run in runs if run.attempt in going]
        for run in runs:
            if run.attempt not in going:
                self._runs.pop(run.key, None)
                self.watches.pop(run.key, None)

    def desired_on(self, name: str) -> list[RunRecord]:
        """The runs that the agent of a node may be told of now."""
        return [
            run
            for run in self._on_node[name].values()
            if self.is_wanted(run) and (run.told or self._may_be_told(self.jobs[run.job_id]))
        ]

    def _may_be_told(self, job: JobRecord) -> bool:
        """Whether nothing is in the way of the job's last attempt: its former attempts, or other runs on its GPUs."""
        runs = self.runs_of(job)
        if any(run.told for run in runs):
            return True
        if any(run.attempt < job.attempt and not run.ended for run in self._of_job[job.job_id]):
            return False
        for run in runs:
            if self.contacts[run.node].strays:
                return False
            for other in self._on_node[run.node].values():
                if other.told and other.job_id != job.job_id and set(other.gpus) & set(run.gpus):
                    return False
        strays = [stray for name in self.with_strays for stray in self.contacts[name].strays]
        return not any(job_id == job.job_id for job_id, _ in strays)

    def stop(self, job: JobRecord, reason: str, outcome: JobStatus | None = None, news: bool = True) -> None:
        """Within a change: the job's attempt is not wanted any more. When it has ended the job waits again, or has that
        outcome. ``news``: the next round does not know of it yet."""
        self.book(job)
        if job.wanted and outcome is not JobStatus.SUCCEEDED:
            self.note("attempt.stopped", job.job_id, attempt=job.attempt, reason=reason)
        job.wanted = False
        job.outcome = outcome or job.outcome
        job.reason = reason
        now = self.clock.monotonic()
        for run in self.unended(job):
            self._held_anew.add(run.node)
            if not run.told:
                self.close(run, message="not started")
            elif self.watches[run.key].stopping is None:
                self.watches[run.key].stopping = now
                self._stopping.add(run.key)
                self.pace.moved(run.node, now)
        self.save_job(job)
        self.touched.add(job.job_id)
        if news:
            self.changed()

    def close(self, run: RunRecord, **facts: Any) -> None:
        """Within a change: the run is over, with these ``facts``."""
        self.book(self.jobs[run.job_id])
        run.state = RunState.ENDED
        run.ended_at = self.clock.now()
        for name, value in facts.items():
            setattr(run, name, value)
        self._ends(run)
        self.save_run(run)
        self.touched.add(run.job_id)
        if run.told:
            self.note(
                "run.ended",
                run.job_id,
                attempt=run.attempt,
                node=run.node,
                exit_code=run.exit_code,
                preempted=run.preempted,
                lost=run.lost,
                message=run.message,
            )

    def _judge(self, job: JobRecord) -> None:
        """What becomes of the job by what its runs did."""
        if job.final:
            return
        if self._succeeded(job):
            self.stop(job, "", JobStatus.SUCCEEDED)
            job.exit_code = 0
        elif job.wanted:
            broken = [run for run in self.runs_of(job) if run.ended and not run.done]
            if broken:
                self._broke(job, broken)
        running = self.unended(job)
        before = job.status
        if job.wanted:
            current = self.runs_of(job)
            up = all(run.ended or run.state is RunState.RUNNING for run in current)
            job.status = JobStatus.RUNNING if up else JobStatus.STARTING
        elif running:
            job.status = JobStatus.STOPPING
        elif job.outcome is not None:
            job.status = job.outcome
            job.finished_at = self.clock.now()
            self.note("job.ended", job.job_id, status=job.status.value, reason=job.reason, steps=job.steps)
        else:
            job.status = JobStatus.PENDING
        if job.status is not before:
            self.save_job(job)

    def _succeeded(self, job: JobRecord) -> bool:
        """Whether some attempt has ended by itself, with success everywhere, even if it was to stop by then."""
        every = self._of_job.get(job.job_id, ())
        if not any(run.done for run in every):
            return False
        attempts: dict[int, list[RunRecord]] = defaultdict(list)
        for run in every:
            attempts[run.attempt].append(run)
        return any(len(runs) == runs[0].num_nodes and all(run.done for run in runs) for runs in attempts.values())

    def _broke(self, job: JobRecord, broken: list[RunRecord]) -> None:
        """A wanted attempt has a run that ended without success."""
        failed = [run for run in broken if not run.preempted and not run.lost]
        failed.sort(key=lambda run: (run.ended_at or 0.0, run.node_rank))
        if not failed:
            self.stop(job, LOST if broken[0].lost else f"stopped on node {broken[0].node}: {broken[0].message}")
            return
        run = failed[0]
        if any(gpu.health is GpuHealth.FAILED and gpu.index in run.gpus for gpu in self.nodes[run.node].gpus):
            # Not the job's own fault, so none of its retries is spent.
            self.stop(job, f"a GPU of node {run.node} has failed")
            return
        job.exit_code = run.exit_code
        how = "could not be started" if run.exit_code is None else f"ended with exit code {run.exit_code}"
        reason = f"{how} on node {run.node}" + (f": {run.message}" if run.message else "")
        if job.retries < job.spec.max_retries:
            job.retries += 1
            self.stop(job, f"{reason}; starts again (retry {job.retries} of {job.spec.max_retries})")
        else:
            self.stop(job, reason, JobStatus.FAILED)
