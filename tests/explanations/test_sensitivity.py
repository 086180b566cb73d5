"""What a unit more would be worth: prices agree with solving again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloxopt.explanations import sensitivity
from bloxopt.formulations import (
    Budget,
    Capacity,
    EffectiveThroughput,
    MaxMin,
    MaxSum,
    MinMax,
    NormalizedThroughput,
    OneConfiguration,
    Policy,
    RemainingTime,
    TenantQuota,
    TimeShare,
)
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import Job


def _space(count: int = 12, cluster: str = "2xV100+3xK80", seed: int = 0) -> AllocationSpace:
    random = np.random.default_rng(seed)
    jobs = [Job(job_id=f"j{k}", job_type=f"t{k}", total_steps=1e4, tenant=f"u{k % 2}") for k in range(count)]
    table = {
        (job.job_type, kind, 1): float(random.uniform(0.5, 1.5) * speed)
        for job in jobs
        for kind, speed in (("V100", 4.0), ("K80", 1.0))
    }
    return AllocationSpace.from_jobs(jobs, cluster, table)


BLOCKS = [Capacity(), TimeShare(), TenantQuota({"u0": 2.0}), Budget(20.0, {"V100": 5.0, "K80": 2.0})]


@pytest.mark.parametrize(
    "objective", [MaxSum(EffectiveThroughput()), MaxMin(NormalizedThroughput())], ids=["sum", "min"]
)
def test_a_price_lies_between_what_a_little_more_gives_and_what_a_little_less_takes(objective) -> None:
    # At a degenerate optimum the two differ, and any price between them is one.
    policy, step = Policy(objective=objective, constraints=BLOCKS, solver="highs"), 1e-4
    more, less = (sensitivity(policy, _space(), amount=sign * step).set_index(["block", "row"]) for sign in (1, -1))
    price = step * more["price"]
    assert (more["worth"] <= price + 1e-8).all()
    assert (-less["worth"] >= price - 1e-8).all()
    assert set(more.index.get_level_values("block")) == {"Capacity", "TimeShare", "TenantQuota", "Budget"}
    assert (more["price"] > 0).any()


@given(st.integers(0, 10_000), st.integers(2, 15))
def test_a_whole_unit_is_worth_at_most_its_price(seed: int, count: int) -> None:
    policy = Policy(objective=MaxSum(EffectiveThroughput()), constraints=BLOCKS[:3], solver="highs")
    table = sensitivity(policy, _space(count, seed=seed))
    assert (table["worth"] <= table["price"] + 1e-6).all()
    assert (table["worth"] >= -1e-9).all()


def test_of_a_gpu_type_it_is_what_a_larger_cluster_gives() -> None:
    policy = Policy(objective=MaxMin(NormalizedThroughput(reference=np.ones(12))), solver="highs")
    table = sensitivity(policy, _space()).set_index(["block", "row"])
    larger = policy.allocate(_space(cluster="3xV100+3xK80")).objective - policy.allocate(_space()).objective
    assert table.loc[("Capacity", "V100"), "worth"] == pytest.approx(larger)
    assert table.loc[("Capacity", "V100"), "unit"] == "GPUs"


def test_of_what_is_minimised_more_room_makes_less() -> None:
    table = sensitivity(Policy(objective=MinMax(RemainingTime()), solver="highs"), _space())
    capacity = table[table["block"] == "Capacity"]
    assert (capacity["worth"] <= 1e-6).all()
    assert (capacity["worth"] < -1.0).any()


def test_an_integer_program_has_no_prices_and_still_a_worth() -> None:
    policy = Policy(
        objective=MaxSum(EffectiveThroughput()), constraints=[Capacity(), OneConfiguration()], solver="highs"
    )
    table = sensitivity(policy, _space())
    capacity = table[table["block"] == "Capacity"]
    assert capacity["price"].isna().all()
    assert (capacity["worth"] > 0).all()
