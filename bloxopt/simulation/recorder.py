"""Collects rounds as they happen and turns them, with the ledger, into a result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bloxopt.decisions import Round
from bloxopt.formulations.space import ConfigurationCatalog
from bloxopt.jobs import FloatArray
from bloxopt.simulation.backend import SimulatedBackend
from bloxopt.simulation.result import SimulationResult
from bloxopt.state import JobStatus

_NO_SOLVE = (False, None, None, None, np.nan, np.nan, np.nan, None, None, 0, 0, None, 0.0, 0.0)
_COLUMNS = (
    "time",
    "seconds",
    "active_jobs",
    "running_jobs",
    "waiting_jobs",
    "gpus_used",
    "gpus_up",
    "admitted",
    "started",
    "stopped",
    "solved",
    "rung",
    "termination",
    "solver",
    "objective",
    "bound",
    "gap",
    "binding",
    "verified",
    "solves",
    "resumed",
    "rebuild",
    "solve_seconds",
    "build_seconds",
    "decide_seconds",
    "late_seconds",
)


class Recorder:
    """Rows of the ``rounds`` table, kept as tuples until the end."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, record: Round, end: float) -> None:
        """Note one round that ended at ``end`` (s)."""
        answer = record.allocation
        solve = (
            _NO_SOLVE
            if answer is None
            else (
                True,
                answer.rung,
                str(answer.termination),
                answer.solver,
                answer.objective,
                answer.bound,
                answer.gap,
                ", ".join(answer.binding),
                None if (proof := answer.certificate.verification) is None else proof.verified,
                answer.num_solves,
                answer.resumed,
                answer.rebuild,
                answer.solve_seconds,
                answer.build_seconds,
            )
        )
        self._rows.append(
            (
                record.time,
                end - record.time,
                record.active,
                record.running,
                record.active - record.running,
                record.gpus_used,
                record.gpus_up,
                record.admitted,
                record.started,
                record.stopped,
                *solve,
                record.decide_seconds,
                record.late_seconds,
            )
        )

    def result(self, backend: SimulatedBackend, config: dict[str, Any], wall_seconds: float) -> SimulationResult:
        """The finished tables."""
        rounds = pd.DataFrame(self._rows, columns=list(_COLUMNS))
        rounds.insert(0, "round", np.arange(len(rounds)))
        for name in ("objective", "bound", "gap"):
            rounds[name] = rounds[name].astype(float)
        return SimulationResult(_job_table(backend), rounds, _placement_table(backend), config, wall_seconds)


def _job_table(backend: SimulatedBackend) -> pd.DataFrame:
    ledger, table = backend.ledger, backend.ledger.table
    jct = ledger.finish - table.arrival
    isolated = isolated_durations(backend.catalog, np.where(np.isnan(ledger.finish), backend.now, ledger.finish))
    return pd.DataFrame(
        {
            "job_id": table.job_id,
            "job_type": table.job_type_names,
            "tenant": table.tenant_names,
            "gpus": table.num_gpus,
            "arrival": table.arrival,
            "start": ledger.start,
            "finish": ledger.finish,
            "jct": jct,
            "queueing_delay": ledger.start - table.arrival,
            "run_seconds": ledger.attained_seconds,
            "gpu_seconds": ledger.attained_service,
            "preemptions": ledger.preemptions,
            "restarts": ledger.restarts,
            "finish_time_ratio": jct / isolated,
            "rejected": ledger.status == JobStatus.REJECTED,
            "not_admitted": _refusals(backend),
            "deadline": np.where(np.isfinite(table.deadline), table.deadline, np.nan),
        }
    )


def _refusals(backend: SimulatedBackend) -> NDArray[np.object_]:
    """Why each job was turned away or still waits for admission, None for the others."""
    ledger = backend.ledger
    reasons = np.full(len(ledger.table), None, dtype=object)
    for row, reason in ledger.refusals.items():
        if ledger.status[row] in (JobStatus.REJECTED, JobStatus.NOT_ADMITTED):
            reasons[row] = reason
    return reasons


def isolated_durations(catalog: ConfigurationCatalog, end: FloatArray) -> FloatArray:
    """Seconds each job would take alone on an equal share of the cluster among the jobs that compete with it.

    ``end`` (jobs,) is when each is over (s), as far as is known.

    The number of jobs is the mean number active during the job's own life (Themis, NSDI 2020, with the
    contention averaged over the job's life).
    """
    table, cluster = catalog.table, catalog.cluster
    # Integral of the number of active jobs up to each event, evaluated at both ends of each job's life.
    times = np.concatenate([table.arrival, end])
    steps = np.concatenate([np.ones(len(table)), -np.ones(len(table))])
    order = np.argsort(times, kind="stable")
    times, active = times[order], np.cumsum(steps[order])
    area = np.concatenate([[0.0], np.cumsum(active[:-1] * np.diff(times))])
    life = np.maximum(end - table.arrival, 1e-9)
    competing = (np.interp(end, times, area) - np.interp(table.arrival, times, area)) / life
    share = cluster.capacity[None, :] / (np.maximum(competing, 1.0)[:, None] * table.gpu_demand[:, None])
    share = share / np.maximum(share.sum(axis=1, keepdims=True), 1.0)
    rate = (share * catalog.mean_requested_rate()).sum(axis=1)
    duration: FloatArray = np.divide(table.total_steps, rate, out=np.full(len(table), np.nan), where=rate > 0)
    return duration


def _placement_table(backend: SimulatedBackend) -> pd.DataFrame:
    row, node, gpus, kind, start, end = (
        (list(column) for column in zip(*backend.spells, strict=True)) if backend.spells else ([] for _ in range(6))
    )
    cluster = backend.catalog.cluster
    names = np.array([entry.name for entry in cluster.nodes], dtype=object)
    return pd.DataFrame(
        {
            "job_id": backend.ledger.table.job_id[np.asarray(row, dtype=np.int64)],
            "node": names[np.asarray(node, dtype=np.int64)],
            "gpu_type": np.array(cluster.gpu_types, dtype=object)[np.asarray(kind, dtype=np.int64)],
            "gpus": np.asarray(gpus, dtype=np.int64),
            "start": np.asarray(start, dtype=float),
            "end": np.asarray(end, dtype=float),
        }
    )
