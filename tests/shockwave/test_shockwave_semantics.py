"""Preset shockwave against a plain replica of the published simulator, and the replica against published figures."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import bloxopt as bx
from bloxopt.reproduction.shockwave import CLUSTER, TRACE, finish_time_ratios

from . import shockwave_replica as replica


def max_min_shares(active: list[replica.ReplicaJob]) -> Mapping[int, float]:
    """The middle of the optimal face of ``max min_i s_i x_i``, as interior-point solvers give it."""
    import cvxpy as cp

    size = np.array([job.gpus for job in active], dtype=float)
    x = cp.Variable(len(active))
    limits = [x >= 0, x <= 1, size @ x <= replica.GPUS]
    cp.Problem(cp.Maximize(cp.min(cp.multiply(size, x))), limits).solve(solver=cp.CLARABEL)
    return {job.number: share for job, share in zip(active, np.clip(x.value, 0, 1), strict=True)}


@pytest.fixture(scope="module")
def published() -> replica.ReplicaResult:
    return replica.simulate(replica.load_jobs(), max_min_shares)


@pytest.fixture(scope="module")
def trace() -> bx.Trace:
    return bx.load_trace(TRACE)


@pytest.fixture(scope="module")
def ours(trace: bx.Trace) -> bx.SimulationResult:
    return bx.simulate(trace, CLUSTER, "max_min_fairness_agnostic", preset="shockwave")


def test_the_replica_gives_the_published_figures(published: replica.ReplicaResult) -> None:
    assert published.makespan == pytest.approx(33207.66, abs=0.02)
    assert published.completion.mean() == pytest.approx(11274.12, rel=0.002)
    assert published.ratios.max() == pytest.approx(2.947, abs=0.0005)
    assert 100 * np.mean(published.ratios > 1.05) == 25.0


def test_the_preset_agrees_with_the_replica(
    published: replica.ReplicaResult, ours: bx.SimulationResult, trace: bx.Trace
) -> None:
    completion = ours.jobs.set_index("job_id")["jct"].loc[list(trace.jobs.job_id)].to_numpy()
    assert ours.summary()["makespan"] == pytest.approx(published.makespan, rel=0.005)
    assert completion.mean() == pytest.approx(published.completion.mean(), rel=0.015)
    assert np.corrcoef(completion, published.completion)[0, 1] > 0.99
    ratios = finish_time_ratios(ours, trace)
    assert ratios.max() == pytest.approx(published.ratios.max(), rel=0.01)


def test_jobs_that_run_alone_take_as_long_as_in_the_replica(trace: bx.Trace) -> None:
    apart, adapted = [], []
    for row in range(0, 60, 6):
        job = replica.load_jobs()[row]
        job.arrival = 0.0
        static = job.steps / job.rate(job.first)
        epoch = job.per_epoch(job.first) / job.rate(job.first)
        theirs = replica.simulate([job], lambda active: {one.number: 1.0 for one in active}).completion[0]
        ours = bx.simulate(trace.take([row]).window(0, 1e9), CLUSTER, "fifo", preset="shockwave")
        apart.append(abs(ours.summary()["average_jct"] - theirs))
        adapted.append(abs(static - theirs))
        # Theirs rounds progress up to a whole epoch at each of its up to four changes; ours lets it be.
        assert apart[-1] <= replica.ROUND + 4 * epoch, row
    assert sum(apart) < 0.15 * sum(adapted)
