"""ElasticFlow's allocation: satisfactory shares first, then elastic scaling where it saves most GPU time; and EDF."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.errors import FormulationError
from bloxopt.formulations import AllocationSpace, Budget, Capacity, MinimumShare, Policy, SatisfactoryShares, TimeShare
from bloxopt.formulations.policies import get_policy
from bloxopt.jobs import Job


def space(jobs, gpus=8, exponent=0.8, now=0.0, round_seconds=60.0, **state):
    """Jobs of (work in GPU-seconds, fewest, most, deadline) whose throughput grows by GPUs ** exponent."""
    made = [
        Job(job_id=f"j{i}", total_steps=float(work), min_gpus=low, num_gpus=low, max_gpus=high, deadline=deadline)
        for i, (work, low, high, deadline) in enumerate(jobs)
    ]
    return AllocationSpace.from_jobs(
        made, f"1x{gpus}xV100", lambda kind, gpu, n: n**exponent, now=now, round_seconds=round_seconds, **state
    )


def given_gpus(space, policy="elasticflow", **options):
    allocation = get_policy(policy, **options).allocate(space)
    gpus = np.zeros(space.num_jobs, dtype=int)
    chosen = np.flatnonzero(allocation.x > 0.5)
    gpus[space.job[chosen]] = space.num_gpus[chosen]
    return gpus.tolist()


def test_a_deadline_gets_its_share_before_a_job_without_one():
    # 480 steps in 120 s need 4 steps/s: 6 GPUs at an exponent of 0.8 (4.19), 5 are not enough (3.62).
    assert given_gpus(space([(10_000, 8, 8, None), (480, 1, 8, 120.0)])) == [0, 8]
    assert given_gpus(space([(10_000, 2, 2, None), (480, 1, 6, 120.0)])) == [2, 6]
    assert given_gpus(space([(10_000, 3, 3, None), (480, 1, 6, 120.0)])) == [0, 6]


def test_what_is_left_goes_where_it_costs_least_gpu_time():
    # Both have their least share of 1; doubling GPUs costs more GPU time the more work is left.
    assert given_gpus(space([(100, 1, 8, 1e5), (10_000, 1, 8, 1e6)], gpus=4)) == [3, 1]


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_no_gpu_idles_that_a_job_could_use_and_no_share_is_lost(seed):
    rng = np.random.default_rng(seed)
    jobs = []
    for _ in range(int(rng.integers(1, 7))):
        low = int(rng.integers(1, 4))
        deadline = None if rng.random() < 0.4 else float(rng.uniform(60, 900))
        jobs.append((float(rng.uniform(50, 2000)), low, int(rng.integers(low, 9)), deadline))
    problem = space(jobs)
    gpus = given_gpus(problem)
    left = 8 - sum(gpus)
    assert left >= 0
    for (_, low, high, _), n in zip(jobs, gpus, strict=True):
        assert n == 0 or low <= n <= high
        assert n == high or (low if n == 0 else n + 1) - n > left
    # Asking again in the same round changes nothing.
    assert given_gpus(problem) == gpus


def test_jobs_whose_deadline_is_lost_are_served_as_best_effort():
    assert given_gpus(space([(10_000, 1, 8, 60.0)])) == [8]


def test_scaling_stops_where_the_restart_it_costs_would_break_a_promise():
    # 3 GPUs do 3 x 60 s of 180 steps just in time. A fourth now would cost 30 s at each change.
    def asked(cost):
        jobs = [
            Job(job_id="a", total_steps=180.0, num_gpus=3, max_gpus=4, min_gpus=3, deadline=60.0, restart_cost=cost)
        ]
        started = AllocationSpace.from_jobs(
            jobs, "1x4xV100", lambda kind, gpu, n: float(n), now=0.0, round_seconds=60.0, gpu_type=0, gpus=3
        )
        started.ledger.start[:] = 0.0
        return given_gpus(started)

    assert asked(0.0) == [4]
    assert asked(30.0) == [3]


def test_upper_limits_are_kept_and_promises_to_others_are_refused():
    problem = space([(1000, 1, 8, 1e5), (1000, 1, 8, None)])
    limited = Policy(
        objective=SatisfactoryShares(),
        constraints=[Capacity(), TimeShare(), Budget(3.0, {"V100": 1.0})],
        name="limited",
    )
    assert (problem.num_gpus * limited.allocate(problem).x).sum() == 3
    promising = Policy(objective=SatisfactoryShares(), constraints=[Capacity(), TimeShare(), MinimumShare(0.1)])
    with pytest.raises(FormulationError, match="takes upper limits only"):
        promising.allocate(problem)


def test_deadlines_beyond_any_plan_and_nodes_that_fail_do_no_harm():
    jobs = [bx.Job(job_id=f"j{i}", duration=900.0, num_gpus=2, max_gpus=4, deadline=1e11) for i in range(3)]
    result = bx.simulate(
        bx.Trace.from_jobs(jobs), "2x4xV100", "elasticflow", admission="elasticflow", round_seconds=60.0,
        failures=[bx.Outage("node-0", 100.0, 400.0), bx.Outage("node-1", 500.0, 700.0)],
    )  # fmt: skip
    assert result.summary()["finished"] == 3


def test_edf_serves_the_earliest_deadline_first_and_those_without_one_last():
    problem = space([(100, 4, 4, None), (100, 4, 4, 900.0), (100, 4, 4, 300.0)])
    assert get_policy("edf").rank(problem).tolist() == [2, 1, 0]
    assert given_gpus(problem, "edf") == [0, 4, 4]


def test_more_deadlines_are_met_with_elasticflow_than_with_the_others_on_a_published_cluster():
    trace = bx.load_trace("elasticflow-06").head(40).with_elastic_range(1, 16).with_deadlines(seed=0)
    from bloxopt.throughput import DurationThroughput

    trace = trace.with_throughput(DurationThroughput(scaling_exponent=0.8))
    met = {}
    for admission, policy in [("elasticflow", "elasticflow"), ("accept_all", "edf"), ("accept_all", "fifo")]:
        result = bx.simulate(trace, "3x8xV100", policy, admission=admission, round_seconds=600.0)
        met[policy] = result.summary()["deadlines_met"]
        if policy == "elasticflow":
            taken = result.jobs[~result.jobs["rejected"]]
            assert (taken["finish"] <= taken["deadline"] + 1e-6).all()
    assert met["elasticflow"] > met["edf"] > met["fifo"]
