"""What the cluster itself imposes: its GPUs, one configuration at a time, and jobs that must not move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bloxopt.formulations.constraints.base import Constraint, excess
from bloxopt.formulations.expressions import per_job
from bloxopt.formulations.measures import GpusUsed
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray


@dataclass(frozen=True)
class Capacity(Constraint):
    """GPUs of each type in use never exceed those that are up: ``Σ_i s_i x_ij ≤ c_j``; a share counts as its part."""

    name: str | None = field(default=None, kw_only=True)
    progress_dependent = False
    physical = True
    unit = "GPUs"

    def build(self, space: AllocationSpace, program: Program) -> None:
        program.add_rows(GpusUsed(by="gpu_type").build(space), upper=space.capacity.astype(np.float64))

    def violations(self, space: AllocationSpace, x: FloatArray) -> FloatArray:
        used = sum_by(space.gpu_type, space.gpu_demand * x, len(space.gpu_types))
        return excess(used, -np.inf, space.capacity.astype(np.float64))

    def labels(self, space: AllocationSpace) -> Sequence[str]:
        return list(space.gpu_types)


@dataclass(frozen=True)
class TimeShare(Constraint):
    """A job runs on one configuration at a time: its time shares add up to at most 1."""

    name: str | None = field(default=None, kw_only=True)
    progress_dependent = False
    exclusive_time = True
    physical = True

    def build(self, space: AllocationSpace, program: Program) -> None:
        program.add_rows(per_job(space, np.ones(space.num_columns)), upper=1.0)

    def violations(self, space: AllocationSpace, x: FloatArray) -> FloatArray:
        total = sum_by(space.job, x, space.num_jobs)
        # A negative share would hide an excess elsewhere, so it counts here as well.
        negative = sum_by(space.job, np.maximum(-x, 0.0), space.num_jobs)
        return np.maximum(excess(total, -np.inf, 1.0), negative)

    def labels(self, space: AllocationSpace) -> Sequence[str]:
        return list(space.job_ids)


@dataclass(frozen=True)
class OneConfiguration(Constraint):
    """A job has one configuration for the whole round or none: every time share is 0 or 1 (a MIP)."""

    name: str | None = field(default=None, kw_only=True)
    progress_dependent = False
    exclusive_time = True
    physical = True

    def build(self, space: AllocationSpace, program: Program) -> None:
        program.make_integer()
        program.add_rows(per_job(space, np.ones(space.num_columns)), upper=1.0)

    def violations(self, space: AllocationSpace, x: FloatArray) -> FloatArray:
        total = sum_by(space.job, x, space.num_jobs)
        fraction = np.zeros(space.num_jobs)
        np.maximum.at(fraction, space.job, np.minimum(np.abs(x), np.abs(1.0 - x)))
        return np.maximum(excess(total, -np.inf, 1.0), fraction)

    def labels(self, space: AllocationSpace) -> Sequence[str]:
        return list(space.job_ids)


@dataclass(frozen=True)
class PinRunning(Constraint):
    """Running jobs keep the configuration they have: no preemption. Their share of it is 1, of others 0.

    A running job whose configuration is no longer among the columns (its nodes are down) is free.
    """

    name: str | None = field(default=None, kw_only=True)
    progress_dependent = True

    def build(self, space: AllocationSpace, program: Program) -> None:
        columns, target = self._pinned(space)
        rows = np.arange(len(columns))
        pinned = Affine(rows, columns, np.ones(len(columns)), np.zeros(len(columns)))
        program.add_rows(pinned, target, target, labels=lambda: self.labels(space))

    def violations(self, space: AllocationSpace, x: FloatArray) -> FloatArray:
        columns, target = self._pinned(space)
        return np.asarray(np.abs(x[columns] - target), dtype=np.float64)

    def labels(self, space: AllocationSpace) -> Sequence[str]:
        columns, _ = self._pinned(space)
        types = np.asarray(space.gpu_types, dtype=object)[space.gpu_type[columns]]
        jobs = space.job_ids[space.job[columns]]
        gpus = space.num_gpus[columns]
        return [f"{job} on {count} x {kind}" for job, count, kind in zip(jobs, gpus, types, strict=True)]

    def _pinned(self, space: AllocationSpace) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], FloatArray]:
        """Columns of the pinned jobs and the share each must have."""
        held = sum_by(space.job, space.is_current.astype(np.float64), space.num_jobs) > 0
        columns = np.flatnonzero(held[space.job])
        return columns, space.is_current[columns].astype(np.float64)
