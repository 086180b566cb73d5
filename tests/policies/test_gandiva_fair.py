"""Gandiva-Fair: shares by tickets, trades that hurt nobody, and the best trades by a linear program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import PlainModel, make_space, normalised

import bloxopt as bx
from bloxopt.errors import FormulationError
from bloxopt.formulations.policies import get_policy


@st.composite
def users(draw):
    """Up to eight jobs of up to four users on two or three GPU types, some of which cannot run everywhere."""
    count, types = draw(st.integers(2, 8)), draw(st.integers(2, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    gpus = rng.choice([1, 1, 2], size=count)
    rates = np.sort(rng.uniform(0.5, 10.0, size=(count, types)), axis=1)[:, ::-1].copy()
    rates[:, 0][rng.random(count) < 0.15] = 0.0
    tenants = [str(name) for name in rng.choice(["a", "b", "c", "d"], size=count)]
    capacity = [int(gpus.max()) + draw(st.integers(0, 3)) for _ in range(types)]
    return make_space(rates, gpus, capacity, tenants=tenants)


def work_of_users(space, allocation):
    """Σ_i s_i/prop_i Σ_j T_ij x_ij by user, written with the plain model's coefficients."""
    value = (normalised(space) * space.weight[:, None] * allocation.time_share).sum(axis=1)
    return np.bincount(space.tenant, weights=value, minlength=len(space.catalog.table.tenants))


@settings(max_examples=60, deadline=None)
@given(users(), st.sampled_from(["middle", "second"]))
def test_no_user_is_worse_off_and_no_gpu_is_lost(space, price):
    before = get_policy("gandiva_fair", trade="none").allocate(space)
    after = get_policy("gandiva_fair", price=price).allocate(space)
    assert (work_of_users(space, after) >= work_of_users(space, before) * (1 - 1e-9)).all()
    used = [allocation.time_share.T @ space.requested_gpus for allocation in (before, after)]
    np.testing.assert_allclose(used[1], used[0], atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(users())
def test_the_program_leaves_every_job_at_least_as_well_off_and_bounds_all_trades(space):
    before = get_policy("gandiva_fair", trade="none").allocate(space)
    program = get_policy("gandiva_fair", trade="program").allocate(space)
    assert (program.throughput >= before.throughput * (1 - 1e-6)).all()
    # The best that any trades can do for all users together, none of them worse off.
    model, value = PlainModel(space), normalised(space) * space.weight[:, None]
    floors = work_of_users(space, before)
    rows = [np.where((space.tenant == u)[:, None], value, 0.0).ravel() for u in range(len(floors))]
    best = -model.maximise(value.ravel(), rows, list(floors * (1 - 1e-9))).fun
    traded = get_policy("gandiva_fair").allocate(space)
    assert before.objective - 1e-9 <= traded.objective <= best * (1 + 1e-6)
    assert before.objective * (1 - 1e-6) <= program.objective <= best * (1 + 1e-6)


def test_two_users_trade_at_the_mean_of_their_speedups():
    # Two fast and four slow GPUs, half each. A fast one is worth 4 slow ones to a and 1 to b: the price is 2.
    rates = [[4.0, 1.0]] * 4 + [[1.0, 1.0]] * 4
    space = make_space(rates, [1] * 8, [2, 4], tenants=["a"] * 4 + ["b"] * 4)
    before = get_policy("gandiva_fair", trade="none").allocate(space)
    held = lambda allocation: [  # noqa: E731
        allocation.time_share[space.tenant == u].sum(axis=0).tolist() for u in (0, 1)
    ]
    np.testing.assert_allclose(held(before), [[1, 2], [1, 2]], atol=1e-9)
    # a buys b's fast GPU with its two slow ones: b would have four of four jobs' time, so all of it fits.
    after = get_policy("gandiva_fair").allocate(space)
    np.testing.assert_allclose(held(after), [[2, 0], [0, 4]], atol=1e-9)
    assert "1 trades" in after.message


def test_tickets_set_the_shares_and_what_a_user_cannot_use_goes_to_the_others():
    space = make_space([[1.0]] * 7, [1] * 7, [6], tenants=["a"] + ["b"] * 3 + ["c"] * 3)
    x = get_policy("gandiva_fair", tickets={"a": 10, "b": 3}).allocate(space).x
    # a has one job: 1 GPU; of the other five b gets its three jobs' worth and c the rest.
    np.testing.assert_allclose(x, [1.0, 1, 1, 1, 2 / 3, 2 / 3, 2 / 3], atol=1e-9)
    space = make_space([[1.0]] * 6, [1] * 6, [4], tenants=["b"] * 3 + ["c"] * 3)
    x = get_policy("gandiva_fair", tickets={"b": 1, "c": 2}).allocate(space).x
    np.testing.assert_allclose(x, [4 / 9] * 3 + [8 / 9] * 3, atol=1e-9)


def test_tickets_that_make_no_sense_are_named():
    space = make_space([[1.0]], [1], [1], tenants=["a"])
    for tickets, message in (({"a": 0}, "'a' is 0"), ({"a": "many"}, "'many'"), (["a"], "mapping")):
        with pytest.raises(FormulationError, match=message):
            get_policy("gandiva_fair", tickets=tickets)
    with pytest.raises(FormulationError, match="unknown tenant 'z'"):
        get_policy("gandiva_fair", tickets={"z": 1}).allocate(space)
    for options, message in (({"trade": "barter"}, "trade"), ({"price": "high"}, "price")):
        with pytest.raises(FormulationError, match=message):
            get_policy("gandiva_fair", **options)


def test_a_trace_runs_to_the_end():
    result = bx.simulate("gavel-15", "4xV100+4xP100+4xK80", "gandiva_fair")
    assert result.jobs["finish"].notna().all()
