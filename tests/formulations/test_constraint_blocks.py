"""What each constraint block means, and that its own look at an allocation finds what is wrong with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from instances import make_space

from bloxopt.errors import CheckError, FormulationError, InfeasibleError
from bloxopt.formulations import (
    Allocation,
    AllocationSpace,
    Arrival,
    Budget,
    Capacity,
    Constraint,
    Deadlines,
    EffectiveThroughput,
    IsolatedShare,
    Limit,
    MaxMin,
    MaxSum,
    MinimumShare,
    NormalizedThroughput,
    OneConfiguration,
    PinRunning,
    Policy,
    Priority,
    TenantQuota,
    TimeFraction,
    TimeShare,
)
from bloxopt.formulations.round_limits import RoundLimits
from bloxopt.state import JobLedger

BASE = (Capacity(), TimeShare())


def solve(space, *blocks, objective=None):
    return Policy(objective=objective or MaxSum(EffectiveThroughput()), constraints=[*BASE, *blocks]).allocate(space)


def two_tenants(**more):
    return make_space([[4, 2], [4, 2], [1, 1]], [1, 2, 1], [2, 2], tenants=["a", "a", "b"], **more)


def test_capacity_bounds_the_gpus_of_each_type():
    space = make_space([[5.0], [5.0], [5.0]], [1, 2, 1], [2])
    assert (space.num_gpus * solve(space).x).sum() == pytest.approx(2.0)


def test_one_configuration_makes_shares_whole():
    space = make_space([[3, 2], [3, 2], [3, 2]], [1, 1, 1], [1, 1])
    x = Policy(objective=MaxSum(EffectiveThroughput()), constraints=[Capacity(), OneConfiguration()]).allocate(space).x
    assert set(x.tolist()) <= {0.0, 1.0}
    assert x.sum() == 2.0


def test_a_tenant_stays_within_its_quota_and_others_are_free():
    space = two_tenants()
    allocation = solve(space, TenantQuota({"a": 1.5}))
    mine = space.tenant[space.job] == space.catalog.table.tenants.index("a")
    assert (space.num_gpus * allocation.x)[mine].sum() == pytest.approx(1.5)
    assert allocation.time_share[2].sum() == pytest.approx(1.0)


def test_a_quota_of_zero_shuts_a_tenant_out():
    assert solve(two_tenants(), TenantQuota({"a": 0})).throughput[:2].max() == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("of", ["isolated", "proportional"])
def test_minimum_share_of_throughput_holds_for_every_job(of):
    space = two_tenants()
    share = 0.9 if of == "isolated" else 0.4
    reference = space.isolated_rate if of == "isolated" else space.proportional_rate
    allocation = solve(space, MinimumShare(share, of=of))
    assert (allocation.throughput >= share * reference * (1 - 1e-6)).all()


def test_minimum_share_by_tenant_and_by_job_binds_only_those_named():
    space = two_tenants()
    allocation = solve(space, MinimumShare({"b": 0.5, "job-1": 0.25}))
    assert allocation.throughput[2] >= 0.5 * space.isolated_rate[2] - 1e-6
    assert allocation.throughput[1] >= 0.25 * space.isolated_rate[1] - 1e-6
    assert sorted(allocation.violations["MinimumShare"].index) == ["job-1", "job-2"]


def test_minimum_share_of_gpus_is_capped_by_what_the_tenant_can_use():
    space = two_tenants()
    allocation = solve(space, MinimumShare({"b": 1.0}, of="gpus"))
    assert allocation.time_share[2].sum() == pytest.approx(1.0)


def test_budget_bounds_the_hourly_cost():
    space = two_tenants()
    prices = {"fast": 3.0, "mid": 1.0}
    allocation = solve(space, Budget(4.0, prices))
    spent = (np.array([prices[name] for name in space.gpu_types])[space.gpu_type] * space.num_gpus) @ allocation.x
    assert spent == pytest.approx(4.0, rel=1e-6)


def test_deadlines_guarantee_the_rate_that_meets_them():
    space = two_tenants(steps=[1000, 1000, 90], deadlines=[None, None, 100.0], now=0.0)
    assert solve(space, Deadlines()).throughput[2] >= 0.9 - 1e-6


def test_an_impossible_deadline_is_named_or_dropped():
    space = two_tenants(steps=[1000, 1000, 200], deadlines=[None, None, 100.0], now=0.0)
    with pytest.raises(InfeasibleError, match="job-2"):
        solve(space, Deadlines())
    assert len(solve(space, Deadlines(impossible="drop")).violations["Deadlines"]) == 0


def test_a_deadline_that_needs_full_speed_exactly_is_possible():
    space = two_tenants(steps=[1000, 1000, 100], deadlines=[None, None, 100.0], now=0.0)
    assert solve(space, Deadlines()).throughput[2] == pytest.approx(1.0, rel=1e-6)


def test_pinned_jobs_keep_their_configuration():
    space = make_space([[1, 5], [5, 1], [9, 9]], [1, 1, 1], [1, 1], gpu_type=[0, -1, -1], gpus=[1, 0, 0])
    allocation = solve(space, PinRunning())
    assert allocation.time_share[0].tolist() == pytest.approx([1.0, 0.0])
    assert allocation.time_share[1:, 0].sum() == pytest.approx(0.0, abs=1e-6)


CORRUPTIONS = [
    (Capacity(), lambda space, x: np.ones_like(x), "fast"),
    (TimeShare(), lambda space, x: x + 0.7 * (space.job == 0), "job-0"),
    (OneConfiguration(), lambda space, x: np.where(space.job == 1, 0.5, 0.0), "job-1"),
    (TenantQuota({"a": 1.0}), lambda space, x: np.where(space.job < 2, 0.5, 0.0), "a"),
    (MinimumShare(0.5), lambda space, x: np.where(space.job == 1, 0.0, x), "job-1"),
    (MinimumShare({"b": 0.25}, of="gpus"), lambda space, x: np.zeros_like(x), "b"),
    (Budget(1.0, {"fast": 1.0, "mid": 1.0}), lambda space, x: np.full_like(x, 0.5), "per hour"),
    (Deadlines(), lambda space, x: np.zeros_like(x), "job-2"),
    (PinRunning(), lambda space, x: np.zeros_like(x), "job-0 on 1 x fast"),
]


@pytest.mark.parametrize(("block", "corrupt", "label"), CORRUPTIONS, ids=lambda v: type(v).__name__)
def test_each_block_finds_its_own_violation_in_a_corrupted_allocation(block, corrupt, label):
    space = two_tenants(
        steps=[1000, 1000, 90], deadlines=[None, None, 100.0], now=0.0, gpu_type=[0, -1, -1], gpus=[1, 0, 0]
    )
    good = np.where(space.job == 2, 0.45, 0.2)
    bad = corrupt(space, good)
    found = dict(zip(block.labels(space), block.violations(space, bad), strict=True))
    assert found[label] > 1e-3
    allocation = Allocation(
        space=space, x=bad, objective=0.0, bound=None, termination="optimal", solver="s", solve_seconds=0.0,
        build_seconds=0.0, num_solves=1, constraints={type(block).__name__: block},
    )  # fmt: skip
    with pytest.raises(CheckError, match=type(block).__name__ if bad.max() <= 1 + 1e-6 else "outside"):
        allocation.check()


def test_shares_that_are_negative_or_no_numbers_are_caught():
    space = two_tenants()
    for bad in (-0.1, np.nan, 1.5):
        x = np.zeros(space.num_columns)
        x[0] = bad
        allocation = Allocation(
            space=space, x=x, objective=0.0, bound=None, termination="optimal", solver="s", solve_seconds=0.0,
            build_seconds=0.0, num_solves=1, constraints={},
        )  # fmt: skip
        with pytest.raises(CheckError, match="outside"):
            allocation.check()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TenantQuota({"a": -1}), r"TenantQuota: GPUs of 'a' is -1"),
        (lambda: TenantQuota({"a": float("nan")}), "TenantQuota: GPUs of 'a' is nan"),
        (lambda: TenantQuota([("a", 1)]), "TenantQuota: expected a mapping"),
        (lambda: MinimumShare(-0.5), "MinimumShare: share is -0.5"),
        (lambda: MinimumShare({"a": 2.0}, of="gpus"), "share of 'a' is 2.0, must be a finite number between 0 and 1"),
        (lambda: MinimumShare(0.5, of="gpus"), "needs a mapping"),
        (lambda: MinimumShare(0.5, of="money"), "of is 'money'"),
        (lambda: Budget(float("inf"), {}), "Budget: amount is inf"),
        (lambda: Budget(1, {"fast": -2}), "price of 'fast' is -2"),
        (lambda: Deadlines(impossible="ignore"), "impossible is 'ignore'"),
    ],
)
def test_values_that_make_no_sense_are_refused_with_block_and_value(make, message):
    with pytest.raises(FormulationError, match=message):
        make()


def test_names_that_nobody_has_are_refused():
    space = two_tenants()
    with pytest.raises(FormulationError, match=r"unknown tenant 'vison'.*a, b"):
        solve(space, TenantQuota({"vison": 3}))
    with pytest.raises(FormulationError, match="'nobody' is neither a tenant"):
        solve(space, MinimumShare({"nobody": 0.1}))
    with pytest.raises(FormulationError, match="no price for GPU type 'mid'"):
        solve(space, Budget(1.0, {"fast": 1.0}))


def test_where_jobs_come_and_go_names_that_nobody_has_now_ask_for_nothing_and_limit_nobody():
    plain = two_tenants()
    opened = plain.catalog.rebuilt(table=replace(plain.catalog.table, is_open=True))
    space = AllocationSpace(opened, JobLedger(opened.table), plain.index)
    for absent, present in (
        (TenantQuota({"nobody": 1, "a": 2}), TenantQuota({"a": 2})),
        (TenantQuota({"nobody": 1}), None),
        (MinimumShare({"nobody": 0.9, "b": 0.25}, of="gpus"), MinimumShare({"b": 0.25}, of="gpus")),
        (MinimumShare({"nobody": 0.9}), None),
    ):
        found = solve(space, absent)
        without = solve(space, *([] if present is None else [present]))
        np.testing.assert_allclose(found.x, without.x)
        assert not absent.violations(space, found.x).any()
        assert len(absent.labels(space)) == len(absent.violations(space, found.x))
        limits = RoundLimits.of([absent], space)
        assert limits is None or "nobody" not in " ".join(limits.names)


def test_blocks_that_conflict_are_named_with_what_to_relax():
    space = make_space([[1.0], [1.0]], [1, 1], [1], tenants=["a", "b"])
    with pytest.raises(InfeasibleError) as caught:
        solve(space, MinimumShare({"a": 1.6}, name="promise to a"), MinimumShare({"b": 1.2}, name="promise to b"))
    message = str(caught.value)
    assert "promise to a" in message
    assert "promise to b" in message
    assert "Capacity" in message
    assert "TimeShare" not in message
    assert "relax" in message


def test_whole_configurations_that_conflict_are_named_also_under_an_order():
    space = make_space([[1.0], [1.0]], [1, 1], [1], tenants=["a", "b"])
    policy = Policy(objective=Priority(Arrival()), constraints=[Capacity(), MinimumShare(0.5)])
    with pytest.raises(InfeasibleError, match=r"MinimumShare\('job-\d'\) by"):
        policy.allocate(space)


def test_a_closed_form_that_breaks_a_block_is_not_applied():
    with pytest.raises(CheckError, match=r"closed form breaks TenantQuota\('a'\)"):
        Policy(objective=IsolatedShare(), constraints=[*BASE, TenantQuota({"a": 0.1})]).allocate(two_tenants())


def test_two_blocks_of_one_class_are_reported_apart():
    space = two_tenants()
    allocation = solve(space, TenantQuota({"a": 1}), TenantQuota({"b": 0.5}))
    assert list(allocation.violations) == ["Capacity", "TimeShare", "TenantQuota", "TenantQuota#2"]
    assert allocation.slacks["TenantQuota#2"].index.tolist() == ["b"]
    with pytest.raises(FormulationError, match="two constraint blocks are named 'q'"):
        solve(space, TenantQuota({"a": 1}, name="q"), TenantQuota({"b": 1}, name="q"))


def test_a_users_own_block_takes_ten_lines():
    class AtMostHalfTheTime(Constraint):
        def limits(self, space):
            return [Limit(TimeFraction(), upper=0.5)]

    space = two_tenants()
    allocation = solve(space, AtMostHalfTheTime(), objective=MaxMin(NormalizedThroughput()))
    assert allocation.time_share.sum(axis=1).max() <= 0.5 + 1e-6
    assert "AtMostHalfTheTime" in allocation.duals
    assert AtMostHalfTheTime().violations(space, np.ones(space.num_columns)).tolist() == [1.5, 1.5, 1.5]


def test_a_block_that_says_nothing_is_reported():
    class Empty(Constraint):
        pass

    with pytest.raises(FormulationError, match="Empty does not say what it limits: override limits"):
        solve(two_tenants(), Empty())


def test_what_is_not_a_block_is_refused():
    with pytest.raises(FormulationError, match="add parentheses"):
        Policy(objective=MaxSum(EffectiveThroughput()), constraints=[Capacity])
    with pytest.raises(FormulationError, match="not a constraint block"):
        Policy(objective=MaxSum(EffectiveThroughput()), constraints=["Capacity"])
