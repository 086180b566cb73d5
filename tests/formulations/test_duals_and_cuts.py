"""Prices, slacks and bounds: by block, equal to finite differences, valid for every feasible allocation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from instances import make_space, spaces

from bloxopt.formulations import (
    Budget,
    Capacity,
    EffectiveThroughput,
    FinishTimeRatio,
    MaxMin,
    MaxSum,
    MinimumShare,
    MinMax,
    NormalizedThroughput,
    Policy,
    RemainingTime,
    TenantQuota,
    TimeShare,
)
from bloxopt.formulations.constraints.base import name_blocks
from bloxopt.formulations.expressions import build_affine
from bloxopt.formulations.objectives.water_filling import highest_level
from bloxopt.formulations.solving.affine import Reciprocal
from bloxopt.formulations.solving.dual import with_duals
from bloxopt.formulations.solving.levels import Cut, LevelProgram
from bloxopt.formulations.solving.reciprocal import least_value
from bloxopt.formulations.solving.session import Session
from bloxopt.solvers.base import SolverOptions
from bloxopt.solvers.registry import get_solver

SPACE = make_space(
    [[4, 2.2], [6.1, 1], [1, 1.3], [3.3, 2.7]], [1, 2, 1, 1], [2, 1], tenants=["a", "b", "a", "b"],
    steps=[100, 300, 50, 70], now=20.0, isolated_seconds=[10, 3, 20, 5],
)  # fmt: skip


def allocate(objective, quota=1.2, amount=5.0):
    blocks = [Capacity(), TimeShare(), TenantQuota({"b": quota}), Budget(amount, {"fast": 2.0, "mid": 1.5})]
    return Policy(objective=objective, constraints=blocks, solver="highs").allocate(SPACE)


@pytest.mark.parametrize(
    ("objective", "sign"),
    [
        (MaxSum(EffectiveThroughput()), 1),
        (MaxMin(NormalizedThroughput()), 1),
        (0.5 * MaxMin(NormalizedThroughput()) + 0.01 * MaxSum(EffectiveThroughput()), 1),
        (MinMax(RemainingTime()), -1),
        (MinMax(FinishTimeRatio()), -1),
    ],
    ids=["sum", "min", "mixed", "makespan", "finish time"],
)
def test_prices_by_block_equal_finite_differences(objective, sign):
    here = allocate(objective)
    step = 1e-4
    by_quota = sign * (allocate(objective, quota=1.2 + step).objective - here.objective) / step
    by_amount = sign * (allocate(objective, amount=5.0 + step).objective - here.objective) / step
    assert here.duals["TenantQuota"]["b"] == pytest.approx(by_quota, rel=2e-3, abs=1e-5)
    assert here.duals["Budget"]["per hour"] == pytest.approx(by_amount, rel=2e-3, abs=1e-5)
    assert here.duals["Capacity"].index.tolist() == ["fast", "mid"]


def test_a_higher_promise_has_a_negative_price():
    space = make_space([[2.0], [4.0]], [1, 1], [1])
    allocation = Policy(
        objective=MaxSum(EffectiveThroughput()), constraints=[Capacity(), TimeShare(), MinimumShare({"job-0": 0.5})]
    ).allocate(space)
    # A step/s more for job-0 takes half a GPU from job-1, which loses two: one is lost in all.
    assert allocation.duals["MinimumShare"]["job-0"] == pytest.approx(-1.0, rel=1e-6)


def test_slacks_say_what_is_left_and_binding_rows_have_none():
    allocation = allocate(MaxSum(EffectiveThroughput()))
    slack, price = allocation.slacks, allocation.duals
    for name in ("Capacity", "TimeShare", "TenantQuota", "Budget"):
        assert (slack[name] >= -1e-7).all()
        np.testing.assert_allclose(slack[name] * price[name], 0.0, atol=1e-6)
    used = (SPACE.num_gpus * allocation.x)[SPACE.gpu_type == 0].sum()
    assert slack["Capacity"]["fast"] == pytest.approx(2 - used, abs=1e-7)


@settings(max_examples=30, deadline=None)
@given(spaces(with_state=True))
def test_the_dual_program_gives_the_prices_that_the_solver_gives(space):
    session = _session(space)
    program = session.program()
    program.block = "MaxMin"
    utility = MaxMin(NormalizedThroughput()).terms(space, program)
    form = program.compile(utility)
    solver = get_solver("highs")
    result = solver.solve(form)
    answer = with_duals(form, result, solver.solve)
    # Prices need not be unique; the bound that they prove is.
    y, d = answer.row_duals, answer.reduced_costs
    low, high = np.where(np.isfinite(form.row_lower), form.row_lower, 0), np.where(
        np.isfinite(form.row_upper), form.row_upper, 0
    )  # fmt: skip
    bound = np.maximum(y, 0) @ low + np.minimum(y, 0) @ high + np.minimum(d * form.lower, d * form.upper).sum()
    assert bound + form.constant == pytest.approx(result.objective, rel=1e-6, abs=1e-7)


@settings(max_examples=40, deadline=None)
@given(spaces(with_state=True))
def test_a_cut_holds_for_every_feasible_allocation_and_is_tight(space):
    session = _session(space)
    rows = build_affine(NormalizedThroughput(), space, "test")
    rng = np.random.default_rng(0)
    solution = LevelProgram(session, rows, "levels", duals=True).solve(rng.uniform(0.1, 2.0, space.num_jobs))
    cut = solution.cut
    assert cut.weight @ rows.at(solution.x) == pytest.approx(cut.reach, rel=1e-6)
    for _ in range(20):
        x = rng.uniform(0, 1, space.num_columns)
        x /= max(1.0, np.bincount(space.job, x).max())
        used = np.bincount(space.gpu_type, space.num_gpus * x, len(space.gpu_types))
        x /= max(1.0, (used / space.capacity).max())
        assert cut.weight @ rows.at(x) <= cut.reach * (1 + 1e-9)


def test_a_cut_with_wrong_prices_is_still_valid():
    """Weak duality: prices of another optimum only make the bound looser, never wrong."""
    session = _session(SPACE)
    rows = build_affine(NormalizedThroughput(), SPACE, "test")
    program = LevelProgram(session, rows, "levels", duals=True)
    solution = program.solve(np.ones(4))
    form, duals = solution.solved.form, solution.solved.result.row_duals
    first = len(duals) - 4
    rng = np.random.default_rng(1)
    for _ in range(50):
        noisy = duals * rng.uniform(0.5, 1.5, len(duals)) + rng.normal(0, 0.01, len(duals))
        reach = program._reach(form, noisy, first, solution.cut.weight)
        assert reach >= solution.cut.reach * (1 - 1e-9)


def test_the_root_of_a_finish_time_cut_solves_its_equation():
    rng = np.random.default_rng(3)
    offset, numerator, weight = rng.uniform(0, 40, 30), rng.uniform(0, 5, 30), rng.uniform(0, 1, 30)
    rows = Reciprocal(offset, numerator, build_affine(EffectiveThroughput(), SPACE, "test"))
    for reach in (1e-6, 0.5, 30.0, 1e6):
        value = least_value(rows, Cut(weight, reach))
        assert (weight * numerator / (value - offset)).sum() == pytest.approx(reach, rel=1e-5)


def test_the_water_level_of_a_cut_solves_its_equation():
    rng = np.random.default_rng(4)
    cap, weight = rng.uniform(0.5, 3, 20), rng.uniform(0, 1, 20)
    level, fixed = np.full(20, 0.25), np.arange(20) < 5
    for share in (0.1, 0.5, 0.99):
        reach = share * float(weight[5:] @ cap[5:]) + 0.25 * float(weight[:5].sum())
        t = highest_level(Cut(weight, reach), cap, level, fixed)
        assert weight[5:] @ np.minimum(t, cap[5:]) + 0.25 * weight[:5].sum() == pytest.approx(reach)
    assert highest_level(Cut(weight, 1e9), cap, level, fixed) == np.inf


def _session(space):
    return Session(space, name_blocks([Capacity(), TimeShare()]), get_solver("highs"), SolverOptions())
