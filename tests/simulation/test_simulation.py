"""What a simulation does by default: exact completion, restarts, failures, idle time, determinism."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import bloxopt as bx


def trace(*jobs: dict[str, Any]) -> bx.Trace:
    return bx.Trace.from_jobs(bx.Job(**{"job_id": f"job-{i}", **job}) for i, job in enumerate(jobs))


def by_id(result: bx.SimulationResult) -> pd.DataFrame:
    return result.jobs.set_index("job_id")


def test_a_job_alone_takes_its_duration_from_the_first_round_after_its_arrival() -> None:
    result = bx.simulate(trace({"duration": 1000.5, "arrival": 100.0}), "4xV100", "fifo")
    job = by_id(result).loc["job-0"]
    assert job["start"] == 360.0
    assert job["finish"] == pytest.approx(1360.5, abs=1e-6)
    assert job["jct"] == pytest.approx(1260.5, abs=1e-6)
    assert job["gpu_seconds"] == pytest.approx(1000.5, abs=1e-6)


def test_total_work_is_conserved_whatever_the_policy() -> None:
    workload = bx.load_trace("gavel-15")
    for policy in ("fifo", "las", "srtf", "max_min_fairness", "isolated", "min_makespan"):
        result = bx.simulate(workload, "4xV100+4xP100", policy)
        assert result.jobs["finish"].notna().all()
        ran = result.placements.groupby("job_id").apply(
            lambda spells: ((spells["end"] - spells["start"]) * spells["gpus"]).sum(), include_groups=False
        )
        gpu_seconds = result.jobs.set_index("job_id")["gpu_seconds"]
        # A spell may end early inside a round; it never is shorter than the work done in it.
        assert (ran[gpu_seconds.index] >= gpu_seconds - 1e-6).all()
        rate_bound = result.jobs["run_seconds"] > 0
        assert rate_bound.all()


def test_no_node_ever_holds_more_than_its_gpus() -> None:
    result = bx.simulate("gavel-100", "2x4xV100+4x4xP100+3x8xK80", "las")
    for node, spells in result.placements.groupby("node"):
        events = pd.concat(
            [
                pd.Series(spells["gpus"].to_numpy(), spells["start"]),
                pd.Series(-spells["gpus"].to_numpy(), spells["end"]),
            ]
        )
        # At equal times, what ends goes before what starts.
        events = events.reset_index().sort_values(["index", 0]).to_numpy()
        limit = 8 if int(str(node).split("-")[1]) >= 6 else 4
        assert events[:, 1].cumsum().max() <= limit


def test_a_restart_costs_its_seconds_without_progress() -> None:
    # The later, shorter job takes the node for its 700 s; the first one then pays 100 s to start again.
    jobs = [
        {"duration": 3600.0, "num_gpus": 4, "restart_cost": 100.0},
        {"duration": 700.0, "num_gpus": 4, "arrival": 350.0},
    ]
    result = by_id(bx.simulate(trace(*jobs), "4xV100", "srtf"))
    assert result.loc["job-1", "finish"] == pytest.approx(360 + 700)
    assert result.loc["job-0", "preemptions"] == result.loc["job-0", "restarts"] == 1
    # Two rounds were lost to the other job: GPUs are handed on at round ends.
    assert result.loc["job-0", "finish"] == pytest.approx(3600 + 3 * 360 + 100 - 360)
    free = by_id(bx.simulate(trace(*jobs), "4xV100", "srtf", options=bx.SimulationOptions(restart_cost=0.0)))
    assert free.loc["job-0", "finish"] == pytest.approx(result.loc["job-0", "finish"] - 100)


def test_restart_cost_longer_than_a_round_carries_over() -> None:
    jobs = [{"duration": 3600.0, "num_gpus": 4}, {"duration": 300.0, "num_gpus": 4, "arrival": 350.0}]
    options = bx.SimulationOptions(restart_cost=500.0)
    result = by_id(bx.simulate(trace(*jobs), "4xV100", "srtf", options=options))
    assert result.loc["job-0", "finish"] == pytest.approx(3600 + 360 + 500)


def test_a_failed_node_stops_its_jobs_at_once_and_comes_back_after_repair() -> None:
    outage = bx.Outage("node-0", start=500.0, end=1000.0)
    result = bx.simulate(trace({"duration": 1000.0, "restart_cost": 50.0}), "4xV100", "fifo", failures=[outage])
    job = by_id(result).loc["job-0"]
    spells = result.placements
    assert spells["end"].tolist()[0] == 500.0
    # Repaired at 1000 s, seen at the round that starts at 1080 s; 500 s of work and the restart are left.
    assert spells["start"].tolist()[1] == 1080.0
    assert job["finish"] == pytest.approx(1080 + 50 + 500)
    assert result.rounds["gpus_up"].min() == 0


def test_jobs_move_to_the_nodes_that_are_left() -> None:
    outage = bx.Outage("node-0", start=10.0)
    result = bx.simulate(trace({"duration": 1000.0, "num_gpus": 4}), "2x4xV100", "max_min_fairness", failures=[outage])
    assert result.placements["node"].tolist() == ["node-0", "node-1"]
    assert by_id(result)["finish"].notna().all()


def test_random_failures_depend_on_the_seed_alone() -> None:
    failures = bx.RandomFailures(mean_seconds_between_failures=20_000, mean_seconds_to_repair=3_000)
    results = [bx.simulate("gavel-15", "4x2xV100", "las", failures=failures, seed=seed).jobs for seed in (1, 1, 2)]
    pd.testing.assert_frame_equal(results[0], results[1])
    assert not results[0]["finish"].equals(results[2]["finish"])
    assert results[0]["finish"].notna().all()


def test_a_simulation_is_deterministic() -> None:
    first, second = (bx.simulate("gavel-15", "4xV100+4xK80", "max_min_fairness") for _ in range(2))
    pd.testing.assert_frame_equal(first.jobs, second.jobs)
    pd.testing.assert_frame_equal(first.placements, second.placements)


def test_idle_time_is_skipped_but_rounds_stay_on_their_grid() -> None:
    result = bx.simulate(trace({"duration": 10.0}, {"duration": 10.0, "arrival": 1e6}), "1xV100", "fifo")
    assert len(result.rounds) < 6
    assert by_id(result).loc["job-1", "start"] % 360 == 0
    assert by_id(result).loc["job-1", "start"] - 1e6 < 360


def test_elastic_jobs_use_more_gpus_when_there_are_some() -> None:
    jobs = [{"duration": 4000.0, "num_gpus": 1, "min_gpus": 1, "max_gpus": 4}]
    result = bx.simulate(trace(*jobs), "4xV100", "max_min_fairness")
    assert by_id(result).loc["job-0", "finish"] < 4000 * 0.5
    assert result.placements["gpus"].max() == 4


def test_cpu_and_memory_needs_limit_what_fits_on_a_node(tmp_path: Any) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text('[[node]]\ngpu_type = "V100"\nnum_gpus = 8\ncpus = 16\nmemory_gib = 100\n')
    jobs = [{"duration": 360.0, "cpus_per_gpu": 8.0} for _ in range(4)]
    result = bx.simulate(trace(*jobs), path, "fifo")
    assert result.rounds["running_jobs"].max() == 2
    hungry = trace({"duration": 360.0, "memory_gib_per_gpu": 200.0})
    with pytest.raises(
        bx.BloxoptError, match="1 V100 with 0 CPUs and 200 GiB of memory each; the nodes it may use have enough for 0"
    ):
        bx.simulate(hungry, path, "fifo")


def test_progress_is_reported_and_rounds_can_be_limited() -> None:
    updates: list[Any] = []
    result = bx.simulate("gavel-15", "8xV100", "fifo", max_rounds=5, progress=updates.append)
    assert [update.rounds for update in updates] == [1, 2, 3, 4, 5]
    assert len(result.rounds) == 5
    assert result.summary()["finished"] < 15


def test_finish_time_ratio_is_one_for_a_job_that_never_shares() -> None:
    result = bx.simulate(trace({"duration": 3600.0, "num_gpus": 4}), "4xV100", "fifo")
    assert result.jobs["finish_time_ratio"].tolist() == pytest.approx([1.0])


def test_the_simulation_of_a_trace_at_twice_the_speed_takes_half_as_long() -> None:
    workload = bx.load_trace("blox-mx-fifo-4")
    slow = bx.simulate(workload, "32x4xV100", "fifo", preset="blox").jobs["jct"].mean()
    fast = bx.simulate(workload, "64x4xV100", "fifo", preset="blox").jobs["jct"].mean()
    assert fast < slow


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "max_min_fairnes"}, "unknown policy 'max_min_fairnes': did you mean 'max_min_fairness'"),
        ({"solver": "higs"}, "unknown solver 'higs': did you mean 'highs'"),
        ({"preset": "gavl"}, "unknown preset 'gavl': did you mean 'gavel'"),
        ({"placement": "first-fit"}, "unknown placement 'first-fit': did you mean 'first_fit'"),
        ({"selector": "priority"}, "unknown selector 'priority': did you mean 'priorities'"),
        ({"round_seconds": 0}, "round_seconds is 0"),
        ({"round_seconds": float("nan")}, "round_seconds is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"cluster": "1xV100"}, "needs 2 GPUs of one type"),
        ({"cluster": "8xA100"}, "zero throughput|A100"),
        ({"failures": [bx.Outage("node-9", 1.0)]}, "unknown node 'node-9'"),
    ],
)
def test_bad_arguments_are_named_with_the_way_out(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(bx.BloxoptError, match=message):
        bx.simulate(**{"trace": "gavel-15", "cluster": "8xV100", **arguments})


def test_the_result_says_how_to_run_it_again() -> None:
    result = bx.simulate("gavel-15", "8xV100", "las", preset="gavel", round_seconds=120, seed=3)
    assert result.config["policy"] == "las"
    assert result.config["options"]["round_seconds"] == 120
    assert result.config["seed"] == 3
    summary = result.summary()
    assert summary["jobs"] == summary["finished"] == 15
    assert 0 < summary["utilisation"] <= 1
    assert np.isfinite(summary["average_jct"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trace": None}, "trace is a NoneType: it must be a Trace"),
        ({"trace": [bx.Job(job_id="a", duration=1.0)]}, "Trace.from_jobs"),
        ({"solver": 3}, "solver is 3"),
        ({"solver": []}, r"solver is \[\]"),
        ({"preset": 3}, "preset is 3"),
        ({"preset": ""}, "unknown preset ''"),
        ({"preset": "gavel", "options": bx.SimulationOptions()}, "both given"),
        ({"options": {}}, "options is {}"),
        ({"selector": 3}, "selector is 3"),
        ({"selector": object()}, "selector is <object"),
        ({"placement": 3}, "placement is 3"),
        ({"placement": []}, r"placement is \[\]"),
        ({"solver_options": {"time_limit": 3}}, "solver_options is"),
        ({"admission": 3}, "admission is 3"),
        ({"failures": 3}, "failures is 3"),
        ({"failures": [3]}, r"failures is \[3\]"),
        ({"max_rounds": 0}, "max_rounds is 0"),
        ({"max_rounds": 1.5}, "max_rounds is 1.5"),
        ({"max_rounds": True}, "max_rounds is True"),
        ({"progress": 3}, "progress is 3"),
        ({"round_seconds": 10**400}, "round_seconds is inf"),
        ({"round_seconds": 1e-9}, "rounds of 1e-09 s even at its fastest"),
        ({"failures": bx.RandomFailures(1e-9, 1e-9)}, "failures and repairs would fall into each round"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(bx.BloxoptError, match=message):
        bx.simulate(**{"trace": "gavel-15", "cluster": "8xV100", **arguments})


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    result = bx.simulate("gavel-15", "8xV100", "fifo", seed=np.int64(3), round_seconds=np.int64(60))
    assert result.config["seed"] == 3
    assert result.config["options"]["round_seconds"] == 60


def test_outages_that_touch_are_one_outage() -> None:
    workload = trace({"duration": 3600.0})
    apart = [bx.Outage("node-0", 500, 1000), bx.Outage("node-0", 1000, 9000)]
    touching = bx.simulate(workload, "1xV100", "fifo", failures=apart)
    whole = bx.simulate(workload, "1xV100", "fifo", failures=[bx.Outage("node-0", 500, 9000)])
    pd.testing.assert_frame_equal(touching.placements, whole.placements)


@pytest.mark.parametrize("policy", ["las", "max_min_fairness"])
def test_a_restart_cost_that_eats_every_round_ends_with_a_message(policy: str) -> None:
    workload = trace(*({"duration": 3600.0, "restart_cost": 400.0} for _ in range(2)))
    with pytest.raises(bx.BloxoptError, match=r"each restart costs more .* longer than the restart cost"):
        bx.simulate(workload, "1xV100", policy)


def test_a_long_restart_that_is_not_interrupted_is_waited_for() -> None:
    jobs = [{"duration": 3600.0, "num_gpus": 4}, {"duration": 300.0, "num_gpus": 4, "arrival": 350.0}]
    options = bx.SimulationOptions(restart_cost=1_000_000.0)
    assert by_id(bx.simulate(trace(*jobs), "4xV100", "srtf", options=options))["finish"].notna().all()


def test_a_job_that_can_never_start_is_reported_though_nodes_fail_and_come_back() -> None:
    workload = trace({"duration": 1000.0, "num_gpus": 3})
    failures = bx.RandomFailures(mean_seconds_between_failures=5000, mean_seconds_to_repair=800)
    with pytest.raises(bx.BloxoptError, match="can never start"):
        bx.simulate(workload, "2x4xV100", "fifo", placement="blox_consolidated", failures=failures)


def test_a_simulation_cut_short_keeps_the_spells_of_what_still_runs() -> None:
    result = bx.simulate(trace({"duration": 10_000.0}), "1xV100", "fifo", max_rounds=5)
    assert (result.placements["end"] - result.placements["start"]).tolist() == [1800.0]
    assert result.jobs["run_seconds"].tolist() == [1800.0]


def test_the_presets_solver_decides_where_auto_is_asked_for() -> None:
    asked = bx.simulate("gavel-15", "8xV100", "max_min_fairness", preset="gavel", solver="auto")
    assert asked.config["solver"] == "cvxpy:clarabel"


@pytest.mark.parametrize("selector", ["ranking", "priorities", "exact"])
def test_an_elastic_job_that_asks_for_more_than_there_is_runs_on_what_there_is(selector: str) -> None:
    workload = trace({"duration": 1000.0, "num_gpus": 3, "min_gpus": 2, "max_gpus": 6})
    result = bx.simulate(workload, "2xV100", "fifo", selector=selector)
    assert result.placements["gpus"].tolist() == [2]
    assert by_id(result).loc["job-0", "finish"] == pytest.approx(1500.0)
