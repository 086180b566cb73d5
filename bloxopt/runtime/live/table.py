"""Live jobs as the table that policies decide on, and how much of their work is left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import numpy as np

from bloxopt.errors import InputError
from bloxopt.jobs import FloatArray, IntArray, JobTable
from bloxopt.runtime.messages import JobSpec
from bloxopt.runtime.store import JobRecord
from bloxopt.state import JobLedger

UNKNOWN_DURATION = 3600.0
"""Seconds that a job of which nothing is known is taken to need."""

_LEAST_LEFT = 1e-6
"""Part of its work that a job which still runs has left at least."""


def check_spec(spec: JobSpec) -> None:
    """Raise :class:`~bloxopt.errors.InputError` for a job that could never run, whatever the cluster."""
    low, high = gpu_range(spec)
    if not low <= spec.num_gpus <= high:
        raise InputError(
            f"job {spec.name!r}: num_gpus is {spec.num_gpus}, must be between min_gpus {low} and max_gpus {high}"
        )
    texts = [*spec.command, *spec.environment.values(), spec.workdir or ""]
    if any("\0" in text for text in texts):
        raise InputError(f"job {spec.name!r}: command, environment and workdir cannot hold a NUL character")
    if not spec.command[0]:
        raise InputError(f"job {spec.name!r}: command begins with an empty text: name the program to run")
    if spec.workdir is not None and (not spec.workdir.startswith("/") or ".." in spec.workdir.split("/")):
        raise InputError(f"job {spec.name!r}: workdir is {spec.workdir!r}, must be an absolute path without '..'")


def gpu_range(spec: JobSpec) -> tuple[int, int]:
    """Fewest and most GPUs a job can run on."""
    return (
        spec.num_gpus if spec.min_gpus is None else spec.min_gpus,
        spec.num_gpus if spec.max_gpus is None else spec.max_gpus,
    )


def in_order(jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """The jobs in the order that a table has."""
    return sorted(jobs, key=attrgetter("submitted_at", "job_id"))


def work(spec: JobSpec) -> tuple[float, float]:
    """Steps in all, and the seconds they take on the GPUs asked for, by the user's word.

    Where the steps are not known a step is a second.
    """
    duration = UNKNOWN_DURATION if spec.duration is None else spec.duration
    return (duration if spec.total_steps is None else spec.total_steps), duration


def job_table(jobs: Sequence[JobRecord]) -> JobTable:
    """The table of these jobs, in the same order, which must be that of :func:`in_order`."""
    works = [work(job.spec) for job in jobs]
    ranges = [gpu_range(job.spec) for job in jobs]
    return JobTable.from_columns(
        is_open=True,
        job_id=[job.job_id for job in jobs],
        arrival=[job.submitted_at for job in jobs],
        job_type=[job.spec.job_type for job in jobs],
        total_steps=[steps for steps, _ in works],
        duration=[seconds for _, seconds in works],
        num_gpus=[job.spec.num_gpus for job in jobs],
        min_gpus=[low for low, _ in ranges],
        max_gpus=[high for _, high in ranges],
        tenant=[job.user for job in jobs],
        weight=[job.spec.weight for job in jobs],
        deadline=[
            math.inf if job.spec.deadline_seconds is None else job.submitted_at + job.spec.deadline_seconds
            for job in jobs
        ],
        restart_cost=[job.spec.restart_cost for job in jobs],
        cpus_per_gpu=[job.spec.cpus_per_gpu for job in jobs],
        memory_gib_per_gpu=[job.spec.memory_gib_per_gpu for job in jobs],
    )


def next_table(before: JobTable, rows: IntArray, jobs: Sequence[JobRecord]) -> JobTable:
    """The table of these jobs, as :func:`job_table` makes it; job k was in row ``rows[k]`` before, -1 for a new one."""
    new = int((rows < 0).sum())
    old = len(rows) - new
    if not old or (rows[:old] < 0).any():
        return job_table(jobs)
    kept = before.take(rows[:old])
    parts = [kept, job_table(jobs[old:])] if new else [kept]
    columns: dict[str, Any] = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(JobTable)
        if isinstance(getattr(kept, field.name), np.ndarray)
    }
    for codes, names in (("job_type", "job_types"), ("tenant", "tenants")):
        columns[codes], columns[names] = _coded_together([(getattr(p, codes), getattr(p, names)) for p in parts])
    return JobTable(**columns, need_kinds=kept.need_kinds, is_open=kept.is_open)


def _coded_together(parts: Sequence[tuple[IntArray, tuple[str, ...]]]) -> tuple[IntArray, tuple[str, ...]]:
    """Codes of the same texts one after the other, in alphabetical order, and of no others."""
    used = [np.unique(codes) for codes, _ in parts]
    names = sorted({texts[code] for (_, texts), there in zip(parts, used, strict=True) for code in there.tolist()})
    number = {name: code for code, name in enumerate(names)}
    coded = [np.array([number.get(text, -1) for text in texts], dtype=np.int64)[codes] for codes, texts in parts]
    return np.concatenate(coded), tuple(names)


def show_progress(ledger: JobLedger, jobs: Sequence[JobRecord], rows: Iterable[int], round_seconds: float) -> None:
    """Bring rows of the ledger up to what the records of their jobs say of what they have done and had."""
    index = np.fromiter(rows, dtype=np.int64)
    chosen = [jobs[row] for row in index.tolist()]
    ledger.remaining_steps[index] = _remaining_steps(ledger.table.take(index), chosen, round_seconds)
    ledger.attained_seconds[index] = [job.attained_seconds for job in chosen]
    ledger.attained_service[index] = [job.attained_service for job in chosen]
    ledger.start[index] = [math.nan if job.started_at is None else job.started_at for job in chosen]
    ledger.preemptions[index] = [job.preemptions for job in chosen]
    ledger.restarts[index] = [max(job.attempt - 1, 0) for job in chosen]


def _remaining_steps(table: JobTable, jobs: Sequence[JobRecord], round_seconds: float) -> FloatArray:
    """Steps that the jobs of the table have left: what they report, else by the time they have had.

    A job that has run for longer than its user said has a round's work left, for as long as it goes on.
    """
    total, duration = table.total_steps, table.duration
    steps = np.array([job.steps for job in jobs], dtype=np.float64)
    reported = (steps > 0) & np.array([job.spec.total_steps is not None for job in jobs], dtype=bool)
    done = total / duration * np.array([job.attained_service for job in jobs], dtype=np.float64) / table.num_gpus
    by_time: FloatArray = np.maximum(total - done, np.minimum(total, total / duration * round_seconds))
    return np.where(reported, np.maximum(total - steps, _LEAST_LEFT * total), by_time)
