"""Optimus: greedy by marginal gain, and the program that it approximates."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.errors import FormulationError, UnknownNameError
from bloxopt.formulations import (
    AtPresentRate,
    Capacity,
    MarginalGain,
    MinimumShare,
    OneConfiguration,
    PinRunning,
    RemainingEstimate,
    TenantQuota,
)
from bloxopt.formulations.policies import get_policy
from bloxopt.throughput import TableThroughput

CAPACITY = 8


def space_of(
    rates: list[list[float]], steps: list[float], cluster: str = f"1x{CAPACITY}xV100", **more: Any
) -> bx.AllocationSpace:
    """Jobs that may run on 1 to len(rates[i]) GPUs at those rates (0: not on so many)."""
    table = {(str(i), "v100", n + 1): rate for i, row in enumerate(rates) for n, rate in enumerate(row) if rate}
    jobs = []
    for i, (row, work) in enumerate(zip(rates, steps, strict=True)):
        sizes = [n + 1 for n, rate in enumerate(row) if rate]
        size = {"num_gpus": min(sizes), "min_gpus": min(sizes), "max_gpus": max(sizes)}
        jobs.append(bx.Job(job_id=str(i), job_type=str(i), total_steps=work, tenant=f"t{i % 2}", **size))
    return bx.AllocationSpace.from_jobs(jobs, cluster, TableThroughput(table), **more)


def gpus_of(space: bx.AllocationSpace, x: np.ndarray) -> list[int]:
    return np.bincount(space.job, weights=space.num_gpus * x, minlength=space.num_jobs).astype(int).tolist()


def allocate(space: bx.AllocationSpace, method: str, **options: Any) -> bx.Allocation:
    return get_policy("optimus", method=method, **options).allocate(space)


@st.composite
def concave(draw: st.DrawFn) -> tuple[list[list[float]], list[float]]:
    """Jobs that fit with a GPU each, whose rates grow less with every further one."""
    jobs = draw(st.integers(1, 5))
    rates = []
    for _ in range(jobs):
        growth = sorted(draw(st.lists(st.floats(0.01, 5.0), min_size=1, max_size=6)), reverse=True)
        rates.append(np.cumsum(growth).tolist())
    return rates, draw(st.lists(st.floats(1.0, 1e4), min_size=jobs, max_size=jobs))


@settings(deadline=None, max_examples=60)
@given(concave())
def test_greedy_is_optimal_where_rates_are_concave(instance: tuple[list[list[float]], list[float]]) -> None:
    space = space_of(*instance)
    greedy = allocate(space, "greedy").objective
    assert greedy == pytest.approx(allocate(space, "program").objective, rel=1e-6)
    assert greedy == pytest.approx(_brute_force(space)[1], rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.floats(0.1, 5.0), min_size=1, max_size=4), min_size=1, max_size=5).flatmap(
        lambda rates: st.tuples(
            st.just(rates), st.lists(st.floats(1.0, 1e3), min_size=len(rates), max_size=len(rates)), st.integers(1, 6)
        )
    )
)
def test_the_program_is_the_best_of_all_allocations_whatever_the_rates(instance: tuple) -> None:
    rates, steps, capacity = instance
    space = space_of(rates, steps, f"1x{capacity}xV100")
    served, seconds = _brute_force(space, capacity)
    found = allocate(space, "program")
    assert round(found.x.sum()) == served
    assert found.objective == pytest.approx(seconds, rel=1e-6)
    greedy = allocate(space, "greedy")
    assert round(greedy.x.sum()) == min(space.num_jobs, capacity) == served
    if space.num_jobs <= capacity:
        assert greedy.objective >= seconds * (1 - 1e-9)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.floats(0.1, 5.0), min_size=1, max_size=6), min_size=1, max_size=11),
    st.lists(st.floats(1.0, 1e3), min_size=11, max_size=11),
)
def test_greedy_does_what_the_published_loop_does(rates: list[list[float]], steps: list[float]) -> None:
    space = space_of(rates, steps[: len(rates)])
    assert gpus_of(space, allocate(space, "greedy").x) == _published(rates, steps)


def _published(rates: list[list[float]], steps: list[float]) -> list[int]:
    """One GPU each in order, then always to the job with the largest saving by one more, while there is one."""
    gpus, left = [0] * len(rates), CAPACITY

    def saving(job: int) -> float:
        held, row = gpus[job], rates[job]
        return steps[job] / row[held - 1] - steps[job] / row[held] if 0 < held < len(row) else 0.0

    for job in range(len(rates)):
        gpus[job] = min(1, left)
        left -= gpus[job]
    while left and max(savings := [saving(job) for job in range(len(rates))]) > 0:
        gpus[savings.index(max(savings))] += 1
        left -= 1
    return gpus


def _brute_force(space: bx.AllocationSpace, capacity: int = CAPACITY) -> tuple[int, float]:
    """Most jobs that can be served, and the least seconds that they can take together."""
    seconds = space.remaining_steps[space.job] / space.rate
    choices = [[-1, *np.flatnonzero(space.job == job).tolist()] for job in range(space.num_jobs)]
    best = (0, 0.0)
    for choice in itertools.product(*choices):
        columns = [column for column in choice if column >= 0]
        if space.num_gpus[columns].sum() <= capacity:
            best = max(best, (len(columns), -seconds[columns].sum()))
    return best[0], -best[1]


def test_with_several_gpu_types_the_program_finds_the_best_and_greedy_a_valid_allocation() -> None:
    random = np.random.default_rng(3)
    for _ in range(15):
        kinds = {"v100": 3, "p100": 2}
        table = {
            (str(job), kind, n): float(random.uniform(0.5, 1.0) * n**0.7)
            for job in range(3)
            for kind in kinds
            for n in (1, 2)
        }
        jobs = [
            bx.Job(job_id=str(i), job_type=str(i), total_steps=float(random.uniform(10, 99)), min_gpus=1, max_gpus=2)
            for i in range(3)
        ]
        space = bx.AllocationSpace.from_jobs(jobs, "3xV100+2xP100", TableThroughput(table))
        seconds = space.remaining_steps[space.job] / space.rate
        options = [np.flatnonzero(space.job == job).tolist() for job in range(3)]
        best = min(
            seconds[list(choice)].sum()
            for choice in itertools.product(*options)
            if all(
                space.num_gpus[list(choice)][space.gpu_type[list(choice)] == code].sum() <= space.capacity[code]
                for code in range(2)
            )
        )
        assert allocate(space, "program").objective == pytest.approx(best, rel=1e-6)
        greedy = allocate(space, "greedy")
        assert greedy.x.sum() == 3
        assert greedy.objective >= best * (1 - 1e-9)


def test_a_gap_between_sizes_counts_by_the_gpu() -> None:
    # Job 0 saves 50 s by three more GPUs, job 1 saves 20 s by one more: per GPU job 1 saves more.
    space = space_of([[1.0, 0.0, 0.0, 2.0], [1.0, 1.25]], [100.0, 100.0], "1x5xV100")
    assert gpus_of(space, allocate(space, "greedy").x) == [1, 2]
    assert gpus_of(space, allocate(space, "program").x) == [4, 1]


def test_gpus_that_help_nobody_are_left_alone() -> None:
    space = space_of([[2.0, 1.0], [1.0]], [100.0, 100.0])
    for method in ("greedy", "program"):
        assert gpus_of(space, allocate(space, method).x) == [1, 1]


def test_limits_of_tenants_hold_and_running_jobs_can_be_pinned() -> None:
    rates = [[1.0, 1.9, 2.7, 3.4]] * 3
    constraints = [Capacity(), OneConfiguration(), TenantQuota({"t0": 3})]
    for method in ("greedy", "program"):
        gpus = gpus_of(s := space_of(rates, [90.0, 50.0, 70.0]), allocate(s, method, constraints=constraints).x)
        assert gpus[0] + gpus[2] == 3
        assert gpus[1] == 4
    pinned = [Capacity(), OneConfiguration(), PinRunning()]
    space = space_of(rates, [90.0, 50.0, 70.0], gpu_type=[-1, 0, -1], gpus=[0, 2, 0])
    for method in ("greedy", "program"):
        gpus = gpus_of(space, allocate(space, method, constraints=pinned).x)
        assert gpus == [3, 2, 3]


def test_constraints_that_are_no_upper_limits_need_the_program() -> None:
    space = space_of([[1.0, 1.5]] * 2, [10.0, 10.0])
    constraints = [Capacity(), OneConfiguration(), MinimumShare({"0": 1.0})]
    with pytest.raises(FormulationError, match="all constraint blocks must be upper limits"):
        allocate(space, "greedy", constraints=constraints)
    assert allocate(space, "program", constraints=constraints).x.sum() == 2


class Guess(RemainingEstimate):
    """Seconds as given."""

    def __init__(self, seconds: Any) -> None:
        self.given = seconds

    def seconds(self, space: bx.AllocationSpace) -> np.ndarray:
        return self.given


def test_an_estimate_of_ones_own_decides_and_unknown_configurations_are_not_used() -> None:
    space = space_of([[1.0, 2.0], [1.0, 2.0]], [10.0, 10.0], "1x3xV100")
    estimate = Guess(np.array([10.0, 9.0, 10.0, 8.0]))
    for method in ("greedy", "program"):
        assert gpus_of(space, allocate(space, method, estimate=estimate).x) == [1, 2]
        only = Guess(np.array([10.0, np.inf, 10.0, np.inf]))
        assert gpus_of(space, allocate(space, method, estimate=only).x) == [1, 1]
        none = Guess(np.full(4, np.inf))
        assert gpus_of(space, allocate(space, method, estimate=none).x) == [0, 0]


@pytest.mark.parametrize(
    ("estimate", "message"),
    [
        (Guess(np.ones(3)), r"Guess: seconds\(space\) gave shape \(3,\), must be 4 numbers"),
        (Guess(np.array([1.0, -1.0, 1.0, 1.0])), "job '0' on 2 GPUs takes -1.0 s"),
        (Guess("soon"), "Guess"),
        (RemainingEstimate(), "RemainingEstimate does not say how long jobs take"),
        ("as_measured", "TableThroughput has no remaining_seconds"),
    ],
)
def test_estimates_that_say_nothing_usable_are_named(estimate: Any, message: str) -> None:
    space = space_of([[1.0, 2.0], [1.0, 2.0]], [10.0, 10.0])
    for method in ("greedy", "program"):
        with pytest.raises(FormulationError, match=message):
            allocate(space, method, estimate=estimate)


def test_unknown_options_are_refused_by_name() -> None:
    with pytest.raises(UnknownNameError, match="greedy"):
        get_policy("optimus", method="greed")
    with pytest.raises(UnknownNameError, match="present_rate"):
        get_policy("optimus", estimate="present")
    with pytest.raises(FormulationError, match=r"must be one such as AtPresentRate\(\): add parentheses"):
        MarginalGain(AtPresentRate)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["greedy", "program"])
def test_it_runs_rigid_jobs_on_several_gpu_types_with_nodes_that_fail(method: str) -> None:
    failures = bx.RandomFailures(20000.0, 3000.0)
    result = bx.simulate(
        "gavel-15", "4xV100+4xP100+4xK80", get_policy("optimus", method=method), failures=failures, seed=1
    )
    assert result.jobs["finish"].notna().all()


def test_on_elastic_jobs_it_beats_serving_them_in_order() -> None:
    trace = bx.load_trace("pollux-6-elastic").head(25)
    jct = {
        name: bx.simulate(trace, "4x4xT4", policy, preset="pollux").summary()["average_jct"]
        for name, policy in (("optimus", get_policy("optimus")), ("fifo", "fifo"))
    }
    assert jct["optimus"] < 0.8 * jct["fifo"]


@pytest.mark.parametrize(
    ("foreseen", "message"),
    [
        (3.0, r"remaining_seconds gave shape \(\), must be \(jobs, GPU types\)"),
        (np.ones(3), r"remaining_seconds gave shape \(3,\)"),
        ("soon", "remaining_seconds: what it gave is 'soon', must be seconds"),
    ],
)
def test_an_oracle_that_foresees_no_table_of_seconds_is_named(foreseen: Any, message: str) -> None:
    class Oracle:
        def rates(self, jobs, gpu_types, num_gpus):
            return np.ones((len(jobs), len(gpu_types)))

        def remaining_seconds(self, jobs, gpu_types, num_gpus):
            return foreseen

    jobs = [bx.Job(job_id=f"j{k}", total_steps=10.0) for k in range(2)]
    policy = get_policy("optimus", estimate="as_measured")
    with pytest.raises(FormulationError, match=f"the throughput oracle Oracle: {message}"):
        policy.allocate(bx.AllocationSpace.from_jobs(jobs, "2xV100+2xK80", Oracle()))
