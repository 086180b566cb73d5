"""From shares of time to rounds: over time each job gets its share, and no GPU idles without need."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.errors import UnknownNameError
from bloxopt.selection import Plan, get_selector
from bloxopt.selection.base import greedy_fill

demands = st.lists(st.integers(1, 9), max_size=30).map(lambda sizes: np.array(sizes, dtype=np.int64))


@given(demand=demands, capacity=st.integers(0, 60))
def test_greedy_fill_equals_trying_every_item_in_order(demand: np.ndarray, capacity: int) -> None:
    left, expected = capacity, []
    for position, size in enumerate(demand):
        if size <= left:
            expected.append(position)
            left -= int(size)
    assert greedy_fill(demand, capacity) == (expected, left)


def space_of(gpus: list[int], cluster: str = "4xV100+4xK80") -> bx.AllocationSpace:
    jobs = [bx.Job(job_id=str(i), duration=1e6, num_gpus=size) for i, size in enumerate(gpus)]
    return bx.AllocationSpace.from_jobs(jobs, cluster)


def plan_of(space: bx.AllocationSpace, x: np.ndarray, work_conserving: bool = True) -> Plan:
    allocation: Any = SimpleNamespace(space=space, x=x, work_conserving=work_conserving, ranking=None)
    return Plan(allocation, made_at=0.0)


def per_type(space: bx.AllocationSpace, shares: np.ndarray) -> np.ndarray:
    """Shares (jobs, types) as those of the columns of rigid jobs."""
    return shares[space.job, space.gpu_type]


def policy() -> Any:
    return SimpleNamespace(name="test", heterogeneity_aware=True, round_limits=lambda space: None)


@pytest.mark.parametrize("selector", ["priorities", "exact"])
def test_over_many_rounds_every_job_receives_its_share_of_time(selector: str) -> None:
    space = space_of([1, 1, 2, 4, 1, 2])
    shares = np.array([[0.5, 0.25], [0.25, 0.75], [0.5, 0.5], [0.3, 0.3], [0.2, 0.05], [0.1, 0.3]])
    assert ((space.jobs.num_gpus[:, None] * shares).sum(axis=0) <= 4).all()
    plan, choose, rounds = plan_of(space, per_type(space, shares), work_conserving=False), get_selector(selector), 200
    for number in range(rounds):
        space.now = number * space.round_seconds
        chosen = choose.select(policy(), space, plan)
        seconds = np.full(len(chosen.row), space.round_seconds)
        plan.credit(chosen.row, chosen.gpu_type, chosen.num_gpus, seconds)
    received = np.zeros(shares.shape)
    received[plan.row, plan.gpu_type] = plan.received / (rounds * space.round_seconds)
    # Gangs do not always fit together, so a few rounds may be lost; nobody is far behind.
    assert (received >= shares - 0.1).all()


@pytest.mark.parametrize("selector", ["priorities", "exact"])
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_round_never_exceeds_capacity_nor_runs_a_job_twice(selector: str, data: st.DataObject) -> None:
    gpus = data.draw(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=8))
    space = space_of(gpus)
    shares = np.array(
        data.draw(st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=2), min_size=len(gpus), max_size=len(gpus)))
    )
    for work_conserving in (True, False):
        chosen = get_selector(selector).select(
            policy(), space, plan_of(space, per_type(space, shares), work_conserving)
        )
        assert len(set(chosen.row.tolist())) == len(chosen.row)
        used = np.bincount(chosen.gpu_type, weights=chosen.num_gpus, minlength=2)
        assert (used <= space.capacity).all()
        if work_conserving:
            waiting = sorted(set(range(len(gpus))) - set(chosen.row.tolist()))
            assert all(gpus[row] > (space.capacity - used).max() for row in waiting), "a GPU idles while a job fits"
        else:
            assert (shares[chosen.row, chosen.gpu_type] > 0).all()


@given(gpus=st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=5), seed=st.integers(0, 999))
@settings(max_examples=25, deadline=None)
def test_exact_selection_repays_as_much_as_any_set_of_jobs(gpus: list[int], seed: int) -> None:
    space = space_of(gpus, "4xV100+2xK80")
    shares = np.random.default_rng(seed).random((len(gpus), 2)) * 0.5
    size = np.array(gpus)

    def repaid(choice: tuple[int, ...]) -> float:
        used = np.zeros(2)
        value = 0.0
        for row, kind in enumerate(choice):
            if kind >= 0:
                used[kind] += size[row]
                value += shares[row, kind] * size[row]
        return value if (used <= space.capacity).all() else -1.0

    best = max(repaid(choice) for choice in product([-1, 0, 1], repeat=len(gpus)))
    chosen = get_selector("exact").select(policy(), space, plan_of(space, per_type(space, shares)))
    choice = np.full(len(gpus), -1)
    choice[chosen.row] = chosen.gpu_type
    assert repaid(tuple(choice.tolist())) >= best * (1 - 2e-3) - 1e-9


def test_of_an_elastic_job_one_configuration_runs() -> None:
    jobs = [bx.Job(job_id=str(i), duration=1e4, min_gpus=1, max_gpus=4) for i in range(3)]
    space = bx.AllocationSpace.from_jobs(jobs, "8xV100")
    plan = plan_of(space, np.full(space.num_columns, 0.25))
    chosen = get_selector("priorities").select(policy(), space, plan)
    assert len(set(chosen.row.tolist())) == len(chosen.row)
    assert chosen.num_gpus.sum() <= 8


def test_an_unknown_selector_is_named_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'priorities'"):
        get_selector("priority")
