"""Proportional fairness by linear programs: against a conic solver, closed forms and enumeration."""

from __future__ import annotations

import itertools

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import PlainModel, make_space, normalised, spaces
from scipy.optimize import linprog

from bloxopt.errors import FormulationError, SolverError
from bloxopt.formulations import (
    Capacity,
    EffectiveThroughput,
    Lexicographic,
    MaxSum,
    NormalizedThroughput,
    OneConfiguration,
    Policy,
    ProportionalFairness,
    TenantQuota,
    TimeFraction,
    TimeShare,
)
from bloxopt.formulations.constraints.base import name_blocks
from bloxopt.formulations.expressions import build_affine
from bloxopt.formulations.objectives.proportional_fairness import maximise_logarithms
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.logarithms import add_logarithms, tangent_points
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import Session
from bloxopt.solvers import get_solver
from bloxopt.solvers.base import SolverOptions, Termination


def conic_optimum(space, coefficients, weight):
    """max Σ w log Σ_j c_ij x_ij with exponential cones (Clarabel)."""
    model = PlainModel(space)
    x = cp.Variable((model.m, model.k), nonneg=True)
    upper = np.array([bound[1] for bound in model.bounds]).reshape(model.m, model.k)
    utility = weight @ cp.log(cp.sum(cp.multiply(coefficients, x), axis=1))
    problem = cp.Problem(cp.Maximize(utility), [x <= upper, model.s @ x <= model.c, cp.sum(x, axis=1) <= 1])
    return problem.solve(solver=cp.CLARABEL)


@settings(max_examples=25, deadline=None)
@given(spaces(max_jobs=6, with_state=True), st.sampled_from(["highs", "cvxpy:clarabel", "ortools:glop"]))
def test_it_equals_the_optimum_of_an_exponential_cone_solver(space, solver):
    expected = conic_optimum(space, normalised(space), space.weight)
    policy = Policy(objective=ProportionalFairness(NormalizedThroughput(), weight="priority"))
    allocation = policy.allocate(space, solver=solver)
    total = space.weight.sum()
    assert allocation.objective == pytest.approx(expected, abs=2e-6 * total)
    assert allocation.objective - 1e-9 <= allocation.bound <= allocation.objective + 1.1e-6 * total
    assert allocation.objective == pytest.approx(float(space.weight @ np.log(allocation.levels)), abs=1e-9 * total)


def test_on_one_gpu_type_time_follows_the_weights():
    space = make_space([[3.0], [5.0], [7.0]], [1, 1, 1], [1], weights=[1.0, 2.0, 5.0])
    fair = Policy(objective=ProportionalFairness(EffectiveThroughput(), weight="priority"))
    np.testing.assert_allclose(fair.allocate(space).x, [1 / 8, 2 / 8, 5 / 8], atol=2e-3)
    by_name = Policy(objective=ProportionalFairness(TimeFraction(), weight={"job-2": 5.0, "job-1": 2.0}, gap=1e-9))
    np.testing.assert_allclose(by_name.allocate(space).x, [1 / 8, 2 / 8, 5 / 8], atol=5e-5)


@settings(max_examples=15, deadline=None)
@given(spaces(max_jobs=4))
def test_the_scale_of_a_job_does_not_matter(space):
    """Nash welfare is scale-free: steps/s, normalised steps/s or epochs/s give the same values."""
    raw = Policy(objective=ProportionalFairness(EffectiveThroughput())).allocate(space)
    scaled = Policy(objective=ProportionalFairness(NormalizedThroughput())).allocate(space)
    np.testing.assert_allclose(np.log(raw.throughput), np.log(scaled.throughput), atol=8e-3)


@settings(max_examples=15, deadline=None)
@given(spaces(max_jobs=5))
def test_each_job_gets_its_part_of_what_it_could_have_alone(space):
    """A property of Nash welfare: at least w_i / Σ w of the most that the job could reach."""
    allocation = Policy(objective=ProportionalFairness(EffectiveThroughput())).allocate(space)
    assert (allocation.throughput >= space.fastest_rate / space.num_jobs * (1 - 4e-3)).all()


@settings(max_examples=20, deadline=None)
@given(spaces(max_jobs=3))
def test_with_whole_configurations_it_is_the_best_of_all(space):
    columns = [np.flatnonzero(space.job == i) for i in range(space.num_jobs)]
    best = -np.inf
    for choice in itertools.product(*columns):
        chosen = np.array(choice, dtype=int)
        used = np.bincount(space.gpu_type[chosen], weights=space.num_gpus[chosen], minlength=len(space.gpu_types))
        if (used <= space.capacity).all():
            best = max(best, float(np.log(space.rate[chosen]).sum()))
    policy = Policy(objective=ProportionalFairness(EffectiveThroughput()), constraints=[Capacity(), OneConfiguration()])
    if not np.isfinite(best):
        with pytest.raises(SolverError, match="job-"):
            policy.allocate(space)
        return
    assert policy.allocate(space).objective == pytest.approx(best, abs=1e-4 * space.num_jobs)


@settings(max_examples=15, deadline=None)
@given(spaces(max_jobs=5))
def test_in_a_sum_it_is_one_program_within_its_stated_error(space):
    m = space.num_jobs
    error = m * (np.log(2 * m) / 63) ** 2 / 8
    alone = Policy(objective=ProportionalFairness(EffectiveThroughput())).allocate(space)
    summed = Policy(objective=ProportionalFairness(EffectiveThroughput()) + 0.0 * MaxSum(TimeFraction())).allocate(
        space
    )
    assert summed.num_solves == 1
    assert alone.objective - error - 1e-5 <= summed.objective <= alone.bound + 1e-7


def test_the_smallest_of_the_tangents_overestimates_by_the_stated_error():
    space = make_space([[1.0]], [1], [1])
    points = tangent_points(np.array([0.01]), np.array([1.0]), 8)
    step = np.log(points[0, 1] / points[0, 0])
    worst = 0.0
    for value in np.geomspace(0.01, 1.0, 60):
        program = Program(space)
        row = Affine(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.array([value]))
        utility = add_logarithms(program, row, np.ones(1), points)
        form = program.compile(utility)
        left = linprog(
            form.cost,
            A_ub=-form.matrix,
            b_ub=-form.row_lower,
            bounds=np.column_stack([form.lower, form.upper]),
        )
        over = -(left.fun + form.constant) - np.log(value)
        assert over >= -1e-9
        worst = max(worst, over)
    assert 0.5 * step**2 / 8 <= worst <= 1.1 * step**2 / 8


def test_what_it_found_is_kept_for_the_stages_after_it():
    space = make_space([[4.0, 1.0], [2.0, 2.0], [1.0, 3.0]], [1, 2, 1], [2, 2])
    fair = ProportionalFairness(EffectiveThroughput())
    alone = Policy(objective=fair).allocate(space)
    both = Policy(objective=Lexicographic([fair, MaxSum(-TimeFraction())], tolerance=1e-3)).allocate(space)
    assert both.objective >= alone.objective - 3.1e-3
    assert both.x.sum() <= alone.x.sum() + 1e-9


def test_weights_of_zero_leave_jobs_out_and_bad_ones_are_named():
    space = make_space([[3.0], [5.0]], [1, 1], [1])
    only = Policy(objective=ProportionalFairness(EffectiveThroughput(), weight={"job-0": 0.0})).allocate(space)
    assert only.throughput[1] == pytest.approx(5.0, rel=1e-6)
    for weight, message in (("priorities", "'priority'"), (-1.0, ">= 0"), ({"job-9": 1.0}, "job-9")):
        with pytest.raises(FormulationError, match=message):
            Policy(objective=ProportionalFairness(EffectiveThroughput(), weight=weight)).allocate(space)


def test_a_job_that_can_have_nothing_is_named():
    space = make_space([[3.0], [5.0]], [1, 1], [1], tenants=["a", "b"])
    blocks = [Capacity(), TimeShare(), TenantQuota({"b": 0})]
    with pytest.raises(SolverError, match="job-1"):
        Policy(objective=ProportionalFairness(EffectiveThroughput()), constraints=blocks).allocate(space)


@pytest.mark.parametrize("solver", ["auto", "highs"])
def test_a_suggestion_for_large_programs_changes_nothing_but_the_number_of_programs(monkeypatch, solver):
    rng = np.random.default_rng(5)
    space = make_space(rng.uniform(0.5, 9.0, (120, 3)), rng.choice([1, 2, 4], 120), [20, 30, 40])
    policy = Policy(objective=ProportionalFairness(NormalizedThroughput()))
    suggested = policy.allocate(space, solver=solver)
    monkeypatch.setattr("bloxopt.formulations.objectives.proportional_fairness.suggest_logarithms", lambda *_: None)
    alone = policy.allocate(space, solver=solver)
    assert suggested.objective == pytest.approx(alone.objective, abs=2e-6 * 120)
    assert suggested.bound - suggested.objective <= 1.1e-6 * 120
    assert suggested.num_solves < alone.num_solves
    # A suggestion that is far off costs programs, not the optimum.
    wrong = lambda form, rows, constant, weight, limit: np.full(len(weight), 0.01)  # noqa: E731
    monkeypatch.setattr("bloxopt.formulations.objectives.proportional_fairness.suggest_logarithms", wrong)
    assert policy.allocate(space, solver=solver).objective == pytest.approx(alone.objective, abs=2e-6 * 120)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.05, 20.0), min_size=2, max_size=6), st.floats(1.0, 40.0), st.integers(0, 2**32 - 1))
def test_values_said_to_be_near_may_be_far_off(weights, gpus, seed):
    """On one GPU type the optimum is known: GPUs in proportion to weights, none beyond all of its time."""
    weight, rng = np.array(weights), np.random.default_rng(seed)
    rate = 10.0 ** rng.uniform(-1, 3, len(weight))
    space = make_space(rate[:, None], np.ones(len(weight), int), [int(gpus)])
    share = np.zeros(len(weight))
    room, left = float(int(gpus)), np.ones(len(weight), bool)
    while left.any() and room > 0:
        each = room * weight / weight[left].sum()
        full = left & (each >= 1.0)
        if not full.any():
            share[left] = each[left]
            break
        share[full], room = 1.0, room - full.sum()
        left &= ~full
    session = Session(space, name_blocks([Capacity(), TimeShare()]), get_solver("highs"), SolverOptions())
    rows = build_affine(EffectiveThroughput(), space, "test")
    far = share * rate * 10.0 ** rng.uniform(-1, 1, len(weight))
    outcome = maximise_logarithms(session, rows, weight, gap=1e-8, near=far)
    assert outcome.termination is Termination.OPTIMAL
    assert outcome.utility == pytest.approx(float(weight @ np.log(share * rate)), abs=2e-7 * weight.sum())
    assert session.num_solves <= 12


def test_of_whole_configurations_every_job_has_one_where_that_is_possible():
    """However much the others lose by it: here the second job's only place is the first one's fast GPU."""
    space = make_space([[1000.0, 1e-4], [1e-4, 0.0]], [1, 1], [1, 1])
    policy = Policy(objective=ProportionalFairness(EffectiveThroughput()), constraints=[Capacity(), OneConfiguration()])
    assert policy.allocate(space).throughput == pytest.approx([1e-4, 1e-4])
