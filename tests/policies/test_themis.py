"""Themis: auctions against enumeration, leases that hold, and what it does for the worst finish-time ratio."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from instances import make_space, spaces

import bloxopt as bx
from bloxopt.errors import FormulationError
from bloxopt.formulations.policies import get_policy


def valuations(space, choice, lease):
    """1/ρ of every job under a choice of columns (-1: waits a lease, then runs at its fastest)."""
    value = []
    for i, column in enumerate(choice):
        left = space.remaining_steps[i]
        wait = space.elapsed[i] + lease + left / space.fastest_rate[i]
        time = wait if column < 0 else space.elapsed[i] + left / space.rate[column]
        value.append((space.isolated_seconds[i] + left / space.isolated_rate[i]) / time)
    return np.array(value)


def best_product(space, bidders, lease):
    """The largest product of the bidders' valuations over all ways to give each one configuration or none."""
    columns = [np.flatnonzero(space.job == i) if i in bidders else [] for i in range(space.num_jobs)]
    best = -np.inf
    for choice in itertools.product(*[[-1, *c] for c in columns]):
        chosen = np.array([c for c in choice if c >= 0], dtype=int)
        used = np.bincount(space.gpu_type[chosen], weights=space.num_gpus[chosen], minlength=len(space.gpu_types))
        if (used <= space.capacity).all():
            best = max(best, float(np.log(valuations(space, choice, lease)[bidders]).sum()))
    return best


@settings(max_examples=25, deadline=None)
@given(spaces(max_jobs=4, with_state=True))
def test_the_auction_maximises_the_product_of_valuations(space):
    everyone = list(range(space.num_jobs))
    none = float(np.log(valuations(space, [-1] * space.num_jobs, 600.0)).sum())
    best = best_product(space, everyone, 600.0)
    allocation = get_policy("themis", fairness=0.0, lease=600.0).allocate(space)
    assert none + allocation.objective == pytest.approx(best, abs=1e-6)
    greedy = get_policy("themis", fairness=0.0, lease=600.0, method="greedy").allocate(space)
    assert greedy.objective <= allocation.objective + 1e-9


@settings(max_examples=15, deadline=None)
@given(spaces(max_jobs=5, with_state=True))
def test_only_the_worst_part_of_the_jobs_bids_and_the_rest_get_what_is_left(space):
    ratio = 1.0 / valuations(space, [-1] * space.num_jobs, 600.0)
    worst = sorted(range(space.num_jobs), key=lambda i: -ratio[i])[: max(1, math.ceil(0.4 * space.num_jobs))]
    policy = get_policy("themis", fairness=0.6, lease=600.0)
    allocation = policy.allocate(space)
    taken = np.isin(space.job, worst) & (allocation.x > 0.5)
    choice = [next(iter(np.flatnonzero(taken & (space.job == i))), -1) for i in range(space.num_jobs)]
    reached = float(np.log(valuations(space, choice, 600.0)[worst]).sum())
    # At least as good for the bidders: what is left may serve one of them as well.
    assert reached >= best_product(space, worst, 600.0) - 1e-6
    free = space.capacity - np.bincount(
        space.gpu_type, weights=space.num_gpus * np.round(allocation.x), minlength=len(space.gpu_types)
    )
    idle = ~np.isin(space.job, space.job[allocation.x > 0.5])
    assert not (space.num_gpus[idle] <= free[space.gpu_type[idle]]).any()
    np.testing.assert_array_equal(policy.allocate(space).x, allocation.x)


def test_a_lease_holds_until_it_ends():
    space = make_space([[1.0], [1.0]], [1, 1], [1], arrivals=[0, 0], steps=[5000.0, 5000.0], now=0.0)
    policy = get_policy("themis", lease=1000.0, fairness=0.5)
    first = int(policy.allocate(space).x.argmax())
    other = 1 - first
    space.ledger.gpu_type[first], space.ledger.gpus[first] = 0, 1
    space.ledger.remaining_steps[first], space.ledger.isolated_seconds[first] = 4000.0, 2000.0
    for now, holder in ((500.0, first), (999.0, first), (1000.0, other)):
        later = type(space)(space.catalog, space.ledger, space.index, now=now)
        assert int(policy.allocate(later).x.argmax()) == holder
    at_half = type(space)(space.catalog, space.ledger, space.index, now=500.0)
    space.ledger.memory("themis.won_at")[:] = [0.0, 0.0]
    assert policy.next_change(at_half) == pytest.approx(500.0)


def test_jobs_are_not_preempted_within_their_lease():
    """With leases longer than the trace nobody is stopped; with leases of a round the auction moves GPUs around."""
    long = bx.simulate("gavel-15", "4xV100", bx.get_policy("themis", lease=1e6))
    short = bx.simulate("gavel-15", "4xV100", bx.get_policy("themis", lease_rounds=1))
    assert long.jobs["preemptions"].sum() == 0
    assert short.jobs["preemptions"].sum() > 0
    assert short.jobs["finish"].notna().all()


def test_the_worst_finish_time_ratio_beats_fifo_srtf_and_max_min_on_a_contended_trace():
    policies = {
        "fifo": "fifo",
        "srtf": "srtf",
        "max_min": "max_min_fairness",
        "themis": bx.get_policy("themis", lease_rounds=1, fairness=0.5),
    }
    worst = {
        name: bx.simulate("gavel-15", "4xV100", policy).summary()["worst_finish_time_ratio"]
        for name, policy in policies.items()
    }
    assert worst["themis"] < min(worst["fifo"], worst["srtf"], worst["max_min"])


def test_solvers_without_integers_take_bids_greedily_and_say_so():
    space = make_space([[1.0], [2.0], [1.5]], [1, 1, 1], [2], steps=[900.0, 500.0, 700.0])
    linear = get_policy("themis").allocate(space, solver="cvxpy:clarabel")
    assert "takes no integers" in linear.message
    greedy = get_policy("themis", method="greedy").allocate(space)
    np.testing.assert_array_equal(linear.x, greedy.x)
    assert "takes no integers" not in greedy.message


def test_options_out_of_range_are_named():
    for options, message in (
        ({"fairness": 1.5}, "fairness"),
        ({"lease": -1.0}, "lease"),
        ({"lease_rounds": 0}, "lease_rounds"),
        ({"method": "dutch"}, "method"),
    ):
        with pytest.raises(FormulationError, match=message):
            get_policy("themis", **options)
