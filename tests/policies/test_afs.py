"""AFS: who gets the next GPU, against schedules that are written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloxopt.errors import FormulationError
from bloxopt.formulations import AllocationSpace
from bloxopt.formulations.policies import get_policy
from bloxopt.jobs import Job

GPUS = 8


def instance(seed, count=2, linear=False):
    """Work (steps) and throughput by GPUs, (jobs, GPUS + 1), concave and 0 without GPUs."""
    rng = np.random.default_rng(seed)
    exponent = np.ones(count) if linear else rng.uniform(0.4, 1.0, count)
    numbers = np.arange(GPUS + 1)
    rates = rng.uniform(0.5, 2.0, count)[:, None] * numbers[None, :] ** exponent[:, None]
    rates[:, 0] = 0.0
    return rng.uniform(100, 2000, count), rates


def given_gpus(work, rates, low=1, high=GPUS, gpus=GPUS, **options):
    table = {(f"m{i}", "x", n): rates[i, n] for i in range(len(work)) for n in range(1, rates.shape[1])}
    jobs = [
        Job(job_id=f"j{i}", job_type=f"m{i}", total_steps=float(steps), num_gpus=low, min_gpus=low, max_gpus=high)
        for i, steps in enumerate(work)
    ]
    state = {name: options.pop(name) for name in ("attained_service",) if name in options}
    space = AllocationSpace.from_jobs(jobs, f"1x{gpus}xx", table, now=0.0, **state)
    allocation = get_policy("afs", **options).allocate(space)
    chosen = np.flatnonzero(allocation.x > 0.5)
    held = np.zeros(len(work), dtype=int)
    held[space.job[chosen]] = space.num_gpus[chosen]
    return held.tolist()


def next_of_two(work, rates, has, pair):
    """The shorter has the next GPU and leaves it to the longer when done, or the longer has it at once: the better.

    None for a tie, which is rounding's to decide.
    """
    first, second = pair
    if not has[first] and not has[second]:
        return min(pair, key=lambda i: work[i] / rates[i, 1])
    times = {i: work[i] / rates[i, has[i]] if has[i] else np.inf for i in pair}
    short, long = (first, second) if times[first] <= times[second] else (second, first)
    sooner = work[short] / rates[short, has[short] + 1]
    with_gpu, without = rates[long, has[long] + 1], rates[long, has[long]]
    taken_by_short = sooner + sooner + (work[long] - without * sooner) / with_gpu
    taken_by_long = times[short] + work[long] / with_gpu
    if abs(taken_by_short - taken_by_long) <= 1e-9 * taken_by_long:
        return None
    return short if taken_by_short < taken_by_long else long


@given(st.integers(0, 2**32 - 1), st.booleans(), st.integers(2, 9), st.integers(1, 24))
@settings(max_examples=60)
def test_each_gpu_goes_to_who_wins_against_the_others_one_after_the_other(seed, linear, count, gpus):
    work, rates = instance(seed, count, linear)
    has = [0] * count
    for _ in range(min(gpus, count * GPUS)):
        able = [i for i in range(count) if has[i] < GPUS]
        winner = able[0]
        for other in able[1:]:
            better = next_of_two(work, rates, has, (winner, other))
            if better is None:
                return
            winner = better
        has[winner] += 1
    assert given_gpus(work, rates, gpus=gpus) == has


def total_time(work, rates, before, after):
    """Sum of both completion times if jobs have ``before`` GPUs until the first is done, then the other ``after``."""
    times = [work[i] / rates[i, n] if n else np.inf for i, n in enumerate(before)]
    first = int(np.argmin(times))
    left = work[1 - first] - rates[1 - first, before[1 - first]] * times[first]
    return 2 * times[first] + left / rates[1 - first, after]


def best_total(work, rates):
    return min(total_time(work, rates, (a, b), GPUS) for a in range(GPUS + 1) for b in range(GPUS + 1 - a) if a or b)


def test_two_jobs_take_little_longer_than_the_best_schedule_that_knows_the_future():
    """The best shares until one is done, then the whole cluster for the other, found by trying all of them."""
    ratios = []
    for seed in range(60):
        work, rates = instance(seed)
        ratios.append(total_time(work, rates, given_gpus(work, rates), GPUS) / best_total(work, rates))
    assert min(ratios) >= 1 - 1e-9
    assert np.mean(ratios) < 1.08
    assert max(ratios) < 1.25


def test_efficient_jobs_get_more_and_equal_ones_the_same():
    flat = np.array([[0, *np.arange(1, 9) ** 0.3], [0, *np.arange(1, 9) ** 1.0]])
    few, many = given_gpus([1000, 1000], flat)
    assert few < many
    assert few + many == GPUS
    same = np.array([[0, *np.arange(1, 9) ** 0.7]] * 4)
    assert given_gpus([1000, 1100, 1200, 1300], same) == [2, 2, 2, 2]


def test_with_fewer_gpus_than_jobs_the_shortest_run():
    rates = np.array([[0.0, *np.arange(1.0, 9.0) ** 0.9]] * 5)
    assert given_gpus([500, 100, 400, 200, 300], rates, gpus=3) == [0, 1, 0, 1, 1]


def test_unknown_lengths_go_by_attained_service():
    rates = np.array([[0.0, *np.arange(1.0, 9.0) ** 0.9]] * 3)
    assert given_gpus([100, 200, 300], rates, gpus=2, length="attained", attained_service=[50, 10, 20]) == [0, 1, 1]


def test_rigid_gangs_are_compared_per_gpu_and_whole():
    rates = np.array([[0, 0, 0, 0, 4.0, 0, 0, 0, 0], [0, 0, 0, 0, 3.9, 0, 0, 0, 0], [0, 0, 0, 0, 2.0, 0, 0, 0, 0]])
    assert given_gpus([100, 100, 100], rates, low=4, high=4) == [4, 4, 0]


def test_a_wrong_length_is_named():
    with pytest.raises(FormulationError, match="length is 'short'"):
        get_policy("afs", length="short")
