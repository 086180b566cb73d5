"""Running an experiment: the values reach the simulation, and running again gives the same numbers."""

from __future__ import annotations

import pandas as pd
import pytest

from bloxopt.errors import BloxoptError, ConfigError, ResultError
from bloxopt.experiments import compare, load_experiment, load_result, make_experiment, run_and_save, run_experiment
from bloxopt.experiments.store import load_config

TIMINGS = ["solve_seconds", "build_seconds", "decide_seconds"]

JOBS = """job_id,arrival,duration,num_gpus
a,0,3600,2
b,0,1800,1
c,600,900,4
"""


@pytest.fixture
def trace_file(tmp_path):
    file = tmp_path / "jobs.csv"
    file.write_text(JOBS)
    return str(file)


def _assert_same(first, second):
    pd.testing.assert_frame_equal(first.jobs, second.jobs)
    pd.testing.assert_frame_equal(first.rounds.drop(columns=TIMINGS), second.rounds.drop(columns=TIMINGS))
    pd.testing.assert_frame_equal(first.placements, second.placements)


@pytest.mark.parametrize(
    "document",
    [
        {"trace": "gavel-15", "policy": "max_min_fairness", "simulation": {"seed": 3}},
        {
            "generate": {"num_jobs": 20, "jobs_per_hour": 6, "durations": 1800, "gpu_counts": {"1": 0.7, "2": 0.3}},
            "cluster": "2x2xV100",
            "policy": "fifo",
            "simulation": {"seed": 5},
            "failures": {"mean_seconds_between_failures": 20_000, "mean_seconds_to_repair": 1000},
        },
    ],
    ids=["trace", "generated"],
)
def test_the_experiment_written_with_a_result_gives_the_same_result_again(document, tmp_path):
    first = run_and_save(make_experiment(document), tmp_path / "first")
    again = load_experiment(tmp_path / "first" / "experiment.toml")
    _assert_same(run_and_save(again, tmp_path / "second"), first)
    _assert_same(load_result(tmp_path / "second"), load_result(tmp_path / "first"))


def test_the_seed_draws_another_generated_trace():
    document = {"generate": {"num_jobs": 20, "jobs_per_hour": 6}, "cluster": "4x4xV100", "policy": "fifo"}
    arrivals = [
        tuple(run_experiment(make_experiment(document, {"simulation.seed": seed})).jobs["arrival"])
        for seed in (0, 0, 1)
    ]
    assert arrivals[0] == arrivals[1] != arrivals[2]


def test_values_of_the_file_reach_the_simulation(trace_file):
    document = {
        "trace": {"path": trace_file, "where": {"max_gpus": 2}, "restart_cost": 5.0},
        "cluster": "1x4xV100",
        "policy": "fifo",
        "simulation": {"preset": "default", "round_seconds": 100, "placement": "first_fit", "max_rounds": 7},
        "failures": {"outages": [{"node": "node-0", "start": 250.0}]},
    }
    result = run_experiment(make_experiment(document))
    assert set(result.jobs["job_id"]) == {"a", "b"}
    assert len(result.rounds) == 7
    assert result.config["options"]["round_seconds"] == 100
    assert result.config["options"]["placement"] == "first_fit"
    assert list(result.rounds["gpus_up"])[-1] == 0


def test_transformations_change_the_trace(trace_file):
    document = {
        "trace": {"path": trace_file, "start": 500, "gpu_demand": {"2": 1}},
        "cluster": "4xV100",
        "policy": "fifo",
    }
    jobs = run_experiment(make_experiment(document)).jobs
    assert list(zip(jobs["job_id"], jobs["arrival"], jobs["gpus"], strict=True)) == [("c", 100.0, 2)]


def test_the_folder_is_checked_before_the_work_is_done(trace_file, tmp_path):
    (tmp_path / "run").write_text("a file")
    calls = []
    with pytest.raises(ResultError, match="it is a file"):
        run_and_save(
            make_experiment({"trace": trace_file, "cluster": "4xV100", "policy": "fifo"}),
            tmp_path / "run",
            progress=calls.append,
        )
    assert calls == []


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"trace": {"path": "nowhere.csv"}, "cluster": "4xV100"}, r"nowhere.csv: cannot be read: No such file"),
        ({"trace": "gavel-15", "cluster": {"path": "nowhere.toml"}}, r"nowhere.toml"),
        ({"trace": "gavel-15", "cluster": "8xV100+"}, "8xV100"),
        ({"trace": "gavel-15", "cluster": "1xV100"}, r"needs \d GPUs"),
        ({"trace": "gavel-15", "cluster": "8xA100"}, "zero throughput"),
    ],
)
def test_input_that_cannot_be_used_is_refused_and_nothing_is_written(document, message, tmp_path):
    with pytest.raises(BloxoptError, match=message):
        run_and_save(make_experiment({**document, "policy": "fifo"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_option_that_a_policy_does_not_have_is_named():
    document = {"trace": "gavel-15", "policy": {"name": "fifo", "options": {"speed": 3}}}
    with pytest.raises(BloxoptError, match=r"policy 'fifo': .*'speed'"):
        run_experiment(make_experiment(document))


OWN_POLICIES = """
from bloxopt.formulations import MaxSum, NormalizedThroughput, Policy

throughput = Policy(objective=MaxSum(NormalizedThroughput()), name="own")
number = 3

def made(name):
    return Policy(objective=MaxSum(NormalizedThroughput()), name=name)

def leaves():
    raise SystemExit(3)

def raises():
    return 1 / 0
"""


@pytest.fixture
def policy_file(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN_POLICIES)
    return file


def test_a_policy_of_the_users_own_comes_from_a_python_file(policy_file, tmp_path):
    (tmp_path / "experiment.toml").write_text('trace = "gavel-15"\npolicy = "own.py:throughput"\n')
    experiment = load_experiment(tmp_path / "experiment.toml")
    assert run_and_save(experiment, tmp_path / "run").config["policy"] == "own"
    assert list(load_config(tmp_path / "run")["inputs"]) == [str(policy_file)]
    made = make_experiment({"trace": "gavel-15", "policy": {"name": f"{policy_file}:made", "options": {"name": "x"}}})
    assert run_experiment(made).config["policy"] == "x"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("own.py:nothing", {}, "own.py defines no 'nothing'"),
        ("own.py:number", {}, "is int: it must be a Policy or a function that makes one"),
        ("own.py:made", {}, "policy.options.name: policy .*: option 'name' is missing"),
        ("own.py:throughput", {"name": "x"}, "takes none"),
        ("other.py:fair", {}, "no such file"),
        ("own.py:leaves", {}, r"own.py:leaves' raised SystemExit: 3 \(.*own.py, line \d+\)"),
        ("own.py:raises", {}, r"own.py:raises' raised ZeroDivisionError: division by zero \(.*own.py, line \d+\)"),
        ("broken.py:fair", {}, "broken.py cannot be imported: it raised NameError.*broken.py, line 1"),
    ],
)
def test_a_policy_file_that_cannot_be_used_is_named(policy_file, name, options, message):
    (policy_file.parent / "broken.py").write_text("fair = undefined")
    document = {"trace": "gavel-15", "policy": {"name": str(policy_file.parent / name), "options": options}}
    with pytest.raises(ConfigError, match=message):
        run_experiment(make_experiment(document))


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            '[policy]\nname = "fifo"\noptions = {foo = 1}',
            "policy.options.foo: policy 'fifo': unknown option 'foo': known",
        ),
        (
            '[policy]\nname = "fifo"\noptions = {backfill = "x"}',
            "policy.options.backfill: .*'x', must be true or false",
        ),
        (
            '[policy]\nname = "las"\noptions = {gpu_weighted = 3}',
            "policy.options.gpu_weighted: .* must be true or false",
        ),
        ("[simulation]\nselector_options = {foo = 3}", "simulation.selector_options.foo: .*: known are type_order"),
        (
            '[failures]\noutages = [{node = "n", start = 1}]',
            "failures.outages: outage of unknown node 'n': the nodes are node",
        ),
        ('[cluster]\nnodes = "zz"', "cluster.nodes: cluster 'zz': cannot read 'zz'"),
    ],
)
def test_values_that_do_not_go_together_are_named_by_file_and_key_before_anything_runs(tmp_path, tables, message):
    file = tmp_path / "experiment.toml"
    file.write_text(f'trace = "gavel-15"\n{tables}\n[output]\nplots = false\n')
    for run in (
        lambda: run_experiment(load_experiment(file)),
        lambda: compare(load_experiment(file, {"compare.seeds": [1, 2]}), tmp_path / "out"),
    ):
        with pytest.raises(ConfigError, match=f"{file}: {message}"):
            run()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("start = 1e9", "trace.start: trace 'gavel-15': no job arrives"),
        ("where = {max_gpus = 1, job_type = 'x'}", "trace.where: trace 'gavel-15' has no job type 'x'"),
        ("gpu_demand = {3 = 1}", "trace.gpu_demand: trace 'gavel-15': the GPU demand cannot be met"),
        ("job_types = {FooNet = 1}", "trace.job_types: .*job type 'FooNet' is not in the throughput table"),
        ("restart_cost = 1e15", "trace.restart_cost: .* must be at most 1e"),
    ],
)
def test_a_change_of_a_trace_that_cannot_be_made_is_named_by_file_and_key(tmp_path, change, message):
    file = tmp_path / "experiment.toml"
    file.write_text(f'[trace]\nname = "gavel-15"\n{change}\n')
    with pytest.raises(ConfigError, match=f"{file}: {message}"):
        run_experiment(load_experiment(file))


def test_a_wrong_value_of_a_list_is_named_by_the_option_that_gave_it(tmp_path):
    labels = {"compare.clusters": "--clusters"}
    experiment = make_experiment({"trace": "gavel-15"}, {"compare.clusters": ["8xV100", "zz"]}, labels)
    with pytest.raises(ConfigError, match=r"^--clusters: cluster 'zz'"):
        compare(experiment, tmp_path / "out")
    assert not (tmp_path / "out").exists()
