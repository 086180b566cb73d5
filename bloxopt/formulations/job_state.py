"""Jobs under way as a user gives them: the jobs themselves, and what has become of them so far."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bloxopt.errors import InputError, TraceError, UnknownNameError
from bloxopt.formulations.checks import real_numbers
from bloxopt.jobs import Job, JobTable


def as_job_table(jobs: Any) -> JobTable:
    """A table of the jobs given; raises :class:`~bloxopt.errors.TraceError` naming what is no job."""
    if isinstance(jobs, JobTable):
        table = jobs
    else:
        if isinstance(jobs, Job) or not isinstance(jobs, Iterable):
            hint = "put it into a list" if isinstance(jobs, Job) else "give a trace, the name of one, or Job objects"
            raise TraceError(f"jobs is a {type(jobs).__name__}, must be a list of jobs: {hint}")
        listed = list(jobs)
        for position, job in enumerate(listed):
            if not isinstance(job, Job):
                raise TraceError(f"jobs[{position}] is {job!r}: it must be a Job")
        table = JobTable.from_jobs(listed)
    if len(table) == 0:
        raise TraceError("no jobs to allocate: the list is empty")
    return table


_STATE = {
    "remaining_steps": ("finite numbers >= 0", 0),
    "attained_seconds": ("finite numbers >= 0", 0),
    "attained_service": ("finite numbers >= 0", 0),
    "isolated_seconds": ("finite numbers >= 0", 0),
    "gpu_type": ("whole numbers from -1 (waits) to the cluster's last GPU type", -1),
    "gpus": ("whole numbers >= 0", 0),
    "nodes": ("whole numbers >= 1", 1),
}
"""What may be said of jobs under way: which numbers, and the least."""


def state_column(name: str, value: Any, count: int, types: int) -> NDArray[Any]:
    """A column of the ledger as given: one number, or one per job; raises naming what is wrong with it."""
    if name not in _STATE:
        raise UnknownNameError("state of jobs", name, _STATE)
    wanted, least = _STATE[name]
    most = types - 1 if name == "gpu_type" else np.inf
    array = real_numbers(name, value, f"{wanted}, one per job", InputError)
    if array.shape not in ((), (count,)):
        raise InputError(f"{name} has shape {array.shape}: it must be {wanted}, one for each of {count} jobs")
    bad = ~(np.isfinite(array) & (array >= least) & (array <= most))
    if wanted.startswith("whole"):
        bad |= array != np.floor(array)
    if bad.any():
        first = np.atleast_1d(array)[np.atleast_1d(bad)][0]
        raise InputError(f"{name} has {first}: it must be {wanted}, one per job")
    return array
