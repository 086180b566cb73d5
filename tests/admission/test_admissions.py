"""Admissions by name: who is let in, who waits and who is turned away, and what is said about it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import bloxopt as bx
from bloxopt.admission import ADMISSIONS, AcceptAll, admission_table, get_admission
from bloxopt.errors import InputError, UnknownNameError
from bloxopt.experiments.reading import make_experiment
from bloxopt.experiments.run import run_experiment

HOUR = 3600.0


def trace(*jobs):
    """Jobs of (arrival, duration, GPUs, tenant) in seconds."""
    return bx.Trace.from_jobs(
        [
            bx.Job(job_id=f"j{i}", arrival=float(arrival), duration=float(duration), num_gpus=gpus, tenant=tenant)
            for i, (arrival, duration, gpus, tenant) in enumerate(jobs)
        ]
    )


def simulated(jobs, admission, cluster="4xV100", policy="fifo", **options):
    return bx.simulate(jobs, cluster, policy, admission=admission, round_seconds=60, **options)


def test_the_table_describes_every_admission():
    assert {row.name for row in admission_table()} == set(ADMISSIONS)
    assert all(row.description.endswith(".") for row in admission_table())


def test_a_load_threshold_lets_jobs_in_while_the_demand_before_them_is_at_most_the_multiple():
    # 4 GPUs: 0 and 4 asked for are within 1.0 x 4, 6 are not; j2 and j3 wait until j0 is done.
    jobs = trace((0, 600, 4, "a"), (0, 600, 2, "a"), (0, 60, 1, "a"), (30, 60, 1, "a"))
    result = simulated(jobs, get_admission("load_threshold", multiple=1.0))
    assert result.rounds["admitted"].iloc[0] == 2
    assert result.rounds.loc[result.rounds["admitted"] > 0, "time"].tolist() == [0.0, 600.0]
    assert result.summary()["finished"] == 4
    assert result.jobs["not_admitted"].isna().all()


def test_a_load_threshold_may_count_gpu_seconds_and_reject():
    # 4 GPUs for 100 s each are 400 GPU-seconds; j0 has 4 x 150.
    jobs = trace((0, 150, 4, "a"), (0, 10, 1, "a"), (120, 10, 1, "a"))
    result = simulated(jobs, get_admission("load_threshold", multiple=100, measure="gpu_seconds", otherwise="reject"))
    assert result.jobs["rejected"].tolist() == [False, True, False]
    assert result.jobs["not_admitted"][1] == "work outstanding by the jobs that are in exceed 400 GPU-seconds"
    assert result.summary()["rejected"] == 1


def test_an_idle_cluster_takes_a_job_however_low_the_threshold():
    result = simulated(trace((0, 60, 4, "a"), (0, 60, 4, "a")), get_admission("load_threshold", multiple=0.01))
    assert result.summary()["finished"] == 2


def test_a_quota_counts_the_tenants_jobs_that_are_in_and_keeps_their_order():
    jobs = trace((0, 120, 2, "a"), (0, 60, 2, "a"), (0, 60, 1, "a"), (0, 60, 2, "b"))
    result = simulated(jobs, get_admission("quota", gpus={"a": 2}))
    # j1 waits for j0, and j2, which would have fitted neither, does not overtake it.
    assert result.jobs["start"].tolist() == [0.0, 120.0, 180.0, 0.0]
    result = simulated(jobs, get_admission("quota", jobs=1, otherwise="reject"))
    assert result.jobs["rejected"].tolist() == [False, True, True, False]
    assert result.jobs["not_admitted"][1] == "tenant 'a' has 1 jobs that ask for 2 GPUs in the cluster"


def test_a_job_above_its_quota_is_rejected_even_if_others_would_wait():
    result = simulated(trace((0, 60, 4, "a"), (0, 60, 1, "a")), get_admission("quota", gpus=3))
    assert result.jobs["not_admitted"][0] == "it asks for 4 GPUs and the quota of tenant 'a' is 3 GPUs"
    assert result.jobs["finish"].notna().tolist() == [False, True]


@pytest.mark.parametrize("seed", range(5))
def test_no_tenant_ever_has_more_in_the_cluster_than_its_quota(seed):
    draw = np.random.default_rng(seed)
    jobs = trace(
        *((draw.uniform(0, 900), draw.uniform(30, 600), int(draw.integers(1, 4)), "ab"[i % 2]) for i in range(20))
    )

    class Watched(type(get_admission("quota"))):
        def decide(self, submitted, space):
            admit, reject = super().decide(submitted, space)
            inside = np.concatenate([space.index, admit])
            table = space.catalog.table
            used = np.bincount(table.tenant[inside], weights=table.num_gpus[inside], minlength=2)
            count = np.bincount(table.tenant[inside], minlength=2)
            assert (used <= [3, 4]).all()
            assert (count <= 2).all()
            return admit, reject

    assert simulated(jobs, Watched(gpus={"a": 3, "b": 4}, jobs=2)).summary()["finished"] == 20


def test_an_admission_that_never_lets_a_job_in_is_an_error_and_not_an_endless_simulation():
    class Closed:
        def decide(self, submitted, space):
            space.ledger.explain(submitted, "closed for the night")
            return submitted[:0], submitted[:0]

    with pytest.raises(InputError, match=r"job 'j0' and 1 others wait for admission .*closed for the night"):
        simulated(trace((0, 60, 1, "a"), (0, 60, 1, "a")), Closed())


def test_an_admission_may_look_at_the_time():
    class FromNineOn:
        def decide(self, submitted, space):
            return (submitted, submitted[:0]) if space.now >= 9 * HOUR else (submitted[:0], submitted[:0])

    result = simulated(trace((0, 60, 1, "a")), FromNineOn())
    assert result.jobs["start"][0] == 9 * HOUR


def test_jobs_that_wait_when_a_simulation_is_cut_short_say_so():
    result = simulated(
        trace((0, 6000, 4, "a"), (0, 60, 4, "a")), get_admission("load_threshold", multiple=0.5), max_rounds=3
    )
    assert not result.jobs["rejected"].any()
    assert result.jobs["not_admitted"][1] == "GPUs asked for by the jobs that are in exceed 2 GPUs"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda rows: rows, "must give two arrays"),
        (lambda rows: (rows, rows), "must give two arrays"),
        (lambda rows: (rows + 7, rows[:0]), "must give two arrays"),
        (lambda rows: None, "gave None"),
        (lambda rows: 1 / 0, "raised ZeroDivisionError"),
    ],
)
def test_a_wrong_answer_names_the_admission(answer, said):
    class Mine:
        def decide(self, submitted, space):
            return answer(submitted)

    with pytest.raises(InputError, match=f"admission Mine: .*{said}"):
        simulated(trace((0, 60, 1, "a")), Mine())


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("load_threshold", {"multiple": 0}, "multiple is 0, must be a finite number > 0"),
        ("load_threshold", {"multiple": float("nan")}, "multiple is nan"),
        ("load_threshold", {"measure": "cpus"}, "measure is 'cpus'"),
        ("load_threshold", {"otherwise": "defer"}, "otherwise is 'defer'"),
        ("load_threshold", {"multipel": 2.0}, "unknown option 'multipel': did you mean 'multiple'"),
        ("quota", {"gpus": {"a": -1}}, "gpus of tenant 'a' is -1, must be a number >= 0"),
        ("quota", {"jobs": True}, "jobs is True"),
        ("deadline_feasible", {"time_limit": -1.0}, "time_limit is -1.0"),
        ("deadline_feasible", {"solver": "higs"}, "did you mean 'highs'"),
        ("elasticflow", {"otherwise": 1}, "otherwise is 1"),
    ],
)
def test_bad_options_are_named(name, options, said):
    with pytest.raises(InputError, match=said):
        get_admission(name, **options)


def test_bad_admissions_are_named():
    with pytest.raises(UnknownNameError, match="did you mean 'quota'"):
        get_admission("quotas")
    with pytest.raises(InputError, match="admission is 3"):
        get_admission(3)
    with pytest.raises(InputError, match="takes no options"):
        get_admission(AcceptAll(), multiple=2)
    with pytest.raises(InputError, match="quota: gpus: unknown tenant 'visoin': did you mean 'vision'"):
        simulated(trace((0, 60, 1, "vision")), get_admission("quota", gpus={"visoin": 1}))


def test_where_tenants_come_and_go_a_quota_of_one_without_jobs_limits_nobody_else():
    """The jobs that a live cluster has at present are an open table; with a trace the same quota is a slip."""
    given = trace((0, 60, 2, "a"), (0, 60, 2, "a"))
    quota = get_admission("quota", gpus={"absent": 1, "a": 2}, otherwise="reject")
    with pytest.raises(InputError, match="unknown tenant 'absent'"):
        simulated(given, quota)
    opened = replace(given, jobs=replace(given.jobs, is_open=True))
    assert simulated(opened, quota).jobs["rejected"].tolist() == [False, True]


def test_experiments_name_the_admission_and_its_options():
    document = {
        "generate": {"num_jobs": 12, "jobs_per_hour": 60, "durations": 600.0, "gpu_counts": 2, "seed": 3},
        "cluster": {"nodes": "4xV100"},
        "policy": {"name": "fifo"},
        "admission": {"name": "load_threshold", "options": {"multiple": 0.4, "otherwise": "reject"}},
    }
    result = run_experiment(make_experiment(document))
    assert result.summary()["rejected"] > 0
    assert result.config["admission"] == "load_threshold"
    for options, said in [
        ({"multiple": -1}, r"admission\.name: load_threshold: multiple is -1"),
        ({"multipel": 1}, r"admission\.options\.multipel: admission 'load_threshold': unknown option"),
    ]:
        document["admission"]["options"] = options
        with pytest.raises(InputError, match=said):
            run_experiment(make_experiment(document))
    with pytest.raises(InputError, match=r"admission\.name: unknown admission 'lod'"):
        make_experiment({"admission": "lod"})


def test_a_comparison_varies_the_admission(tmp_path):
    from bloxopt.experiments.comparison import compare

    document = {
        "generate": {"num_jobs": 8, "jobs_per_hour": 60, "durations": 600.0, "gpu_counts": 2, "seed": 3},
        "cluster": {"nodes": "4xV100"},
        "policy": {"name": "fifo"},
        "compare": {"admissions": ["accept_all", "load_threshold"]},
    }
    outcomes = compare(make_experiment(document), tmp_path, processes=1)
    assert [outcome.run.values["admission"] for outcome in outcomes] == ["accept_all", "load_threshold"]
    assert all(outcome.status == "finished" for outcome in outcomes)


def test_placement_options_reach_the_placement_and_wrong_ones_are_named():
    document = {
        "generate": {"num_jobs": 6, "jobs_per_hour": 60, "durations": 600.0, "gpu_counts": 2, "seed": 3},
        "cluster": {"nodes": "2x4xV100"},
        "policy": {"name": "fifo"},
        "simulation": {"placement": "tiresias_skew", "placement_options": {"skewed": ["gen*"]}},
    }
    result = run_experiment(make_experiment(document))
    assert result.config["options"]["placement_options"] == {"skewed": ["gen*"]}
    document["simulation"]["placement_options"] = {"skwed": ["gen*"]}
    with pytest.raises(InputError, match=r"simulation\.placement_options\.skwed: .*did you mean 'skewed'"):
        run_experiment(make_experiment(document))
    document["simulation"] = {"placement": "first_fit", "placement_options": {"x": 1}}
    with pytest.raises(InputError, match="unknown option 'x'"):
        run_experiment(make_experiment(document))
