"""A trace: jobs with arrivals, where they come from, and the throughputs that go with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bloxopt.errors import TraceError
from bloxopt.jobs import FloatArray, Job, JobTable
from bloxopt.throughput import DurationThroughput, ThroughputOracle, as_oracle, checked_rates
from bloxopt.workloads import transforms

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Trace:
    """Jobs sorted by arrival, with the throughput oracle that fits them, their source and licence.

    ``notes`` say what a reader decided about the data. ``extra`` holds per-job text that no
    scheduler needs but a study may, such as Shockwave's batch size ``mode``; each array is aligned
    with ``jobs``. ``default_cluster`` is the cluster (a string for ``load_cluster``) that the trace
    was published with. A trace is immutable: the transformations return new ones.
    """

    name: str
    jobs: JobTable
    throughput: ThroughputOracle = field(default_factory=DurationThroughput)
    source: str = ""
    licence: str = ""
    notes: tuple[str, ...] = ()
    extra: Mapping[str, NDArray[np.object_]] = field(default_factory=dict)
    default_cluster: str | None = None

    window = transforms.window
    head = transforms.head
    where = transforms.where
    scale_load = transforms.scale_load
    with_gpu_demand = transforms.with_gpu_demand
    with_job_types = transforms.with_job_types
    with_elastic_range = transforms.with_elastic_range
    with_deadlines = transforms.with_deadlines
    with_throughput = transforms.with_throughput
    with_restart_cost = transforms.with_restart_cost

    def __post_init__(self) -> None:
        if not isinstance(self.jobs, JobTable):
            raise TraceError(f"trace {self.name!r}: jobs is {type(self.jobs).__name__}, must be a JobTable")
        if not hasattr(self.throughput, "rates"):
            raise TraceError(f"trace {self.name!r}: throughput is {self.throughput!r}, must be an oracle")
        if len(self.jobs) == 0:
            raise TraceError(f"trace {self.name!r} has no jobs")
        try:
            self.jobs.check_times()
        except TraceError as error:
            raise TraceError(f"trace {self.name!r}: {error}") from None
        for name, values in self.extra.items():
            if len(values) != len(self.jobs):
                raise TraceError(
                    f"trace {self.name!r}: extra {name!r} has {len(values)} values for {len(self.jobs)} jobs"
                )

    @classmethod
    def from_jobs(cls, jobs: Iterable[Job], throughput: Any = None, name: str = "custom") -> Trace:
        """A trace of ``Job`` objects; without ``throughput`` the jobs need a duration.

        ``throughput`` is an oracle, a function, a table or a path to one.
        """
        if not isinstance(jobs, Iterable):
            raise TraceError(f"cannot make a trace of {jobs!r}: give Job objects")
        oracle = DurationThroughput() if throughput is None else as_oracle(throughput)
        return cls(name, JobTable.from_jobs(list(jobs)), oracle)

    @classmethod
    def from_columns(
        cls,
        name: str,
        throughput: ThroughputOracle | None = None,
        *,
        notes: Iterable[str] = (),
        extra: Mapping[str, Any] | None = None,
        **columns: Any,
    ) -> Trace:
        """A trace of checked columns in any order, as ``JobTable.from_columns`` takes them."""
        order = np.argsort(np.asarray(columns["arrival"], dtype=np.float64), kind="stable")
        sorted_extra = {key: np.asarray(values, dtype=object)[order] for key, values in (extra or {}).items()}
        jobs = JobTable.from_columns(**columns)
        return cls(name, jobs, throughput or DurationThroughput(), notes=tuple(notes), extra=sorted_extra)

    def __len__(self) -> int:
        return len(self.jobs)

    def take(self, index: Any) -> Trace:
        """The jobs at ``index`` (increasing integers or a mask), everything else unchanged."""
        try:
            if not isinstance(index, slice):
                index = np.atleast_1d(np.asarray(index, None if np.size(index) else np.int64))
            picked = np.arange(len(self))[index]
            if np.any(np.diff(picked) <= 0):
                raise ValueError
        except (IndexError, TypeError, ValueError):
            raise TraceError(
                f"trace {self.name!r}: cannot take {index!r}: give increasing row numbers from 0 to {len(self) - 1}, "
                f"or a mask of {len(self)} truth values"
            ) from None
        index = picked
        if len(picked) == 0:
            raise TraceError(f"trace {self.name!r}: no job is left of {len(self)}")
        return replace(
            self,
            jobs=self.jobs.take(index),
            extra={name: values[index] for name, values in self.extra.items()},
        )

    def durations(self, gpu_type: str = "V100") -> FloatArray:
        """Seconds each job runs on the GPUs it asks for, shape (jobs,).

        The trace's own duration where it has one, else its steps at the throughput of ``gpu_type``;
        +inf where it cannot run there.
        """
        known = self.jobs.duration
        if not np.any(np.isnan(known)):
            return known.copy()
        rates = checked_rates(self.throughput, self.jobs, [gpu_type], self.jobs.num_gpus)[:, 0]
        with np.errstate(divide="ignore"):
            return np.where(np.isnan(known), self.jobs.total_steps / rates, known)

    def offered_load(self, gpu_type: str = "V100") -> float:
        """GPUs that the jobs keep busy on average: GPU-seconds of work per second of arrivals.

        +inf when all jobs arrive at once. Where only a throughput table gives durations they are
        those on ``gpu_type``.
        """
        span = float(self.jobs.arrival[-1] - self.jobs.arrival[0])
        work = float(self.durations(gpu_type) @ self.jobs.gpu_demand)
        return work / span if span > 0 else float("inf")

    def to_pandas(self) -> pd.DataFrame:
        """One row per job with the columns of our own format (see ``docs/traces.md``).

        ``gpu_share`` and the columns of placement needs are there if some job has such a need.
        """
        import pandas as pd

        from bloxopt.workloads.needs_columns import needs_to_columns

        jobs = self.jobs
        frame = pd.DataFrame(
            {
                "job_id": jobs.job_id,
                "arrival": jobs.arrival,
                "job_type": jobs.job_type_names,
                "total_steps": jobs.total_steps,
                "duration": jobs.duration,
                "num_gpus": jobs.num_gpus,
                "min_gpus": jobs.min_gpus,
                "max_gpus": jobs.max_gpus,
                "tenant": jobs.tenant_names,
                "weight": jobs.weight,
                "deadline": np.where(np.isinf(jobs.deadline), np.nan, jobs.deadline),
                "restart_cost": jobs.restart_cost,
                "cpus_per_gpu": jobs.cpus_per_gpu,
                "memory_gib_per_gpu": jobs.memory_gib_per_gpu,
            }
        )
        if (jobs.gpu_share < 1).any():
            frame["gpu_share"] = jobs.gpu_share
        for name, column in needs_to_columns(jobs).items():
            frame[name] = column
        for name, values in self.extra.items():
            frame[f"extra.{name}"] = values
        return frame

    def write(self, path: str | Path) -> None:
        """Write the jobs as our own CSV (``.csv``, ``.csv.gz``) or Parquet (``.parquet``).

        The throughputs stay outside the file: give them again to ``load_trace(path, throughput=...)``.
        Raises :class:`~bloxopt.errors.ResultError` where the file cannot be written, and
        :class:`~bloxopt.errors.TraceError` on another suffix. An existing file is replaced whole.
        """
        from bloxopt.workloads.writer import write_trace

        if not isinstance(path, (str, Path)):
            raise TraceError(f"cannot write a trace to {path!r}: give the path of a file")
        write_trace(self.to_pandas(), Path(path))
