"""The partial allocation mechanism: discounts against a conic solver, and what misreporting brings."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import PlainModel, make_space, spaces

from bloxopt.errors import FormulationError
from bloxopt.formulations.policies import get_policy


def conic_values(space, without=None):
    """Proportionally fair steps/s of each job (Clarabel's exponential cones), without one of them."""
    model = PlainModel(space)
    x = cp.Variable((model.m, model.k), nonneg=True)
    upper = np.array([bound[1] for bound in model.bounds]).reshape(model.m, model.k)
    value = cp.sum(cp.multiply(model.rates, x), axis=1)
    kept = [i for i in range(model.m) if i != without]
    limits = [x <= upper, model.s @ x <= model.c, cp.sum(x, axis=1) <= 1]
    cp.Problem(cp.Maximize(space.weight[kept] @ cp.log(value[kept])), limits).solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10
    )
    return value.value


@settings(max_examples=6, deadline=None)
@given(spaces(max_jobs=4, with_state=True))
def test_shares_and_discounts_equal_those_of_a_conic_solver(space):
    fair = conic_values(space)
    expected = np.empty(space.num_jobs)
    for i in range(space.num_jobs):
        alone = conic_values(space, i)
        others = [k for k in range(space.num_jobs) if k != i]
        lost = float(space.weight[others] @ np.log(alone[others] / fair[others])) if others else 0.0
        expected[i] = fair[i] * np.exp(-lost / space.weight[i])
    allocation = get_policy("strategy_proof").allocate(space)
    np.testing.assert_allclose(allocation.throughput, expected, rtol=2e-3)


@st.composite
def reports(draw):
    """True rates, one job's false ones, and the gangs and GPUs."""
    count, types = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rates = rng.uniform(0.5, 10.0, size=(count, types))
    liar = int(rng.integers(count))
    lie = rates.copy()
    lie[liar] *= np.exp(rng.normal(0.0, 1.0, types))
    gpus = rng.choice([1, 2], size=count)
    return rates, lie, liar, gpus, [int(gpus.max()) + int(rng.integers(0, 2)) for _ in range(types)]


def gain_by_lying(policy, instance):
    """What the liar gets by its false rates over what the truth gives it, both measured by its true rates."""
    rates, lie, liar, gpus, capacity = instance
    truth = get_policy(policy).allocate(make_space(rates, gpus, capacity)).time_share[liar]
    false = get_policy(policy).allocate(make_space(lie, gpus, capacity)).time_share[liar]
    return float(false @ rates[liar]) / float(truth @ rates[liar])


@settings(max_examples=15, deadline=None)
@given(reports())
def test_no_job_gains_by_false_throughputs(instance):
    assert gain_by_lying("strategy_proof", instance) <= 1 + 1e-3


def test_under_max_min_fairness_a_job_gains_by_false_throughputs():
    """The counterexample that the discount is for: job 0 praises the GPUs that the others need, and gets its own."""
    truth = np.array([[4.0, 1.0], [1.0, 4.0], [1.0, 4.0]])
    lie = np.array([[4.0, 8.0], [1.0, 4.0], [1.0, 4.0]])
    assert gain_by_lying("max_min_fairness", (truth, lie, 0, [1, 1, 1], [1, 1])) > 1.5
    assert gain_by_lying("strategy_proof", (truth, lie, 0, [1, 1, 1], [1, 1])) <= 1 + 1e-3


@settings(max_examples=6, deadline=None)
@given(spaces(max_jobs=5))
def test_discounts_are_at_least_one_over_e_and_prices_bound_them_from_below(space):
    exact = get_policy("strategy_proof", discount="exact").allocate(space)
    cheap = get_policy("strategy_proof", discount="prices").allocate(space, solver="cvxpy:clarabel")
    fair = conic_values(space)
    assert (exact.throughput >= fair / np.e * (1 - 5e-3)).all()
    assert (cheap.throughput <= exact.throughput * (1 + 2e-2)).all()
    assert (cheap.throughput >= fair / np.e * (1 - 2e-2)).all()


def test_with_many_jobs_prices_give_the_exact_discounts():
    rng = np.random.default_rng(3)
    space = make_space(rng.uniform(0.5, 5.0, (24, 2)), [1] * 24, [3, 4])
    exact = get_policy("strategy_proof", discount="exact").allocate(space)
    cheap = get_policy("strategy_proof", discount="prices").allocate(space, solver="cvxpy:clarabel")
    np.testing.assert_allclose(cheap.throughput, exact.throughput, rtol=0.06)
    assert "exact" in exact.message
    assert "from prices" in cheap.message


def test_one_good_and_equal_jobs_is_the_known_closed_form():
    # m jobs on one GPU: each would have 1/m of it, and 1/(m−1) without one of them: f = ((m − 1)/m)^(m−1).
    space = make_space([[2.0]] * 4, [1] * 4, [1])
    x = get_policy("strategy_proof").allocate(space).x
    np.testing.assert_allclose(x, 0.25 * 0.75**3, rtol=1e-3)


def test_a_job_that_stands_in_nobodys_way_keeps_everything():
    space = make_space([[2.0], [3.0]], [1, 1], [4])
    np.testing.assert_allclose(get_policy("strategy_proof").allocate(space).x, 1.0, rtol=1e-6)
    with pytest.raises(FormulationError, match="discount is 'half'"):
        get_policy("strategy_proof", discount="half")
