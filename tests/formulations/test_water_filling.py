"""Water filling of any affine expression: sums, differences, rows that mix jobs, rows that can be negative."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import make_space, spaces
from scipy.optimize import linprog

from bloxopt.formulations import (
    Affine,
    EffectiveThroughput,
    Expression,
    GpusUsed,
    MinMax,
    NormalizedThroughput,
    Policy,
    RemainingTime,
    TimeFraction,
    Total,
    WaterFilling,
)
from bloxopt.formulations.expressions import build_expression, per_job
from bloxopt.formulations.solving.affine import Reciprocal
from bloxopt.solvers.base import Termination

PRICE = {"fast": 3.0, "mid": 1.0, "slow": 0.5}


class Spending(Expression):
    """Money per hour of each job, on whichever of the GPU types the cluster has."""

    def build(self, space):
        return np.array([PRICE[name] for name in space.gpu_types])[space.gpu_type] * space.num_gpus


THROUGHPUT = NormalizedThroughput()
SOLVERS = ("highs", "cvxpy:clarabel")


def fill(expression, space, solver="auto"):
    return Policy(objective=WaterFilling(expression)).allocate(space, solver=solver)


def matrix_of(expression, space):
    """Coefficients (rows, columns) and constants of the counted rows, by evaluating at unit vectors."""
    built = build_expression(expression, space).only_counted()
    constant = built.at(np.zeros(space.num_columns))
    columns = [built.at(unit) - constant for unit in np.eye(space.num_columns)]
    return np.array(columns).T.reshape(len(constant), space.num_columns), constant


def leximin(matrix, constant, space):
    """Levels by one linear program per row and stage: what can no longer rise alone is fixed."""
    count, width = matrix.shape
    limits = [space.num_gpus * (space.gpu_type == j) for j in range(len(space.gpu_types))]
    limits += [1.0 * (space.job == i) for i in range(space.num_jobs)]
    right = [*space.capacity, *np.ones(space.num_jobs)]

    def most(goal, floors):
        """The most of goal·(x, t) with e_i ≥ floor, or e_i ≥ t where the floor is None."""
        rows = [np.append(row, 0.0) for row in limits]
        bounds = list(right)
        for i, floor in floors.items():
            rows.append(np.append(-matrix[i], 1.0 if floor is None else 0.0))
            bounds.append(constant[i] - (0.0 if floor is None else floor))
        result = linprog(-goal, np.array(rows), bounds, bounds=[(0, 1)] * width + [(None, None)], method="highs")
        return -result.fun if result.status == 0 else None

    fixed: dict[int, float] = {}
    free = set(range(count))
    scale = max(1.0, float(np.abs(matrix).max()))
    while free:
        held = {i: level - 1e-9 * scale for i, level in fixed.items()}
        level = most(np.append(np.zeros(width), 1.0), held | dict.fromkeys(free))
        stuck = []
        for i in free:
            others = held | {k: level - 1e-8 * scale for k in free if k != i}
            best = most(np.append(matrix[i], 0.0), others)
            if best is None or best + constant[i] <= level + 1e-5 * scale:
                stuck.append(i)
        assert stuck
        fixed |= dict.fromkeys(stuck, level)
        free -= set(stuck)
    return np.array([fixed[i] for i in range(count)])


EXPRESSIONS = {
    "scaled": 2 * THROUGHPUT,
    "sum": THROUGHPUT + THROUGHPUT,
    "sum of different": 0.5 * EffectiveThroughput() + TimeFraction(),
    "difference": THROUGHPUT - 0.3 * Spending(),
    "difference of equals": 3 * THROUGHPUT - THROUGHPUT,
    "shifted up": THROUGHPUT + 2,
    "shifted below 0": THROUGHPUT - 5,
    "only costs": -1 * Spending(),
    "costs above a constant": 4 - Spending(),
    "tenants": GpusUsed(by="tenant"),
    "GPU types": GpusUsed(by="gpu_type"),
    "all GPUs": GpusUsed(),
    "total": Total(EffectiveThroughput()),
    "total less cost": Total(THROUGHPUT) - Total(Spending()),
}


def with_tenants(space, seed):
    """The same jobs, owned by three tenants."""
    rng = np.random.default_rng(seed)
    capacity = [int(n) for n in space.capacity]
    names = rng.choice(["x", "y", "z"], space.num_jobs).tolist()
    rates = np.zeros((space.num_jobs, len(capacity)))
    rates[:, : space.requested_rate.shape[1]] = space.requested_rate
    return make_space(rates, space.requested_gpus, capacity, tenants=names)


@pytest.mark.parametrize("name", EXPRESSIONS)
@settings(max_examples=12, deadline=None)
@given(space=spaces(max_jobs=5), seed=st.integers(0, 99), solver=st.sampled_from(SOLVERS))
def test_levels_equal_those_of_one_program_per_row_and_stage(name, space, seed, solver):
    space = with_tenants(space, seed)
    expression = EXPRESSIONS[name]
    allocation = fill(expression, space, solver)
    expected = leximin(*matrix_of(expression, space), space)
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(allocation.levels, expected, rtol=1e-4, atol=1e-5 * scale)
    assert allocation.objective == pytest.approx(expected.min(), rel=1e-5, abs=1e-6 * scale)
    assert allocation.bound >= expected.min() - 1e-5 * scale, "a bound below the optimum is no bound"
    assert allocation.termination is Termination.OPTIMAL


@settings(max_examples=25, deadline=None)
@given(spaces(max_jobs=5), st.sampled_from([THROUGHPUT, EffectiveThroughput(), THROUGHPUT - 0.3 * Spending()]))
def test_an_expression_added_to_itself_is_twice_the_expression(space, expression):
    once, twice = fill(expression, space).levels, fill(expression + expression, space).levels
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-5, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(spaces(max_jobs=5), st.floats(-20, 20))
def test_adding_a_number_to_every_row_moves_every_level_by_it(space, number):
    plain, moved = fill(THROUGHPUT, space).levels, fill(THROUGHPUT + number, space).levels
    np.testing.assert_allclose(moved - number, plain, atol=1e-5 * max(1.0, abs(number)), rtol=1e-5)


@pytest.mark.parametrize("solver", SOLVERS)
def test_worked_examples(solver):
    space = make_space([[1, 2], [1, 4], [1, 1]], [1, 1, 2], [2, 1])
    for expression in (2 * THROUGHPUT, THROUGHPUT + THROUGHPUT, 3 * THROUGHPUT - THROUGHPUT):
        np.testing.assert_allclose(fill(expression, space, solver).levels, [16 / 7] * 3, rtol=1e-6)
    tenants = make_space([[1.0]] * 5, [1] * 5, [4], tenants=["x", "x", "y", "y", "y"])
    np.testing.assert_allclose(fill(GpusUsed(by="tenant"), tenants, solver).levels, [2.0, 2.0], rtol=1e-6)
    np.testing.assert_allclose(fill(GpusUsed(), tenants, solver).levels, [4.0], rtol=1e-6)
    assert fill(-1 * Spending(), tenants, solver).levels == pytest.approx(np.zeros(5), abs=1e-7)


def test_no_job_can_be_raised_while_all_that_have_no_more_keep_theirs():
    """Prices of hundreds turn a slack of 1e-8 in a held level into 1e-5 of another's, so levels are held exactly."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(5, 12))
        rates = 10 ** rng.uniform(-2, 2, (count, 1)) * 10 ** rng.uniform(-0.7, 0.7, (count, 3))
        weights = rng.choice([1, 1, 2, 0.5, 10], count)
        space = make_space(rates, rng.choice([1, 1, 2, 3, 4, 8], count), rng.integers(8, 12, 3), weights=weights)
        matrix, _ = matrix_of(THROUGHPUT, space)
        levels = fill(THROUGHPUT, space, "highs").levels
        for i in range(count):
            kept = (levels <= levels[i] * (1 + 1e-7)) & (np.arange(count) != i)
            limits = [space.num_gpus * (space.gpu_type == j) for j in range(3)]
            limits += [1.0 * (space.job == k) for k in range(count)]
            rows = np.vstack([*limits, -matrix[kept]])
            right = np.concatenate([space.capacity, np.ones(count), -levels[kept] * (1 - 1e-11)])
            result = linprog(-matrix[i], rows, right, bounds=(0, 1), method="highs")
            if result.status == 0:
                assert -result.fun <= levels[i] * (1 + 2e-5), (seed, i)


@st.composite
def affines(draw):
    """Rows over up to four columns with positions in any order and some of them repeated."""
    rows, columns, entries = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(0, 8))
    pick = lambda top: draw(st.lists(st.integers(0, top - 1), min_size=entries, max_size=entries))  # noqa: E731
    value = draw(st.lists(st.integers(-3, 3), min_size=entries, max_size=entries))
    constant = draw(st.lists(st.integers(-2, 2), min_size=rows, max_size=rows))
    whole = np.array(pick(rows), dtype=np.int64), np.array(pick(columns), dtype=np.int64)
    job = np.array(sorted(draw(st.lists(st.integers(0, 2), min_size=columns, max_size=columns))), dtype=np.int64)
    return Affine(*whole, np.array(value, dtype=float), np.array(constant, dtype=float)), job


@given(affines())
def test_limits_are_the_extremes_over_all_corners_of_the_box(case):
    rows, job = case
    corners = [np.array(corner, dtype=float) for corner in itertools.product([0, 1], repeat=len(job))]
    for jobs, allowed in ((None, corners), (job, [x for x in corners if np.bincount(job, x).max(initial=0) <= 1])):
        values = np.array([rows.at(x) for x in allowed])
        low, high = rows.limits(jobs)
        np.testing.assert_allclose(low, values.min(axis=0))
        np.testing.assert_allclose(high, values.max(axis=0))


@given(affines(), affines())
def test_a_sum_has_one_entry_per_position_and_the_sum_of_the_values(first, second):
    left, right = first[0], second[0]
    if left.num_rows != right.num_rows:
        return
    whole = left.plus(right)
    position = list(zip(whole.row.tolist(), whole.column.tolist(), strict=True))
    assert position == sorted(set(position))
    x = np.array([0.5, 0.25, 1.0, 0.125])
    np.testing.assert_allclose(whole.at(x), left.at(x) + right.at(x))


def test_a_reciprocal_of_a_sum_is_as_exact():
    class HalfTheTime(Expression):
        def build(self, space):
            rate = per_job(space, space.rate)
            return Reciprocal(np.zeros(space.num_jobs), space.remaining_steps, rate.plus(rate))

    space = make_space([[4, 2], [6, 1], [1, 1]], [1, 2, 1], [1, 2], steps=[100, 300, 50])
    whole = Policy(objective=MinMax(RemainingTime())).allocate(space)
    half = Policy(objective=MinMax(HalfTheTime())).allocate(space)
    assert half.objective == pytest.approx(whole.objective / 2, rel=1e-6)
    assert half.bound == pytest.approx(half.objective, rel=1e-5)
