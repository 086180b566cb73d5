"""Preset ``synergy`` gives the finish time of every job of Synergy's simulator, and its published averages."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from bloxopt.formulations.policies import get_policy
from bloxopt.hosts.tuned import Tuned
from bloxopt.jobs import Job
from bloxopt.reproduction.synergy import RUNS
from bloxopt.workloads.shipped import data_path
from bloxopt.workloads.trace import Trace
from tests.hosts import synergy_replica as replica
from tests.hosts.servers import MODELS, PROFILES, running, servers, simulate

POLICIES = {
    "fifo": ("fifo", {}),
    "las": ("las", {"gpu_weighted": True}),
    "srtf": ("srtf", {}),
    "finish_time": ("finish_time_order", {"largest_first": False}),
}


def _policy(order: str):
    name, options = POLICIES[order]
    return get_policy(name, backfill=True, **options)


def _published_jobs() -> list[dict]:
    rows = csv.reader(data_path("synergy/static_100jobs.csv").read_text().splitlines())
    jobs = []
    for name, model, arrival, iterations, gpus in rows:
        profile = PROFILES[f"{model}_{gpus}"]
        demand = (profile["cpus_per_gpu"], profile["memory_gib_per_gpu"])
        jobs.append(replica.job(name, float(arrival), int(iterations), int(gpus), profile, demand))
    return jobs


@pytest.mark.parametrize("allocation", ["proportional", "tuned"])
@pytest.mark.parametrize("order", POLICIES)
def test_every_job_of_the_published_trace_finishes_when_it_does_in_synergys_simulator(order, allocation) -> None:
    expected = replica.simulate(_published_jobs(), order, allocation == "tuned")
    chosen = "proportional" if allocation == "proportional" else None
    result = simulate("synergy-100", _policy(order), host_allocation=chosen)
    finish = dict(zip(result.jobs["job_id"], result.jobs["finish"], strict=True))
    assert finish == pytest.approx(expected, abs=1e-6)
    [run] = [run for run in RUNS if run.policy == f"{POLICIES[order][0]}, {allocation}"]
    assert result.summary()["average_jct"] / 3600 == pytest.approx(run.figures[0].reference, rel=2e-4)


def _random_jobs(seed: int) -> tuple[Trace, list[dict]]:
    """Gangs of 1, 2 and 4 GPUs that arrive over two hours."""
    random = np.random.default_rng(seed)
    jobs, plain = [], []
    arrival = 0.0
    for i in range(30):
        model, gpus = str(random.choice(MODELS)), int(random.choice([1, 2, 4], p=[0.5, 0.25, 0.25]))
        arrival += float(random.integers(0, 400))
        profile = PROFILES[f"{model}_{gpus}"]
        iterations = int(random.integers(300, 9000) / profile["iteration_seconds"])
        _, rates = running([(model, gpus)], servers(1))
        speedup = {**profile, "speedup": rates.best[0]}
        plain.append(replica.job(str(i), arrival, iterations, gpus, speedup, rates.demand(0, gpus, 0)))
        jobs.append(
            Job(
                job_id=str(i),
                arrival=arrival,
                job_type=model,
                total_steps=iterations,
                duration=iterations * profile["iteration_seconds"],
                num_gpus=gpus,
            )
        )
    return Trace.from_jobs(jobs), plain


@pytest.mark.parametrize("consolidate", [False, True])
@pytest.mark.parametrize("order", POLICIES)
def test_gangs_finish_when_they_do_in_synergys_simulator(order, consolidate) -> None:
    for seed in range(2):
        trace, plain = _random_jobs(seed)
        expected = replica.simulate(plain, order, True, servers=2, consolidate=consolidate)
        tuned = Tuned(repack=True, consolidate=consolidate, largest_first=order == "las")
        result = simulate(trace, _policy(order), host_allocation=tuned, cluster=servers(2))
        finish = dict(zip(result.jobs["job_id"], result.jobs["finish"], strict=True))
        assert finish == pytest.approx(expected, abs=1e-6)
