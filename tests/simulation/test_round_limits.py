"""Upper limits on several jobs together hold in every round, whatever selects the jobs."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import bloxopt as bx
from bloxopt.errors import CheckError
from bloxopt.formulations import (
    Budget,
    Capacity,
    Constraint,
    GpusUsed,
    Limit,
    MaxMin,
    NormalizedThroughput,
    Policy,
    TenantQuota,
    TimeFraction,
    TimeShare,
)
from bloxopt.formulations.round_limits import RoundLimits
from bloxopt.pairing import ALONE

JOBS = bx.Trace.from_jobs(
    bx.Job(job_id=f"job-{i}", num_gpus=1 + i % 2, duration=3000.0 + 10 * i, tenant="a" if i < 9 else "b")
    for i in range(12)
)


def policy(name: str, *blocks: Constraint) -> Policy:
    return bx.get_policy(name, constraints=[Capacity(), TimeShare(), *blocks])


def peak(result: bx.SimulationResult, price: dict[str, float] | None = None, tenant: str | None = None) -> float:
    """Most GPUs (or money per hour) in use at any time, from the placements alone."""
    spells = result.placements.merge(result.jobs[["job_id", "tenant"]], on="job_id")
    if tenant is not None:
        spells = spells[spells["tenant"] == tenant]
    worth = spells["gpus"] * (1.0 if price is None else spells["gpu_type"].map(price))
    changes = pd.concat([pd.Series(worth.to_numpy(), spells["start"]), pd.Series(-worth.to_numpy(), spells["end"])])
    return float(changes.groupby(level=0).sum().sort_index().cumsum().max())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("max_min_fairness", {}),
        ("max_min_fairness", {"selector": "exact"}),
        ("finish_time_fairness", {}),
        ("fifo", {}),
        ("fifo", {"selector": "ranking"}),
        ("fifo", {"preset": "blox"}),
        ("las", {"selector": "ranking"}),
        ("srtf", {"preset": "gavel"}),
    ],
)
def test_a_tenant_never_has_more_gpus_than_its_quota(name: str, options: dict[str, Any]) -> None:
    quota = {"a": 3, "b": 2}
    result = bx.simulate(JOBS, "8xV100", policy(name, TenantQuota(quota)), **options)
    assert result.jobs["finish"].notna().all()
    for tenant, limit in quota.items():
        assert 0 < peak(result, tenant=tenant) <= limit


@pytest.mark.parametrize("selector", ["priorities", "exact"])
def test_the_budget_per_hour_is_kept_in_every_round(selector: str) -> None:
    price = {"V100": 3.0, "K80": 1.0}
    result = bx.simulate(JOBS, "4xV100+4xK80", policy("max_min_fairness", Budget(8.0, price)), selector=selector)
    assert result.jobs["finish"].notna().all()
    assert 0 < peak(result, price) <= 8.0


@pytest.mark.parametrize("selector", ["priorities", "exact"])
def test_a_limit_of_the_users_own_is_kept_in_every_round(selector: str) -> None:
    class AtMostThree(Constraint):
        def limits(self, space: bx.AllocationSpace) -> list[Limit]:
            return [Limit(GpusUsed(), upper=3)]

    result = bx.simulate(JOBS, "8xV100", policy("max_min_fairness", AtMostThree()), selector=selector)
    assert result.rounds["gpus_used"].max() == 3


def test_a_limit_on_a_jobs_own_time_is_about_the_average() -> None:
    class HalfTheTime(Constraint):
        def limits(self, space: bx.AllocationSpace) -> list[Limit]:
            return [Limit(TimeFraction(), upper=0.5)]

    trace = bx.Trace.from_jobs([bx.Job(job_id="only", duration=3600.0)])
    lazy = Policy(objective=MaxMin(NormalizedThroughput()), constraints=[Capacity(), TimeShare(), HalfTheTime()])
    assert bx.simulate(trace, "8xV100", lazy).jobs["finish"].notna().all()


def test_a_job_that_no_round_could_hold_is_refused_with_the_limit_that_it_breaks() -> None:
    trace = bx.Trace.from_jobs([bx.Job(job_id="big", num_gpus=4, duration=100.0, tenant="a")])
    with pytest.raises(bx.BloxoptError, match=r"'big' can never run: TenantQuota\[a\] allows 2 .* takes 4"):
        bx.simulate(trace, "8xV100", policy("max_min_fairness", TenantQuota({"a": 2})))
    with pytest.raises(bx.BloxoptError, match=r"can never run: Budget\[per hour\] allows 0"):
        bx.simulate(trace, "8xV100", policy("max_min_fairness", Budget(0, {"V100": 1.0})))


def test_jobs_that_break_a_limit_together_are_caught_before_they_are_applied() -> None:
    space = bx.AllocationSpace.from_jobs(JOBS, "8xV100")
    limits = RoundLimits.of([TenantQuota({"a": 3})], space)
    assert limits is not None
    limits.check([(0, 0, 1, ALONE), (1, 0, 2, ALONE)])
    with pytest.raises(CheckError, match=r"TenantQuota\[a\] allows 3 in a round and 4 would be used"):
        limits.check([(0, 0, 1, ALONE), (1, 0, 2, ALONE), (2, 0, 1, ALONE)])
