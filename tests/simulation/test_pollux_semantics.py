"""Preset ``pollux``: every finish and restart of Pollux' simulator at fixed batch sizes, to the second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bloxopt as bx
from bloxopt.errors import ConfigError, ThroughputError
from bloxopt.formulations.policies import get_policy
from bloxopt.formulations.space import ConfigurationCatalog
from bloxopt.jobs import FloatArray, IntArray, JobTable
from bloxopt.phases import Phases
from bloxopt.workloads.shipped import data_path
from tests.simulation import pollux_replica as replica

APPS = ("bert", "cifar10", "deepspeech2", "ncf")
"""Those that do not run for days."""


def workload(path: Path, seed: int, count: int) -> list[replica.Job]:
    """A random workload, written for our reader and as jobs of the replica."""
    random = np.random.default_rng(seed)
    arrival = np.sort(random.integers(1, 3600, count)).tolist()
    jobs, lines = [], ["name,time,application,num_replicas,batch_size"]
    for number, at in enumerate(arrival):
        name = str(random.choice(APPS, p=[0.1, 0.4, 0.1, 0.4]))
        app = replica.App(data_path("pollux/profiles") / name)
        batch = int(random.choice(app.sizes[-3:]))
        gpus = 1 if name == "ncf" else int(random.integers(1, 1 + min(12, batch // app.min_local)))
        jobs.append(replica.Job(f"job-{number}", app, at, gpus, batch))
        lines.append(f"job-{number},{at},{name},{gpus},{batch}")
    path.write_text("\n".join(lines) + "\n")
    return jobs


@pytest.mark.parametrize("seed", range(2))
def test_tiresias_equals_a_plain_replica_on_random_workloads(tmp_path: Path, seed: int) -> None:
    expected = workload(tmp_path / "w.csv", seed, 14)
    replica.run(expected, replica.Tiresias(limit=3600.0), nodes=3)
    policy = get_policy("tiresias", limits=[3600.0], within_queue="joined")
    trace = bx.load_trace(tmp_path / "w.csv", format="pollux-epochs")
    jobs = bx.simulate(trace, "3x4xT4", policy, preset="pollux").jobs
    assert jobs["finish"].tolist() == [job.finish for job in expected]
    assert jobs["restarts"].tolist() == [job.restarts for job in expected]
    assert jobs["restarts"].sum() > 0


@pytest.mark.parametrize("seed", range(2))
def test_optimus_equals_a_plain_replica_on_random_workloads(tmp_path: Path, seed: int) -> None:
    expected = workload(tmp_path / "w.csv", 10 + seed, 14)
    replica.run(expected, replica.Optimus(), nodes=2)
    trace = bx.load_trace(tmp_path / "w.csv", format="pollux-elastic")
    jobs = bx.simulate(trace, "2x4xT4", get_policy("optimus", estimate="as_measured"), preset="pollux").jobs
    assert jobs["finish"].tolist() == [job.finish for job in expected]
    assert jobs["restarts"].tolist() == [job.restarts for job in expected]
    assert jobs["restarts"].sum() > 14


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trace", "policy", "plain"),
    [
        ("pollux-6-epochs", ("tiresias", {"limits": [57600.0], "within_queue": "joined"}), replica.Tiresias(57600.0)),
        ("pollux-6-elastic", ("optimus", {"estimate": "as_measured"}), replica.Optimus()),
    ],
)
def test_every_job_of_workload_6_equals_the_plain_replica(trace: str, policy: tuple, plain: object) -> None:
    rows = pd.read_csv(data_path("pollux/workloads/workload-6.csv")).itertuples(index=False)
    apps = {folder.name: replica.App(folder) for folder in data_path("pollux/profiles").iterdir()}
    expected = [replica.Job(r.name, apps[r.application], r.time, r.num_replicas, r.batch_size) for r in rows]
    replica.run(expected, plain, nodes=16)
    jobs = bx.simulate(trace, "16x4xT4", get_policy(policy[0], **policy[1]), preset="pollux").jobs
    assert jobs["finish"].tolist() == [job.finish for job in expected]
    assert jobs["restarts"].tolist() == [job.restarts for job in expected]


class Epochs:
    """An oracle of jobs with the same epochs and a rate of 1 step/s a GPU, less on more nodes than one."""

    def __init__(self, ends: Sequence[float], apart: float = 1.0) -> None:
        self.ends, self.apart = list(ends), apart

    def phases(self, jobs: JobTable) -> Phases:
        return Phases(np.arange(len(jobs) + 1) * len(self.ends), np.tile(self.ends, len(jobs)))

    def rates(self, jobs: JobTable, gpu_types: Sequence[str], num_gpus: IntArray) -> FloatArray:
        return np.repeat(num_gpus[:, None].astype(float), len(gpu_types), axis=1)

    def rates_on(self, jobs: JobTable, gpu_type: str, counts: Sequence[tuple[int, ...]]) -> FloatArray:
        return np.array([sum(on) * (self.apart if len(on) > 1 else 1.0) for on in counts])


def test_an_epoch_takes_a_whole_number_of_seconds_wherever_rounds_end() -> None:
    lengths = [10.4, 10.6, 200.3, 0.2, 77.7, 0.3]
    ends = np.cumsum(lengths).tolist()
    trace = bx.Trace.from_jobs([bx.Job(job_id="a", total_steps=ends[-1], arrival=7.0)], Epochs(ends))
    job = bx.simulate(trace, "1x4xT4", "fifo", preset="pollux").jobs.iloc[0]
    assert job.start == 60.0
    assert job.finish == 60.0 + 30.0 + 10 + 11 + 200 + 0 + 78 + 0


def test_without_phases_the_whole_job_takes_whole_seconds() -> None:
    trace = bx.Trace.from_jobs([bx.Job(job_id="a", duration=100.6)])
    job = bx.simulate(trace, "1x4xT4", "fifo", preset="pollux").jobs.iloc[0]
    assert job.finish == 60.0 + 30.0 + 101.0


def test_every_start_stalls_and_progress_is_kept() -> None:
    jobs = [
        bx.Job(job_id="a", total_steps=1001.0, num_gpus=4, min_gpus=1, max_gpus=4),
        bx.Job(job_id="b", total_steps=60.0, arrival=100.0, num_gpus=2, min_gpus=1, max_gpus=2),
    ]
    result = bx.simulate(bx.Trace.from_jobs(jobs, Epochs([1001.0])), "1x4xT4", "optimus", preset="pollux").jobs
    # a has 4 GPUs from 60 s: 30 s of work, 120 steps. From 120 s it has 3 and b, which is short, has 1: both start, so
    # b ends at 120 + 30 + 60 = 210 s and a has done 120 + 30 * 3 + 60 * 3 = 390 steps at 240 s, when it starts on 4.
    assert result["finish"].tolist() == [240 + 30 + 153, 210]  # 611 steps at 4 a second are 152.75 s
    assert result["restarts"].tolist() == [2, 0]
    assert result["start"].tolist() == [60, 120]


def test_a_gang_runs_at_the_rate_of_the_nodes_that_it_has() -> None:
    # Two gangs of three on nodes of four: the second gets a node's last GPU and two of the other.
    jobs = [bx.Job(job_id=name, total_steps=300.0, num_gpus=3) for name in ("a", "b")]
    trace = bx.Trace.from_jobs(jobs, Epochs([300.0], apart=0.5))
    spread = bx.simulate(trace, "2x4xT4", "fifo", preset="pollux", placement="first_fit").jobs
    assert spread["finish"].tolist() == [60 + 30 + 100, 60 + 30 + 200]
    packed = bx.simulate(trace, "2x4xT4", "fifo", preset="pollux").jobs
    assert packed["finish"].tolist() == [60 + 30 + 100, 60 + 30 + 100]


def test_a_slowdown_that_is_given_takes_the_place_of_measured_placements() -> None:
    jobs = [bx.Job(job_id=name, total_steps=300.0, num_gpus=3) for name in ("a", "b")]
    trace = bx.Trace.from_jobs(jobs, Epochs([300.0], apart=0.5))
    run = bx.simulate(trace, "2x4xT4", "fifo", preset="pollux", placement="first_fit", slowdown=lambda nodes, gpus: 0.8)
    assert run.jobs["finish"].tolist() == [60 + 30 + 100, 60 + 30 + 125]


def test_a_placement_without_a_rate_is_named() -> None:
    class Broken(Epochs):
        def rates_on(self, jobs: JobTable, gpu_type: str, counts: Sequence[tuple[int, ...]]) -> FloatArray:
            return np.zeros(len(jobs)) if self.apart else np.zeros((len(jobs), 2))

    jobs = [bx.Job(job_id="wide", total_steps=300.0, num_gpus=6)]
    with pytest.raises(ThroughputError, match=r"job 'wide' on 4\+2 GPUs of T4 nodes runs at 0.0 steps/s"):
        bx.simulate(bx.Trace.from_jobs(jobs, Broken([300.0])), "2x4xT4", "fifo", preset="pollux")
    with pytest.raises(ThroughputError, match=r"gave shape \(1, 2\), must give one rate for each of 1 jobs"):
        bx.simulate(bx.Trace.from_jobs(jobs, Broken([300.0], apart=0.0)), "2x4xT4", "fifo", preset="pollux")


def test_elastic_jobs_have_every_gpu_count_up_to_the_option() -> None:
    jobs = JobTable.from_jobs([bx.Job(job_id="a", duration=1.0, num_gpus=20, min_gpus=1, max_gpus=40)])
    cluster = bx.load_cluster("16x4xT4")
    oracle = Epochs([1.0])
    some = ConfigurationCatalog(jobs, cluster, oracle)
    assert some.num_gpus.tolist() == [*range(1, 17), 20, 32, 40]
    every = ConfigurationCatalog(jobs, cluster, oracle, every_count_up_to=64)
    assert every.num_gpus.tolist() == list(range(1, 41))


@pytest.mark.parametrize(
    ("name", "value"), [("start_cost", -1.0), ("start_cost", float("inf")), ("every_gpu_count_up_to", 0)]
)
def test_options_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        bx.SimulationOptions(**{name: value})
