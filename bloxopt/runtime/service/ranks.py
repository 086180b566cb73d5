"""Which ranks the attempts of a job have: who asks for the output of another one is told."""

from __future__ import annotations

from bloxopt.runtime.live.faults import UnknownError
from bloxopt.runtime.live.table import gpu_range
from bloxopt.runtime.service.service import Service
from bloxopt.runtime.store import JobRecord
from bloxopt.wording import counted


def check_rank(service: Service, job: JobRecord, attempt: int, rank: int) -> None:
    """Raise :class:`~bloxopt.runtime.live.faults.UnknownError` for one that there is not, and cannot come to be.

    ``attempt`` 0 is the last one, or the first of a job that has not started.
    """
    if attempt > max(job.attempt, 1):
        started = f"was started {counted(job.attempt, 'time')}" if job.attempt else "has not been started"
        raise UnknownError(f"job {job.job_id!r} {started}: there is no attempt {attempt}")
    number = attempt or job.attempt
    world = _world_size(service, job, number)
    ranks, of = (gpu_range(job.spec)[1], "") if world is None else (world, f"attempt {number} of ")
    if rank >= ranks:
        has = "rank 0 alone" if ranks == 1 else f"ranks 0 to {ranks - 1}"
        raise UnknownError(f"{of}job {job.job_id!r} has {has}: there is no rank {rank}")


def _world_size(service: Service, job: JobRecord, attempt: int) -> int | None:
    """The number of ranks of an attempt; None for one that has not been decided."""
    runs = service.live.runs_of(job) if attempt == job.attempt else []
    runs = runs or [run for run in service.store.runs(job.job_id) if run.attempt == attempt]
    return runs[0].world_size if runs else None
