"""The workload in a log: the jobs that came, the work they turned out to have, and the nodes there were, as a trace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bloxopt.cluster import Cluster, Node
from bloxopt.errors import InputError
from bloxopt.jobs import JobTable
from bloxopt.runtime.live.recording import ROUND, SNAPSHOT
from bloxopt.runtime.live.table import gpu_range, work
from bloxopt.runtime.live.throughput import LearnedThroughput
from bloxopt.runtime.messages import JobSpec, JobStatus
from bloxopt.runtime.replay.log import LogEvent, reading
from bloxopt.runtime.replay.shape import check_shape
from bloxopt.runtime.service.config import ServiceConfig
from bloxopt.simulation.failures import Outage
from bloxopt.workloads.trace import Trace

ENDED = "job.ended"
KINDS = (ROUND, SNAPSHOT, ENDED)
"""Kinds of the events that are read."""

_LEAST = 1e-3
"""Part of its work that a job which was cancelled at once has at least."""


@dataclass(eq=False)
class LiveJob:
    """What became of a job: when it came and ended (absolute s), how, and what it had by then.

    ``before`` (GPU-s, steps) it had had when the log begins; ``service`` (GPU-s) in all.
    """

    job_id: str
    user: str
    spec: JobSpec
    submitted_at: float
    before: float = 0.0
    left_before: float | None = None
    left: float | None = None
    service: float = 0.0
    preemptions: int = 0
    ended_at: float | None = None
    status: JobStatus | None = None
    steps: float = 0.0


@dataclass(eq=False)
class Workload:
    """The jobs of a log from ``begin`` to ``end`` (absolute s), as ``trace`` on ``cluster`` with ``outages``.

    Times of the trace and of outages count from ``begin``. ``left_out`` jobs never ran and were cancelled. Rounds were
    decided by ``config``, the last of those in the log.
    """

    config: ServiceConfig
    begin: float
    end: float
    jobs: list[LiveJob]
    trace: Trace
    cluster: Cluster
    outages: list[Outage]
    left_out: int = 0

    def live_row(self) -> dict[str, Any]:
        """What happened live, in the terms of :meth:`bloxopt.simulation.SimulationResult.summary`.

        A job that failed or was cancelled counts as finished when it ended, as it does where it is simulated.
        """
        done = [job for job in self.jobs if job.ended_at is not None and job.status is not JobStatus.REJECTED]
        jct = [job.ended_at - max(job.submitted_at, self.begin) for job in done if job.ended_at is not None]
        return {
            "jobs": len(self.jobs),
            "finished": len(done),
            "average_jct": float(np.mean(jct)) if jct else None,
            "p95_jct": float(np.percentile(jct, 95)) if jct else None,
            "makespan": max((job.ended_at - self.begin for job in done if job.ended_at is not None), default=None),
            "preemptions": sum(job.preemptions for job in self.jobs),
        }


@dataclass(eq=False)
class _Reader:
    """What has been read so far."""

    config: ServiceConfig = field(default_factory=ServiceConfig)
    begin: float | None = None
    end: float = 0.0
    jobs: dict[str, LiveJob] = field(default_factory=dict)
    rates: dict[str, list[tuple[str, int, float]]] = field(default_factory=dict)
    nodes: dict[int, tuple[str, str, int, float | None, float | None]] = field(default_factory=dict)
    down: dict[int, float] = field(default_factory=dict)
    outages: list[tuple[int, float, float]] = field(default_factory=list)
    running: dict[str, Any] = field(default_factory=dict)

    def read(self, event: LogEvent) -> None:
        data = event.data
        if event.kind in (ROUND, SNAPSHOT):
            check_shape(event.kind, data)
        if event.kind == SNAPSHOT:
            self.config = ServiceConfig.model_validate(data["config"])
        elif event.kind == ROUND:
            now = data["now"]
            if self.begin is None:
                self.begin = now
            self.end = now
            for job_id, _, gpus, seconds in data.get("ran", ()):
                if job_id in self.jobs:
                    self.jobs[job_id].service += gpus * seconds
            for job_id in data.get("stopped", ()):
                self.jobs[job_id].preemptions += 1
        elif event.kind == ENDED:
            job = self.jobs.get(event.subject)
            if job is not None:
                job.ended_at, job.status = event.time, JobStatus(data["status"])
                job.steps = data.get("steps", 0.0)
        if event.kind in (ROUND, SNAPSHOT):
            self._said(data, event.time)

    def _said(self, data: Mapping[str, Any], now: float) -> None:
        for job_id, facts in data.get("jobs", {}).items():
            if job_id not in self.jobs:
                spec = JobSpec(command=["recorded"], **facts.get("spec", {}))
                self.jobs[job_id] = LiveJob(job_id, facts["user"], spec, facts["submitted_at"])
        for job_id, values in data.get("progress", {}).items():
            job = self.jobs[job_id]
            if job.left_before is None:
                first = self.begin is None  # it had run before the log begins
                job.left_before = values[0] if first else work(job.spec)[0]
                if first:
                    job.before = job.service = values[2]
            job.left = values[0]
        for kind, known in data.get("rates", {}).items():
            if known:
                self.rates[kind] = [tuple(entry) for entry in known]
        for place, name, _, gpu_type, gpus, up, cpus, memory_gib in data.get("nodes", ()):
            known = self.nodes.get(place)
            if known is None and self.begin is not None and now > self.begin:
                self.outages.append((place, self.begin, now))
            most = max(len(gpus), 0 if known is None else known[2])
            self.nodes[place] = (name, gpu_type, most, cpus, memory_gib)
            if up:
                since = self.down.pop(place, None)
                if since is not None and since < now:
                    self.outages.append((place, since, now))
            else:
                self.down.setdefault(place, now)


def read_workload(events: Iterable[LogEvent], name: str) -> Workload:
    """The workload of a log; ``name`` is for its trace.

    The work of a job is what it did: the steps that it reported, else the GPU time that it had at its user's rate. One
    that was not done at the end of the log has what it then had left on top; one that was cancelled ends where it did.
    Rates are those that jobs reported. Nodes that came later are down until then, nodes that are down when the log ends
    come back there. Raises :class:`~bloxopt.errors.InputError` for a log without jobs that ran.
    """
    reader = _Reader()
    for event in events:
        with reading(event):
            reader.read(event)
    if reader.begin is None:
        raise InputError("the log has no rounds")
    begin, end = reader.begin, max(reader.end, reader.begin + 1.0)
    kept = [job for job in reader.jobs.values() if job.service > 0 or job.status is not JobStatus.CANCELLED]
    if not kept:
        raise InputError("the log has no jobs")
    oracle = LearnedThroughput()
    oracle.take_over(reader.rates)
    oracle.allow({job.job_id: job.spec.gpu_types for job in kept if job.spec.gpu_types})
    places = sorted(reader.nodes)
    nodes = []
    for place in places:
        node, gpu_type, gpus, cpus, memory_gib = reader.nodes[place]
        nodes.append(Node(name=node, gpu_type=gpu_type, num_gpus=gpus, cpus=cpus, memory_gib=memory_gib))
    spans = [*reader.outages, *((place, since, end) for place, since in reader.down.items() if since < end)]
    outages = _merged([(reader.nodes[place][0], max(start - begin, 0.0), stop - begin) for place, start, stop in spans])
    table = _table(kept, begin)
    return Workload(
        reader.config,
        begin,
        end,
        kept,
        Trace(name, table, oracle),
        Cluster(tuple(nodes)),
        outages,
        len(reader.jobs) - len(kept),
    )


def _merged(spans: list[tuple[str, float, float]]) -> list[Outage]:
    """Outages of each node without overlaps."""
    found: list[Outage] = []
    for node in sorted({name for name, _, _ in spans}):
        start, end = math.nan, -math.inf
        for begin, stop in sorted((begin, stop) for name, begin, stop in spans if name == node):
            if begin > end:
                if end > start:
                    found.append(Outage(node, start, end))
                start, end = begin, stop
            end = max(end, stop)
        if end > start:
            found.append(Outage(node, start, end))
    return found


def _steps(job: LiveJob) -> float:
    """Steps that the job turned out to have, from the beginning of the log on."""
    total, duration = work(job.spec)
    before = total if job.left_before is None else job.left_before
    rate = total / duration / job.spec.num_gpus
    done = (job.service - job.before) * rate
    if job.spec.total_steps is not None and job.steps > 0:
        done = job.steps - (total - before)
    if job.status is None or job.status is JobStatus.REJECTED:
        done = before if job.left is None else before - job.left + max(job.left, _LEAST * total)
    return max(done, _LEAST * total)


def _table(jobs: list[LiveJob], begin: float) -> JobTable:
    jobs.sort(key=lambda job: (max(job.submitted_at, begin), job.job_id))
    arrival = [max(job.submitted_at - begin, 0.0) for job in jobs]
    steps = [_steps(job) for job in jobs]
    declared = [work(job.spec) for job in jobs]
    ranges = [gpu_range(job.spec) for job in jobs]
    return JobTable.from_columns(
        is_open=True,  # the config may name tenants of whom the log has nothing
        job_id=[job.job_id for job in jobs],
        arrival=arrival,
        job_type=[job.spec.job_type for job in jobs],
        total_steps=steps,
        # At the rate of the user's word, which holds until jobs report their own.
        duration=[own / (total / seconds) for own, (total, seconds) in zip(steps, declared, strict=True)],
        num_gpus=[job.spec.num_gpus for job in jobs],
        min_gpus=[low for low, _ in ranges],
        max_gpus=[high for _, high in ranges],
        tenant=[job.user for job in jobs],
        weight=[job.spec.weight for job in jobs],
        deadline=[
            math.inf
            if job.spec.deadline_seconds is None
            else max(job.submitted_at + job.spec.deadline_seconds - begin, arrival[at] + _LEAST)
            for at, job in enumerate(jobs)
        ],
        restart_cost=[job.spec.restart_cost for job in jobs],
        cpus_per_gpu=[job.spec.cpus_per_gpu for job in jobs],
        memory_gib_per_gpu=[job.spec.memory_gib_per_gpu for job in jobs],
    )
