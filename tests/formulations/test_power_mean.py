"""The power mean of whole configurations against enumeration, and what it refuses."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloxopt.errors import FormulationError
from bloxopt.formulations import (
    AllocationSpace,
    Capacity,
    EffectiveThroughput,
    Lexicographic,
    MaxSum,
    NormalizedThroughput,
    OneConfiguration,
    Otherwise,
    Policy,
    PowerMean,
)
from bloxopt.jobs import Job
from bloxopt.solvers.base import SolverOptions
from bloxopt.throughput import TableThroughput

WHOLE = [Capacity(), OneConfiguration()]
EXACT = SolverOptions(mip_gap=1e-9)


@st.composite
def elastic_spaces(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, types = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    names = ["a", "b"][:types]
    jobs = [
        Job(job_id=f"j{i}", job_type=f"m{i}", total_steps=100.0, max_gpus=3, weight=float(rng.choice([1.0, 2.0])))
        for i in range(count)
    ]
    table = {
        (f"m{i}", name, n): float(rng.uniform(0.3, 5.0)) for i in range(count) for name in names for n in (1, 2, 3)
    }
    cluster = "+".join(f"{draw(st.integers(1, 4))}x{name}" for name in names)
    return AllocationSpace.from_jobs(jobs, cluster, TableThroughput(table))


def power_mean(values, weights, exponent):
    values, weights = np.asarray(values), np.asarray(weights)
    if exponent == 0:
        return float(np.exp((weights * np.log(values)).sum() / weights.sum()))
    return float(((weights * values**exponent).sum() / weights.sum()) ** (1 / exponent))


def best_by_enumeration(space, exponent, idle, weighted=True):
    """The largest power mean of (rate + idle) over all choices of one column or none a job."""
    options = [[-1, *np.flatnonzero(space.job == job)] for job in range(space.num_jobs)]
    best = -np.inf
    for choice in itertools.product(*options):
        columns = [column for column in choice if column >= 0]
        used = np.bincount(space.gpu_type[columns], space.num_gpus[columns], len(space.gpu_types))
        if (used > space.capacity).any():
            continue
        held = [idle + (space.rate[column] if column >= 0 else 0.0) for column in choice]
        best = max(best, power_mean(held, space.weight if weighted else np.ones(space.num_jobs), exponent))
    return best


@settings(max_examples=40, deadline=None)
@given(elastic_spaces(), st.sampled_from([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0]), st.booleans())
def test_it_is_the_best_of_all_whole_configurations(space, exponent, weighted):
    objective = PowerMean(EffectiveThroughput() + 0.01, exponent, weighted)
    allocation = Policy(objective=objective, constraints=WHOLE, options=EXACT).allocate(space)
    best = best_by_enumeration(space, exponent, 0.01, weighted)
    assert allocation.objective == pytest.approx(best, rel=1e-6)
    assert allocation.bound >= best * (1 - 1e-6)
    assert objective.value(space, allocation.x) == pytest.approx(best, rel=1e-6)


def one_type(rates, gpus="4xa"):
    jobs = [Job(job_id=f"j{i}", job_type=f"m{i}", total_steps=100.0, max_gpus=len(row)) for i, row in enumerate(rates)]
    table = {(f"m{i}", "a", n + 1): rate for i, row in enumerate(rates) for n, rate in enumerate(row)}
    return AllocationSpace.from_jobs(jobs, gpus, TableThroughput(table))


def test_a_small_exponent_prefers_those_that_have_least():
    space = one_type([[1.0, 1.9, 2.7], [1.0, 1.1, 1.2]])

    def gpus(exponent):
        x = Policy(objective=PowerMean(EffectiveThroughput() + 0.5, exponent), constraints=WHOLE).allocate(space).x
        return np.bincount(space.job, x * space.num_gpus).tolist()

    assert gpus(1.0) == [3.0, 1.0]
    assert gpus(-10.0) == [2.0, 2.0]


def test_the_gap_counts_from_the_whole_sum_even_where_most_of_it_is_jobs_without_gpus():
    # Four jobs on one GPU: three of them cost 1,000 each, whatever is chosen.
    space = one_type([[1.0], [1.001], [0.999], [1.0]], "1xa")
    policy = Policy(objective=PowerMean(EffectiveThroughput() + 1e-3), constraints=WHOLE, options=EXACT)
    allocation = policy.allocate(space)
    assert allocation.gap <= 1e-8
    assert np.flatnonzero(allocation.x).tolist() == [1]


def test_it_can_be_the_first_of_several_objectives():
    space = one_type([[1.0, 1.0], [1.0, 1.0]], "4xa")
    stages = Lexicographic([PowerMean(EffectiveThroughput() + 1e-3), MaxSum(lambda s: -s.num_gpus.astype(float))])
    allocation = Policy(objective=stages, constraints=WHOLE).allocate(space)
    assert np.bincount(space.job, allocation.x * space.num_gpus).tolist() == [1.0, 1.0]


def test_shares_of_time_are_refused():
    with pytest.raises(FormulationError, match="OneConfiguration"):
        Policy(objective=PowerMean(EffectiveThroughput() + 1.0)).allocate(one_type([[1.0]]))


def test_a_value_of_zero_is_refused_naming_the_job():
    with pytest.raises(FormulationError, match="job 'j0' without a configuration is 0"):
        Policy(objective=PowerMean(EffectiveThroughput()), constraints=WHOLE).allocate(one_type([[1.0]]))


def test_powers_out_of_all_proportion_are_refused():
    policy = Policy(objective=PowerMean(EffectiveThroughput() + 1e-3, -50.0), constraints=WHOLE)
    with pytest.raises(FormulationError, match="closer to 0"):
        policy.allocate(one_type([[1.0, 2.0]]))


def test_rows_that_are_not_of_one_job_are_refused():
    from bloxopt.formulations import GpusUsed

    with pytest.raises(FormulationError, match="one row per job"):
        Policy(objective=PowerMean(GpusUsed() + 1.0), constraints=WHOLE).allocate(one_type([[1.0], [1.0]]))


@pytest.mark.parametrize("exponent", [1.5, -1000.0, float("nan"), "p"])
def test_exponents_out_of_range_are_refused(exponent):
    with pytest.raises(FormulationError, match="exponent"):
        PowerMean(EffectiveThroughput(), exponent)


@pytest.mark.parametrize("solver", ["highs", "prices", "cvxpy:highs", "pulp:highs", "ortools:scip"])
def test_powers_that_nearly_cancel_do_not_drown_the_best_in_rounding(solver: str) -> None:
    """A job without GPUs counts 10,000 times as much as one with: a solver that takes 1 for 1.000001 errs by 0.01."""
    alone = [[0.156098, 0.147472], [14.385842, 0.584804], [12.028481, 0.231890], [0.181271, 4.618249]]
    jobs = [
        Job(job_id=f"j{i}", job_type=f"m{i}", total_steps=100.0, num_gpus=asked, min_gpus=1, max_gpus=3)
        for i, asked in enumerate([1, 1, 2, 1])
    ]
    table = {
        (f"m{i}", name, n): rate * n**0.8
        for i, rates in enumerate(alone)
        for name, rate in zip("ab", rates, strict=True)
        for n in (1, 2, 3)
    }
    space = AllocationSpace.from_jobs(jobs, "3xa+2xb", TableThroughput(table))
    value = NormalizedThroughput(weighted=False).build(space).value
    best = 0.0
    for choice in itertools.product(*(np.flatnonzero(space.job == i) for i in range(4))):
        chosen = np.array(choice)
        used = np.bincount(space.gpu_type[chosen], space.num_gpus[chosen], minlength=2)
        if (used <= space.capacity).all():
            best = max(best, float((value[chosen] ** -2.0).mean() ** -0.5))
    policy = Policy(
        objective=PowerMean(Otherwise(NormalizedThroughput(weighted=False), 0.01), -2.0),
        constraints=WHOLE,
        options=SolverOptions(mip_gap=1e-6),
        solver=solver,
    )
    assert policy.allocate(space).objective == pytest.approx(best, rel=1e-4)
