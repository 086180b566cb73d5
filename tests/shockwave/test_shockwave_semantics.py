"""Preset shockwave against a plain replica of the published simulator, and the replica against published figures."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

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


class AlloxShares:
    """The published variant of AlloX: jobs that run alone keep their GPU; of the others the first to arrive are matched
    to (GPU, position from the end) as jobs of one GPU, and who comes first on a GPU gets 1/s of the time."""

    def __init__(self, alpha: float = 0.2) -> None:
        self.alpha = alpha
        self.before: dict[int, float] = {}

    def __call__(self, active: list[replica.ReplicaJob]) -> Mapping[int, float]:
        waiting = [job for job in active if self.before.get(job.number) != 1.0]
        free = replica.GPUS - (len(active) - len(waiting))
        waiting.sort(key=lambda job: job.arrival)
        waiting = waiting[: max(int(self.alpha * len(waiting)), free)]
        shares = {job.number: self.before.get(job.number, 0.0) for job in active}
        if waiting and free:
            seconds = np.array([(job.steps - job.done) / job.rate(job.size) for job in waiting])
            position = np.repeat(np.arange(1, len(waiting) + 1), free)
            rows, slots = linear_sum_assignment(np.outer(seconds, position))
            last: dict[int, tuple[int, replica.ReplicaJob]] = {}
            for row, slot in zip(rows.tolist(), slots.tolist(), strict=True):
                gpu, depth = slot % free, slot // free
                if gpu not in last or depth > last[gpu][0]:
                    last[gpu] = depth, waiting[row]
            shares.update({job.number: 1.0 / job.gpus for _, job in last.values()})
        self.before = shares
        return shares


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


def test_the_replica_gives_the_published_figures_of_allox() -> None:
    found = replica.simulate(replica.load_jobs(), AlloxShares())
    assert found.makespan == pytest.approx(32489.0, abs=1.0)
    assert found.completion.mean() == pytest.approx(9926.0, rel=0.005)
    # Equally good matchings differ in who is first.
    assert found.ratios.max() == pytest.approx(4.964, rel=0.01)
    assert 100 * np.mean(found.ratios > 1.05) == pytest.approx(27.5, abs=1.0)


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
