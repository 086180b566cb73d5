"""Choices at prices against SciPy's solver: the optimum within the gap, bounds that hold, and what is handed on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csc_array

from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.solvers import prices, solve
from bloxopt.solvers.base import Termination


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    monkeypatch.setattr(prices, "SMALL", 0)


def choices(rng, groups, options, shared, *, at_least=False, others=0, closed=0.0):
    """A random program: one option or none of every group, ``shared`` rows of resources, other bounded columns."""
    count = groups * options
    group = np.repeat(np.arange(groups), options)
    use = rng.integers(0, 5, (shared, count)).astype(float)
    cost = -use.sum(axis=0) * rng.uniform(0.5, 1.5, count) - rng.uniform(0, 1, count)
    top = np.zeros((groups, count))
    top[group, np.arange(count)] = 1.0
    extra = rng.integers(0, 3, (shared, others)).astype(float)
    matrix = np.vstack([np.hstack([top, np.zeros((groups, others))]), np.hstack([use, extra])])
    limit = np.floor(use.sum(axis=1) * 0.3 / options) + 1
    floor = np.where(rng.random(shared) < 0.5, np.floor(0.5 * limit), -np.inf) if at_least else np.full(shared, -np.inf)
    upper = np.append(np.where(rng.random(count) < closed, 0.0, 1.0), np.full(others, 2.0))
    return StandardForm(
        cost=np.append(cost, rng.uniform(-1, 1, others)),
        matrix=csc_array(matrix),
        row_lower=np.append(np.full(groups, -np.inf), floor),
        row_upper=np.append(np.ones(groups), limit),
        lower=np.zeros(count + others),
        upper=upper,
        integer=np.append(np.ones(count, dtype=bool), rng.random(others) < 0.5),
        constant=3.0,
    )


def optimum(form):
    found = milp(
        form.cost,
        integrality=form.integer.astype(int),
        bounds=Bounds(form.lower, form.upper),
        constraints=LinearConstraint(form.matrix, form.row_lower, form.row_upper),
        options={"mip_rel_gap": 1e-9},
    )
    return None if found.x is None else float(found.fun) + form.constant


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.integers(0, 3), st.sampled_from([1e-2, 1e-3, 1e-5]))
def test_the_answer_is_within_the_gap_and_the_bound_below_the_optimum(seed, at_least, others, gap):
    rng = np.random.default_rng(seed)
    groups, options, shared = int(rng.integers(4, 25)), int(rng.integers(1, 5)), int(rng.integers(1, 3))
    form = choices(rng, groups, options, shared, at_least=at_least, others=others, closed=0.2)
    best = optimum(form)
    result = solve(form, "prices", mip_gap=gap)
    if best is None:
        assert result.termination is Termination.INFEASIBLE
        return
    assert result.termination is Termination.OPTIMAL
    size = abs(result.objective - form.constant)
    assert best - 1e-6 * (1 + size) <= result.objective <= best + (gap + 1e-6) * size + 1e-6
    assert result.bound <= best + 1e-6 * (1 + size)


def test_large_programs_of_choices_are_proven_by_prices_alone(monkeypatch):
    def never(*_):
        raise AssertionError("no integer program is needed")

    form = choices(np.random.default_rng(3), 300, 8, 3)
    monkeypatch.setattr(prices, "run_highs", never)
    result = solve(form, "prices", mip_gap=1e-2)
    assert result.termination is Termination.OPTIMAL
    assert result.message == "by prices"
    assert result.objective - result.bound <= 1e-2 * abs(result.objective - form.constant)
    best = optimum(form)
    assert result.bound - 1e-6 <= best <= result.objective + 1e-6


@pytest.mark.parametrize("kind", ["no choices", "many shared rows", "unbounded column", "linear"])
def test_other_programs_are_handed_to_highs(kind, monkeypatch):
    rng = np.random.default_rng(5)
    form = choices(rng, 10, 3, 2)
    if kind == "no choices":
        form = choices(rng, 1, 1, 5, others=8)
    elif kind == "many shared rows":
        form = choices(rng, 10, 3, 80)
    elif kind == "unbounded column":
        form = StandardForm(**{**vars(form), "upper": np.append(form.upper[:-1], np.inf)})
    else:
        form = StandardForm(**{**vars(form), "integer": np.zeros(len(form.cost), dtype=bool)})
    monkeypatch.setattr(prices, "_best_prices", lambda *_: pytest.fail("prices were looked for"))
    result = solve(form, "prices", mip_gap=1e-6)
    assert result.termination is Termination.OPTIMAL
    assert result.objective == pytest.approx(optimum(form), rel=1e-5, abs=1e-5)


def test_a_program_without_an_answer_is_infeasible():
    form = choices(np.random.default_rng(1), 30, 3, 1)
    form = StandardForm(
        **{
            **vars(form),
            "row_lower": np.append(form.row_lower[:-1], 1e4),
            "row_upper": np.append(form.row_upper[:-1], 1e5),
        }
    )
    assert solve(form, "prices").termination is Termination.INFEASIBLE


def test_a_time_limit_is_kept():
    form = choices(np.random.default_rng(2), 200, 10, 3)
    result = solve(form, "prices", mip_gap=1e-6, time_limit=0.5)
    assert result.solve_seconds < 3.0
    assert result.termination in (Termination.OPTIMAL, Termination.FEASIBLE, Termination.LIMIT_NO_SOLUTION)
