"""Gandiva's random pairs and AntMan's guarantees: what each promises, on instances small enough to enumerate."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.errors import FormulationError
from bloxopt.formulations import AllocationSpace
from bloxopt.formulations.policies import get_policy
from bloxopt.formulations.systems.guarantees import guaranteed_jobs
from bloxopt.jobs import Job, JobTable
from bloxopt.throughput import TableThroughput

KINDS = "abcd"


def space_of(kinds, gpus, tenants, kept, capacity, threshold):
    """Jobs at 1 step/s on any GPUs, ``kept[x, y]`` beside a job of kind y."""
    jobs = [
        Job(job_id=f"j{i}", job_type=kind, num_gpus=count, tenant=tenant, total_steps=1000.0)
        for i, (kind, count, tenant) in enumerate(zip(kinds, gpus, tenants, strict=True))
    ]
    sizes = sorted(set(gpus))
    table = {(k, "v100", n): 1.0 for k in KINDS for n in sizes}
    pairs = {
        (x, y, "v100", n): (kept[x, y], kept[y, x])
        for x, y in itertools.combinations_with_replacement(KINDS, 2)
        for n in sizes
        if (x, y) in kept
    }
    return AllocationSpace.from_jobs(jobs, f"{capacity}xV100", TableThroughput(table, pairs), pair_threshold=threshold)


EVEN = {(x, y): 0.8 for x in KINDS for y in KINDS}


def partners_of(space, x):
    shared = (x > 0) & (space.partner >= 0)
    return dict(zip(space.job[shared].tolist(), space.partner[shared].tolist(), strict=True))


def test_gandiva_packs_only_while_jobs_ask_for_more_gpus_than_there_are():
    policy = get_policy("gandiva")
    roomy = space_of("abcd", [1] * 4, ["t"] * 4, EVEN, 4, policy.pair_threshold)
    found = policy.allocate(roomy)
    assert found.throughput.tolist() == [1.0] * 4
    short = space_of("abcd", [1] * 4, ["t"] * 4, EVEN, 2, policy.pair_threshold)
    found = policy.allocate(short)
    # Two pairs on two GPUs: each job runs all the time at the shared rate.
    assert found.throughput.tolist() == pytest.approx([0.8] * 4)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_gandivas_groups_have_equal_gpu_time_and_pairs_have_equal_gangs(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 12))
    gpus = rng.choice([1, 1, 2], n).tolist()
    policy = get_policy("gandiva", seed=int(rng.integers(1000)))
    space = space_of(rng.choice(list(KINDS), n).tolist(), gpus, ["t"] * n, EVEN, 3, policy.pair_threshold)
    found = policy.allocate(space)
    pair = space.ledger.memory("gandiva.pair", -1)
    numbers, size = np.unique(pair[pair >= 0], return_counts=True)
    assert (size == 2).all()
    for number in numbers:
        first, second = (pair == number).nonzero()[0]
        assert gpus[first] == gpus[second]
    groups = n - len(numbers) if sum(gpus) > 3 else n
    time = found.time_share.sum(axis=1)
    assert time.tolist() == pytest.approx([min(1.0, 3 / groups / count) for count in gpus])
    assert policy.allocate(space).x.tolist() == found.x.tolist()  # asked again in the same round


def test_gandiva_takes_pairs_apart_that_do_not_pay_and_keeps_the_others():
    kept = {(x, y): 0.3 for x in KINDS for y in KINDS} | {("a", "b"): 0.9, ("b", "a"): 0.9}
    policy = get_policy("gandiva", seed=2)
    space = space_of("abcd", [1] * 4, ["t"] * 4, kept, 1, policy.pair_threshold)
    good_for = 0
    for moment in range(60):
        space.now = float(moment)
        policy.allocate(space)
        pair = space.ledger.memory("gandiva.pair", -1)
        together = pair[0] >= 0 and pair[0] == pair[1]
        assert together or not good_for  # once together, a and b stay so
        good_for += bool(together)
    assert good_for > 0
    assert len(set(pair[2:].tolist())) == 1  # the others are put together by trial, and taken apart, again and again


def test_gandiva_without_trials_pairs_only_jobs_that_can_run_beside_each_other():
    kept = {("a", "b"): 0.9, ("b", "a"): 0.9}
    for seed in range(8):
        policy = get_policy("gandiva", blindly=False, seed=seed)
        space = space_of("abab", [1] * 4, ["t"] * 4, kept, 1, policy.pair_threshold)
        assert (policy.allocate(space).throughput > 0).all()


def test_gandiva_refuses_what_makes_no_sense():
    with pytest.raises(FormulationError, match=r"seed is 0\.5"):
        get_policy("gandiva", seed=0.5)
    with pytest.raises(FormulationError, match="keep"):
        get_policy("gandiva", keep=-1.0)
    with pytest.raises(FormulationError, match="pair_threshold"):
        get_policy("gandiva").allocate(AllocationSpace.from_jobs([Job(job_id="x", duration=1.0)], "1xV100"))


def test_guarantees_go_by_order_of_admission_as_long_as_the_quota_lasts():
    space = space_of("aaaaa", [2, 1, 2, 1, 1], ["u", "v", "u", "u", "v"], EVEN, 8, 1.0)
    assert guaranteed_jobs(space, None).tolist() == [True] * 2 + [True, False, True]
    assert guaranteed_jobs(space, {"u": 3}).tolist() == [True, False, False, False, False]
    assert guaranteed_jobs(space, {"u": 2, "v": 1}).tolist() == [True, True, False, False, False]
    with pytest.raises(FormulationError, match="unknown tenant 'w'"):
        guaranteed_jobs(space, {"w": 1})


def by_enumeration(space, kinds, gpus, kept, guaranteed, capacity, slowdown):
    """The best whole round: GPUs of jobs with a guarantee first, then throughput."""
    n = len(kinds)

    def options(jobs, left):
        if not jobs:
            yield 0.0, 0.0
            return
        first, rest = jobs[0], jobs[1:]
        for g, t in options(rest, left):
            yield g, t
        if gpus[first] > left:
            return
        for g, t in options(rest, left - gpus[first]):
            yield g + gpus[first] * guaranteed[first], t + gpus[first]
        for other in rest:
            own, beside = kept.get((kinds[first], kinds[other]), 0), kept.get((kinds[other], kinds[first]), 0)
            slow = (guaranteed[first] and own < 1 - slowdown) or (guaranteed[other] and beside < 1 - slowdown)
            if gpus[first] != gpus[other] or slow or own + beside <= 1:
                continue
            for g, t in options([k for k in rest if k != other], left - gpus[first]):
                yield (
                    g + gpus[first] * (int(guaranteed[first]) + int(guaranteed[other])),
                    t + gpus[first] * (own + beside),
                )

    return max((round(g, 6), round(t, 6)) for g, t in options(list(range(n)), capacity))


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_antman_serves_guarantees_first_and_then_the_most_work(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 6))
    kinds, gpus = rng.choice(list(KINDS), n).tolist(), rng.choice([1, 1, 2], n).tolist()
    tenants = rng.choice(["u", "v"], n).tolist()
    kept = {(x, y): float(rng.choice([0.4, 0.7, 0.95, 1.0])) for x in KINDS for y in KINDS}
    for x in KINDS:
        kept[x, x] = 0.7
    policy = get_policy("antman", quota={"u": 2} if "u" in tenants else None, slowdown=0.1, solver="highs")
    space = space_of(kinds, gpus, tenants, kept, 2, policy.pair_threshold)
    guaranteed = guaranteed_jobs(space, {"u": 2} if "u" in tenants else None)
    found = policy.allocate(space)
    served = (space.requested_gpus * found.time_share.sum(axis=1))[guaranteed].sum()
    work = (space.requested_gpus * found.throughput).sum()
    expected = by_enumeration(space, kinds, gpus, kept, guaranteed, 2, 0.1)
    assert (served, work) == pytest.approx(expected, rel=2e-3)


def test_antman_runs_guaranteed_jobs_as_if_they_were_alone():
    rates = TableThroughput(
        {("a", "v100", 1): 1.0, ("b", "v100", 1): 1.0},
        {("a", "b", "v100", 1): (0.95, 0.6), ("a", "a", "v100", 1): (0.7, 0.7), ("b", "b", "v100", 1): (0.7, 0.7)},
    )
    jobs = [Job(job_id=f"g{i}", job_type="a", total_steps=2000.0, tenant="owner") for i in range(2)]
    jobs += [Job(job_id=f"o{i}", job_type="b", total_steps=900.0, tenant="guest") for i in range(4)]
    trace = bx.Trace("antman", JobTable.from_jobs(jobs), rates)
    policy = get_policy("antman", quota={"owner": 2}, slowdown=0.05)
    result = bx.simulate(trace, "2xV100", policy).jobs.set_index("job_id")
    owners = result.loc[["g0", "g1"]]
    assert (owners["start"] == 0).all()
    assert (owners["preemptions"] == 0).all()
    assert (owners["finish"] <= 2000.0 / 0.95 + 1e-6).all()
    # Two guests ran beside the owners from the start, at 0.6 steps/s.
    assert sorted(result["start"].tolist())[:4] == [0.0] * 4
    strict = bx.simulate(trace, "2xV100", get_policy("antman", quota={"owner": 2}, slowdown=0.0)).jobs.set_index(
        "job_id"
    )
    assert strict.loc[["g0", "g1"], "finish"].tolist() == [2000.0, 2000.0]
    assert (strict.loc[["o0", "o1", "o2", "o3"], "start"] >= 2000.0).all()
