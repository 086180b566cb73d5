"""Rates of Pollux' applications at a fixed batch size, by placement and epoch, as its simulator has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bloxopt.errors import ThroughputError
from bloxopt.jobs import FloatArray, IntArray, JobTable
from bloxopt.phases import Phases
from bloxopt.workloads.pollux_applications import MOST_NODES, Application, Counts, load_applications, packed
from bloxopt.workloads.pollux_profiles import GPU_TYPE, GPUS_PER_NODE

MOST_GPUS = MOST_NODES * GPUS_PER_NODE
"""Largest gang that was measured."""


class PolluxThroughput:
    """Progress per second of jobs named ``<application> (batch size <n>)``; an epoch is a phase.

    A step is one iteration's worth of progress at the application's initial batch size. Its rate is
    ``gain(batch, epoch) / step time``: the measured gradient noise says what an iteration at the job's batch size is
    worth. ``rates`` are those on the fewest nodes, ``rates_on`` those of a placement (those on the fewest nodes where
    the placement is beyond what was measured, such as more than four GPUs of a node). Rates are 0 on other GPU types
    than T4 and where the share of a GPU was not measured. Source: Qiao et al., OSDI 2021, and its simulator.
    """

    def __init__(self, directory: str | Path) -> None:
        self.applications = load_applications(Path(directory))
        self._kinds: dict[str, tuple[Application, float]] = {}
        self._rates: dict[tuple[str, Counts], FloatArray] = {}
        self._packed: dict[str, FloatArray] = {}
        self._seconds: dict[str, FloatArray] = {}

    def kind(self, job_type: str) -> tuple[Application, float]:
        """Application and batch size of a job type; raises :class:`ThroughputError` for a name that is not one."""
        if job_type not in self._kinds:
            name, _, size = job_type.partition(" (batch size ")
            if name not in self.applications or not size.rstrip(")").isdigit():
                raise ThroughputError(
                    f"job type {job_type!r} is not of Pollux' applications: expected '<application> (batch size <n>)' "
                    f"with an application of {', '.join(sorted(self.applications))}"
                )
            self._kinds[job_type] = self.applications[name], float(size.rstrip(")"))
        return self._kinds[job_type]

    def phases(self, jobs: JobTable) -> Phases:
        """The end of each epoch, in iterations at the initial batch size."""
        ends = [self.kind(jobs.job_types[code])[0].progress for code in jobs.job_type.tolist()]
        return Phases(np.cumsum([0, *map(len, ends)]), np.concatenate(ends))

    def rates(self, jobs: JobTable, gpu_types: Sequence[str], num_gpus: IntArray) -> FloatArray:
        rate = np.zeros(len(jobs))
        for code in np.unique(jobs.job_type):
            mine = ((jobs.job_type == code) & (num_gpus <= MOST_GPUS)).nonzero()[0]
            rate[mine] = self._table(jobs.job_types[code], num_gpus[mine])[num_gpus[mine], jobs.phase[mine]]
        on_type = np.array([name.upper() == GPU_TYPE for name in gpu_types], dtype=np.float64)
        return np.multiply.outer(rate, on_type)

    def rates_on(self, jobs: JobTable, gpu_type: str, counts: Sequence[Counts]) -> FloatArray:
        """Steps/s of job i on ``counts[i]`` GPUs of each of its nodes, (jobs,)."""
        if gpu_type.upper() != GPU_TYPE:
            return np.zeros(len(jobs))
        codes, phases, names = jobs.job_type.tolist(), jobs.phase.tolist(), jobs.job_types
        pairs = zip(codes, counts, phases, strict=True)
        rate = np.array([self._by_epoch(names[code], on)[phase] for code, on, phase in pairs], dtype=np.float64)
        if rate.all():
            return rate
        total = np.array([min(sum(on), MOST_GPUS + 1) for on in counts])
        return np.where(rate > 0, rate, self.rates(jobs, [gpu_type], total)[:, 0])

    def remaining_seconds(self, jobs: JobTable, gpu_types: Sequence[str], num_gpus: IntArray) -> FloatArray:
        """Seconds that each job would still take on ``num_gpus[i]`` packed GPUs of each type, (jobs, types).

        As in the simulator's Optimus: the iterations that were measured at the job's batch size from the end of the
        epoch it is in, one in the last epoch, times the seconds of one. inf on other types and counts.
        """
        left = np.full(len(jobs), np.inf)
        for code in np.unique(jobs.job_type):
            mine = ((jobs.job_type == code) & (num_gpus <= MOST_GPUS)).nonzero()[0]
            name = jobs.job_types[code]
            application, batch_size = self.kind(name)
            made = application.between(application.iterations, batch_size)
            iterations = np.maximum(made[-1] - made[jobs.phase[mine]], 1.0)
            left[mine] = iterations * self._step_seconds(name, num_gpus[mine])[num_gpus[mine]]
        on_type = np.array([name.upper() == GPU_TYPE for name in gpu_types])
        return np.where(on_type, left[:, None], np.inf)

    def _step_seconds(self, job_type: str, counts: IntArray) -> FloatArray:
        """Seconds of an iteration on packed GPUs, (GPUs from 0,), filled in for ``counts``; inf where not measured."""
        seconds = self._seconds.setdefault(job_type, np.full(MOST_GPUS + 1, np.nan))
        application, batch_size = self.kind(job_type)
        for count in np.unique(counts[np.isnan(seconds[counts])]).tolist():
            one = application.step_seconds(packed(count), application.split(batch_size, count))
            seconds[count] = one if np.isfinite(one) else np.inf
        return seconds

    def _table(self, job_type: str, counts: IntArray | None = None) -> FloatArray:
        """Rates on packed GPUs, (GPUs from 0, epochs), filled in for ``counts`` (None: all; no GPUs, no rate)."""
        if job_type not in self._packed:
            self._packed[job_type] = np.full((MOST_GPUS + 1, self.kind(job_type)[0].num_epochs), np.nan)
            self._packed[job_type][0] = 0.0
        table = self._packed[job_type]
        counts = np.arange(MOST_GPUS + 1) if counts is None else counts
        for count in np.unique(counts[np.isnan(table[counts, 0])]).tolist():
            table[count] = self._by_epoch(job_type, packed(count))
        return table

    def _by_epoch(self, job_type: str, counts: Counts) -> FloatArray:
        """Rates in every epoch, (epochs,)."""
        if (job_type, counts) not in self._rates:
            application, batch_size = self.kind(job_type)
            split = application.split(batch_size, sum(counts))
            seconds = application.step_seconds(counts, split)
            known = np.isfinite(seconds) and split.batch_size >= application.initial_batch_size
            rate = application.gain(split.batch_size) / seconds if known else np.zeros(application.num_epochs)
            self._rates[job_type, counts] = rate
        return self._rates[job_type, counts]
