"""A day in the life of a cluster, made short: 4 nodes of 8 simulated GPUs, 40 trainings in NumPy, preemptions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")

import bloxopt as bx
from bloxopt.runtime.people import People
from tests.runtime.training_loop import FEATURES, step

NODES = "4x8xA100"
ROUND_SECONDS = 10.0
STEP_SECONDS = 0.1
HEARTBEAT_SECONDS = 0.5
SCRIPT = Path(__file__).with_name("training_loop.py")
FINAL = {"succeeded", "failed", "cancelled", "rejected"}


@pytest.fixture
def people() -> Iterator[tuple[People, Path]]:
    """A cluster that bloxopt up started, and the folder that its jobs may work in."""
    folder = Path(tempfile.mkdtemp(prefix="bloxopt-day-", dir="/var/tmp"))
    command = [sys.executable, "-m", "bloxopt.cli", "up", "--simulate", NODES, "--folder", str(folder)]
    command += ["--policy", "las", "--round-seconds", str(ROUND_SECONDS), "--round-end", "fixed"]
    # Root's Python may be where no other account can go.
    command += ["--user", "root"] if os.geteuid() == 0 else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip().removeprefix("export BLOXOPT_SCHEDULER=")
        with People(address, (folder / "admin.token").read_text().strip()) as asked:
            yield asked, folder / "work"
    finally:
        process.terminate()
        process.communicate(timeout=120)
        shutil.rmtree(folder)


def _spec(work: Path, number: int, gpus: int, steps: int) -> dict[str, Any]:
    folder = work / f"job-{number}"
    folder.mkdir()
    return {
        "command": [sys.executable, str(work / SCRIPT.name), str(folder), str(steps), str(STEP_SECONDS), str(number)],
        "workdir": str(folder),
        "environment": {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"},
        "processes": "per_node",
        "num_gpus": gpus,
        "total_steps": steps,
        "duration": steps * STEP_SECONDS,
    }


def _wait(people: People, count: int, patience: float) -> list[dict[str, Any]]:
    """All jobs, the earliest first, when they are over."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        jobs = people.get("/v1/jobs", limit=1000)["jobs"]
        if len(jobs) == count and all(job["status"] in FINAL for job in jobs):
            return sorted(jobs, key=lambda job: job["submitted_at"])
        time.sleep(1.0)
    raise AssertionError(f"{[job for job in jobs if job['status'] not in FINAL]} were not over in {patience:g} s")


def _trained(seed: int, steps: int) -> np.ndarray:
    """The weights of a training that nothing interrupts."""
    weights = np.zeros(FEATURES)
    for number in range(steps):
        weights = step(weights, seed, number)
    return weights


@pytest.mark.slow
def test_forty_trainings_do_every_step_once_and_take_as_long_as_simulated(people: tuple[People, Path]) -> None:
    asked, work = people
    shutil.copy(SCRIPT, work)
    random = np.random.default_rng(5)
    gpus = random.choice([1, 2, 4, 8], p=[0.4, 0.3, 0.2, 0.1], size=40)
    steps = random.integers(50, 400, size=40)
    gaps = random.exponential(1.2, size=40)

    # What a start costs here, which the simulator is told: processes, imports, and heartbeats that tell of them.
    probes = [asked.post("/v1/jobs", _spec(work, 1000 + number, 1, 30))["job_id"] for number in range(4)]
    ran = [job["finished_at"] - job["started_at"] for job in _wait(asked, len(probes), 60.0)]
    start_cost = max(float(np.mean(ran)) - 30 * STEP_SECONDS, 0.0)

    ids = []
    for number, (count, total, gap) in enumerate(zip(gpus.tolist(), steps.tolist(), gaps.tolist(), strict=True)):
        time.sleep(gap)
        ids.append(asked.post("/v1/jobs", _spec(work, number, count, total))["job_id"])
    known = {job["job_id"]: job for job in _wait(asked, len(probes) + len(ids), 400.0)}
    jobs = [known[job_id] for job_id in ids]

    assert {job["status"] for job in jobs} == {"succeeded"}, [(job["job_id"], job["reason"]) for job in jobs]
    preemptions = sum(job["preemptions"] for job in jobs)
    assert preemptions >= 10, "too few to show anything"
    for number, total in enumerate(steps.tolist()):
        done = [int(line.split()[0]) for line in (work / f"job-{number}" / "steps").read_text().splitlines()]
        assert done == list(range(total)), f"job {number}: every step once, in order"
        with np.load(work / f"job-{number}" / "checkpoint.npz") as saved:
            # Products may round differently where arrays lie otherwise in memory; a step more or less changes far more.
            np.testing.assert_allclose(saved["weights"], _trained(number, total), rtol=1e-9)
            assert not np.allclose(saved["weights"], _trained(number, total - 1), rtol=1e-9)

    arrivals = np.array([job["submitted_at"] for job in jobs])
    trace = bx.Trace.from_columns(
        "day",
        job_id=ids,
        arrival=arrivals - arrivals[0],
        total_steps=steps * STEP_SECONDS,  # a step of the simulator is a second here
        duration=steps * STEP_SECONDS,
        num_gpus=gpus,
    )
    options = bx.SimulationOptions(
        round_seconds=ROUND_SECONDS,
        # Jobs start where a round begins; under LAS it matters where in a round they arrive.
        first_round=min(job["started_at"] for job in jobs) - float(arrivals[0]),
        start_cost=start_cost,
        # Who takes the place of another job hears of its end, and of the own start, a heartbeat later each.
        restart_cost=start_cost + 2 * HEARTBEAT_SECONDS,
    )
    predicted = bx.simulate(trace, NODES, policy="las", options=options).jobs
    live = float(np.mean([job["finished_at"] - job["submitted_at"] for job in jobs]))
    simulated = float(predicted["jct"].mean())
    print(
        json.dumps(
            {
                "average_jct": live,
                "simulated": simulated,
                "ratio": live / simulated,
                "preemptions": preemptions,
                "simulated_preemptions": int(predicted["preemptions"].sum()),
                "start_cost": start_cost,
            }
        )
    )
    assert live == pytest.approx(simulated, rel=0.1)
