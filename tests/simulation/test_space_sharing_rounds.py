"""Pairs of jobs on the same GPUs over whole simulations: both or none in each round, nothing oversubscribed, the end of
a partner."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import bloxopt as bx
from bloxopt.cluster import load_cluster
from bloxopt.errors import CheckError, FormulationError, InputError, ThroughputError
from bloxopt.formulations import Capacity, MaxSum, NormalizedThroughput, PairedShares, Policy, TenantQuota, TimeShare
from bloxopt.formulations.policies import get_policy
from bloxopt.jobs import Job, JobTable
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.resources import Grant
from bloxopt.simulation.backend import SimulatedBackend
from bloxopt.simulation.sharing import until_partners_leave
from bloxopt.throughput import TableThroughput


def oracle(kept, kinds=("a", "b"), sizes=(1, 2, 4)):
    """1 step/s alone on any GPUs; ``kept[x, y]`` beside a job of kind y."""
    pairs = {
        (x, y, "v100", n): (kept[x, y], kept[y, x])
        for x, y in itertools.combinations_with_replacement(kinds, 2)
        for n in sizes
        if (x, y) in kept
    }
    return TableThroughput({(x, "v100", n): 1.0 for x in kinds for n in sizes}, pairs)


EVEN = {(x, y): 0.8 for x in "ab" for y in "ab"}


def trace(jobs, rates):
    return bx.Trace("pairs", JobTable.from_jobs(jobs), rates)


def job(name, kind, steps, **more):
    return Job(job_id=name, job_type=kind, total_steps=steps, **more)


@pytest.fixture
def watched(monkeypatch):
    """Every assignment that is applied, checked from the grants alone."""
    seen = []
    apply = SimulatedBackend.apply

    def check(self, assignment):
        held = np.zeros(self.catalog.cluster.num_gpus)
        for row, grant in assignment.grants.items():
            held[list(grant.gpus)] += grant.milli
            if grant.partner >= 0:
                other = assignment.grants[grant.partner]
                assert other.partner == row
                assert other.gpus == grant.gpus
                assert grant.milli == other.milli == 500
                assert self.catalog.table.num_gpus[row] == self.catalog.table.num_gpus[grant.partner]
            else:
                assert grant.milli == 1000
        assert held.max(initial=0) <= 1000
        seen.append(assignment)
        apply(self, assignment)

    monkeypatch.setattr(SimulatedBackend, "apply", check)
    return seen


def pairs_in(assignments):
    return sum(grant.partner >= 0 for assignment in assignments for grant in assignment.grants.values()) // 2


def test_a_job_runs_at_its_lone_rate_once_its_partner_has_finished():
    rates = oracle({("a", "b"): 0.8, ("b", "a"): 0.5})
    result = bx.simulate(
        trace([job("x", "a", 100.0), job("y", "b", 200.0)], rates), "1xV100", "max_min_fairness_packed"
    )
    # Both start at once: x is done at 100 / 0.8 s; y has made half as many steps by then and goes on at 1 step/s.
    finish = dict(zip(result.jobs["job_id"], result.jobs["finish"], strict=True))
    assert finish == pytest.approx({"x": 125.0, "y": 125.0 + (200.0 - 62.5)})
    assert result.jobs["preemptions"].sum() == result.jobs["restarts"].sum() == 0


def test_a_partner_that_leaves_or_joins_costs_no_restart():
    jobs = [job("x", "a", 500.0, restart_cost=90.0), job("y", "b", 2500.0, restart_cost=90.0)]
    jobs.append(job("z", "a", 300.0, restart_cost=90.0, arrival=1100.0))
    result = bx.simulate(trace(jobs, oracle(EVEN)), "1xV100", "max_sum_throughput_packed")
    assert result.jobs["preemptions"].tolist() == result.jobs["restarts"].tolist() == [0, 0, 0]
    # y: 625 s beside x, alone to 1440, beside z for 375 s, the rest alone.
    expected = 1815.0 + 2500.0 - (0.8 * 625 + (1440 - 625) + 0.8 * 375)
    assert result.jobs["finish"].tolist() == pytest.approx([625.0, expected, 1440.0 + 375.0])


def test_the_rest_of_a_round_is_made_alone_also_behind_a_stall():
    rate, alone = np.array([0.5, 0.8]), np.array([1.0, 1.0])
    partner = np.array([1, 0])
    steps, moved = until_partners_leave(rate, alone, np.array([300.0, 40.0]), np.array([80.0, 0.0]), 360.0, partner)
    # The partner leaves after 50 s, before the first has begun: it makes all its steps alone.
    assert steps.tolist() == pytest.approx([280.0, 40.0])
    assert moved.tolist() == pytest.approx([280.0, 50.0])
    steps, _ = until_partners_leave(rate, alone, np.array([300.0, 160.0]), np.array([80.0, 0.0]), 360.0, partner)
    assert steps.tolist() == pytest.approx([0.5 * 120 + 160.0, 160.0])
    steps, moved = until_partners_leave(rate, alone, np.array([300.0, 400.0]), np.zeros(2), 360.0, partner)
    assert steps.tolist() == pytest.approx([180.0, 288.0])


@pytest.mark.parametrize("progress", ["whole_steps", "whole_rounds"])
def test_published_semantics_keep_the_shared_rate_to_the_end_of_the_round(progress):
    rates = oracle({("a", "b"): 0.8, ("b", "a"): 0.5})
    options = bx.SimulationOptions(progress=progress, round_seconds=300.0)
    jobs = [job("x", "a", 100.0), job("y", "b", 200.0)]
    result = bx.simulate(trace(jobs, rates), "1xV100", "max_min_fairness_packed", options=options)
    # 150 steps of y in the first round beside x, 50 in the next.
    expected = {"whole_steps": [125.0, 350.0], "whole_rounds": [300.0, 600.0]}[progress]
    assert result.jobs["finish"].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("selector", ["priorities", "exact"])
@pytest.mark.parametrize("policy", ["max_min_fairness_packed", "max_sum_throughput_packed", "gandiva", "antman"])
def test_mixed_gangs_run_to_the_end_with_both_of_a_pair_or_none_in_every_round(selector, policy, watched):
    rng = np.random.default_rng(4)
    jobs = [
        job(f"j{i}", str(rng.choice(["a", "b"])), float(rng.uniform(300, 3000)), num_gpus=int(rng.choice([1, 1, 2, 4])),
            arrival=float(rng.uniform(0, 2000)), restart_cost=20.0)
        for i in range(24)
    ]  # fmt: skip
    result = bx.simulate(trace(jobs, oracle(EVEN)), "2x4xV100", policy, selector=selector)
    assert result.summary()["finished"] == 24
    assert pairs_in(watched) > 5
    held = result.jobs["gpu_seconds"].sum()
    assert held <= 8 * result.summary()["makespan"]


def test_the_shares_of_a_packed_plan_are_delivered_over_the_rounds():
    jobs = [job(f"j{i}", "ab"[i % 2], 1e6) for i in range(7)]
    result = bx.simulate(trace(jobs, oracle(EVEN)), "2xV100", "max_min_fairness_packed", max_rounds=210)
    done = 1e6 - _remaining(result, jobs)
    # 7 jobs in pairs on 2 GPUs: 4 * 0.8 steps/s among them, but for rounds in which somebody is left over.
    assert done.min() / 210 / 360 >= 0.95 * 3.2 / 7


def _remaining(result, jobs):
    run = result.jobs["run_seconds"].to_numpy()
    return 1e6 - 0.8 * run


def test_a_contended_cluster_gains_by_packing(watched):
    jobs = [job(f"j{i}", "ab"[i % 2], 1000.0) for i in range(8)]
    makespan = {
        name: bx.simulate(trace(jobs, oracle(EVEN)), "2xV100", name).summary()["makespan"]
        for name in ("min_makespan", "min_makespan_packed")
    }
    # 4 * 0.8 steps/s in place of 2, less what the last rounds lose.
    assert makespan["min_makespan"] >= 4000
    assert 2500 <= makespan["min_makespan_packed"] <= 0.75 * makespan["min_makespan"]


def test_quotas_hold_in_every_round_with_pairs(watched):
    jobs = [job(f"j{i}", "ab"[i % 2], 1500.0, tenant="uv"[i % 2]) for i in range(12)]
    policy = Policy(
        objective=MaxSum(NormalizedThroughput()),
        constraints=[Capacity(), TimeShare(), PairedShares(), TenantQuota({"u": 1})],
        name="packed with a quota",
    )
    result = bx.simulate(trace(jobs, oracle(EVEN)), "4xV100", policy)
    assert result.summary()["finished"] == 12
    table = JobTable.from_jobs(jobs)
    mine = table.tenant == table.tenants.index("u")
    most = max(sum(g.milli * g.num_gpus for row, g in a.grants.items() if mine[row]) for a in watched)
    assert most <= 1000
    assert pairs_in(watched) > 0


def test_nodes_that_fail_stop_both_of_a_pair():
    jobs = [job("x", "a", 2000.0), job("y", "b", 2000.0)]
    outage = [bx.Outage("node-0", 500.0, 700.0)]
    result = bx.simulate(trace(jobs, oracle(EVEN)), "1xV100", "max_sum_throughput_packed", failures=outage)
    assert result.jobs["preemptions"].tolist() == [1, 1]
    assert result.jobs["finish"].tolist() == pytest.approx([720 + (2000 - 400) / 0.8] * 2)


def test_cpus_and_memory_of_both_must_be_there():
    jobs = [job(f"j{i}", "ab"[i], 1000.0, cpus_per_gpu=3.0) for i in range(2)]
    for cpus, together in ((6, True), (5, False)):
        cluster = bx.Cluster([bx.Node(name="n", gpu_type="V100", num_gpus=1, cpus=cpus)])
        result = bx.simulate(trace(jobs, oracle(EVEN)), cluster, "max_sum_throughput_packed")
        assert bool(result.jobs["start"].max() == 0) is together
        assert result.summary()["finished"] == 2


def grants_of(partner_gpus, partner=1, milli=500):
    mine = Grant(0, (0,), (1,), (0,), milli, partner=partner)
    other = Grant(0, (0,), (1,), partner_gpus, 500, partner=0)
    return {0: mine, 1: other}


def test_an_assignment_in_which_a_pair_is_apart_or_oversubscribes_cannot_be_built():
    jobs = JobTable.from_jobs([job(f"j{i}", "a", 10.0) for i in range(3)])
    empty = Assignment(load_cluster("1x2xV100"), jobs)
    together = empty.change([], grants_of((0,)))
    assert together.free.milli.tolist() == [0, 1000]
    assert together.free.gpus_used == 1
    with pytest.raises(CheckError, match="was given half of the GPUs"):
        empty.change([], grants_of((1,)))
    with pytest.raises(CheckError, match="which has none"):
        empty.change([], {0: grants_of((0,))[0]})
    with pytest.raises(CheckError, match="1000 of each GPU and was given 500"):
        empty.change([], {0: Grant(0, (0,), (1,), (0,), 500)})
    with pytest.raises(CheckError, match="oversubscribed"):
        together.change([], {2: Grant(0, (0,), (1,), (0,))})
    third = Grant(0, (0,), (1,), (0,), 500, partner=1)
    with pytest.raises(CheckError):
        together.change([], {2: third})


def test_what_cannot_be_packed_is_said_at_once():
    jobs = [job("x", "a", 100.0), job("y", "b", 100.0)]
    with pytest.raises(ThroughputError, match="does not say how fast jobs run beside each other"):
        bx.simulate("blox-mx-las-8", "4x4xV100", "gandiva", max_rounds=1)
    with pytest.raises(InputError, match="knows no pairs of jobs on the same GPUs"):
        bx.simulate(trace(jobs, oracle(EVEN)), "1xV100", "max_min_fairness_packed", placement="exact")
    for name, options in {
        "gandiva": {"keep": -1},
        "antman": {"slowdown": 2},
        "max_min_fairness_packed": {"threshold": "x"},
    }.items():
        with pytest.raises(FormulationError):
            get_policy(name, **options)


def test_gavels_pairs_are_used_and_help(watched):
    plain = bx.simulate("gavel-100", "8xV100+16xP100+24xK80", "max_min_fairness", max_rounds=25)
    packed = bx.simulate("gavel-100", "8xV100+16xP100+24xK80", "max_min_fairness_packed", max_rounds=25)
    assert pairs_in(watched) > 100
    assert packed.summary()["finished"] > plain.summary()["finished"]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["max_min_fairness_packed", "finish_time_fairness_packed", "gandiva", "antman"])
def test_gavels_hundred_jobs_run_to_the_end_in_pairs(policy, watched):
    result = bx.simulate("gavel-100", "8xV100+16xP100+24xK80", policy)
    assert result.summary()["finished"] == 100
    assert pairs_in(watched) > 500


def test_policies_that_pack_do_not_go_with_a_host_allocation():
    jobs = [job("x", "res18", 100.0), job("y", "lstm", 100.0)]
    rates = oracle({("res18", "lstm"): 0.8, ("lstm", "res18"): 0.8}, kinds=("lstm", "res18"), sizes=(1,))
    cluster = bx.Cluster([bx.Node(name="n", gpu_type="V100", num_gpus=1, cpus=4, memory_gib=80)])
    with pytest.raises(InputError, match="'gandiva' lets jobs share GPUs, for which no host allocation"):
        bx.simulate(trace(jobs, rates), cluster, "gandiva", host_allocation="proportional")


def test_policies_that_pack_and_others_are_candidates_of_the_automatic_choice(watched):
    jobs = [job(f"j{i}", "ab"[i % 2], 1500.0) for i in range(8)]
    policy = get_policy("automatic", candidates=["max_min_fairness", "min_makespan_packed"], metric="makespan")
    result = bx.simulate(trace(jobs, oracle(EVEN)), "2xV100", policy)
    assert result.summary()["finished"] == 8
    assert pairs_in(watched) > 0


def test_a_ledger_of_some_jobs_knows_their_partners_by_their_new_rows():
    from bloxopt.state import JobLedger

    ledger = JobLedger(JobTable.from_jobs([job(f"j{i}", "a", 10.0) for i in range(5)]))
    ledger.partner[:] = [-1, 3, 4, 1, 2]
    assert ledger.take(np.array([1, 3, 4])).partner.tolist() == [1, 0, -1]


def test_gangs_that_share_are_slowed_down_by_their_placement_as_well():
    rates = oracle({("a", "a"): 0.8}, kinds=("a",), sizes=(2,))
    jobs = [job(f"j{i}", "a", 800.0, num_gpus=2) for i in range(2)]
    result = bx.simulate(
        trace(jobs, rates), "2x1xV100", "max_sum_throughput_packed", slowdown=lambda nodes, gpus: 0.5, max_rounds=10
    )
    assert result.jobs["finish"].tolist() == pytest.approx([1000.0, 1000.0])  # both nodes are necessary
    roomy = bx.simulate(
        trace(jobs, rates),
        "2x2xV100",
        "max_sum_throughput_packed",
        slowdown=lambda nodes, gpus: 0.5,
        placement="spread",
    )
    assert roomy.jobs["finish"].tolist() == pytest.approx([1600.0, 1600.0])  # apart, alone, at half the rate
