"""A job that asks for part of a GPU uses that part of the capacity, in programs, rounds and results."""

from __future__ import annotations

import numpy as np
import pytest

import bloxopt as bx
from bloxopt.formulations import Capacity, Cost, GpusUsed, MaxSum, NormalizedThroughput, Policy, TenantQuota, TimeShare
from bloxopt.formulations.space import AllocationSpace
from bloxopt.selection.base import greedy_fill

HALVES = [bx.Job(job_id=f"half-{i}", duration=1000.0, gpu_share=0.5, tenant="a") for i in range(4)]
WHOLE = [bx.Job(job_id=f"whole-{i}", duration=1000.0, num_gpus=2, tenant="b") for i in range(2)]


def space_of(*jobs: bx.Job, cluster: str = "1x4xV100") -> AllocationSpace:
    return AllocationSpace.from_jobs(list(jobs), cluster)


def test_demand_is_the_gpu_count_itself_when_no_job_shares() -> None:
    space = space_of(*WHOLE)
    assert space.gpu_demand is space.num_gpus
    assert space_of(*HALVES, *WHOLE).gpu_demand.tolist() == [0.5] * 4 + [2.0] * 2


def test_capacity_counts_a_share_as_its_part() -> None:
    space = space_of(*HALVES, *WHOLE, cluster="1x6xV100")
    everything = np.ones(space.num_columns)
    assert Capacity().violations(space, everything).max() == 0.0
    assert Capacity().violations(space_of(*HALVES, *WHOLE, cluster="1x5xV100"), everything).tolist() == [
        pytest.approx(1 / 5)
    ]
    assert GpusUsed(by="tenant").build(space).at(everything).tolist() == [2.0, 4.0]


def test_quota_and_price_count_a_share_as_its_part() -> None:
    space = space_of(*HALVES, *WHOLE)
    everything = np.ones(space.num_columns)
    assert TenantQuota({"a": 2}).violations(space, everything).max() == 0.0
    assert TenantQuota({"a": 1.5}).violations(space, everything).max() == pytest.approx(0.5 / 1.5)
    assert Cost({"V100": 3.0}).build(space).at(everything).tolist() == [1.5] * 4 + [6.0] * 2


def test_a_program_gives_every_share_its_time() -> None:
    policy = Policy(objective=MaxSum(NormalizedThroughput()), constraints=[Capacity(), TimeShare()], name="sum")
    allocation = policy.allocate(space_of(*HALVES, cluster="1x2xV100"))
    assert allocation.x.tolist() == pytest.approx([1.0] * 4)


@pytest.mark.parametrize("selector", ["priorities", "exact", "ranking"])
def test_jobs_that_share_run_side_by_side(selector: str) -> None:
    trace = bx.Trace.from_jobs(HALVES)
    result = bx.simulate(trace, "1x2xV100", "fifo", selector=selector, placement="first_fit")
    assert result.jobs["finish"].tolist() == pytest.approx([1000.0] * 4)
    assert result.rounds["gpus_used"].max() == 2.0
    assert result.jobs["gpu_seconds"].tolist() == pytest.approx([500.0] * 4)


def test_shares_that_do_not_fit_one_gpu_together_wait() -> None:
    jobs = [bx.Job(job_id=str(i), duration=360.0, gpu_share=0.6) for i in range(2)]
    result = bx.simulate(bx.Trace.from_jobs(jobs), "1x1xV100", "fifo")
    assert result.jobs["finish"].tolist() == pytest.approx([360.0, 720.0])
    assert result.rounds["gpus_used"].tolist() == pytest.approx([0.6, 0.6])


@pytest.mark.parametrize(
    "policy", ["max_min_fairness", "finish_time_fairness", "min_makespan", "las", "water_filling_perf"]
)
def test_every_kind_of_policy_runs_traces_with_shares(policy: str) -> None:
    result = bx.simulate(bx.Trace.from_jobs(HALVES + WHOLE), "1x4xV100", policy)
    assert np.isfinite(result.jobs["finish"]).all()
    assert result.rounds["gpus_used"].max() <= 4.0


def test_greedy_fill_of_shares_survives_rounding() -> None:
    taken, left = greedy_fill(np.full(1000, 0.1), 100)
    assert len(taken) == 1000
    assert left == pytest.approx(0.0, abs=1e-5)
    assert greedy_fill(np.array([2, 1, 2, 1]), 4) == ([0, 1, 3], 0)
