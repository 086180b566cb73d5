"""Transformations: each changes what it says and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_traces import traces

from bloxopt.errors import TraceError, UnknownNameError
from bloxopt.jobs import Job
from bloxopt.throughput import checked_rates
from bloxopt.workloads import Trace, generate_trace, load_trace

MIX = {1: 0.7, 2: 0.1, 4: 0.15, 8: 0.05}
factors = st.floats(0.1, 10)


def three_jobs() -> Trace:
    return Trace.from_jobs(
        [
            Job(job_id="a", arrival=10, duration=100, num_gpus=1, tenant="vision", deadline=200, job_type="x"),
            Job(job_id="b", arrival=20, duration=50, num_gpus=4, tenant="speech", job_type="y"),
            Job(job_id="c", arrival=40, duration=10, num_gpus=8, tenant="vision", job_type="x"),
        ]
    )


@settings(deadline=None)
@given(trace=traces(timed=True), factor=factors)
def test_scaling_the_load_multiplies_the_offered_load(trace: Trace, factor: float) -> None:
    assume(trace.jobs.arrival[-1] - trace.jobs.arrival[0] > 1e-3)
    scaled = trace.scale_load(factor)
    assert scaled.offered_load() == pytest.approx(factor * trace.offered_load(), rel=1e-6)
    assert list(scaled.jobs.job_id) == list(trace.jobs.job_id)
    np.testing.assert_array_equal(scaled.jobs.total_steps, trace.jobs.total_steps)


@settings(deadline=None)
@given(trace=traces(), factor=factors)
def test_scaling_the_load_keeps_order_and_the_slack_of_deadlines(trace: Trace, factor: float) -> None:
    scaled = trace.scale_load(factor)
    assert np.all(np.diff(scaled.jobs.arrival) >= 0)
    np.testing.assert_allclose(
        scaled.jobs.deadline - scaled.jobs.arrival, trace.jobs.deadline - trace.jobs.arrival, atol=1e-6
    )


@settings(deadline=None)
@given(trace=traces(), start=st.floats(0, 1e7), length=st.floats(1, 1e7))
def test_a_window_keeps_exactly_the_jobs_that_arrive_in_it(trace: Trace, start: float, length: float) -> None:
    inside = (trace.jobs.arrival >= start) & (trace.jobs.arrival < start + length)
    if not inside.any():
        with pytest.raises(TraceError, match="no job arrives from"):
            trace.window(start, start + length)
        return
    part = trace.window(start, start + length)
    assert list(part.jobs.job_id) == list(trace.jobs.job_id[inside])
    np.testing.assert_array_equal(part.jobs.arrival, trace.jobs.arrival[inside] - start)
    unmoved = trace.window(start, start + length, rebase=False)
    np.testing.assert_array_equal(unmoved.jobs.arrival, trace.jobs.arrival[inside])


def test_a_window_moves_deadlines_along() -> None:
    assert three_jobs().window(10, 30).jobs.deadline[0] == 190


def test_the_head_is_the_first_to_arrive() -> None:
    assert list(three_jobs().head(2).jobs.job_id) == ["a", "b"]
    assert len(three_jobs().head(99)) == 3


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        ({"max_gpus": 4}, "ab"),
        ({"min_gpus": 4}, "bc"),
        ({"min_duration": 50}, "ab"),
        ({"max_duration": 50}, "bc"),
        ({"tenant": "vision"}, "ac"),
        ({"tenant": ["vision", "speech"]}, "abc"),
        ({"job_type": "y"}, "b"),
        ({"tenant": "vision", "max_gpus": 4}, "a"),
    ],
)
def test_where_keeps_the_jobs_that_fulfil_every_condition(conditions: dict[str, object], left: str) -> None:
    assert "".join(three_jobs().where(**conditions).jobs.job_id) == left  # type: ignore[arg-type]


def test_where_measures_gavels_durations_on_the_gpu_type_named() -> None:
    trace = load_trace("gavel-100")
    on_v100, on_k80 = trace.durations("V100"), trace.durations("K80")
    assert np.median(on_k80 / on_v100) > 2
    assert len(trace.where(max_duration=20000)) == (on_v100 <= 20000).sum()
    assert len(trace.where(max_duration=20000, gpu_type="K80")) == (on_k80 <= 20000).sum() < (on_v100 <= 20000).sum()


def test_extra_values_stay_with_their_jobs() -> None:
    trace = load_trace("shockwave-120")
    mode = dict(zip(trace.jobs.job_id, trace.extra["mode"], strict=True))
    part = trace.where(min_gpus=2).window(100, 3000)
    assert [mode[job_id] for job_id in part.jobs.job_id] == list(part.extra["mode"])


@pytest.mark.parametrize("name", ["philly", "elasticflow-04"])
@pytest.mark.parametrize("keep", ["duration", "gpu_time"])
def test_a_new_gpu_demand_is_met_within_sampling_error(name: str, keep: str) -> None:
    trace = load_trace(name)
    changed = trace.with_gpu_demand(MIX, seed=3, keep=keep)  # type: ignore[arg-type]
    for count, share in MIX.items():
        error = 4 * math.sqrt(share * (1 - share) / len(trace))
        assert np.mean(changed.jobs.num_gpus == count) == pytest.approx(share, abs=error)


def test_a_new_gpu_demand_keeps_duration_or_gpu_time_as_asked() -> None:
    trace = load_trace("tiresias-60")
    same_duration = trace.with_gpu_demand(MIX, seed=1)
    np.testing.assert_allclose(same_duration.durations(), trace.durations())
    same_time = trace.with_gpu_demand(MIX, seed=1, keep="gpu_time")
    np.testing.assert_allclose(same_time.durations() * same_time.jobs.num_gpus, trace.durations() * trace.jobs.num_gpus)
    np.testing.assert_array_equal(same_time.jobs.num_gpus, same_duration.jobs.num_gpus)


@pytest.mark.parametrize("keep", ["duration", "gpu_time"])
def test_with_a_throughput_table_the_steps_follow_the_demand(keep: str) -> None:
    trace = load_trace("gavel-100")
    changed = trace.with_gpu_demand({1: 0.5, 2: 0.3, 4: 0.2}, seed=5, keep=keep)  # type: ignore[arg-type]
    power = 0 if keep == "duration" else 1
    np.testing.assert_allclose(
        changed.durations() * changed.jobs.num_gpus**power, trace.durations() * trace.jobs.num_gpus**power
    )


def test_many_gpus_go_to_the_jobs_that_can_use_them() -> None:
    trace = load_trace("gavel-100")
    changed = trace.with_gpu_demand({1: 0.5, 8: 0.5}, seed=5)
    assert 30 < (changed.jobs.num_gpus == 8).sum() < 70
    assert np.all(checked_rates(changed.throughput, changed.jobs, ["V100"], changed.jobs.num_gpus) > 0)


def test_a_demand_that_too_few_jobs_can_meet_says_so() -> None:
    with pytest.raises(TraceError, match=r"GPU demand cannot be met: \d+ jobs can only run on none of the counts 8"):
        load_trace("gavel-100").with_gpu_demand({8: 1.0})


def test_rigid_jobs_stay_rigid_and_elastic_ranges_grow() -> None:
    jobs = [Job(job_id="r", duration=5, num_gpus=2), Job(job_id="e", duration=5, num_gpus=2, min_gpus=1, max_gpus=4)]
    changed = Trace.from_jobs(jobs).with_gpu_demand({8: 1}).jobs
    assert list(changed.num_gpus) == [8, 8]
    assert list(changed.min_gpus) == [8, 1]
    assert list(changed.max_gpus) == [8, 8]


def test_new_job_types_are_drawn_as_weighted_and_keep_durations() -> None:
    gavel = load_trace("gavel-100")
    mix = {"ResNet-50 (batch size 64)": 3, "LM (batch size 20)": 1}
    philly = load_trace("philly")
    changed = philly.where(max_gpus=1).with_job_types(mix, seed=2, throughput=gavel.throughput)
    share = np.mean(changed.jobs.job_type_names == "ResNet-50 (batch size 64)")
    assert share == pytest.approx(0.75, abs=4 * math.sqrt(0.75 * 0.25 / len(changed)))
    rates = checked_rates(gavel.throughput, changed.jobs, ["V100"], changed.jobs.num_gpus)[:, 0]
    np.testing.assert_allclose(changed.jobs.total_steps / rates, philly.where(max_gpus=1).jobs.duration)


def test_new_job_types_of_a_table_keep_the_duration_on_the_reference_type() -> None:
    trace = load_trace("gavel-100")
    changed = trace.with_job_types({"ResNet-18 (batch size 32)": 1, "LM (batch size 5)": 1}, seed=0)
    np.testing.assert_allclose(changed.durations(), trace.durations())


def test_jobs_draw_only_types_that_run_on_their_gpus() -> None:
    # Gavel did not distribute its recommendation model: only single-GPU jobs may become one.
    changed = load_trace("gavel-100").with_job_types({"Recommendation (batch size 512)": 1, "LM (batch size 5)": 1})
    large = changed.jobs.num_gpus > 1
    assert set(changed.jobs.job_type_names[large]) == {"LM (batch size 5)"}
    assert len(set(changed.jobs.job_type_names[~large])) == 2
    with pytest.raises(TraceError, match=r"none of the job types Recommendation .* runs on 2 x V100"):
        load_trace("gavel-100").with_job_types({"Recommendation (batch size 512)": 1})


def test_deadlines_are_drawn_as_multiples_of_the_duration_and_the_same_for_the_same_seed() -> None:
    trace = load_trace("elasticflow-10")
    drawn = trace.with_deadlines(0.5, 1.5, seed=3)
    factor = (drawn.jobs.deadline - drawn.jobs.arrival) / drawn.jobs.duration
    assert 0.5 <= factor.min() < 0.6
    assert 1.4 < factor.max() <= 1.5
    assert abs(factor.mean() - 1.0) < 0.06
    assert np.array_equal(trace.with_deadlines(seed=3).jobs.deadline, drawn.jobs.deadline)
    assert not np.array_equal(trace.with_deadlines(seed=4).jobs.deadline, drawn.jobs.deadline)
    later = drawn.scale_load(2.0)
    assert np.allclose(later.jobs.deadline - later.jobs.arrival, factor * drawn.jobs.duration)


def test_throughput_restart_cost_and_elastic_range_are_set() -> None:
    trace = three_jobs().with_restart_cost(30).with_elastic_range(2, 4).with_throughput(lambda *key: 2.0)
    assert list(trace.jobs.restart_cost) == [30, 30, 30]
    assert list(trace.jobs.min_gpus) == [1, 2, 2]
    assert list(trace.jobs.max_gpus) == [4, 4, 8]
    assert checked_rates(trace.throughput, trace.jobs, ["A100"], trace.jobs.num_gpus)[0, 0] == 2.0


@pytest.mark.parametrize(
    "change",
    [
        lambda trace: trace.window(15),
        lambda trace: trace.head(1),
        lambda trace: trace.scale_load(3),
        lambda trace: trace.where(max_gpus=4),
        lambda trace: trace.with_gpu_demand(MIX, keep="gpu_time"),
        lambda trace: trace.with_job_types({"z": 1}),
        lambda trace: trace.with_elastic_range(1, 16),
        lambda trace: trace.with_restart_cost(9),
    ],
)
def test_the_original_is_never_changed(change: Callable[[Trace], Trace]) -> None:
    trace, fresh = three_jobs(), three_jobs()
    change(trace)
    assert trace.to_pandas().equals(fresh.to_pandas())


def test_the_same_seed_gives_the_same_draws_and_another_does_not() -> None:
    trace = load_trace("philly").head(1000)
    draws = [trace.with_gpu_demand(MIX, seed=seed).jobs.num_gpus for seed in (1, 1, 2)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert np.any(draws[0] != draws[2])


BAD = {
    "window backwards": (lambda t: t.window(5, 4), "needs 0 <= start < end"),
    "window from NaN": (lambda t: t.window(math.nan), "needs 0 <= start < end"),
    "empty window": (lambda t: t.window(1000), "no job arrives from 1000"),
    "head of none": (lambda t: t.head(0), "whole number of jobs >= 1"),
    "head of a fraction": (lambda t: t.head(1.5), "count is 1.5, must be a whole number"),
    "no load": (lambda t: t.scale_load(0), "finite factor > 0"),
    "NaN load": (lambda t: t.scale_load(math.nan), "finite factor > 0"),
    "infinite load": (lambda t: t.scale_load(math.inf), "finite factor > 0"),
    "nothing left": (lambda t: t.where(min_gpus=99), "no job is left of 3"),
    "unknown tenant": (lambda t: t.where(tenant="visions"), "has no tenant 'visions'; it has speech, vision"),
    "empty mix": (lambda t: t.with_gpu_demand({}), "needs at least one choice"),
    "negative weight": (lambda t: t.with_gpu_demand({1: -1}), "the weight of 1 is -1"),
    "NaN weight": (lambda t: t.with_gpu_demand({1: math.nan}), "the weight of 1 is nan"),
    "no weight": (lambda t: t.with_gpu_demand({1: 0}), "all weights are 0"),
    "half a GPU": (lambda t: t.with_gpu_demand({0.5: 1}), "whole numbers of GPUs"),
    "unknown keep": (
        lambda t: t.with_gpu_demand({1: 1}, keep="steps"),
        "keep is 'steps', must be 'duration' or 'gpu_time'",
    ),
    "no type name": (lambda t: t.with_job_types({"": 1}), "non-empty strings"),
    "deadlines backwards": (lambda t: t.with_deadlines(1.5, 0.5), "needs 0 < tightest <= loosest"),
    "deadlines of nothing": (lambda t: t.with_deadlines(0.0, 0.5), "needs 0 < tightest <= loosest"),
    "range backwards": (lambda t: t.with_elastic_range(4, 2), "min <= max"),
    "negative restart cost": (lambda t: t.with_restart_cost(-1), "finite number of seconds >= 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_arguments_that_make_no_sense_are_refused(case: str) -> None:
    change, message = BAD[case]
    with pytest.raises(TraceError, match=message):
        change(three_jobs())


def test_all_jobs_at_once_are_an_infinite_load() -> None:
    assert load_trace("gavel-100").offered_load() == math.inf


def test_an_unknown_published_distribution_is_answered_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'gavel'"):
        generate_trace(5, 1, durations="gavle")
