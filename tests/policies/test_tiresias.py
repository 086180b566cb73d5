"""Tiresias' queues against a plain replica in exact arithmetic, and its orders against their definitions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import make_space
from tiresias_replica import tiresias_schedule

import bloxopt as bx
from bloxopt.errors import BloxoptError, FormulationError, InputError, UnknownNameError
from bloxopt.formulations import (
    Arrival,
    AttainedService,
    DurationDistribution,
    ExpectedRemaining,
    GittinsIndex,
    Policy,
    Priority,
    QueuePosition,
    ServiceQueue,
    ShortestRemaining,
    ShortestTotal,
    TiresiasGittinsRank,
)
from bloxopt.formulations.policies import get_policy

GPUS = 8


def trace_of(jobs: list[tuple[int, int, int]]) -> bx.Trace:
    return bx.Trace.from_jobs(
        bx.Job(job_id=f"job-{i}", arrival=arrival, duration=duration, num_gpus=gpus)
        for i, (arrival, duration, gpus) in enumerate(jobs)
    )


def finishes(jobs: list[tuple[int, int, int]], policy: str | Policy, **options: object) -> list[float]:
    result = bx.simulate(trace_of(jobs), f"{GPUS}xV100", policy, preset="tiresias", **options)
    return result.jobs.set_index("job_id")["finish"].reindex([f"job-{i}" for i in range(len(jobs))]).tolist()


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    count = draw(st.integers(1, 14))
    arrivals = sorted(draw(st.lists(st.integers(0, 300), min_size=count, max_size=count)))
    return [(arrival, draw(st.integers(1, 200)), draw(st.sampled_from([1, 1, 2, 3, 4, 8]))) for arrival in arrivals]


# --- queues ---


@given(
    jobs=workloads(),
    limits=st.sampled_from([(), (50,), (100, 400), (31, 64, 128, 777)]),
    knob=st.sampled_from([None, Fraction(1, 2), Fraction(1), Fraction(2)]),
    running_first=st.booleans(),
)
@settings(max_examples=40)
def test_finish_times_preemptions_and_promotions_are_those_of_a_plain_replica(
    jobs: list[tuple[int, int, int]], limits: tuple[int, ...], knob: Fraction | None, running_first: bool
) -> None:
    expected, preemptions, _ = tiresias_schedule(jobs, GPUS, tuple(map(Fraction, limits)), knob, running_first)
    policy = get_policy(
        "tiresias",
        limits=limits,
        promote_knob=None if knob is None else float(knob),
        within_queue="running_first" if running_first else "joined",
    )
    result = bx.simulate(trace_of(jobs), f"{GPUS}xV100", policy, preset="tiresias")
    mine = result.jobs.set_index("job_id").reindex([f"job-{i}" for i in range(len(jobs))])
    assert mine["finish"].tolist() == pytest.approx([float(time) for time in expected], abs=1e-4)
    assert mine["preemptions"].sum() == preemptions


def test_the_replica_promotes_in_some_of_the_examples() -> None:
    jobs = [(0, 300, 8), (60, 200, 8), (100, 200, 8)]
    assert tiresias_schedule(jobs, GPUS, (Fraction(400),), Fraction(1))[2] > 0


def test_a_job_yields_when_its_service_reaches_a_limit_and_not_before() -> None:
    # 8 GPUs reach 400 GPU-s after 50 s; the second job, which has waited since 10 s, then runs for 50 s and so on.
    jobs = [(0, 100, 8), (10, 60, 8)]
    assert finishes(jobs, get_policy("tiresias", limits=[400])) == pytest.approx([150.0, 160.0])
    assert finishes(jobs, get_policy("tiresias", limits=[400.5])) == pytest.approx([150.0625, 160.0])
    # Limits beyond what either receives: first come, first served.
    assert finishes(jobs, get_policy("tiresias", limits=[801])) == pytest.approx([100.0, 160.0])


def test_limits_may_count_seconds_run_instead_of_gpu_seconds() -> None:
    jobs = [(0, 100, 8), (10, 60, 8)]
    by_time = get_policy("tiresias", limits=[50], gpu_weighted=False)
    assert finishes(jobs, by_time) == finishes(jobs, get_policy("tiresias", limits=[400]))


def test_who_has_waited_as_long_as_it_ran_is_promoted() -> None:
    # The first job leaves the first queue after 50 s. Newcomers of 40 s keep it waiting, unless it is promoted when it
    # has waited 50 s: at 100 s it is put behind the newcomer that then runs, and before those that come later.
    jobs = [(0, 60, 8), *((45 + 40 * i, 40, 8) for i in range(6))]
    assert finishes(jobs, get_policy("tiresias", limits=[400]))[0] == pytest.approx(300.0)
    assert finishes(jobs, get_policy("tiresias", limits=[400], promote_knob=1))[0] == pytest.approx(140.0)


def test_state_lives_in_the_ledger_and_asking_twice_changes_nothing() -> None:
    policy = get_policy("tiresias", limits=[400], promote_knob=1)
    space = make_space(
        [[1], [1], [1]],
        [2, 2, 2],
        [4],
        now=1000.0,
        attained_service=[500.0, 10.0, 0.0],
        attained_seconds=[250.0, 5.0, 0.0],
        gpu_type=[-1, 0, -1],
    )
    first = policy.rank(space).tolist()
    assert policy.rank(space).tolist() == first == policy.allocate(space).ranking.tolist()
    assert first[-1] == 0
    other = make_space(
        [[1], [1]], [2, 2], [4], now=1000.0, attained_service=[0.0, 500.0], attained_seconds=[0.0, 250.0]
    )
    assert policy.rank(other).tolist() == [0, 1]
    assert policy.rank(space).tolist() == first


def test_joining_order_and_running_first_differ_once_a_job_has_gone_ahead() -> None:
    # The second job does not fit beside the first; the third does and goes ahead.
    jobs = [(0, 100, 4), (10, 100, 8), (20, 100, 4)]
    assert finishes(jobs, get_policy("tiresias", limits=[])) == pytest.approx([100.0, 220.0, 120.0])
    assert finishes(jobs, get_policy("tiresias", limits=[], within_queue="joined")) == pytest.approx(
        [100.0, 200.0, 220.0]
    )


@given(jobs=workloads())
@settings(max_examples=4)
def test_one_queue_is_the_order_within_it(jobs: list[tuple[int, int, int]]) -> None:
    def one(within: str) -> list[float]:
        return finishes(jobs, get_policy("tiresias", limits=[], within_queue=within), round_seconds=10.0)

    assert one("arrival") == finishes(jobs, get_policy("fifo", backfill=True), round_seconds=10.0)
    assert one("joined") == one("arrival")
    las = get_policy("las", gpu_weighted=True, backfill=True)
    assert one("service") == finishes(jobs, las, round_seconds=10.0)


def test_within_a_queue_the_paper_goes_by_first_start_and_the_simulator_lets_run_what_runs() -> None:
    # The first job leaves the first queue at 10 s and the second one at 30 s, when the last still holds 4 GPUs. At 40 s
    # these are free again: for the job that started first, which stops the second, or for nobody until 50 s.
    jobs = [(0, 30, 8), (10, 40, 4), (10, 15, 4), (25, 15, 4)]
    by_start = get_policy("tiresias", limits=[80], within_queue="start")
    assert finishes(jobs, by_start) == pytest.approx([60.0, 70.0, 25.0, 40.0])
    assert finishes(jobs, get_policy("tiresias", limits=[80])) == pytest.approx([70.0, 50.0, 25.0, 40.0])


def test_many_fine_queues_come_close_to_least_attained_service() -> None:
    rng = np.random.default_rng(5)
    jobs = [
        (int(a), int(d), 1) for a, d in zip(np.sort(rng.integers(0, 100, 24)), rng.integers(5, 60, 24), strict=True)
    ]
    fine = get_policy("tiresias", limits=np.arange(2.0, 61.0, 2.0), within_queue="arrival")
    las = finishes(jobs, get_policy("las", gpu_weighted=True, backfill=True), round_seconds=0.5)
    assert np.mean(finishes(jobs, fine)) == pytest.approx(np.mean(las), rel=0.04)


# --- Gittins ---


def brute_force_index(samples: list[float], attained: float, quantum: float | None) -> float:
    """The definition, sample by sample."""
    left = [sample - attained for sample in samples if sample > attained]
    if not left:
        return 0.0
    quanta = [quantum] if quantum is not None else left

    def value(delta: float) -> float:
        probability = sum(rest <= delta for rest in left) / len(left)
        return probability / (sum(min(rest, delta) for rest in left) / len(left))

    return max(value(delta) for delta in quanta)


@given(
    samples=st.lists(st.integers(1, 50).map(float), min_size=1, max_size=12),
    attained=st.lists(st.integers(0, 60).map(float), min_size=1, max_size=8),
    quantum=st.one_of(st.none(), st.sampled_from([0.5, 3.0, 20.0, 100.0])),
)
def test_the_gittins_index_is_its_definition(
    samples: list[float], attained: list[float], quantum: float | None
) -> None:
    value, span = DurationDistribution(samples).gittins_index(np.array(attained), quantum)
    assert value.tolist() == pytest.approx([brute_force_index(samples, a, quantum) for a in attained])
    assert (span > 0).all()


def test_the_best_quantum_beats_every_other() -> None:
    distribution = DurationDistribution(np.random.default_rng(1).lognormal(5, 2, 300))
    attained = np.linspace(0.0, 2000.0, 40)
    best, _ = distribution.gittins_index(attained)
    for quantum in np.geomspace(1.0, 1e5, 30):
        assert (distribution.gittins_index(attained, quantum)[0] <= best * (1 + 1e-12)).all()


def test_many_jobs_and_samples_are_looked_at_in_parts() -> None:
    rng = np.random.default_rng(2)
    distribution = DurationDistribution(rng.exponential(10.0, 3000))
    attained = rng.uniform(0.0, 60.0, 2000)
    value, span = distribution.gittins_index(attained)
    some = rng.integers(0, 2000, 20)
    alone = [distribution.gittins_index(attained[[i]]) for i in some]
    assert value[some].tolist() == [float(v[0]) for v, _ in alone]
    assert span[some].tolist() == [float(s[0]) for _, s in alone]


@pytest.mark.parametrize("quantum", [20.0, 100.0])
def test_without_memory_the_index_is_constant(quantum: float) -> None:
    rate = 0.01
    quantiles = (np.arange(200_000) + 0.5) / 200_000
    exponential = DurationDistribution(-np.log1p(-quantiles) / rate)
    value, _ = exponential.gittins_index(np.linspace(0.0, 400.0, 20), quantum)
    # P/E = (1 - e^-λΔ) / ((1 - e^-λΔ)/λ) = λ whatever a and Δ.
    assert value == pytest.approx(rate, rel=0.02)


def test_a_job_of_known_length_becomes_more_urgent_the_more_it_has_run() -> None:
    value, span = DurationDistribution([100.0] * 5).gittins_index(np.array([0.0, 40.0, 90.0, 100.0]))
    assert value == pytest.approx([1 / 100, 1 / 60, 1 / 10, 0.0])
    assert span.tolist() == [100.0, 60.0, 10.0, np.inf]
    # Within a quantum too short to end it, a job is worth nothing.
    assert DurationDistribution([100.0]).gittins_index(np.array([0.0, 90.0]), 20.0)[0] == pytest.approx([0.0, 0.1])


def test_known_lengths_make_gittins_run_jobs_to_their_end() -> None:
    jobs = [(0, 100, 8), (10, 100, 8), (20, 100, 8)]
    policy = get_policy("gittins", durations=[800.0], quantum=None)
    assert finishes(jobs, policy) == pytest.approx([100.0, 200.0, 300.0])


def test_longer_than_all_that_is_known_goes_last() -> None:
    space = make_space([[1], [1]], [1, 1], [1], attained_service=[500.0, 0.0])
    for key in (
        GittinsIndex(DurationDistribution([10.0, 90.0])),
        ExpectedRemaining(DurationDistribution([10.0, 90.0])),
    ):
        assert np.argsort(key.key(space)).tolist() == [1, 0]


@given(samples=st.lists(st.floats(0.1, 1e4), min_size=1, max_size=30), attained=st.floats(0.0, 1e4))
def test_expected_remaining_service_is_the_mean_of_what_is_left(samples: list[float], attained: float) -> None:
    left = [sample - attained for sample in samples if sample > attained]
    mean = DurationDistribution(samples).mean_remaining(np.array([attained]))[0]
    assert mean == pytest.approx(np.mean(left) if left else np.inf, rel=1e-6, abs=1e-6)


def published_rank(samples: list[int], attained: float, quantum: int) -> float:
    """The value that Tiresias' simulator sorts by: worked out for the sample after the service, of whole durations."""
    longer = [sample for sample in samples if sample > attained]
    if not longer:
        return 0.0
    reached = longer[0] - 1 + quantum
    ends = [sample for sample in longer if sample <= reached]
    if reached > samples[-1] - 1:
        ends = longer[:-1]
    return len(ends) / (sum(ends) + quantum * (len(longer) - len(ends)))


@given(
    samples=st.lists(st.integers(1, 60), min_size=1, max_size=10),
    attained=st.integers(0, 70),
    quantum=st.sampled_from([1, 7, 30, 100]),
)
def test_the_published_rank_is_what_the_simulator_works_out(samples: list[int], attained: int, quantum: int) -> None:
    space = make_space([[1]], [1], [1], attained_service=float(attained))
    rank = TiresiasGittinsRank(DurationDistribution(samples), quantum=float(quantum)).key(space)[0]
    assert rank == pytest.approx(published_rank(sorted(samples), attained, quantum))


def test_gittins_within_queues_needs_what_it_is_worked_out_from_and_nothing_else_does() -> None:
    jobs = [(0, 100, 8), (10, 60, 8), (30, 5, 8)]
    policy = get_policy("tiresias", limits=[400], within_queue="gittins", durations=[40.0, 480.0], quantum=400)
    # The newcomer has the same index as the second job, which came first: it waits for it.
    assert finishes(jobs, policy) == pytest.approx([155.0, 165.0, 105.0])
    with pytest.raises(FormulationError, match="durations is given, but within_queue is 'joined'"):
        get_policy("tiresias", within_queue="joined", durations=[1.0])
    with pytest.raises(FormulationError, match="quantum is given, but within_queue is 'arrival'"):
        get_policy("tiresias", within_queue="arrival", quantum=3.0)


# --- sizes ---


def test_service_and_time_order_jobs_differently() -> None:
    # job 0: 100 s on 1 GPU; job 1: 30 s on 4 GPUs; job 2: 60 s on 1 GPU of which 50 s are done.
    space = make_space([[1], [1], [1]], [1, 4, 1], [8], steps=[100, 30, 60], remaining_steps=[100.0, 30.0, 10.0])
    assert np.argsort(ShortestRemaining().key(space)).tolist() == [2, 1, 0]
    assert ShortestRemaining(gpu_weighted=True).key(space).tolist() == [100.0, 120.0, 10.0]
    assert ShortestTotal().key(space).tolist() == [100.0, 30.0, 60.0]
    assert ShortestTotal(gpu_weighted=True).key(space).tolist() == [100.0, 120.0, 60.0]
    for name, order in {"srtf": [2, 1, 0], "srsf": [2, 0, 1], "sjf": [1, 2, 0], "ssf": [2, 0, 1]}.items():
        assert get_policy(name).rank(space).tolist() == order


def test_estimates_are_the_same_for_a_seed_and_off_by_the_error_asked_for() -> None:
    count = 400
    space = make_space([[1.0]] * count, [1] * count, [4], steps=[100.0] * count)
    estimate = ShortestTotal(estimate_error=0.5, seed=3).key(space)
    assert estimate.tolist() == ShortestTotal(estimate_error=0.5, seed=3).key(space).tolist()
    assert estimate.tolist() != ShortestTotal(estimate_error=0.5, seed=4).key(space).tolist()
    assert np.std(np.log(estimate / 100.0)) == pytest.approx(0.5, rel=0.1)
    assert ShortestTotal(estimate_error=0.0, seed=9).key(space).tolist() == [100.0] * count


def test_a_job_that_outlives_its_estimate_has_nothing_left() -> None:
    space = make_space([[1.0]] * 50, [1] * 50, [4], steps=[100.0] * 50, remaining_steps=[1.0] * 50)
    left = ShortestRemaining(estimate_error=0.5).key(space)
    factor = ShortestTotal(estimate_error=0.5).key(space) / 100.0
    assert left == pytest.approx(np.maximum(100.0 * factor - 99.0, 0.0))
    assert (left == 0.0).any()
    assert (left > 1.0).any()


def test_wrong_estimates_make_the_mean_completion_time_worse() -> None:
    rng = np.random.default_rng(0)
    jobs = [(0, int(duration), 8) for duration in rng.integers(10, 1000, 30)]
    exact = np.mean(finishes(jobs, "srtf"))
    assert exact < np.mean(finishes(jobs, get_policy("srtf", estimate_error=1.0)))
    # Shortest first is optimal on one machine: sorted, each waits for those before it.
    assert exact == pytest.approx(np.mean(np.cumsum(sorted(duration for _, duration, _ in jobs))))


# --- everywhere ---


@pytest.mark.parametrize("name", ["tiresias", "gittins", "serpt", "shortest", "srsf", "sjf", "ssf"])
@pytest.mark.parametrize("preset", ["default", "blox", "tiresias"])
def test_every_order_runs_under_every_preset_with_types_failures_and_elastic_jobs(name: str, preset: str) -> None:
    jobs = [
        bx.Job(
            job_id=f"job-{i}",
            arrival=100.0 * i,
            total_steps=2000.0 + 500 * i,
            num_gpus=2 if i % 3 else 4,
            min_gpus=1 if i % 4 == 0 else None,
            max_gpus=8 if i % 4 == 0 else None,
            restart_cost=10.0,
        )
        for i in range(10)
    ]
    result = bx.simulate(
        bx.Trace.from_jobs(jobs),
        "2x4xV100+2x4xP100",
        name,
        preset=preset,
        throughput=lambda job, gpu_type, gpus: gpus * (2.0 if gpu_type == "V100" else 0.0 if job == "x" else 1.0),
        failures=[bx.Outage("node-0", 500.0, 2000.0)],
        **({} if preset == "blox" else {"round_seconds": 300.0}),
    )
    assert result.jobs["finish"].notna().all()


def test_tiresias_under_the_default_preset_on_published_traces() -> None:
    result = bx.simulate("gavel-100", "8xV100+16xP100+24xK80", "tiresias", max_rounds=60)
    assert result.jobs["run_seconds"].sum() > 0
    blox = bx.simulate("blox-mx-las-8", "32x4xV100", "tiresias", preset="blox", max_rounds=400)
    assert blox.jobs["finish"].notna().sum() > 10


# --- bad input ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": [400, 300]}, r"limits are \[400.0, 300.0\], must ascend"),
        ({"limits": [300, 300]}, "must ascend"),
        ({"limits": [0, 300]}, "the first greater than 0"),
        ({"limits": [-5]}, "a limit is -5, must be a finite number >= 0"),
        ({"limits": [float("nan")]}, "a limit is nan"),
        ({"limits": [float("inf")]}, "a limit is inf"),
        ({"limits": 300}, "limits is 300, must be a list"),
        ({"limits": "300"}, "limits is '300', must be a list"),
        ({"promote_knob": -1}, "promote_knob is -1"),
        ({"promote_knob": float("nan")}, "promote_knob is nan"),
        ({"gpu_weighted": "yes"}, "gpu_weighted is 'yes'"),
        ({"within_queue": "running"}, "did you mean 'running_first'"),
        ({"within_queue": "gittins", "quantum": 0}, "quantum is 0, must be greater than 0"),
        ({"limit": [3]}, "limit"),
    ],
)
def test_options_of_tiresias_that_cannot_be_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises((FormulationError, UnknownNameError), match=message):
        get_policy("tiresias", **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no durations"),
        ("duration\n\n", "no durations"),
        ("duration\n3\n-4\n", "line 3: '-4' is no duration, must be a finite number > 0"),
        ("3\n0\n", "line 2: '0' is no duration"),
        ("3\nnan\n", "line 2: 'nan' is no duration"),
        ("3\ninf\n", "line 2: 'inf' is no duration"),
        ("3\nmany\n", "line 2: 'many' is no duration"),
        ("nan\n3\n", "line 1: 'nan' is no duration"),
    ],
)
def test_a_file_of_durations_is_refused_by_its_line(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "durations.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=f"durations.csv.*{message}"):
        get_policy("gittins", durations=path)


def test_a_file_of_durations_is_one_a_line_with_or_without_a_heading(tmp_path) -> None:
    path = tmp_path / "durations.csv"
    path.write_text("\ufeffduration\r\n30\r\n\r\n10.5\r\n")
    assert DurationDistribution(path).samples.tolist() == [10.5, 30.0]
    path.write_text("30\n10.5\n")
    assert DurationDistribution(str(path)).samples.tolist() == [10.5, 30.0]


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        ([], "at least one number > 0"),
        ([[1.0, 2.0]], "at least one number > 0"),
        ([3.0, float("nan")], "durations has nan, must be finite numbers > 0"),
        ([3.0, -1.0], "durations has -1"),
        ([3.0, 0.0], "durations has 0"),
        (["a"], "durations is"),
        (5.0, "durations is"),
    ],
)
def test_durations_that_are_none_are_named(durations: object, message: str) -> None:
    with pytest.raises(FormulationError, match=message):
        get_policy("gittins", durations=durations)


def test_missing_files_and_other_mistakes_have_one_clear_message(tmp_path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv: cannot be read"):
        get_policy("gittins", durations=tmp_path / "nowhere.csv")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="binary: not a text file"):
        get_policy("serpt", durations=tmp_path / "binary")
    with pytest.raises(FormulationError, match="quantum is -3, must be a finite number >= 0"):
        get_policy("gittins", quantum=-3)
    with pytest.raises(FormulationError, match="index 'published' needs a quantum"):
        get_policy("gittins", index="published", quantum=None)
    with pytest.raises(UnknownNameError, match="index"):
        get_policy("gittins", index="best")
    with pytest.raises(FormulationError, match="estimate_error is -1"):
        get_policy("srsf", estimate_error=-1)
    with pytest.raises(FormulationError, match="seed is -1, must be a whole number >= 0"):
        get_policy("srtf", estimate_error=0.1, seed=-1)
    with pytest.raises(FormulationError, match=r"distribution is .*, must be a DurationDistribution"):
        GittinsIndex([3.0])  # type: ignore[arg-type]
    with pytest.raises(FormulationError, match=r"queues is .*, must be a ServiceQueue"):
        QueuePosition(Arrival())  # type: ignore[arg-type]


def test_keys_compose_with_those_of_others() -> None:
    own = Policy(objective=Priority([ServiceQueue([100.0]), AttainedService(), Arrival()], backfill=True), name="own")
    assert finishes([(0, 20, 8), (5, 20, 8)], own, round_seconds=5.0) == pytest.approx([35.0, 40.0], abs=10.0)
    assert issubclass(UnknownNameError, BloxoptError)
