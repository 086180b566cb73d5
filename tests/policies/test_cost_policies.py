"""Cost policies: against plain models, enumeration of which deadlines to give up, and messages that name them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import PlainModel, make_space, spaces

from bloxopt.errors import FormulationError
from bloxopt.formulations import unmet_deadlines
from bloxopt.formulations.policies import get_policy
from bloxopt.formulations.policies.min_cost import Prices

PRICE = {"fast": 0.74, "mid": 0.43, "slow": 0.135}


def price(space):
    return np.array([PRICE[name] for name in space.gpu_types])


@settings(max_examples=25, deadline=None)
@given(spaces(with_state=True))
def test_min_cost_equals_a_plain_program(space):
    best = PlainModel(space).maximise((space.requested_rate / price(space)).ravel())
    assert get_policy("min_cost", prices=PRICE).allocate(space).objective == pytest.approx(-best.fun, rel=1e-6)


@st.composite
def timed(draw):
    """Up to five jobs, most with a deadline, some of which clash, some impossible, some passed."""
    count, types = draw(st.integers(1, 5)), draw(st.integers(1, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    gpus = rng.choice([1, 2], size=count)
    rates = rng.uniform(1.0, 10.0, size=(count, types))
    steps = rng.uniform(500.0, 3000.0, count)
    now = 50.0
    slack = rng.choice([0.5, 1.0, 1.3, 2.0, 4.0], count) * steps / rates.max(axis=1)
    deadlines = [None if rng.random() < 0.2 else float(now + s) for s in slack]
    if rng.random() < 0.2:
        deadlines[0] = 20.0
    return make_space(rates, gpus, [2] * types, steps=steps, deadlines=deadlines, now=now)


def most_deadlines(space):
    """The largest number that can be kept, by trying every set, and for it the least shortfall of the others."""
    model = PlainModel(space)
    left = space.deadline - space.now
    possible = [i for i in range(space.num_jobs) if 0 < left[i] < np.inf]
    needed = np.array([space.remaining_steps[i] / left[i] if i in possible else 0.0 for i in range(space.num_jobs)])
    possible = [i for i in possible if needed[i] <= space.fastest_rate[i] * (1 + 1e-9)]
    for size in range(len(possible), -1, -1):
        for kept in itertools.combinations(possible, size):
            floors = np.array([needed[i] * (1 - 1e-9) if i in kept else 0.0 for i in range(space.num_jobs)])
            if model.feasible(floors):
                return size, len(possible)
    return 0, len(possible)


@settings(max_examples=40, deadline=None)
@given(timed(), st.booleans())
def test_the_fewest_deadlines_are_given_up_and_each_is_named(space, frugal):
    most, possible = most_deadlines(space)
    allocation = get_policy("min_cost_slos", prices=PRICE, frugal=frugal).allocate(space)
    missed = unmet_deadlines(allocation)
    given_up = [entry for entry in missed if "of the throughput" in entry.reason]
    assert possible - len(given_up) == most
    assert all(repr(entry.job_id) in allocation.message for entry in missed)
    for entry in missed:
        i = list(space.job_ids).index(entry.job_id)
        if space.deadline[i] <= space.now:
            assert "passed" in entry.reason
        assert entry.given < entry.needed
    assert bool(missed) == ("deadlines are not kept" in allocation.message)


@settings(max_examples=25, deadline=None)
@given(timed())
def test_where_all_deadlines_can_be_kept_the_cost_is_the_least_of_a_plain_program(space):
    allocation = get_policy("min_cost_slos", prices=PRICE, frugal=True).allocate(space)
    if unmet_deadlines(allocation):
        return
    model = PlainModel(space)
    timed_jobs = np.flatnonzero(np.isfinite(space.deadline))
    needed = space.remaining_steps / (space.deadline - space.now)
    cost = (space.requested_gpus[:, None] * price(space)[None, :]).ravel()
    rows = [model.row(i, space.requested_rate[i]) for i in timed_jobs]
    best = model.maximise(-cost, rows, [needed[i] for i in timed_jobs]) if rows else None
    assert allocation.objective == pytest.approx(best.fun if rows else 0.0, rel=1e-5, abs=1e-7)
    # Gavel's objective with the same promises.
    value = (space.requested_rate / price(space)).ravel()
    dearer = get_policy("min_cost_slos", prices=PRICE).allocate(space)
    plain = model.maximise(value, rows, [needed[i] * (1 - 1e-9) for i in timed_jobs])
    assert dearer.objective == pytest.approx(-plain.fun, rel=1e-5)


def test_one_impossible_deadline_leaves_the_others_in_force():
    """Gavel drops all deadlines as soon as they clash; here only those that must go."""
    space = make_space(
        [[10.0], [10.0], [10.0], [10.0]],
        [1, 1, 1, 1],
        [1],
        steps=[1000.0, 400.0, 400.0, 400.0],
        deadlines=[90.0, 100.0, 80.0, None],
        now=10.0,
    )
    allocation = get_policy("min_cost_slos", prices=PRICE).allocate(space)
    missed = {entry.job_id: entry.reason for entry in unmet_deadlines(allocation)}
    assert set(missed) == {"job-0", "job-2"} or set(missed) == {"job-0", "job-1"}
    assert "its fastest GPUs give 10" in missed["job-0"]
    kept = "job-1" if "job-2" in missed else "job-2"
    needed = {"job-1": 400 / 90, "job-2": 400 / 70}[kept]
    assert allocation.throughput[list(space.job_ids).index(kept)] >= needed * (1 - 1e-6)
    assert "2 of 3 deadlines are not kept: 'job-0' (needs 12.5 steps/s" in allocation.message


def test_solvers_without_integers_lose_the_least_throughput_and_say_so():
    space = make_space([[10.0]] * 3, [1] * 3, [1], steps=[500.0] * 3, deadlines=[100.0] * 3, now=0.0)
    policy = get_policy("min_cost_slos", prices=PRICE)
    exact = policy.allocate(space)
    assert len(unmet_deadlines(exact)) == 1
    linear = policy.allocate(space, solver="cvxpy:clarabel")
    assert "takes no integers" in linear.message
    assert linear.throughput.sum() == pytest.approx(10.0, rel=1e-6)


def test_prices_have_documented_defaults_and_bad_ones_are_named():
    space = make_space([[1.0]], [1], [1])
    assert get_policy("min_cost").allocate(space).objective == pytest.approx(1.0)
    both = make_space([[1.0, 1.0]], [1], [1, 1])
    with pytest.raises(FormulationError, match="no price for GPU type 'mid'; known are v100"):
        get_policy("min_cost", prices={"fast": 2.0}).allocate(both)
    for prices, message in (({"fast": 0}, "'fast' is 0"), ({"fast": -1}, "'fast' is -1"), ({"fast": "x"}, "'x'")):
        with pytest.raises(FormulationError, match=message):
            get_policy("min_cost", prices=prices)
    with pytest.raises(FormulationError, match="unmet"):
        get_policy("min_cost_slos", unmet="all")
    with pytest.raises(FormulationError, match="prices is 3, must be a table"):
        Prices(3)


@pytest.mark.parametrize("policy", ["min_cost", "min_cost_slos"])
@pytest.mark.parametrize("frugal", [{}, {"frugal": True}], ids=["throughput", "frugal"])
def test_a_price_of_a_gpu_type_that_is_not_there_is_a_slip_where_another_has_none(policy, frugal):
    options = frugal if policy == "min_cost_slos" else {}
    both = make_space([[1.0, 1.0]], [1], [1, 1])  # fast and mid
    slip = (
        "price of GPU type 'fats', which the cluster does not have, and none is given for 'fast': did you mean 'fast'"
    )
    for prices in ({"fats": 2.0}, {"fats": 2.0, "mid": 1.0}):
        with pytest.raises(FormulationError, match=slip):
            get_policy(policy, prices=prices, **options).allocate(both)
    # One list serves several clusters, in any case.
    get_policy(policy, prices={"FAST": 2.0, "mid": 1.0, "slow": 0.5, "H100": 9.0}, **options).allocate(both)


def test_a_frugal_plan_leaves_gpus_idle():
    space = make_space([[2.0, 1.0]] * 2, [1, 1], [2, 2], steps=[100.0, 100.0], deadlines=[200.0, None], now=0.0)
    policy = get_policy("min_cost_slos", prices=PRICE, frugal=True)
    allocation = policy.allocate(space)
    # A quarter of the time on the GPU with the cheapest steps is enough, and the job without a deadline waits.
    np.testing.assert_allclose(allocation.time_share, [[0.25, 0.0], [0.0, 0.0]], atol=1e-6)
    assert not policy.work_conserving


@pytest.mark.parametrize("seed", range(3))
def test_many_clashing_deadlines_are_kept_as_often_as_integers_would_within_one_a_gpu_type(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    rates, steps = rng.uniform(1.0, 10.0, (90, 2)), rng.uniform(500.0, 3000.0, 90)
    deadlines = steps / rates.max(axis=1) * rng.uniform(1.0, 2.5, 90)
    space = make_space(rates, rng.choice([1, 2], 90), [20, 20], steps=steps, deadlines=list(deadlines), now=0.0)
    policy = get_policy("min_cost_slos", prices=PRICE)
    missed = unmet_deadlines(policy.allocate(space))
    monkeypatch.setattr("bloxopt.formulations.objectives.deadlines_first._MANY", 1000)
    exact = unmet_deadlines(policy.allocate(space, solver="highs"))
    assert 10 < len(exact) <= len(missed) <= len(exact) + 2
