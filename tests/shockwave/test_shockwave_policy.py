"""Policy shockwave: what it predicts, what it aims for, when it plans anew, and what holds in every round."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.errors import FormulationError
from bloxopt.formulations import AllocationSpace, Capacity, MinimumShare, TenantQuota, TimeShare
from bloxopt.formulations.systems.finish_time_targets import finish_time_targets
from bloxopt.formulations.systems.predicted_work import predict_work
from bloxopt.phases import Phases
from bloxopt.simulation.failures import Outage
from bloxopt.throughput import DurationThroughput


class Staged:
    """Rates by phase, the same for all jobs: ``parts`` of the work at ``seconds`` per unit of work."""

    def __init__(self, parts: list[float], seconds: list[float], total: float) -> None:
        self.ends = np.cumsum(parts) * total
        self.speed = 1.0 / np.asarray(seconds)

    def phases(self, jobs: bx.JobTable) -> Phases:
        count = len(self.ends)
        return Phases(np.arange(len(jobs) + 1) * count, np.tile(self.ends, len(jobs)))

    def rates(self, jobs: bx.JobTable, gpu_types: list[str], num_gpus: np.ndarray) -> np.ndarray:
        return np.repeat(self.speed[jobs.phase][:, None], len(gpu_types), axis=1)


def published_remaining(schedule: list[float], done: int) -> float:
    """Seconds left by the published rule: ``schedule`` has the seconds of every epoch, of which ``done`` are over."""
    epochs, kinds = len(schedule), sorted(set(schedule))
    belief = {kind: epochs / len(kinds) for kind in kinds}
    seen = schedule[: done + 1]
    for kind in seen:
        belief[kind] += 1
    total = sum(belief.values())
    belief = {kind: epochs * weight / total for kind, weight in belief.items()}
    for kind in seen:
        if belief[kind] >= 1:
            belief[kind] -= 1
    inflated = max(int(sum(belief.values()) + 1), epochs - done)
    return sum(count * kind for kind, count in belief.items()) * (epochs - done) / inflated


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(5, 100), st.sampled_from([1.0, 2.0, 3.5])), min_size=1, max_size=5),
    st.floats(0.0, 0.99),
)
def test_the_time_left_is_that_of_the_published_rule_but_for_single_epochs(
    stretches: list[tuple[int, float]], progress: float
) -> None:
    schedule = [seconds for count, seconds in stretches for _ in range(count)]
    epochs = len(schedule)
    done = int(progress * epochs)
    oracle = Staged([count / epochs for count, _ in stretches], [seconds for _, seconds in stretches], epochs)
    job = bx.Job(job_id="a", total_steps=float(epochs))
    space = AllocationSpace.from_jobs([job], "1xV100", oracle, remaining_steps=float(epochs - done))
    phase = np.searchsorted(np.cumsum([count for count, _ in stretches]), done, side="right")
    space.catalog.enter_phase(np.array([0]), np.array([phase]))
    work = predict_work(space)
    assert work.remaining[0] == pytest.approx(published_remaining(schedule, done), abs=3 * 3.5)
    assert work.spent[0] == pytest.approx(sum(schedule[:done]))
    assert work.done[0] == pytest.approx(done / epochs)
    if done:
        assert work.whole[0] == pytest.approx(np.mean(schedule[:done]) * epochs)


def test_without_phases_the_time_left_is_work_over_rate() -> None:
    jobs = [bx.Job(job_id="a", duration=100.0), bx.Job(job_id="b", duration=300.0, num_gpus=2)]
    work = predict_work(AllocationSpace.from_jobs(jobs, "2xV100", remaining_steps=[25.0, 300.0]))
    assert work.remaining.tolist() == [25.0, 300.0]
    assert work.spent.tolist() == [75.0, 0.0]
    assert work.done.tolist() == [0.75, 0.0]


def momentum_average(series: list[tuple[float, float]], now: float) -> float:
    """The published target: values weighted by how long each was the latest, and the last one."""
    times = [moment for moment, _ in series] + [now]
    values = np.array([value for _, value in series])
    windows = np.diff(times)
    average = values[-1] if windows.max() == 0 else windows @ values / windows.sum()
    return 0.9 * average + 0.1 * values[-1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=8))
def test_targets_are_the_published_average_of_estimates(steps: list[tuple[int, int]]) -> None:
    """Jobs come one by one; after each the estimate is renewed, as in the published code."""
    jobs = [bx.Job(job_id=f"j{k}", duration=1000.0) for k in range(12)]
    whole = AllocationSpace.from_jobs(jobs, "3x1xV100", now=0.0)
    series: list[tuple[float, float]] = []
    now = 0.0
    for pause, present in steps:
        now += 60.0 * pause
        space = AllocationSpace(whole.catalog, whole.ledger, np.arange(present), now=now)
        target = finish_time_targets(space, predict_work(space), "test", renew=True)
        series.append((now, 1000.0 / min(1.0, 3 / present)))
        assert target[0] == pytest.approx(momentum_average(series, now))
        later = AllocationSpace(whole.catalog, whole.ledger, np.arange(present), now=now + 30.0)
        target = finish_time_targets(later, predict_work(later), "test", renew=False)
        assert target[0] == pytest.approx(momentum_average(series, now + 30.0))


def six_jobs() -> list[bx.Job]:
    return [
        bx.Job(job_id=f"j{k}", duration=500.0 + 300.0 * k, num_gpus=1 + k % 2, tenant="ab"[k % 2]) for k in range(6)
    ]


def later(space: AllocationSpace, now: float, index: np.ndarray | None = None) -> AllocationSpace:
    rows = space.index if index is None else index
    return AllocationSpace(space.catalog, space.ledger, rows, now=now, round_seconds=space.round_seconds)


def test_asking_again_in_a_round_changes_nothing() -> None:
    policy = bx.get_policy("shockwave")
    space = AllocationSpace.from_jobs(six_jobs(), "4x1xV100", round_seconds=120.0, now=0.0)
    first = policy.allocate(space)
    again = policy.allocate(later(space, 0.0))
    assert first.num_solves == 1
    assert again.num_solves == 0
    np.testing.assert_array_equal(first.x, again.x)
    assert again.objective == pytest.approx(first.objective)
    assert set(first.x) <= {0.0, 1.0}


def test_a_plan_holds_until_its_time_is_over_or_jobs_or_gpus_change() -> None:
    policy = bx.get_policy("shockwave", replan_rounds=3)
    space = AllocationSpace.from_jobs(six_jobs(), "4x1xV100", round_seconds=120.0, now=0.0)
    solves = [policy.allocate(later(space, 120.0 * k)).num_solves > 0 for k in range(7)]
    assert solves == [True, False, False, True, False, False, True]
    left = np.arange(5)
    assert policy.allocate(later(space, 900.0, left)).num_solves > 0
    assert policy.allocate(later(space, 1020.0, left)).num_solves == 0
    fewer = AllocationSpace(space.catalog, space.ledger, left, capacity=np.array([3]), now=1140.0, round_seconds=120.0)
    assert policy.allocate(fewer).num_solves > 0


def test_the_rounds_of_a_window_are_carried_out_one_by_one() -> None:
    """Over a window in which nothing changes no GPU idles, and the job with most left has as little left as can be."""
    policy = bx.get_policy("shockwave", rounds=6, replan_rounds=6)
    jobs = [bx.Job(job_id=f"j{k}", duration=5000.0) for k in range(7)]
    space = AllocationSpace.from_jobs(jobs, "3x1xV100", round_seconds=120.0, now=0.0)
    ran = np.array([policy.allocate(later(space, 120.0 * k)).x for k in range(6)])
    assert (ran.sum(axis=1) == 3).all()
    assert ran.sum(axis=0).min() == 3 * 6 // 7


def test_no_round_exceeds_the_gpus_and_every_job_ends() -> None:
    trace = bx.load_trace("shockwave-120-regimes").head(12)
    result = bx.simulate(trace, "4x1xV100", "shockwave", preset="shockwave")
    assert (result.rounds["gpus_used"] <= 4).all()
    assert result.jobs["finish"].notna().all()
    busy = result.rounds[result.rounds["waiting_jobs"] > 3]
    assert (busy["gpus_used"] == 4).mean() > 0.98  # gangs may leave a GPU without a job that fits
    again = bx.simulate(trace, "4x1xV100", "shockwave", preset="shockwave")
    assert result.jobs["finish"].tolist() == again.jobs["finish"].tolist()
    bounded = result.rounds["bound"] >= result.rounds["objective"] - 1e-9
    assert bounded.all()


def test_it_runs_with_other_presets_elastic_jobs_gpu_types_and_failures() -> None:
    jobs = [
        bx.Job(job_id=f"j{k}", arrival=100.0 * k, duration=900.0, num_gpus=2, min_gpus=1, max_gpus=4) for k in range(6)
    ]
    trace = bx.Trace.from_jobs(jobs, DurationThroughput({"K80": 0.4}, 0.8))
    for preset in ("default", "gavel"):
        result = bx.simulate(
            trace, "1x4xV100+1x2xK80", "shockwave", preset=preset, failures=[Outage("node-0", 700.0, 1500.0)]
        )
        assert result.jobs["finish"].notna().all()


def test_quotas_hold_in_every_round() -> None:
    policy = bx.get_policy("shockwave", constraints=[Capacity(), TimeShare(), TenantQuota({"b": 2})])
    space = AllocationSpace.from_jobs(six_jobs(), "6x1xV100", round_seconds=120.0, now=0.0)
    of_b = np.array([job.tenant == "b" for job in six_jobs()])
    for k in range(8):
        x = policy.allocate(later(space, 120.0 * k)).x
        assert (space.num_gpus * x)[of_b[space.job]].sum() <= 2
        assert (space.num_gpus * x)[~of_b[space.job]].sum() == 3  # all of a fit


def test_jobs_behind_their_target_go_before_others() -> None:
    """Two equal jobs, of which one has waited for long: it gets the first round, and more of them."""
    jobs = [bx.Job(job_id="new", arrival=5000.0, duration=3000.0), bx.Job(job_id="old", arrival=0.0, duration=3000.0)]
    space = AllocationSpace.from_jobs(jobs, "1x1xV100", now=0.0, round_seconds=120.0)
    old, both = np.array([0]), np.array([0, 1])
    assert space.job_ids[0] == "old"
    policy = bx.get_policy("shockwave", makespan_weight=0.0)
    policy.allocate(later(space, 0.0, old))  # its target, alone, is 3000 s
    x = [policy.allocate(later(space, 5000.0 + 120.0 * k, both)).x for k in range(8)]
    assert x[0].tolist() == [1.0, 0.0]
    assert np.sum(x, axis=0)[0] > np.sum(x, axis=0)[1]


def test_fair_finish_times_are_kept_where_all_can_be() -> None:
    """Targets are 2000 s: to finish by ρ times that, each must do 1250 − 1000 ρ s of its 1000 in the window of 500."""
    jobs = [bx.Job(job_id="heavy", duration=1000.0, weight=50.0), bx.Job(job_id="light", duration=1000.0)]

    def rounds_of_light(largest_ratio: float) -> float:
        policy = bx.get_policy("shockwave", rounds=5, replan_rounds=5, makespan_weight=0.0, largest_ratio=largest_ratio)
        space = AllocationSpace.from_jobs(jobs, "1x1xV100", now=0.0, round_seconds=100.0)
        return sum(float(policy.allocate(later(space, 100.0 * k)).x[1]) for k in range(5))

    assert rounds_of_light(1.05) == 2  # 200 s
    assert rounds_of_light(1.15) == 1  # 100 s
    assert rounds_of_light(1.5) == 0  # nothing yet
    assert rounds_of_light(0.9) == 0  # 350 s each do not fit into 500: by weight alone


def test_lower_limits_are_refused() -> None:
    policy = bx.get_policy("shockwave", constraints=[Capacity(), TimeShare(), MinimumShare(0.5)])
    space = AllocationSpace.from_jobs(six_jobs(), "4x1xV100")
    with pytest.raises(FormulationError, match="upper limits"):
        policy.allocate(space)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("rounds", 0, "rounds is 0"),
        ("rounds", 100, "rounds is 100"),
        ("replan_rounds", 2.5, "replan_rounds is 2.5"),
        ("makespan_weight", -1.0, "makespan_weight"),
        ("largest_ratio", 0.0, "largest_ratio"),
        ("points", (0.0, 0.5), "points"),
        ("points", (0.0, 0.7, 0.5, 1.0), "points"),
        ("points", "half", "points"),
        ("fairness_power", math.nan, "fairness_power"),
    ],
)
def test_options_out_of_range_are_named(option: str, value: object, message: str) -> None:
    with pytest.raises(FormulationError, match=message):
        bx.get_policy("shockwave", **{option: value})


@pytest.mark.slow
def test_the_canonical_trace_ends_in_time_and_fairly() -> None:
    from bloxopt.reproduction.shockwave import CLUSTER, TRACE, finish_time_ratios

    trace = bx.load_trace(TRACE)
    result = bx.simulate(trace, CLUSTER, "shockwave", preset="shockwave")
    assert result.summary()["makespan"] <= 24900.0
    assert finish_time_ratios(result, trace).max() <= 2.0
    assert result.wall_seconds <= 120.0
