"""Deadlines that are promised are kept; those that are refused could not be, by programs of their own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, linprog, milp

import bloxopt as bx
from bloxopt.admission import get_admission
from bloxopt.formulations.deadlines import (
    PlannedJob,
    Profile,
    Sizes,
    fewest_gpu_seconds,
    fill_in_order,
    proven_impossible,
    satisfactory_profile,
)
from bloxopt.solvers.base import Termination
from bloxopt.solvers.registry import get_solver
from bloxopt.throughput import TableThroughput

LENGTH = 10.0
HIGHS = get_solver("highs")


def sizes(rates):
    """Rates of 1, 2, … GPUs (0: cannot run)."""
    useful, best = [0], 0.0
    for count, rate in enumerate(rates, start=1):
        if rate > best:
            useful.append(count)
            best = rate
    return Sizes(np.array(useful), np.array([0.0, *(rates[count - 1] for count in useful[1:])]))


@st.composite
def instances(draw, most_jobs=3, most_rounds=3, restart=False):
    """Up to three jobs on up to 3 GPUs of one or two types, with deadlines within a few rounds."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = draw(st.integers(1, 2))
    capacity = rng.integers(1, 4, kinds).astype(float)
    jobs = []
    for _ in range(draw(st.integers(1, most_jobs))):
        due = float(rng.uniform(0.4, most_rounds) * LENGTH)
        rates = [sizes(np.cumsum(rng.choice([0.0, 1.0, 0.6, 0.3], size=3))) for _ in range(kinds)]
        fastest = max(float(s.rates[-1]) for s in rates) or 1.0
        cost = float(rng.choice([0.0, 2.0, 12.0])) if restart else 0.0
        jobs.append(
            PlannedJob(float(rng.uniform(0.1, 1.1) * fastest * due), due, tuple(rates), restart=cost, started=True)
        )
    return jobs, capacity


def schedules(jobs, capacity):
    """All assignments of sizes to jobs in rounds within the capacity: (rounds, jobs) of (kind, count), the slow way."""
    rounds = int(np.ceil(max(job.due for job in jobs) / LENGTH))
    options = [[(0, 0), *((k, int(n)) for k, s in enumerate(job.sizes) for n in s.counts[1:])] for job in jobs]
    moments = [
        chosen
        for chosen in itertools.product(*options)
        if all(sum(n for k, n in chosen if k == kind) <= capacity[kind] for kind in range(len(capacity)))
    ]
    return itertools.product(moments, repeat=rounds)


def plainly_meets(job, given):
    """Whether a job is done by its deadline if it has these (kind, count) round after round, second by second."""
    done, before, stall = 0.0, (-1, 0), 0.0
    for number, (kind, count) in enumerate(given):
        if count and (kind, count) != before:
            stall = job.restart
        before = (kind, count) if count else (-1, 0)
        usable = min(LENGTH, job.due - number * LENGTH)
        if count and usable > 0:
            rate = dict(zip(job.sizes[kind].counts.tolist(), job.sizes[kind].rates.tolist(), strict=True))[count]
            done += rate * max(0.0, usable - stall)
            stall = max(0.0, stall - LENGTH)
    return done >= job.work - 1e-9


def possible(jobs, capacity):
    """Whether some schedule meets all deadlines, by enumeration."""
    return any(
        all(plainly_meets(job, [moment[i] for moment in schedule]) for i, job in enumerate(jobs))
        for schedule in schedules(jobs, capacity)
    )


def as_given(profile):
    return [(int(k), int(n)) for k, n in zip(profile.kinds, profile.counts, strict=True)]


def filled(jobs, capacity):
    order = sorted(range(len(jobs)), key=lambda i: jobs[i].due)
    rounds = int(np.ceil(max(job.due for job in jobs) / LENGTH))
    free = np.repeat(capacity[:, None], rounds, axis=1)
    profiles = fill_in_order(jobs, order, free, capacity, LENGTH)
    assert (free >= -1e-9).all()
    return profiles


@given(instances(restart=True))
@settings(max_examples=60)
def test_filled_profiles_meet_their_deadlines_within_the_capacity(instance):
    jobs, capacity = instance
    profiles = filled(jobs, capacity)
    used = np.zeros((len(capacity), 10))
    for i, profile in profiles.items():
        assert plainly_meets(jobs[i], as_given(profile))
        np.add.at(used, (profile.kinds, np.arange(len(profile.kinds))), profile.counts)
    assert (used <= capacity[:, None]).all()


@given(instances(most_jobs=1, restart=True))
@settings(max_examples=40)
def test_the_minimum_satisfactory_share_of_a_job_alone_is_the_least_constant_one(instance):
    (job,), capacity = instance
    rounds = int(np.ceil(job.due / LENGTH))
    profile = satisfactory_profile(job, np.repeat(capacity[:, None], rounds, axis=1), capacity, LENGTH)
    constant = [
        (kind, int(n))
        for kind, s in enumerate(job.sizes)
        for n in s.counts[1:]
        if n <= capacity[kind] and plainly_meets(job, [(kind, int(n))] * rounds)
    ]
    assert (profile is not None) == bool(constant)
    if profile is not None:
        assert (int(profile.kinds[0]), int(profile.counts[0])) in constant
        assert int(profile.counts[0]) == min(n for kind, n in constant if kind == profile.kinds[0])


@given(instances(most_jobs=2, most_rounds=2.5))
@settings(max_examples=40)
def test_the_program_agrees_with_enumeration_and_filling_never_beats_it(instance):
    jobs, capacity = instance
    ending, profiles = fewest_gpu_seconds(jobs, capacity, LENGTH, HIGHS)
    answer = possible(jobs, capacity)
    assert (ending is Termination.OPTIMAL) == answer
    assert all(plainly_meets(jobs[i], as_given(profile)) for i, profile in profiles.items())
    by_filling = filled(jobs, capacity)
    if len(by_filling) == len(jobs):
        assert answer
        least = sum(float(profile.counts.sum()) for profile in profiles.values())
        assert sum(float(profile.counts.sum()) for profile in by_filling.values()) >= least - 1e-9
    if proven_impossible(jobs, capacity, HIGHS):
        assert not answer


@given(instances(most_jobs=2, most_rounds=2.5, restart=True))
@settings(max_examples=25)
def test_with_restart_costs_what_the_program_finds_is_kept(instance):
    jobs, capacity = instance
    _, profiles = fewest_gpu_seconds(jobs, capacity, LENGTH, HIGHS)
    assert all(plainly_meets(jobs[i], as_given(profile)) for i, profile in profiles.items())


def fluid_schedule_exists(jobs, capacity):
    """The linear program over the time between deadlines, written down once more, for SciPy."""
    ends = sorted({job.due for job in jobs})
    columns = [
        (i, b, kind, int(n), float(r))
        for i, job in enumerate(jobs)
        for b, end in enumerate(ends)
        if end <= job.due
        for kind, s in enumerate(job.sizes)
        for n, r in zip(s.counts[1:], s.rates[1:], strict=True)
    ]
    span = np.diff([0.0, *ends])
    rows, right = [], []
    for i, job in enumerate(jobs):
        rows.append([-r if c == i else 0.0 for c, _, _, _, r in columns])
        right.append(-job.work)
        for b in range(len(ends)):
            rows.append([1.0 if (c, d) == (i, b) else 0.0 for c, d, *_ in columns])
            right.append(span[b])
    for kind, gpus in enumerate(capacity):
        for b in range(len(ends)):
            rows.append([float(n) if (d, k) == (b, kind) else 0.0 for _, d, k, n, _ in columns])
            right.append(gpus * span[b])
    if not columns:
        return False
    return linprog(np.zeros(len(columns)), A_ub=np.array(rows), b_ub=right, method="highs").status == 0


@given(instances())
@settings(max_examples=60)
def test_what_is_proven_impossible_has_no_fluid_schedule_either(instance):
    jobs, capacity = instance
    assert proven_impossible(jobs, capacity, HIGHS) == (not fluid_schedule_exists(jobs, capacity))


def test_filling_can_miss_a_schedule_that_the_program_finds():
    rng = np.random.default_rng(0)
    for _ in range(400):
        capacity = np.array([3.0])
        jobs = []
        for _ in range(3):
            due = float(rng.uniform(1.0, 3.0) * LENGTH)
            rate = sizes(np.cumsum(rng.choice([0.0, 1.0, 0.5], size=3)))
            jobs.append(PlannedJob(float(rng.uniform(0.3, 1.0) * rate.rates[-1] * due), due, (rate,)))
        if len(filled(jobs, capacity)) < 3 and fewest_gpu_seconds(jobs, capacity, LENGTH, HIGHS)[1]:
            assert not proven_impossible(jobs, capacity, HIGHS)
            return
    pytest.fail("no such instance among 400")


def random_workload(seed, *, crowded=False):
    """A dozen jobs with throughputs that grow less than their GPUs, most with a deadline, on one or two GPU types."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(8, 16) if crowded else rng.integers(4, 14))
    types = ["A", "B"][: int(rng.integers(1, 3))]
    table, jobs = {}, []
    restart = float(rng.choice([0, 0, 20, 60, 100, 150]))
    for i in range(count):
        low = int(rng.integers(1, 3))
        high = int(rng.integers(low, 7))
        asked = int(rng.integers(low, high + 1))
        exponent, base = rng.uniform(0.5, 1), rng.uniform(0.5, 2)
        for j, kind in enumerate(types):
            for n in range(1, 9):
                table[f"m{i}", kind, n] = base * (1 + j) * n**exponent * rng.uniform(0.9, 1.1)
        duration = rng.uniform(60, 600 if crowded else 1500)
        arrival = rng.uniform(0, 400 if crowded else 1500)
        deadline = None if rng.random() < 0.15 else arrival + duration * rng.uniform(0.6, 3)
        steps = duration * table[f"m{i}", types[0], asked]
        jobs.append(
            bx.Job(
                job_id=f"j{i}", job_type=f"m{i}", arrival=arrival, total_steps=steps, num_gpus=asked, min_gpus=low,
                max_gpus=high, deadline=deadline, restart_cost=restart,
            )
        )  # fmt: skip
    gpus = [int(rng.integers(6, 8 if crowded else 10)) for _ in types]
    cluster = "+".join(f"{n}x{kind}" for n, kind in zip(gpus, types, strict=True))
    return bx.Trace.from_jobs(jobs), cluster, TableThroughput(table)


def admitted_and_missed(seed, admission, *, crowded=False):
    trace, cluster, throughput = random_workload(seed, crowded=crowded)
    result = bx.simulate(trace, cluster, "elasticflow", admission=admission, round_seconds=60.0, throughput=throughput)
    jobs = result.jobs[~result.jobs["rejected"]]
    assert jobs["finish"].notna().all()
    due = jobs[jobs["deadline"].notna()]
    return len(due), int((due["finish"] > due["deadline"] + 1e-6).sum())


@pytest.mark.parametrize("seed", range(12))
def test_no_admitted_job_misses_its_deadline_whatever_restarts_cost(seed):
    admitted, missed = admitted_and_missed(seed, "elasticflow")
    assert (admitted > 0, missed) == (True, 0)


def test_restart_costs_that_a_simulation_sets_are_reserved_too():
    missed = 0
    for seed in range(4):
        trace, cluster, throughput = random_workload(seed, crowded=True)
        result = bx.simulate(
            trace.with_restart_cost(0.0), cluster, "elasticflow", admission="elasticflow", throughput=throughput,
            options=bx.SimulationOptions(round_seconds=60.0, restart_cost=45.0),
        )  # fmt: skip
        taken = result.jobs[~result.jobs["rejected"] & result.jobs["deadline"].notna()]
        missed += int((taken["finish"] > taken["deadline"] + 1e-6).sum())
        assert len(taken)
    assert missed == 0


@pytest.mark.parametrize("seed", [7, 33, 1, 3])
def test_promises_that_filling_cannot_find_again_are_kept(seed):
    # Without its memory the policy misses deadlines on the first two, which only the binary program let in.
    admitted, missed = admitted_and_missed(seed, "deadline_feasible", crowded=True)
    assert (admitted > 0, missed) == (True, 0)


@pytest.mark.slow
@pytest.mark.parametrize("admission", ["elasticflow", "deadline_feasible"])
def test_no_admitted_job_misses_its_deadline_on_many_workloads(admission):
    for seed in range(100):
        assert admitted_and_missed(seed, admission, crowded=seed % 2 == 1)[1] == 0, seed


@pytest.mark.parametrize("seed", [2, 12, 18, 20])
def test_what_deadline_feasible_refuses_could_not_be_kept_by_any_schedule(seed):
    """Replays each decision with a binary program of its own, over the jobs that were in."""
    trace, cluster, throughput = random_workload(seed, crowded=True)
    trace = trace.with_restart_cost(0.0)

    class Watched(type(get_admission("deadline_feasible"))):
        refused = 0

        def _schedule(self, filled, lost):
            found, reason = super()._schedule(filled, lost)
            jobs = [job for job in filled.jobs if np.isfinite(job.due)]
            if found is None:
                Watched.refused += 1
                assert not whole_schedule_exists(jobs, filled.space.capacity, filled.space.round_seconds), reason
            return found, reason

    bx.simulate(trace, cluster, "elasticflow", admission=Watched(), round_seconds=60.0, throughput=throughput)
    assert Watched.refused > 0


def whole_schedule_exists(jobs, capacity, length):
    """Whether sizes in rounds can meet all deadlines, by SciPy's branch and bound."""
    columns = [
        (i, k, kind, int(n), float(r))
        for i, job in enumerate(jobs)
        for k in range(int(np.ceil(job.due / length)))
        for kind, s in enumerate(job.sizes)
        for n, r in zip(s.counts[1:], s.rates[1:], strict=True)
    ]
    owner, step, kind, gpus, rate = (np.array(part) for part in zip(*columns, strict=True))
    rows, low, high = [], [], []
    for i, job in enumerate(jobs):
        seconds = np.clip(job.due - step * length, 0, length)
        rows.append(np.where(owner == i, rate * seconds / job.work, 0.0))
        low.append(1.0)
        high.append(np.inf)
        for k in range(int(np.ceil(job.due / length))):
            rows.append(((owner == i) & (step == k)).astype(float))
            low.append(-np.inf)
            high.append(1.0)
    for j, limit in enumerate(capacity):
        for k in range(int(step.max()) + 1):
            rows.append(np.where((kind == j) & (step == k), gpus, 0.0))
            low.append(-np.inf)
            high.append(float(limit))
    found = milp(
        gpus.astype(float), constraints=LinearConstraint(np.array(rows), low, high), bounds=(0, 1),
        integrality=np.ones(len(columns)), options={"time_limit": 30},
    )  # fmt: skip
    return found.x is not None


def test_a_job_that_misses_its_deadline_even_alone_is_rejected_at_once():
    jobs = [
        bx.Job(job_id="late", duration=600.0, deadline=500.0),
        bx.Job(job_id="fine", duration=600.0, deadline=700.0),
    ]
    for name in ("elasticflow", "deadline_feasible"):
        result = bx.simulate(
            bx.Trace.from_jobs(jobs), "4xV100", "elasticflow", round_seconds=60.0,
            admission=get_admission(name, otherwise="wait"),
        )  # fmt: skip
        assert result.jobs["rejected"].tolist() == [True, False]
        assert result.jobs["not_admitted"][0] == "it would miss its deadline even if it were alone"


def test_a_job_that_may_wait_is_let_in_when_others_are_done():
    jobs = [
        bx.Job(job_id="first", duration=300.0, num_gpus=4, deadline=320.0),
        bx.Job(job_id="second", duration=300.0, num_gpus=4, deadline=610.0),
        bx.Job(job_id="third", arrival=10.0, duration=300.0, num_gpus=4, deadline=500.0),
    ]
    result = bx.simulate(bx.Trace.from_jobs(jobs), "4xV100", "elasticflow", round_seconds=60.0, admission="elasticflow")
    assert result.jobs["rejected"].tolist() == [False, False, True]
    assert result.summary()["deadlines_met"] == pytest.approx(2 / 3)


def test_jobs_without_a_deadline_are_always_let_in():
    jobs = [bx.Job(job_id=f"j{i}", duration=300.0, num_gpus=4) for i in range(5)]
    result = bx.simulate(bx.Trace.from_jobs(jobs), "4xV100", "fifo", admission="elasticflow")
    assert result.summary()["finished"] == 5


def test_profiles_stall_over_several_rounds_after_a_dear_restart():
    job = PlannedJob(5.0, 40.0, (sizes([1.0, 1.5]),), restart=25.0, started=True)
    profile = Profile(np.zeros(4, dtype=int), np.array([1, 1, 1, 1]))
    assert job.productive(profile.kinds, profile.counts, LENGTH).tolist() == [0.0, 0.0, 5.0, 10.0]
    assert job.gpu_seconds(profile, LENGTH) == pytest.approx(30.0)
