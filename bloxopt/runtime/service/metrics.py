"""Prometheus metrics of one service: rounds as they are decided, jobs, nodes and GPUs as they are when asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Gauge, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client import Counter as Count
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bloxopt import __version__
from bloxopt.anytime.ladder import Rung
from bloxopt.decisions import Round
from bloxopt.runtime.live import LiveCluster
from bloxopt.runtime.messages import JobStatus, NodeState
from bloxopt.runtime.service.plan_metrics import PlanCollector
from bloxopt.runtime.service.series import LiveSeries
from bloxopt.runtime.store import JobRecord

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """Everything ``/metrics`` shows."""

    def __init__(self, live: LiveCluster) -> None:
        self.registry = CollectorRegistry()
        self.rounds = Count("bloxopt_rounds", "Rounds decided", registry=self.registry)
        self.failures = Count("bloxopt_round_failures", "Rounds that ended in an error", registry=self.registry)
        self.late = Count("bloxopt_missed_deadlines", "Rounds decided after their budget", registry=self.registry)
        self.rungs = Count(
            "bloxopt_allocations", "Plans made, by how they came about", ["rung"], registry=self.registry
        )
        self.decide = Histogram(
            "bloxopt_round_duration_seconds", "Time to decide a round", buckets=_SECONDS, registry=self.registry
        )
        self.solve = Histogram(
            "bloxopt_solve_duration_seconds", "Solver time of a plan", buckets=_SECONDS, registry=self.registry
        )
        self.build = Histogram(
            "bloxopt_build_duration_seconds",
            "Time of a plan beside its solver: building programs, checking answers",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.solves = Count("bloxopt_solves", "Programs solved", registry=self.registry)
        self.tries = Count(
            "bloxopt_placement_retries", "Rounds selected again as gangs found no place", registry=self.registry
        )
        self.plan = PlanCollector()
        self.registry.register(self.plan)
        self.last = Gauge("bloxopt_last_round_timestamp_seconds", "When the last round began", registry=self.registry)
        self.moves = Count("bloxopt_job_moves", "Jobs that rounds started or stopped", ["move"], registry=self.registry)
        self.requests = Histogram(
            "bloxopt_http_request_duration_seconds",
            "Time to answer a request",
            ["method", "route", "status"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.pruned = Count("bloxopt_pruned", "Old things that were deleted", ["kind"], registry=self.registry)
        self.pruned_bytes = Count("bloxopt_pruned_output_bytes", "Output that was deleted", registry=self.registry)
        self.retention_failures = Count(
            "bloxopt_retention_failures", "Turns of pruning that ended in an error", registry=self.registry
        )
        self.last_retention = Gauge(
            "bloxopt_last_retention_timestamp_seconds", "When all that was old had been pruned", registry=self.registry
        )
        for what in ("output", "events", "jobs", "tokens"):
            self.pruned.labels(what)
        for rung in Rung:
            self.rungs.labels(rung.value)
        for move in ("started", "stopped"):
            self.moves.labels(move)
        self._series = LiveSeries(live)
        self.registry.register(_Live(live))
        ProcessCollector(namespace="bloxopt", registry=self.registry)
        Info("bloxopt_build", "Version of the scheduler", registry=self.registry).info({"version": __version__})

    def observe(self, record: Round) -> None:
        """Count a round."""
        self.rounds.inc()
        self.last.set(record.time)
        self.decide.observe(record.decide_seconds)
        self.moves.labels("started").inc(record.started)
        self.moves.labels("stopped").inc(record.stopped)
        self.tries.inc(record.retries)
        if record.late_seconds > 0:
            self.late.inc()
        if record.allocation is not None:
            self.rungs.labels(record.allocation.rung).inc()
            self.solve.observe(record.allocation.solve_seconds)
            self.build.observe(record.allocation.build_seconds)
            self.solves.inc(record.allocation.num_solves)
            self.plan.last = record.allocation

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. ``route`` is the template, "" for a path that is none; whoever asks chooses the method."""
        self.requests.labels(method if method in _METHODS else "other", route, str(status)).observe(seconds)

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return b"".join((generate_latest(self.registry), *self._series.text()))


class _Live(Collector):
    """The live cluster when it is asked."""

    def __init__(self, live: LiveCluster) -> None:
        self._live = live

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        live = self._live
        # Nobody waits for whoever looks: every list is copied in one step, without the lock of the cluster.
        yield from _jobs(list(live.jobs.values()), live.finished_jobs)
        now, lost = live.clock.monotonic(), live.terms.lost_seconds
        heard = GaugeMetricFamily(
            "bloxopt_node_heartbeat_age_seconds", "Time since a node was heard from", labels=["Hostname"]
        )
        states: list[NodeState] = []
        for node in list(live.nodes.values()):
            contact = live.contacts[node.name]
            states.append(contact.state_at(now, lost, node.drained))
            if contact.heard is not None:
                heard.add_metric([node.name], now - contact.heard)
        nodes = GaugeMetricFamily("bloxopt_nodes", "Nodes by state", labels=["state"])
        for state in NodeState:
            nodes.add_metric([state.value], states.count(state))
        yield nodes
        yield heard
        path = live.store.path
        if path is not None:
            files = [path, path.with_name(f"{path.name}-wal")]
            size = sum(file.stat().st_size for file in files if file.exists())
            yield GaugeMetricFamily("bloxopt_store_size_bytes", "Size of the SQLite database", value=size)


def _queue_reason(job: JobRecord) -> str:
    if job.admitted_at is None:
        return "not_admitted"
    if job.started_at is None:
        return "never_started"
    return "preempted" if job.preemptions else "restarting"


def _jobs(jobs: list[JobRecord], finished: int) -> Iterator[Metric]:
    by_status = GaugeMetricFamily("bloxopt_jobs", "Jobs that are not over, by status", labels=["status"])
    statuses = [job.status for job in jobs]
    for status in (JobStatus.PENDING, JobStatus.STARTING, JobStatus.RUNNING, JobStatus.STOPPING):
        by_status.add_metric([status.value], statuses.count(status))
    yield by_status
    yield GaugeMetricFamily("bloxopt_finished_jobs", "Jobs that are over", value=finished)
    queue = GaugeMetricFamily("bloxopt_queue_jobs", "Jobs that wait, by reason", labels=["reason"])
    reasons = Counter([_queue_reason(job) for job in jobs if job.status is JobStatus.PENDING])
    for reason in ("not_admitted", "never_started", "preempted", "restarting"):
        queue.add_metric([reason], reasons[reason])
    yield queue
