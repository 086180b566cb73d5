"""Generated workloads follow the published distributions and are the same for the same seed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bloxopt.errors import TraceError, UnknownNameError
from bloxopt.throughput import checked_rates
from bloxopt.workloads import Trace, generate_trace, load_trace
from bloxopt.workloads.distributions import Empirical, Exponential, LogUniformMixture

COUNT = 20000


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate_trace(COUNT, jobs_per_hour=8, job_types="gavel", seed=7)


def within(observed: float, share: float) -> bool:
    return abs(observed - share) <= 4 * math.sqrt(share * (1 - share) / COUNT)


def test_arrivals_are_a_poisson_process_of_the_rate_asked_for(trace: Trace) -> None:
    gaps = np.diff(trace.jobs.arrival)
    assert gaps.mean() == pytest.approx(3600 / 8, rel=4 / math.sqrt(COUNT))
    assert within(np.mean(gaps > 3600 / 8), math.exp(-1))


def test_durations_are_gavels(trace: Trace) -> None:
    minutes = trace.jobs.duration / 60
    assert minutes.min() >= 10**1.5
    assert minutes.max() <= 10**4
    assert within(np.mean(minutes > 1000), 0.2)
    # Log-uniform inside each part: half of the short ones below the middle exponent.
    assert within(np.mean(minutes < 10**2.25), 0.4)
    assert within(np.mean(minutes > 10**3.5), 0.1)


def test_gpu_counts_are_gavels(trace: Trace) -> None:
    for count, share in {1: 0.7, 2: 0.1, 4: 0.15, 8: 0.05}.items():
        assert within(np.mean(trace.jobs.num_gpus == count), share)


def test_job_types_are_gavels_and_steps_take_the_drawn_duration_on_a_v100(trace: Trace) -> None:
    single = trace.jobs.num_gpus == 1
    names, counts = np.unique(trace.jobs.job_type_names[single].astype(str), return_counts=True)
    assert len(names) == 26
    assert counts.min() > 0.8 * counts.max()
    assert len(set(trace.jobs.job_type_names[~single])) == 19
    rates = checked_rates(trace.throughput, trace.jobs, ["V100"], trace.jobs.num_gpus)[:, 0]
    np.testing.assert_allclose(trace.jobs.total_steps / rates, trace.jobs.duration)


def test_philly_gpu_counts_are_those_of_the_trace() -> None:
    generated = generate_trace(COUNT, 8, gpu_counts="philly")
    philly = load_trace("philly").jobs.num_gpus
    for count in (1, 2, 4, 8):
        assert within(np.mean(generated.jobs.num_gpus == count), np.mean(philly == count))


def test_blox_gaps_are_whole_seconds() -> None:
    trace = generate_trace(500, interarrival=Exponential(3600 / 8, whole=True), gpu_counts="single")
    assert np.all(trace.jobs.arrival == np.floor(trace.jobs.arrival))
    assert np.all(np.diff(trace.jobs.arrival) >= 1)


def test_the_same_seed_gives_the_same_trace(trace: Trace) -> None:
    again = generate_trace(COUNT, jobs_per_hour=8, job_types="gavel", seed=7)
    assert again.to_pandas().equals(trace.to_pandas())
    other = generate_trace(COUNT, jobs_per_hour=8, job_types="gavel", seed=8)
    assert np.any(other.jobs.arrival != trace.jobs.arrival)


def test_another_load_leaves_the_jobs_as_they_were(trace: Trace) -> None:
    faster = generate_trace(COUNT, jobs_per_hour=16, job_types="gavel", seed=7)
    np.testing.assert_array_equal(faster.jobs.duration, trace.jobs.duration)
    np.testing.assert_array_equal(faster.jobs.job_type_names, trace.jobs.job_type_names)
    np.testing.assert_allclose(faster.jobs.arrival, trace.jobs.arrival / 2)


def test_numbers_mappings_and_distributions_are_all_accepted() -> None:
    trace = generate_trace(
        200,
        interarrival=10,
        durations=Empirical([60.0, 120.0]),
        gpu_counts={2: 1, 4: 1},
        tenants={"vision": 3, "speech": 1},
        restart_cost=15,
    )
    assert list(trace.jobs.arrival[:2]) == [10, 20]
    assert set(trace.jobs.duration) == {60.0, 120.0}
    assert set(trace.jobs.num_gpus) == {2, 4}
    assert set(trace.jobs.tenant_names) == {"vision", "speech"}
    assert set(trace.jobs.restart_cost) == {15}


def test_an_infinite_rate_puts_all_jobs_at_time_zero() -> None:
    assert set(generate_trace(10, math.inf).jobs.arrival) == {0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_jobs": 0, "jobs_per_hour": 1}, "num_jobs is 0"),
        ({"num_jobs": 2.5, "jobs_per_hour": 1}, "num_jobs is 2.5"),
        ({"num_jobs": 5}, "give either jobs_per_hour or interarrival"),
        (
            {"num_jobs": 5, "jobs_per_hour": 1, "interarrival": 3},
            "both given: give either jobs_per_hour or interarrival",
        ),
        ({"num_jobs": 5, "jobs_per_hour": 0}, "jobs_per_hour is 0"),
        ({"num_jobs": 5, "jobs_per_hour": math.nan}, "jobs_per_hour is nan"),
        ({"num_jobs": 5, "interarrival": -1}, "interarrival: drew .*-1"),
        (
            {"num_jobs": 5, "jobs_per_hour": 1, "durations": 0},
            "durations: drew .*must be finite numbers of seconds > 0",
        ),
        ({"num_jobs": 5, "jobs_per_hour": 1, "durations": math.nan}, "durations: drew .*nan"),
        (
            {"num_jobs": 5, "jobs_per_hour": 1, "gpu_counts": 1.5},
            "gpu_counts is 1.5, must be text or a whole number or a mapping",
        ),
        ({"num_jobs": 5, "jobs_per_hour": 1, "gpu_counts": {}}, "needs at least one choice"),
        ({"num_jobs": 5, "jobs_per_hour": 1, "seed": -1}, "seed is -1"),
        ({"num_jobs": 5, "jobs_per_hour": 1, "restart_cost": -1}, "with_restart_cost"),
        (
            {"num_jobs": 5, "jobs_per_hour": 1, "durations": object()},
            "durations is <object .*must be text or a number or a Distribution",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        generate_trace(**arguments)  # type: ignore[arg-type]


def test_an_unknown_gpu_count_distribution_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'philly'"):
        generate_trace(5, 1, gpu_counts="phily")


@pytest.mark.parametrize(
    "make", [lambda: Exponential(0), lambda: Empirical([]), lambda: LogUniformMixture(((1, 3, 2),))]
)
def test_distributions_without_meaning_cannot_be_made(make: object) -> None:
    with pytest.raises(TraceError):
        make()  # type: ignore[operator]
