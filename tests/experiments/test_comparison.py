"""A comparison runs every combination, alike in one process and in several, and goes on after failures."""

from __future__ import annotations

import json
import os

import pandas as pd
import pytest

from bloxopt.errors import ConfigError, ResultError
from bloxopt.experiments import compare, load_result, make_experiment, plan_runs
from bloxopt.experiments import comparison as comparison_module
from bloxopt.experiments.comparison import averaged_table, comparison_table, results_of_rows

TIMINGS = ["solve_seconds", "build_seconds", "wall_seconds"]

SMALL = {
    "generate": {"num_jobs": 8, "jobs_per_hour": 6, "durations": 1800, "gpu_counts": {"1": 0.7, "2": 0.3}},
    "cluster": "2x2xV100",
    "compare": {"policies": ["fifo", "max_min_fairness"], "seeds": [0, 1]},
}


def test_every_combination_is_a_run_with_the_values_it_stands_for():
    document = {
        "trace": "gavel-15",
        "compare": {
            "policies": ["fifo", "las"],
            "solvers": ["highs", "ortools:glop"],
            "seeds": [0, 1, 2],
            "loads": [1, 2],
        },
    }
    runs = plan_runs(make_experiment(document))
    assert len(runs) == len({run.name for run in runs}) == 24
    last = runs[-1]
    assert last.name == "load-2.0__las__ortools-glop__seed-2"
    assert last.values == {"load": 2.0, "policy": "las", "solver": "ortools:glop", "seed": 2}
    assert last.experiment.trace.load == 2.0
    assert last.experiment.solver.name == "ortools:glop"
    assert last.experiment.simulation.seed == 2


def test_each_trace_brings_its_own_cluster():
    runs = plan_runs(make_experiment({"compare": {"traces": ["gavel-15", "tiresias-60"]}}))
    assert [run.experiment.cluster.nodes for run in runs] == ["8xV100+16xP100+24xK80", "4x4xP100"]


def test_only_a_trace_can_be_loaded_more():
    with pytest.raises(ConfigError, match=r"compare.loads: only a \[trace\] can be scaled"):
        plan_runs(make_experiment({**SMALL, "compare": {"loads": [1, 2]}}))


def test_parallel_and_serial_comparisons_agree(tmp_path):
    experiment = make_experiment(SMALL)
    serial = compare(experiment, tmp_path / "serial", processes=1)
    parallel = compare(experiment, tmp_path / "parallel", processes=2)
    assert [outcome.status for outcome in serial + parallel] == ["finished"] * 8
    tables = [comparison_table(outcomes).drop(columns=TIMINGS) for outcomes in (serial, parallel)]
    pd.testing.assert_frame_equal(*tables)
    for outcome in serial:
        first, second = (load_result(tmp_path / kind / outcome.run.name) for kind in ("serial", "parallel"))
        pd.testing.assert_frame_equal(first.jobs, second.jobs)
    written = pd.read_csv(tmp_path / "parallel" / "comparison.csv", keep_default_na=False)
    assert list(written["run"]) == [outcome.run.name for outcome in serial]
    document = json.loads((tmp_path / "parallel" / "comparison.json").read_text())
    assert [row["policy"] for row in document["averages"]] == ["fifo", "max_min_fairness"]


def test_averages_are_means_and_sample_deviations_over_seeds(tmp_path):
    outcomes = compare(make_experiment({**SMALL, "compare": {"policies": ["fifo"], "seeds": [0, 1]}}), tmp_path / "c")
    (row,) = averaged_table(outcomes).to_dict(orient="records")
    values = pd.Series([outcome.summary["average_jct"] for outcome in outcomes])
    assert row["runs"] == 2
    assert row["failed"] == 0
    assert row["average_jct"] == pytest.approx(values.mean())
    assert row["average_jct_std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)


def test_a_failing_run_is_an_outcome_and_the_others_are_kept(tmp_path):
    # Jobs of two GPUs fit on one cluster only.
    document = {**SMALL, "compare": {"clusters": ["1x1xV100", "2x2xV100"], "policies": ["fifo"]}}
    outcomes = compare(make_experiment(document), tmp_path / "c", processes=1)
    assert [outcome.status for outcome in outcomes] == ["failed", "finished"]
    assert "needs 2 GPUs" in outcomes[0].message
    assert not (tmp_path / "c" / outcomes[0].run.name).exists()
    table = pd.read_csv(tmp_path / "c" / "comparison.csv", keep_default_na=False)
    assert list(table["status"]) == ["failed", "finished"]
    rows = json.loads((tmp_path / "c" / "comparison.json").read_text())["runs"]
    assert list(results_of_rows(rows, tmp_path / "c")) == ["2x2xV100"]


def test_a_bug_in_one_policy_does_not_cost_the_other_runs(tmp_path, monkeypatch):
    real = comparison_module.run_and_save

    def sometimes(experiment, folder, **options):
        if experiment.policy.name == "fifo":
            raise ZeroDivisionError("oops")
        return real(experiment, folder, **options)

    monkeypatch.setattr(comparison_module, "run_and_save", sometimes)
    outcomes = compare(make_experiment(SMALL), tmp_path / "c", processes=1)
    assert [outcome.status for outcome in outcomes] == ["failed", "failed", "finished", "finished"]
    assert outcomes[0].message == "ZeroDivisionError: oops"


def _die_under_fifo(run, folder):
    if run.values["policy"] == "fifo":
        os._exit(9)
    return comparison_module._run_one(run, folder)


def test_a_worker_that_dies_fails_its_own_run_only(tmp_path, monkeypatch):
    experiment = make_experiment({**SMALL, "compare": {"policies": ["fifo", "max_min_fairness"]}})
    runs = plan_runs(experiment)
    monkeypatch.setattr(comparison_module, "_run_one", _die_under_fifo)
    (tmp_path / "c").mkdir()
    outcomes = {outcome.run.name: outcome for outcome in comparison_module._in_parallel(runs, tmp_path / "c", 2)}
    assert outcomes[runs[0].name].status == "failed"
    assert "its process died" in outcomes[runs[0].name].message
    assert outcomes[runs[1].name].status == "finished"


def test_resuming_runs_only_what_is_missing(tmp_path, monkeypatch):
    compare(make_experiment(SMALL), tmp_path / "c", processes=1)
    ran = []
    real = comparison_module._run_one
    monkeypatch.setattr(comparison_module, "_run_one", lambda run, folder: ran.append(run.name) or real(run, folder))
    (tmp_path / "c" / "fifo__default__seed-1" / "summary.json").unlink()
    grown = {**SMALL, "compare": {"policies": ["fifo", "max_min_fairness"], "seeds": [0, 1, 2]}}
    outcomes = compare(make_experiment(grown), tmp_path / "c", processes=1, resume=True)
    assert sorted(ran) == ["fifo__default__seed-1", "fifo__default__seed-2", "max_min_fairness__default__seed-2"]
    assert [outcome.status for outcome in outcomes].count("resumed") == 3
    assert all(outcome.summary["jobs"] == 8 for outcome in outcomes)


def test_resuming_another_configuration_is_refused_by_key(tmp_path):
    compare(make_experiment(SMALL), tmp_path / "c", processes=1)
    changed = make_experiment({**SMALL, "simulation": {"round_seconds": 60}})
    with pytest.raises(ResultError, match=r"cannot resume: .*simulation.round_seconds is unset there and 60.0 here"):
        compare(changed, tmp_path / "c", resume=True)
    outcomes = compare(changed, tmp_path / "c", processes=1, resume=True, overwrite=True)
    assert {outcome.status for outcome in outcomes} == {"finished"}


def test_another_comparison_is_not_overwritten_unasked(tmp_path):
    small = make_experiment({**SMALL, "compare": {"policies": ["fifo"]}})
    compare(small, tmp_path / "c", processes=1)
    with pytest.raises(ResultError, match=r"c: holds another comparison: go on with it \(--resume\)"):
        compare(small, tmp_path / "c")
    assert [outcome.status for outcome in compare(small, tmp_path / "c", processes=1, overwrite=True)] == ["finished"]


def test_outcomes_are_reported_as_they_come(tmp_path):
    seen = []
    compare(
        make_experiment(SMALL),
        tmp_path / "c",
        processes=1,
        on_outcome=lambda outcome, total: seen.append(
            (outcome.run.name, total, len(pd.read_csv(tmp_path / "c" / "comparison.csv")))
        ),
    )
    assert [rows for *_, rows in seen] == [1, 2, 3, 4]
    assert {total for _, total, _ in seen} == {4}
