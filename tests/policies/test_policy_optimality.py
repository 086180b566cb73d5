"""Each policy's allocation against an independently written model, on random instances."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import PlainModel, make_space, normalised, spaces

from bloxopt.formulations import (
    Arrival,
    AttainedService,
    OneConfiguration,
    Policy,
    Priority,
    ShortestRemaining,
    WaterFilling,
)
from bloxopt.formulations.policies import get_policy

FEW = settings(max_examples=40, deadline=None)


@FEW
@given(spaces(with_state=True))
def test_max_min_fairness_equals_a_plain_linear_program(space):
    best, _ = PlainModel(space).max_min(normalised(space))
    assert get_policy("max_min_fairness").allocate(space).objective == pytest.approx(best, rel=1e-6)


@FEW
@given(spaces(with_state=True))
def test_max_min_agnostic_maximises_the_smallest_gpu_time_per_weight(space):
    coefficients = (space.requested_rate > 0) * (space.requested_gpus / space.weight)[:, None]
    best, _ = PlainModel(space).max_min(coefficients)
    assert get_policy("max_min_fairness_agnostic").allocate(space).objective == pytest.approx(best, rel=1e-6)


@FEW
@given(spaces(with_state=True))
def test_max_sum_policies_equal_a_plain_linear_program(space):
    raw = PlainModel(space).maximise(space.requested_rate.ravel())
    assert get_policy("max_sum_throughput_perf").allocate(space).objective == pytest.approx(-raw.fun, rel=1e-6)
    relative = normalised(space) * space.weight[:, None]
    alike = PlainModel(space).maximise(relative.ravel())
    assert get_policy("max_sum_throughput").allocate(space).objective == pytest.approx(-alike.fun, rel=1e-6)


def _bisect(possible, low, high, tolerance=1e-9):
    assert possible(high)
    while high - low > tolerance * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if possible(middle) else (middle, high)
    return high


@settings(max_examples=20, deadline=None)
@given(spaces(max_jobs=4, with_state=True))
def test_min_makespan_is_one_program_and_equals_bisection(space):
    model = PlainModel(space)
    left = space.remaining_steps
    best = _bisect(lambda t: model.feasible(left / t), 0.0, 1e5, 1e-8)
    allocation = get_policy("min_makespan").allocate(space)
    assert allocation.num_solves == 1
    assert allocation.objective == pytest.approx(best, rel=2e-6)


@settings(max_examples=20, deadline=None)
@given(spaces(max_jobs=4, with_state=True))
def test_finish_time_fairness_equals_bisection_and_its_bound_is_valid(space):
    model = PlainModel(space)
    m = space.num_jobs
    share = np.array([[c / (m * s) for c in space.capacity] for s in space.requested_gpus])
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1.0)
    alone = space.isolated_seconds + space.remaining_steps / (share * space.requested_rate).sum(axis=1)

    def possible(ratio):
        room = ratio * alone - space.elapsed
        return bool((room > 0).all()) and model.feasible(space.remaining_steps / np.maximum(room, 1e-12))

    best = _bisect(possible, 0.0, 1e4, 1e-8)
    allocation = get_policy("finish_time_fairness").allocate(space)
    assert allocation.objective == pytest.approx(best, rel=3e-6)
    assert allocation.bound <= best * (1 + 1e-6)
    assert allocation.gap <= 1e-5


def _leximin_one_job_at_a_time(space, coefficients):
    """Levels by the textbook method: max-min, then test each job alone for whether it can be raised."""
    model = PlainModel(space)
    floors, free = {}, set(range(space.num_jobs))
    while free:
        level, _ = model.max_min(coefficients, free, {i: v * (1 - 1e-9) for i, v in floors.items()})
        stuck = []
        for i in free:
            others = {k: level * (1 - 1e-8) for k in free if k != i} | {k: v * (1 - 1e-9) for k, v in floors.items()}
            most, _ = model.max_min(coefficients, [i], others)
            if most is not None and most <= level * (1 + 1e-5):
                stuck.append(i)
        assert stuck
        for i in stuck:
            floors[i] = level
            free.discard(i)
    return np.array([floors[i] for i in range(space.num_jobs)])


@settings(max_examples=30, deadline=None)
@given(spaces(max_jobs=6, with_state=True), st.sampled_from(["highs", "cvxpy:clarabel"]))
def test_water_filling_is_leximin_optimal(space, solver):
    expected = _leximin_one_job_at_a_time(space, normalised(space))
    levels = get_policy("water_filling_max_min_fairness").allocate(space, solver=solver).levels
    np.testing.assert_allclose(np.sort(levels), np.sort(expected), rtol=1e-4)
    np.testing.assert_allclose(levels, expected, rtol=1e-4)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("solver", ["highs", "cvxpy:clarabel"])
def test_water_filling_finds_many_distinct_levels_in_few_programs(seed, solver):
    rng = np.random.default_rng(seed)
    rates = np.exp(rng.normal(1.0, 1.2, 24))[:, None] * np.sort(rng.uniform(0.2, 4.0, (24, 3)), axis=1)[:, ::-1]
    space = make_space(rates, rng.choice([1, 1, 2, 4], 24), [12, 12, 14])
    expected = _leximin_one_job_at_a_time(space, normalised(space))
    allocation = get_policy("water_filling_max_min_fairness").allocate(space, solver=solver)
    np.testing.assert_allclose(allocation.levels, expected, rtol=1e-4)
    assert len(np.unique(expected.round(5))) >= 8
    assert allocation.num_solves <= 30


def test_water_filling_raises_jobs_beyond_the_smallest_where_max_min_need_not():
    # One job can only use the single slow GPU, shared by two; the fast ones are for the others.
    space = make_space([[0, 1.0], [0, 1.0], [4.0, 0], [4.0, 0]], [1, 1, 1, 1], [2, 1])
    levels = get_policy("water_filling_perf").allocate(space).levels
    alone = normalised(space).max(axis=1)
    np.testing.assert_allclose(levels, [0.5 * alone[0], 0.5 * alone[1], alone[2], alone[3]], rtol=1e-6)


@FEW
@given(spaces(with_state=True))
def test_max_min_gives_every_job_its_isolated_share(space):
    """Sharing incentive under Gavel's normalisation: the smallest value is at least that of the isolated shares."""
    isolated = get_policy("isolated").allocate(space)
    assert get_policy("max_min_fairness").allocate(space).objective >= isolated.objective * (1 - 1e-6)
    levels = get_policy("water_filling_max_min_fairness").allocate(space).levels
    assert levels.min() >= isolated.objective * (1 - 1e-6)


@FEW
@given(spaces(max_types=1))
def test_on_one_gpu_type_max_min_gives_each_job_at_least_its_isolated_throughput(space):
    """With one GPU type the isolated shares are equal in the normalised sense unless capped: a claim per job."""
    allocation = get_policy("water_filling_max_min_fairness").allocate(space)
    assert (allocation.throughput >= space.isolated_rate * (1 - 1e-6)).all()


@FEW
@given(spaces())
def test_isolated_share_is_the_closed_form(space):
    x = get_policy("isolated").allocate(space).time_share
    m = space.num_jobs
    for i in range(m):
        share = np.array([c / (m * space.requested_gpus[i]) for c in space.capacity])
        share = share / max(1.0, share.sum())
        share[space.requested_rate[i] == 0] = 0.0
        np.testing.assert_allclose(x[i], share, atol=1e-12)


def _lexicographic_by_enumeration(space, order, backfill):
    """The lexicographically best 0/1 allocation over all of them; preference: rate, then column order."""
    columns = [np.flatnonzero(space.job == i) for i in range(space.num_jobs)]
    best_key, best = None, None
    for choice in itertools.product(*[[-1, *c] for c in columns]):
        chosen = np.array([c for c in choice if c >= 0], dtype=int)
        used = np.bincount(space.gpu_type[chosen], weights=space.num_gpus[chosen], minlength=len(space.gpu_types))
        if (used > space.capacity).any():
            continue
        key = []
        for i in order:
            mine = sorted(columns[i], key=lambda c: (-space.rate[c], space.num_gpus[c], c))
            key.append(len(mine) - mine.index(choice[i]) if choice[i] >= 0 else 0)
        if not backfill and 0 in key:
            # Nobody overtakes: what follows the first job without GPUs gets none either.
            first = key.index(0)
            if any(key[first:]):
                continue
        if best_key is None or key > best_key:
            best_key, best = key, np.isin(np.arange(space.num_columns), chosen).astype(float)
    return best


@settings(max_examples=60, deadline=None)
@given(
    spaces(max_jobs=4, with_state=True),
    st.sampled_from([Arrival(), AttainedService(), AttainedService(gpu_weighted=False), ShortestRemaining()]),
    st.booleans(),
)
def test_the_greedy_shortcut_is_the_lexicographic_optimum(space, key, backfill):
    objective = Priority(key, backfill=backfill)
    expected = _lexicographic_by_enumeration(space, objective.rank(space), backfill)
    allocation = Policy(objective=objective).allocate(space)
    assert allocation.num_solves == 0
    np.testing.assert_array_equal(allocation.x, expected)


class _KeepsTheProgramWay(OneConfiguration):
    """A row with a lower bound that always holds, so that the shortcut does not apply."""

    def build(self, space, program):
        super().build(space, program)
        from bloxopt.formulations import GpusUsed

        program.add_rows((GpusUsed() + 1.0).build(space), lower=0.5)


@settings(max_examples=25, deadline=None)
@given(spaces(max_jobs=4, with_state=True), st.booleans())
def test_one_program_per_job_gives_the_same_as_the_shortcut(space, backfill):
    from bloxopt.formulations import Capacity

    objective = Priority(Arrival(), backfill=backfill)
    greedy = Policy(objective=objective).allocate(space)
    programs = Policy(objective=objective, constraints=[Capacity(), _KeepsTheProgramWay()]).allocate(space)
    np.testing.assert_array_equal(programs.x, greedy.x)


@pytest.mark.parametrize("name", ["max_min_fairness", "min_makespan", "finish_time_fairness", "max_sum_throughput"])
def test_the_order_of_jobs_does_not_change_the_optimum(name):
    rng = np.random.default_rng(7)
    rates, gpus, steps = rng.uniform(1, 9, (6, 3)), rng.choice([1, 2, 4], 6), rng.uniform(100, 900, 6)
    values = []
    for order in (np.arange(6), rng.permutation(6), rng.permutation(6)):
        space = make_space(rates[order], gpus[order], [4, 4, 6], steps=steps[order], now=50.0)
        values.append(get_policy(name).allocate(space).objective)
    np.testing.assert_allclose(values, values[0], rtol=1e-6)


def test_max_min_reproduces_a_worked_example():
    """Normalised rates 4/3, 2/3 and, halved by its weight, 3/4, 1/4: level where 4/3 - 2a/3 = 1/4 + a/2."""
    space = make_space([[2.0, 1.0], [3.0, 1.0]], [1, 1], [1, 1], weights=[1.0, 2.0])
    allocation = get_policy("max_min_fairness").allocate(space)
    fast = 13 / 14
    assert allocation.objective == pytest.approx(5 / 7, rel=1e-8)
    np.testing.assert_allclose(allocation.time_share, [[1 - fast, fast], [fast, 1 - fast]], atol=1e-6)


def test_water_filling_needs_continuous_shares():
    from bloxopt.errors import FormulationError
    from bloxopt.formulations import Capacity, NormalizedThroughput

    space = make_space([[1.0]], [1], [1])
    with pytest.raises(FormulationError, match="OneConfiguration"):
        Policy(objective=WaterFilling(NormalizedThroughput()), constraints=[Capacity(), OneConfiguration()]).allocate(
            space
        )
