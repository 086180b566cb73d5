"""Rounds that end at the next event: schedules known in closed form, and what ends a round."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.errors import ConfigError, FormulationError, InputError
from bloxopt.formulations import AllocationSpace, OrderKey, Policy, Priority
from bloxopt.formulations.policies import get_policy
from bloxopt.jobs import FloatArray, IntArray, JobTable
from bloxopt.phases import Phases

EVENTS = bx.SimulationOptions(round_end="next_event", round_seconds=1e6, restart_cost=0.0, placement="first_fit")


def trace_of(*jobs: tuple[float, float, int], **more: Any) -> bx.Trace:
    return bx.Trace.from_jobs(
        bx.Job(job_id=f"job-{i}", arrival=arrival, duration=duration, num_gpus=gpus, **more)
        for i, (arrival, duration, gpus) in enumerate(jobs)
    )


def run(trace: bx.Trace, policy: Any = "fifo", cluster: str = "4xV100", **options: Any) -> bx.SimulationResult:
    return bx.simulate(trace, cluster, policy, **{"options": EVENTS, **options})


def finishes(result: bx.SimulationResult) -> list[float]:
    jobs = result.jobs.set_index("job_id")["finish"]
    return jobs.reindex([f"job-{i}" for i in range(len(jobs))]).tolist()


def first_come_first_served(jobs: list[tuple[float, float, int]], gpus: int) -> list[float]:
    """Finish times when each job starts as soon as all before it have started and enough GPUs are free."""
    held: list[tuple[float, int]] = []
    clock, free, ends = 0.0, gpus, []
    for arrival, duration, need in jobs:
        clock = max(clock, arrival)
        while held and held[0][0] <= clock:
            free += heapq.heappop(held)[1]
        while free < need:
            clock, back = heapq.heappop(held)
            free += back
        free -= need
        heapq.heappush(held, (clock + duration, need))
        ends.append(clock + duration)
    return ends


moments = st.floats(0.0, 1000.0, allow_nan=False, width=32)


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[float, float, int]]:
    count = draw(st.integers(1, 12))
    arrivals = sorted(draw(st.lists(moments, min_size=count, max_size=count)))
    return [(t, draw(st.floats(0.0625, 500.0, width=32)), draw(st.sampled_from([1, 1, 2, 4]))) for t in arrivals]


@given(jobs=workloads())
@settings(max_examples=60)
def test_first_come_first_served_is_the_schedule_in_closed_form(jobs: list[tuple[float, float, int]]) -> None:
    result = run(trace_of(*jobs))
    assert finishes(result) == pytest.approx(first_come_first_served(jobs, 4), abs=1e-6)
    # A round a moment at which a job came or ended, and no more.
    assert len(result.rounds) <= 2 * len(jobs) + 1


@given(jobs=workloads())
@settings(max_examples=20)
def test_on_one_gpu_a_job_waits_for_the_one_before(jobs: list[tuple[float, float, int]]) -> None:
    ends, clock = [], 0.0
    for arrival, duration, _ in jobs:
        clock = max(clock, arrival) + duration
        ends.append(clock)
    single = trace_of(*((arrival, duration, 1) for arrival, duration, _ in jobs))
    assert finishes(run(single, cluster="1xV100")) == pytest.approx(ends, abs=1e-6)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "tiresias"])
def test_short_rounds_come_to_the_same_schedule(policy: str) -> None:
    rng = np.random.default_rng(3)
    jobs = [
        (float(a), float(d), int(g))
        for a, d, g in zip(
            np.sort(rng.uniform(0, 300, 12)), rng.uniform(5, 120, 12), rng.choice([1, 2, 4], 12), strict=True
        )
    ]
    chosen = get_policy(policy, **({"limits": [60.0]} if policy == "tiresias" else {}))
    exact = np.array(finishes(run(trace_of(*jobs), chosen)))
    errors = []
    for seconds in (16.0, 4.0, 1.0):
        fixed = EVENTS.with_(round_end="fixed", round_seconds=seconds)
        errors.append(np.abs(np.array(finishes(run(trace_of(*jobs), chosen, options=fixed))) - exact).max())
        # Each hand-over waits for the end of a round; there are as many as events before a job at most.
        assert errors[-1] <= seconds * 3 * len(jobs)
    assert errors[-1] < 8.0 < errors[0]


def test_rounds_are_as_long_as_round_seconds_at_most() -> None:
    # Attained service changes all the time: jobs take turns of the longest round there is.
    result = run(trace_of((0, 100, 4), (0, 100, 4)), "las", options=EVENTS.with_(round_seconds=20.0))
    assert finishes(result) == pytest.approx([180.0, 200.0])
    assert result.rounds["seconds"].max() == pytest.approx(20.0)
    assert finishes(run(trace_of((0, 100, 4), (0, 100, 4)), "las")) == pytest.approx([100.0, 200.0])


def test_time_shares_are_kept_over_short_and_long_rounds() -> None:
    options = EVENTS.with_(round_seconds=10.0)
    result = run(trace_of((0, 400, 4), (3.3, 400, 4), (7.7, 50, 4)), "max_min_fairness", options=options)
    assert finishes(result)[2] == pytest.approx(7.7 + 150, abs=30.0)


def test_nodes_that_fail_and_come_back_end_a_round_at_that_moment() -> None:
    result = run(trace_of((0, 100, 4)), failures=[bx.Outage("node-0", 30.5, 75.25)])
    assert finishes(result) == pytest.approx([100 + 75.25 - 30.5])
    assert {30.5, 75.25} <= set(result.rounds["time"])


def test_a_restart_takes_its_time_and_no_more() -> None:
    options = EVENTS.with_(restart_cost=7.0)
    result = run(trace_of((0, 100, 4), (40, 10, 4)), "srtf", options=options)
    assert finishes(result) == pytest.approx([100 + 10 + 7.0, 50.0])


def test_idle_time_is_skipped_to_the_moment_of_the_next_arrival() -> None:
    result = run(trace_of((10.125, 5, 1), (1e5 + 1 / 3, 5, 1)))
    assert result.jobs["start"].tolist() == [10.125, 1e5 + 1 / 3]


def test_late_in_a_long_simulation_rounds_still_end() -> None:
    # A float at 1e11 s tells moments 1.5e-5 s apart.
    jobs = [(1e11 + i / 7, 10.0 + i / 3, 1 + i % 4) for i in range(20)]
    result = run(trace_of(*jobs), get_policy("tiresias", limits=[5.0, 11.0], promote_knob=1))
    assert result.jobs["finish"].notna().all()
    assert len(result.rounds) < 400


class TwoPhases:
    """One step/s a GPU up to step 100, then two."""

    def phases(self, jobs: JobTable) -> Phases:
        return Phases(np.arange(len(jobs) + 1) * 2, np.tile([100.0, np.inf], len(jobs)))

    def rates(self, jobs: JobTable, gpu_types: Sequence[str], num_gpus: IntArray) -> FloatArray:
        return np.repeat(((1.0 + jobs.phase) * num_gpus)[:, None], len(gpu_types), axis=1)


def test_a_phase_that_ends_ends_the_round_and_the_job_goes_on_at_its_new_rate() -> None:
    jobs = JobTable.from_jobs([bx.Job(job_id="job-0", total_steps=150.0)])
    result = run(bx.Trace(name="phased", jobs=jobs, throughput=TwoPhases()))
    assert finishes(result) == pytest.approx([125.0])
    assert result.rounds["time"].tolist() == pytest.approx([0.0, 100.0])


class Alternating(OrderKey):
    """Every other second the last job goes first; says so, or what it is told to say."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    def key(self, space: AllocationSpace) -> Any:
        forward = math.floor(space.now + 1e-6) % 2 == 0
        return np.arange(space.num_jobs) * (1 if forward else -1)

    def next_change(self, space: AllocationSpace) -> Any:
        return math.floor(space.now + 1e-6) + 1 - space.now if self.answer is None else self.answer


def own(key: OrderKey) -> Policy:
    return Policy(objective=Priority(key), name="own")


def test_an_order_that_says_when_it_changes_is_asked_then() -> None:
    result = run(trace_of((0, 10, 4), (0, 10, 4)), own(Alternating()))
    assert finishes(result) == pytest.approx([19.0, 20.0], abs=1e-6)
    assert len(result.rounds) == 20


def test_an_order_that_changes_at_once_for_ever_does_not_stop_time() -> None:
    result = run(trace_of((0, 0.1, 4), (0, 0.1, 4)), own(Alternating(answer=0.0)))
    assert finishes(result)[0] == pytest.approx(0.1, abs=1e-3)
    assert 190 < len(result.rounds) < 210


def test_what_runs_when_the_order_is_asked_for_its_next_change_is_what_has_just_started() -> None:
    seen = []

    class Watching(Alternating):
        def next_change(self, space: AllocationSpace) -> float:
            seen.append((space.now, space.running.tolist()))
            return math.inf

    run(trace_of((0, 10, 4), (3, 10, 4)), own(Watching()))
    assert seen[0] == (0.0, [True])
    assert all(any(running) for _, running in seen)


@pytest.mark.parametrize("answer", [math.nan, "soon", None, [1.0], True])
def test_a_next_change_that_is_no_number_is_named(answer: Any) -> None:
    class Wrong(Alternating):
        def next_change(self, space: AllocationSpace) -> Any:
            return answer

    with pytest.raises(FormulationError, match=r"order key Wrong: next_change\(space\) gave .*number of seconds"):
        run(trace_of((0, 10, 4)), own(Wrong()))


def test_an_error_inside_next_change_names_the_key() -> None:
    class Broken(Alternating):
        def next_change(self, space: AllocationSpace) -> float:
            raise ZeroDivisionError("no")

    with pytest.raises(FormulationError, match=r"order key Broken: next_change\(space\) raised ZeroDivisionError"):
        run(trace_of((0, 10, 4)), own(Broken()))


@pytest.mark.parametrize("progress", ["whole_steps", "whole_rounds"])
def test_rounds_that_end_at_events_need_exact_progress(progress: str) -> None:
    with pytest.raises(ConfigError, match=r"progress is .* it must be exact with round_end='next_event'"):
        bx.SimulationOptions(round_end="next_event", progress=progress)


def test_failures_too_frequent_to_end_are_refused() -> None:
    with pytest.raises(InputError, match=r"needs .* rounds of .* fewer failures"):
        run(trace_of((0, 1e6, 1)), failures=bx.RandomFailures(0.01, 0.01))


def test_a_job_that_can_never_start_is_named() -> None:
    with pytest.raises(InputError, match="can never start"):
        run(trace_of((0, 10, 4)), failures=[bx.Outage("node-0", 0.0)])


def test_the_preset_is_one_of_events_alone() -> None:
    result = bx.simulate(trace_of((0, 1e5, 4), (10, 5, 1)), "4xV100", "las", preset="tiresias")
    assert result.rounds["time"].tolist() == pytest.approx([0.0, 10.0, 15.0])
