"""Policies by name: aliases, options, the table, and what a policy says about itself."""

from __future__ import annotations

import time

import numpy as np
import pytest
from instances import make_space

from bloxopt.errors import FormulationError, UnknownNameError
from bloxopt.formulations import (
    Arrival,
    AttainedService,
    Capacity,
    Deadlines,
    MaxMin,
    NormalizedThroughput,
    OrderKey,
    PinRunning,
    Policy,
    Priority,
    TimeShare,
)
from bloxopt.formulations.policies import ALIASES, POLICIES, get_policy, policy_table
from bloxopt.solvers.base import SolverOptions


@pytest.mark.parametrize("name", [*POLICIES, *ALIASES])
def test_every_name_allocates_within_capacity_and_time(name):
    policy = get_policy(name)
    space = make_space(
        [[3, 1], [2, 2], [5, 1]], [1, 2, 1], [2, 2], arrivals=[0, 1, 2], now=5.0, pair_threshold=policy.pair_threshold
    )
    allocation = policy.allocate(space)
    used = np.bincount(space.gpu_type, weights=space.gpu_demand * allocation.x, minlength=2)
    assert (used <= space.capacity + 1e-6).all()
    assert (allocation.time_share.sum(axis=1) <= 1 + 1e-6).all()


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(UnknownNameError, match="did you mean 'max_min_fairness'"):
        get_policy("max_min_fairnes")


def test_options_reach_the_factory_and_wrong_ones_are_named():
    assert get_policy("fifo", backfill=True).objective.backfill
    assert get_policy("las", solver="highs", options=SolverOptions(time_limit=1.0)).solver == "highs"
    with pytest.raises(FormulationError, match="bakfill"):
        get_policy("fifo", bakfill=True)
    with pytest.raises(FormulationError, match="takes no options"):
        get_policy(get_policy("fifo"), backfill=True)


def test_a_policy_object_is_returned_as_it_is():
    own = Policy(objective=MaxMin(NormalizedThroughput()))
    assert get_policy(own) is own


def test_a_registered_policy_of_a_user_is_found():
    POLICIES.register(
        "mine", lambda **options: Policy(objective=MaxMin(NormalizedThroughput()), name="mine", **options)
    )
    try:
        assert get_policy("mine").name == "mine"
        assert "mine" in [row.name for row in policy_table()]
    finally:
        del POLICIES._entries["mine"]


def test_the_table_has_a_row_per_policy_with_its_aliases():
    rows = {row.name: row for row in policy_table()}
    assert list(rows) == list(POLICIES)
    assert rows["max_sum_throughput_raw"].aliases == "max_sum_throughput_perf"
    assert all(row.objective and row.blocks and row.source for row in rows.values())


def test_policies_say_whether_progress_alone_changes_their_answer():
    dependent = {name for name in POLICIES if get_policy(name).progress_dependent}
    assert {"srtf", "las", "shortest", "srsf", "tiresias", "gittins", "serpt"} <= dependent
    assert dependent.isdisjoint({"fifo", "sjf", "ssf", "isolated", "max_min_fairness", "min_makespan"})
    fair = MaxMin(NormalizedThroughput())
    assert Policy(objective=fair, constraints=[Capacity(), TimeShare(), Deadlines()]).progress_dependent
    assert Policy(objective=fair, constraints=[Capacity(), PinRunning()]).progress_dependent


def test_only_orders_without_backfill_forbid_overtaking():
    assert not get_policy("fifo").work_conserving
    assert get_policy("fifo", backfill=True).work_conserving
    assert get_policy("max_min_fairness").work_conserving


def test_ranks_follow_the_key_with_ties_in_order_of_admission():
    space = make_space(
        [[2.0]] * 4, [1, 2, 1, 1], [4], steps=[900, 300, 600, 300], attained_seconds=[5, 5, 0, 9],
        attained_service=[5, 10, 0, 9], remaining_steps=[900, 300, 10, 300],
    )  # fmt: skip
    assert get_policy("fifo").rank(space).tolist() == [0, 1, 2, 3]
    assert get_policy("las").rank(space).tolist() == [2, 0, 1, 3]
    assert get_policy("las", gpu_weighted=True).rank(space).tolist() == [2, 0, 3, 1]
    assert get_policy("srtf").rank(space).tolist() == [2, 1, 3, 0]
    assert get_policy("max_min_fairness").rank(space) is None


def test_several_keys_break_ties_in_order():
    space = make_space([[1.0]] * 3, [1, 1, 1], [1], arrivals=[0, 0, 0], attained_seconds=[4, 2, 3])
    assert Priority([Arrival(), AttainedService(gpu_weighted=False)]).rank(space).tolist() == [1, 2, 0]


def test_a_users_own_key_orders_jobs():
    class LargestFirst(OrderKey):
        def key(self, space):
            return -space.requested_gpus

    space = make_space([[1.0]] * 3, [1, 4, 2], [6])
    allocation = Policy(objective=Priority(LargestFirst())).allocate(space)
    assert allocation.ranking.tolist() == [1, 2, 0]
    assert allocation.x.tolist() == [0.0, 1.0, 1.0]


def test_ranking_a_hundred_jobs_costs_microseconds():
    space = make_space([[1.0]] * 100, [1] * 100, [8], attained_seconds=np.arange(100)[::-1])
    policy = get_policy("las")
    key = space.attained_seconds

    def best(call):
        times = []
        for _ in range(50):
            started = time.perf_counter()
            for _ in range(20):
                call()
            times.append((time.perf_counter() - started) / 20)
        return min(times)

    assert best(lambda: policy.rank(space)) - best(lambda: np.argsort(key, kind="stable")) < 15e-6
