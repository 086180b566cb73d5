"""How long jobs will still take when their rates change as they progress, without looking into their future."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bloxopt.formulations.measures import positive_rate
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import BoolArray, FloatArray, IntArray
from bloxopt.throughput import checked_rates


@dataclass(frozen=True, eq=False)
class PredictedWork:
    """Work of each active job (num_jobs,), in seconds alone on its fastest GPU type at the GPUs it asks for.

    ``done`` part of its work in [0, 1] · ``spent`` seconds that this part takes · ``remaining`` seconds expected for
    the rest · ``whole`` seconds that all of it would take at the mean speed so far · ``rate`` steps/s now.
    """

    done: FloatArray
    spent: FloatArray
    remaining: FloatArray
    whole: FloatArray
    rate: FloatArray


def predict_work(space: AllocationSpace) -> PredictedWork:
    """What is known, and what is to be expected, of the work of the active jobs.

    Where rates change as jobs progress (:mod:`bloxopt.phases`), each distinct rate of a job is a regime. How its work
    is divided among its K regimes is taken as Dirichlet with the prior mean 1/K each, as heavy as the whole work; the
    part done so far is the observation. So a part ``d_k`` done in regime k lets one expect
    ``(1/K + d_k)/(1 + Σ d) − d_k`` more of it (at least 0, scaled to what remains). Only which regimes there are is
    known beforehand, not when they come. Source: Zheng et al., NSDI 2023, §5, in the limit of many epochs.
    """
    total = space.catalog.table.total_steps[space.index]
    done_steps = np.clip(total - space.remaining_steps, 0.0, total)
    now = positive_rate(space.requested_rate.max(axis=1, initial=0.0), space)
    if space.catalog.phases is None:
        return PredictedWork(done_steps / total, done_steps / now, (total - done_steps) / now, total / now, now)
    regime_job, regime, part, rate = _regimes(space, done_steps / total, total, now)
    observed = sum_by(regime, part, len(regime_job))
    speed = np.zeros(len(regime_job))
    speed[regime] = rate
    done = sum_by(regime_job, observed, space.num_jobs)
    kinds = np.bincount(regime_job, minlength=space.num_jobs)[regime_job]
    expected = np.maximum((1.0 / kinds + observed) / (1.0 + done[regime_job]) - observed, 0.0)
    in_all = sum_by(regime_job, expected, space.num_jobs)
    left = 1.0 - done
    expected *= np.divide(left, in_all, out=np.zeros_like(left), where=in_all > 0)[regime_job]
    spent = sum_by(regime_job, observed / speed, space.num_jobs) * total
    remaining = sum_by(regime_job, expected / speed, space.num_jobs) * total
    mean = np.divide(spent, done, out=total / now, where=done > 0)
    return PredictedWork(done, spent, remaining, mean, now)


def _regimes(
    space: AllocationSpace, done: FloatArray, total: FloatArray, now: FloatArray
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """The job of each regime and, for each phase of each active job, its regime, part of the work done and steps/s."""
    catalog = space.catalog
    phases = catalog.phases
    assert phases is not None
    count = phases.count[space.index]
    job = np.repeat(np.arange(space.num_jobs), count)
    phase = np.arange(len(job)) - np.repeat(np.cumsum(count) - count, count)
    row = space.index[job]
    end = np.minimum(phases.ends(row, phase) / total[job], 1.0)
    begin = np.where(phase > 0, np.roll(end, 1), 0.0)
    part = np.clip(done[job] - begin, 0.0, end - begin)
    table = catalog.table.take(row).in_phase(phase)
    rate = checked_rates(catalog.oracle, table, catalog.cluster.gpu_types, table.num_gpus).max(axis=1, initial=0.0)
    # A job that cannot run at the size it asks for goes by what it can run on.
    absent: BoolArray = rate <= 0
    rate = np.where(absent, now[job], rate)
    _, first, regime = np.unique(np.column_stack([job, rate]), axis=0, return_index=True, return_inverse=True)
    return job[first], regime.ravel(), part, rate
