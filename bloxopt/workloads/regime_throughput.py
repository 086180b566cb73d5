"""Rates of jobs whose batch size changes as they train: each batch size is a phase."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bloxopt.errors import ThroughputError
from bloxopt.jobs import FloatArray, IntArray, JobTable
from bloxopt.phases import Phases
from bloxopt.throughput import TableThroughput
from bloxopt.workloads.batch_size_regimes import (
    MODES,
    SAMPLES,
    Rules,
    batch_size_regimes,
    parse_job_type,
    steps_per_epoch,
)


@dataclass(frozen=True)
class _Regimes:
    """Model, batch sizes one after another, epochs done when each but the last ends, and epochs in all."""

    model: str
    sizes: tuple[int, ...]
    ends: tuple[int, ...]
    epochs: int

    @property
    def ends_in_steps(self) -> list[float]:
        """Steps at the first batch size done when each ends."""
        per_epoch = steps_per_epoch(self.model, self.sizes[0])
        return [float(end * per_epoch) for end in self.ends] + [math.inf]


@lru_cache(maxsize=4096)
def _regimes(job_type: str, num_gpus: int, total_steps: float, rules: Rules) -> _Regimes:
    name, comma, mode = job_type.rpartition(", ")
    if not comma:
        raise ThroughputError(
            f"job type {job_type!r} does not say how its batch size changes: expected '<model> (batch size <n>), "
            f"<mode>' with a mode of {', '.join(MODES)}"
        )
    model, first = parse_job_type(name)
    epochs = max(math.ceil(total_steps / steps_per_epoch(model, first)), 1)
    sizes, ends = batch_size_regimes(model, first, num_gpus, mode, epochs, rules)
    return _Regimes(model, tuple(sizes), tuple(ends), epochs)


class RegimeThroughput:
    """Steps/s of jobs named ``<model> (batch size <n>), <mode>``, which adapt their batch size as Shockwave's do.

    A step is one at the first batch size ``n``: one at another counts as the part of an epoch that it is. ``table`` has
    the steps/s of ``<model> (batch size <n>)`` at every size. On GPUs on which a batch size does not run, the job
    stays at the one before. ``rules`` as in :mod:`bloxopt.workloads.batch_size_regimes`. Source: Zheng et al.,
    NSDI 2023, and its simulator.
    """

    def __init__(self, table: TableThroughput, rules: Rules = "simulated") -> None:
        self.table = table
        self.rules = rules

    def phases(self, jobs: JobTable) -> Phases:
        """When each job leaves each of its batch sizes, in steps at the first."""
        ends = [entry.ends_in_steps for entry in self._of(jobs)]
        return Phases(np.cumsum([0, *map(len, ends)]), np.array([end for job in ends for end in job]))

    def rates(self, jobs: JobTable, gpu_types: Sequence[str], num_gpus: IntArray) -> FloatArray:
        rates = np.zeros((len(jobs), len(gpu_types)))
        for row, (regimes, phase, gpus) in enumerate(
            zip(self._of(jobs), jobs.phase.tolist(), num_gpus.tolist(), strict=True)
        ):
            rates[row] = [self._rate(regimes, phase, gpu_type, gpus) for gpu_type in gpu_types]
        return rates

    def isolated_seconds(self, jobs: JobTable, gpu_type: str) -> FloatArray:
        """Seconds that each job takes alone on the GPUs it asks for, whole epochs as Shockwave counts them, (jobs,).

        +inf for a job that does not run there.
        """
        seconds = np.zeros(len(jobs))
        for row, (regimes, gpus) in enumerate(zip(self._of(jobs), jobs.num_gpus.tolist(), strict=True)):
            epochs = np.diff([0, *regimes.ends, regimes.epochs])
            for size, count in zip(regimes.sizes, epochs.tolist(), strict=True):
                rate = self._at_size(regimes.model, size, gpu_type, gpus)
                seconds[row] += count * SAMPLES[regimes.model] / size / rate if rate > 0 else np.inf
        return seconds

    def _of(self, jobs: JobTable) -> list[_Regimes]:
        columns = zip(jobs.job_type.tolist(), jobs.num_gpus.tolist(), jobs.total_steps.tolist(), strict=True)
        return [_regimes(jobs.job_types[code], gpus, steps, self.rules) for code, gpus, steps in columns]

    def _rate(self, regimes: _Regimes, phase: int, gpu_type: str, num_gpus: int) -> float:
        """First-size steps/s in that phase: at its batch size, or at the last one before it that runs there."""
        first = steps_per_epoch(regimes.model, regimes.sizes[0])
        for size in reversed(regimes.sizes[: phase + 1]):
            rate = self._at_size(regimes.model, size, gpu_type, num_gpus)
            if rate > 0:
                return rate * first / steps_per_epoch(regimes.model, size)
        return 0.0

    def _at_size(self, model: str, size: int, gpu_type: str, num_gpus: int) -> float:
        return self.table.table.get((f"{model} (batch size {size})", gpu_type.lower(), num_gpus), 0.0)


def regime_job_type(job_type: str, mode: str) -> str:
    """The job type that carries a mode, as :class:`RegimeThroughput` reads it."""
    return f"{job_type}, {mode}"
