"""What every program goes through before and after a solver changes neither its optimum nor its duals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from canonical_programs import INF, program
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csc_array

from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.solvers import Termination, solve
from bloxopt.solvers.bounds import tightened
from bloxopt.solvers.conic import one_sided
from bloxopt.solvers.presolve import Reduced, implied_upper_bounds, reduce

small = st.integers(-4, 4).map(float)


@st.composite
def boxed_programs(draw: st.DrawFn) -> StandardForm:
    """Programs with a known feasible point and bounded columns, so that an optimum always exists."""
    n, m = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rows = np.array(draw(st.lists(st.lists(small, min_size=n, max_size=n), min_size=m, max_size=m)))
    point = np.array(draw(st.lists(small, min_size=n, max_size=n)))
    below = np.array(draw(st.lists(st.sampled_from([0.0, 1.0, 3.0, INF]), min_size=m, max_size=m)))
    above = np.array(draw(st.lists(st.sampled_from([0.0, 1.0, 3.0, INF]), min_size=m, max_size=m)))
    room = np.array(draw(st.lists(st.integers(0, 3).map(float), min_size=n, max_size=n)))
    cost = draw(st.lists(small, min_size=n, max_size=n))
    activity = rows @ point
    return program(
        cost, rows.tolist(), list(activity - below), list(activity + above), list(point - room), list(point + room + 1)
    )


exponents = st.integers(-20, 20)


@settings(max_examples=40, deadline=None)
@given(form=boxed_programs(), data=st.data())
def test_the_units_of_rows_columns_and_cost_do_not_matter(form: StandardForm, data: st.DataObject) -> None:
    plain = solve(form, "ortools:glop")
    row_unit = np.exp2(data.draw(st.lists(exponents, min_size=form.num_rows, max_size=form.num_rows)))
    column_unit = np.exp2(data.draw(st.lists(exponents, min_size=form.num_columns, max_size=form.num_columns)))
    scaled = replace(
        form,
        cost=form.cost * column_unit * 2.0**-20,
        matrix=csc_array(form.matrix.multiply(row_unit[:, None]).multiply(column_unit[None, :])),
        row_lower=form.row_lower * row_unit,
        row_upper=form.row_upper * row_unit,
        lower=form.lower / column_unit,
        upper=form.upper / column_unit,
    )
    result = solve(scaled, "ortools:glop")
    assert result.termination is plain.termination is Termination.OPTIMAL, result.message
    assert result.objective == pytest.approx(plain.objective * 2.0**-20, abs=1e-7 * 2.0**-20)


@settings(max_examples=40, deadline=None)
@given(form=boxed_programs())
def test_lifting_undoes_scaling(form: StandardForm) -> None:
    huge = replace(
        form, matrix=form.matrix * 2.0**30, row_lower=form.row_lower * 2.0**30, row_upper=form.row_upper * 2.0**30
    )
    plain, scaled = solve(form, "ortools:glop"), solve(huge, "ortools:glop")
    assert scaled.termination is plain.termination is Termination.OPTIMAL
    assert scaled.objective == pytest.approx(plain.objective, abs=1e-7)
    assert plain.row_duals is not None
    assert scaled.row_duals is not None
    for result, program_ in ((plain, form), (scaled, huge)):
        np.testing.assert_allclose(result.reduced_costs, program_.cost - program_.matrix.T @ result.row_duals)


def test_ordinary_programs_pass_unchanged() -> None:
    form = program([-3, -5], [[1, 0], [0, 2], [3, 2]], row_upper=[4, 12, 18])
    reduced = reduce(form)
    assert isinstance(reduced, Reduced)
    assert np.array_equal(reduced.form.matrix.toarray(), form.matrix.toarray())
    assert np.array_equal(reduced.form.cost, form.cost)


def test_the_program_that_was_given_is_never_changed() -> None:
    form = program([-3e9, -5], [[1e9, 0], [0, 0], [3, 2]], row_upper=[4, 12, 18], upper=[1e30, 5])
    before = [np.copy(a) for a in (form.cost, form.matrix.data, form.matrix.indices, form.row_upper, form.upper)]
    solve(form, "highs")
    for array, copy in zip(
        (form.cost, form.matrix.data, form.matrix.indices, form.row_upper, form.upper), before, strict=True
    ):
        assert np.array_equal(array, copy)


def test_duplicate_entries_add_up() -> None:
    form = program([-1.0], [[0.0]], row_upper=[6.0])
    doubled = csc_array((np.array([1.0, 2.0]), np.array([0, 0]), np.array([0, 2])), shape=(1, 1))
    assert solve(replace(form, matrix=doubled), "highs").objective == -2.0


@settings(max_examples=40, deadline=None)
@given(form=boxed_programs())
def test_upper_bounds_that_rows_imply_can_be_left_out(form: StandardForm) -> None:
    implied = implied_upper_bounds(form)
    without = solve(replace(form, upper=np.where(implied, INF, form.upper)), "ortools:glop")
    assert without.objective == pytest.approx(solve(form, "ortools:glop").objective)


def test_time_shares_imply_the_bounds_of_their_columns() -> None:
    form = program([-1, -2, -1], [[1, 1, 0], [0, 1, -1]], row_upper=[1, 5], upper=[1, 1, 1])
    assert implied_upper_bounds(form).tolist() == [True, True, False]
    assert len(one_sided(form).right) == 2 + 1 + 3


@settings(max_examples=40, deadline=None)
@given(form=boxed_programs(), data=st.data())
def test_bounds_from_rows_cut_off_no_feasible_point(form: StandardForm, data: st.DataObject) -> None:
    loose = data.draw(st.lists(st.booleans(), min_size=form.num_columns, max_size=form.num_columns))
    free = replace(form, lower=np.where(loose, -INF, form.lower), upper=np.where(loose, INF, form.upper))
    tight = tightened(free)
    for direction in (1.0, -1.0):
        for column in range(form.num_columns):
            cost = np.zeros(form.num_columns)
            cost[column] = direction
            extreme = solve(replace(free, cost=cost), "ortools:glop")
            bound = tight.lower[column] if direction > 0 else -tight.upper[column]
            if extreme.termination is Termination.UNBOUNDED:
                assert bound == -INF
            else:
                assert extreme.objective is not None
                assert extreme.objective >= bound - 1e-6


def test_a_chain_of_rows_bounds_every_integer() -> None:
    form = program([-1, -1, -1], [[2, 0, 0], [-1, 1, 0], [0, -1, 1]], row_upper=[9, 2, 2], integer=True)
    tight = tightened(form)
    assert tight.upper.tolist() == [4.0, 6.0, 8.0]
    result = solve(form, "ortools:cp-sat")
    assert (result.termination, result.objective) == (Termination.OPTIMAL, -18.0)


@settings(max_examples=60, deadline=None)
@given(boxed_programs(), st.data(), st.sampled_from(["highs", "ortools:glop", "cvxpy:clarabel"]))
def test_columns_fixed_at_0_count_no_more_than_if_they_were_not_there(form, data, solver) -> None:
    closed = np.array(data.draw(st.lists(st.booleans(), min_size=form.num_columns, max_size=form.num_columns)))
    fixed = replace(form, lower=np.where(closed, 0.0, form.lower), upper=np.where(closed, 0.0, form.upper))
    keep = np.flatnonzero(~closed)
    without = replace(
        form, cost=form.cost[keep], matrix=csc_array(form.matrix[:, keep]), lower=form.lower[keep],
        upper=form.upper[keep], integer=form.integer[keep],
    )  # fmt: skip
    result, expected = solve(fixed, solver), solve(without, solver)
    assert result.termination is expected.termination
    if expected.x is not None:
        assert result.objective == pytest.approx(expected.objective, abs=1e-6)
        assert not result.x[closed].any()
        np.testing.assert_allclose(result.reduced_costs, form.cost - form.matrix.T @ result.row_duals, atol=1e-9)
    reduced = reduce(fixed)
    if isinstance(reduced, Reduced):
        assert reduced.form.num_columns == len(keep)
        assert (
            reduced.reduce_start(np.arange(form.num_columns) * 1.0).tolist()
            == (np.flatnonzero(~closed) / reduced.column_scale).tolist()
        )


def test_integer_columns_fixed_at_0_leave_an_integer_program_one() -> None:
    form = program([-1, -1], [[1, 1]], [-INF], [1.5], [0, 0], [0, 2], integer=[True, False])
    reduced = reduce(form)
    assert isinstance(reduced, Reduced)
    assert reduced.form.is_mip
    result = solve(form, "highs")
    assert result.termination is Termination.OPTIMAL
    assert result.x.tolist() == pytest.approx([0.0, 1.5])
