"""Preset ``blox``: every start, finish and preemption of Blox' simulator, to the second."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import bloxopt as bx
from tests.simulation.blox_replica import run

REFERENCE = Path(__file__).parents[1] / "reference" / "blox"


@pytest.mark.parametrize(
    ("trace", "case", "cluster", "policy"),
    [
        ("blox-c16-fifo-8", "c16_Fifo_8", "16x4xV100", "fifo"),
        ("blox-mx-fifo-4", "mx_Fifo_4", "32x4xV100", "fifo"),
        ("blox-mx-las-8", "mx_Las_8", "32x4xV100", "las"),
    ],
)
def test_every_finish_time_equals_the_published_simulators(trace: str, case: str, cluster: str, policy: str) -> None:
    jobs = bx.simulate(trace, cluster, policy, preset="blox").jobs.set_index("job_id")
    finishes = json.loads((REFERENCE / f"{case}_jct.json").read_text())
    responses = json.loads((REFERENCE / f"{case}_resp.json").read_text())
    assert len(finishes) == 301
    assert {job: [row.arrival, row.finish] for job, row in jobs.loc[list(finishes)].iterrows()} == finishes
    # Blox notes its response at the first progress step after the launch, one round later.
    assert {job: [row.arrival, row.start + 300] for job, row in jobs.loc[list(responses)].iterrows()} == responses


def test_las_preempts_as_often_as_the_published_simulator() -> None:
    result = bx.simulate("blox-mx-las-8", "32x4xV100", "las", preset="blox")
    assert result.summary()["preemptions"] == 6090


@pytest.mark.parametrize("policy", ["fifo", "las", "srtf"])
@pytest.mark.parametrize("seed", range(6))
def test_equals_a_plain_replica_on_random_workloads(policy: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    count = 80
    arrival = np.cumsum(np.ceil(random.exponential(900, count))).astype(int)
    # Whole rounds of work among the durations, so that a finish exactly at a boundary is covered.
    work = np.where(random.random(count) < 0.3, 300 * random.integers(1, 40, count), random.lognormal(8, 1.2, count))
    gpus = random.choice([1, 2, 3, 4, 8], count, p=[0.5, 0.2, 0.1, 0.1, 0.1])
    expected = run(list(zip(arrival.tolist(), work.tolist(), gpus.tolist(), strict=True)), 4, 4, policy)
    trace = bx.Trace.from_jobs(
        bx.Job(job_id=str(i), arrival=float(a), duration=float(w), num_gpus=int(g))
        for i, (a, w, g) in enumerate(zip(arrival, work, gpus, strict=True))
    )
    jobs = bx.simulate(trace, "4x4xV100", policy, preset="blox").jobs
    assert jobs["finish"].tolist() == [job.finish for job in expected]
    assert jobs["start"].tolist() == [job.start for job in expected]
    assert jobs["preemptions"].tolist() == [job.preemptions for job in expected]


def test_a_job_starved_for_a_thousand_hours_moves_to_the_front_for_good() -> None:
    # All jobs need the whole node; shortest remaining first would never let the long one in.
    short = [bx.Job(job_id=f"short-{i}", arrival=float(i * 300_000), duration=300_000.0, num_gpus=4) for i in range(20)]
    long = bx.Job(job_id="long", arrival=0.0, duration=3_500_000.0, num_gpus=4)
    jobs = bx.simulate(bx.Trace.from_jobs([*short, long]), "4xV100", "srtf", preset="blox").jobs.set_index("job_id")
    assert jobs.loc["long", "start"] == 3_600_000
    assert jobs.loc["long", "preemptions"] == 0


def test_an_evicted_job_counts_as_unscheduled_from_the_round_after_its_eviction() -> None:
    # The first job runs one round and is evicted by an endless row of shorter ones.
    first = bx.Job(job_id="first", arrival=0.0, duration=400_000.0)
    short = [bx.Job(job_id=f"short-{i}", arrival=300.0 + 300_000.0 * i, duration=300_000.0) for i in range(13)]
    jobs = bx.simulate(bx.Trace.from_jobs([first, *short]), "1xV100", "srtf", preset="blox").jobs.set_index("job_id")
    # Evicted at 300 s; 1,000 hours later, and one round, it is promoted and runs to its end.
    assert jobs.loc["first", "finish"] == 300 + 3_600_000 + 300 + 399_900


def test_a_gang_that_the_scattered_search_can_never_serve_is_reported_not_waited_for_forever() -> None:
    trace = bx.Trace.from_jobs([bx.Job(job_id="six", duration=100.0, num_gpus=6)])
    with pytest.raises(bx.BloxoptError, match=r"'six' \(6 GPUs\).*can never start.*first_fit"):
        bx.simulate(trace, "2x4xV100", "fifo", preset="blox")


def test_policies_without_a_ranking_are_refused() -> None:
    with pytest.raises(bx.BloxoptError, match="ranking"):
        bx.simulate("blox-mx-fifo-4", "32x4xV100", "max_min_fairness", preset="blox")
