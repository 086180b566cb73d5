"""Whole published traces run to the end, every job finishing, every node within its GPUs (slow)."""

from __future__ import annotations

import resource

import numpy as np
import pytest

import bloxopt as bx

pytestmark = pytest.mark.slow
ELASTICFLOW = [f"elasticflow-{number:02d}" for number in range(1, 11)]


def check(trace: bx.Trace, result: bx.SimulationResult) -> None:
    jobs, rounds = result.jobs, result.rounds
    assert len(jobs) == len(trace)
    assert jobs["finish"].notna().all()
    assert (jobs["start"] >= jobs["arrival"]).all()
    assert (jobs["run_seconds"] >= trace.jobs.duration - 1e-3).all()
    np.testing.assert_allclose(jobs["gpu_seconds"], jobs["run_seconds"] * jobs["gpus"], rtol=1e-9)
    assert (rounds["gpus_used"] <= rounds["gpus_up"]).all()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < 1.5e9


@pytest.mark.parametrize("policy", ["fifo", "srtf", "las"])
def test_philly(policy: str) -> None:
    trace = bx.load_trace("philly")
    assert len(trace) == 82_247
    cluster = bx.load_cluster(trace.default_cluster)
    assert cluster.num_gpus == 2_490
    check(trace, bx.simulate(trace, cluster, policy))


def test_the_first_ten_thousand_jobs_of_philly_under_max_min_fairness() -> None:
    trace = bx.load_trace("philly").head(10_000)
    check(trace, bx.simulate(trace, bx.load_trace("philly").default_cluster, "max_min_fairness"))


@pytest.mark.parametrize("policy", ["fifo", "srtf", "las", "max_min_fairness"])
@pytest.mark.parametrize("name", ELASTICFLOW)
def test_elasticflow(name: str, policy: str) -> None:
    trace = bx.load_trace(name)
    cluster = trace.default_cluster
    if policy == "max_min_fairness":
        trace = trace.head(10_000)
    check(trace, bx.simulate(trace, cluster, policy))
