"""Goodput of Pollux' applications when they choose their batch sizes themselves, measured or predicted by a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from bloxopt.errors import ThroughputError
from bloxopt.goodput import FittedStepTimes, fit_step_times
from bloxopt.jobs import FloatArray, IntArray, JobTable
from bloxopt.workloads.pollux_applications import Application, Counts, load_applications
from bloxopt.workloads.pollux_profiles import GPU_TYPE
from bloxopt.workloads.pollux_throughput import MOST_GPUS, PolluxThroughput

Source = Literal["measured", "fitted"]


class PolluxGoodput(PolluxThroughput):
    """Progress per second of jobs whose type is an application's name, at the batch size that is best in each epoch.

    A step is one iteration's worth of progress at the initial batch size, an epoch a phase, so that
    ``rate = gain(B, epoch) / step time`` is the goodput over the initial batch size. B, its share of a GPU and the
    passes in which that is computed are chosen together: every whole local batch size within the measured range, more
    passes only where the share is larger than the largest, up to the largest measured B (see
    :func:`batch_splits`). Jobs named ``<application> (batch size <n>)`` keep theirs.

    ``rates`` says where the step times of a rate come from: ``"measured"``, which simulations run on, or ``"fitted"``,
    the predictions of a :class:`~bloxopt.goodput.StepTimeModel` fitted to all that was measured of the application.
    ``batch_sizes`` says by which of them jobs choose (None: by the same). Pollux plans with a fit, which also chooses
    the batch size, while its jobs run at measured rates: simulate ``PolluxGoodput(d, "measured", "fitted")`` and plan
    with ``PolluxGoodput(d, "fitted")``. Gradient noise is measured in both.

    Configurations that were not measured have no rate; of fitted ones every placement has.
    Raises :class:`ThroughputError` for a directory that cannot be read and for other sources. Source: Qiao et al., OSDI
    2021.
    """

    def __init__(self, directory: str | Path, rates: Source = "measured", batch_sizes: Source | None = None) -> None:
        for name, value in (("rates", rates), ("batch_sizes", batch_sizes)):
            if value not in ("measured", "fitted") and not (name == "batch_sizes" and value is None):
                raise ThroughputError(f"PolluxGoodput: {name} is {value!r}, must be 'measured' or 'fitted'")
        try:
            super().__init__(directory)
        except OSError as error:
            raise ThroughputError(f"{directory}: cannot be read as Pollux' profiles: {error.strerror}") from error
        self.directory = str(directory)
        self.source: Source = rates
        self.chosen_by: Source = rates if batch_sizes is None else batch_sizes

    def kind(self, job_type: str) -> tuple[Application, float]:
        """Application and batch size of a job type, NaN for one that adapts it."""
        if job_type in self.applications:
            return self.applications[job_type], np.nan
        return super().kind(job_type)

    def fit(self, application: str) -> FittedStepTimes:
        """The model fitted to all step times of an application, with its errors."""
        return fitted_step_times(self.directory, application)

    def best_splits(self, application: str, counts: Counts) -> tuple[IntArray, IntArray]:
        """Local batch size and passes that jobs choose on a placement in each epoch, (epochs,); 0 where none can be."""
        splits, at, _ = self._chosen(self.applications[application], counts)
        able = at >= 0
        return np.where(able, splits.local[at], 0), np.where(able, splits.passes[at], 0)

    @cached_property
    def prediction(self) -> PolluxGoodput:
        """The oracle that knows the same jobs by the fitted model alone: what policies can plan with."""
        return PolluxGoodput(self.directory, "fitted")

    def remaining_seconds(self, jobs: JobTable, gpu_types: Sequence[str], num_gpus: IntArray) -> FloatArray:
        """As for fixed batch sizes; jobs that adapt theirs take the time of the epochs from the present one on."""
        adapts = np.array([name in self.applications for name in jobs.job_types])[jobs.job_type]
        left = np.full((len(jobs), len(gpu_types)), np.inf)
        on_type = np.array([name.upper() == GPU_TYPE for name in gpu_types])
        fixed = np.flatnonzero(~adapts)
        if len(fixed):
            left[fixed] = super().remaining_seconds(jobs.take(fixed), gpu_types, num_gpus[fixed])
        for code in np.unique(jobs.job_type[adapts]):
            mine = ((jobs.job_type == code) & (num_gpus <= MOST_GPUS)).nonzero()[0]
            name = jobs.job_types[code]
            with np.errstate(divide="ignore"):
                spent = np.diff(self.applications[name].progress, prepend=0.0) / self._table(name)
            to_the_end = spent[:, ::-1].cumsum(axis=1)[:, ::-1]
            left[mine] = np.where(on_type, to_the_end[num_gpus[mine], jobs.phase[mine]][:, None], np.inf)
        return left

    def _by_epoch(self, job_type: str, counts: Counts) -> FloatArray:
        if (job_type, counts) not in self._rates:
            application, batch_size = self.kind(job_type)
            if np.isfinite(batch_size):
                return (
                    super()._by_epoch(job_type, counts) if self.source == "measured" else self._fixed(job_type, counts)
                )
            self._rates[job_type, counts] = self._chosen(application, counts)[2]
        return self._rates[job_type, counts]

    def _fixed(self, job_type: str, counts: Counts) -> FloatArray:
        """Predicted rates at a batch size that does not adapt, (epochs,)."""
        application, batch_size = self.kind(job_type)
        split = application.split(batch_size, sum(counts))
        one = Splits(sum(counts), np.array([split.local]), np.array([split.accumulated + 1]))
        seconds = self._times(application, counts, one, "fitted")[0]
        rate: FloatArray = application.gain(split.batch_size) / seconds
        self._rates[job_type, counts] = rate
        return rate

    def _chosen(self, application: Application, counts: Counts) -> tuple[Splits, IntArray, FloatArray]:
        """All splits on a placement, the one chosen in each epoch (-1: none can be) and the rate that it gives."""
        splits = batch_splits(application, sum(counts))
        if not len(splits.local):
            return splits, np.full(application.num_epochs, -1), np.zeros(application.num_epochs)
        gain = gains(application, splits.batch_size)
        judged = self._times(application, counts, splits, self.chosen_by)
        value = np.where(np.isfinite(judged)[:, None], gain / judged[:, None], -1.0)
        at = value.argmax(axis=0)
        epochs = np.arange(application.num_epochs)
        seconds = judged if self.source == self.chosen_by else self._times(application, counts, splits, self.source)
        rate = gain[at, epochs] / seconds[at]
        able = (value[at, epochs] > 0) & np.isfinite(rate)
        return splits, np.where(able, at, -1), np.where(able, rate, 0.0)

    def _times(self, application: Application, counts: Counts, splits: Splits, source: Source) -> FloatArray:
        """Seconds of a step with every split, NaN where that was not measured."""
        if source == "fitted":
            model = self.fit(application.name).model
            return model.step_seconds(len(counts), sum(counts), splits.local, splits.passes - 1)
        step, sync = application.step_times(counts, splits.local.astype(np.float64)).T
        seconds: FloatArray = step + (splits.passes - 1) * (step - sync)
        return seconds


@dataclass(frozen=True, eq=False)
class Splits:
    """Ways of computing a batch on ``num_gpus`` GPUs: ``local`` samples each in each of ``passes``, (splits,)."""

    num_gpus: int
    local: IntArray
    passes: IntArray

    @property
    def batch_size(self) -> IntArray:
        """Samples of a step on all GPUs together, (splits,)."""
        return self.num_gpus * self.local * self.passes


def batch_splits(application: Application, num_gpus: int) -> Splits:
    """Every split that an application may choose on so many GPUs, by ascending batch size.

    Local batch sizes are whole, within what was measured; batches are from the initial to the largest one. A share is
    computed in as few passes as the largest local batch size allows, and one GPU with more than the initial batch makes
    two at least, for otherwise it could not estimate its gradient noise (Pollux, OSDI 2021).
    """
    most = application.max_batch_size // num_gpus
    share = np.arange(max(application.min_local, 1), most + 1, dtype=np.int64)
    passes = -(-share // application.max_local)
    if num_gpus == 1:
        passes = np.where(share > application.initial_batch_size, np.maximum(passes, 2), passes)
    whole = share % passes == 0
    local, passes = (share // passes)[whole], passes[whole]
    batch = num_gpus * local * passes
    fits = (local >= application.min_local) & (batch >= application.initial_batch_size)
    return Splits(num_gpus, local[fits], passes[fits])


def gains(application: Application, batch_size: IntArray) -> FloatArray:
    """Progress of a step at each batch size in each epoch, (sizes, epochs); see :meth:`Application.gain`."""
    sizes = application.batch_sizes
    above = np.clip(np.searchsorted(sizes, batch_size), 1, len(sizes) - 1)
    part = ((batch_size - sizes[above - 1]) / (sizes[above] - sizes[above - 1]))[:, None]
    sqr, var = (
        values[above - 1] * (1 - part) + values[above] * part for values in (application.grad_sqr, application.grad_var)
    )
    scale = (batch_size / application.initial_batch_size)[:, None]
    gain: FloatArray = (var + sqr) / (var / scale + sqr)
    return gain


@lru_cache(maxsize=64)
def fitted_step_times(directory: str, name: str) -> FittedStepTimes:
    """The model fitted to all step times measured of an application, with its errors."""
    import pandas as pd

    folder = Path(directory) / name
    if name not in load_applications(Path(directory)):
        raise ThroughputError(f"{directory}: there is no application {name!r} to fit")
    placements = pd.read_csv(folder / "placements.csv", dtype={"placement": str})
    scalability = pd.read_csv(folder / "scalability.csv")
    placements["num_nodes"] = placements.placement.str.len()
    placements["num_replicas"] = [sum(map(int, digits)) for digits in placements.placement]
    columns = ["num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"]
    seen = pd.concat([placements[columns], scalability[columns]])
    nodes, gpus, local, step, sync = (seen[column].to_numpy() for column in columns)
    return fit_step_times(nodes, gpus, local.astype(np.float64), step - sync, step)
