"""kill -9 of ``bloxopt up``: scheduler and agents end with it, jobs go on, and the next one takes them over."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from tests.runtime.agent_support import guards_of
from tests.runtime.test_up import OPTIONS, PATIENCE, folder, processes_of, reached, until, up

__all__ = ["folder"]

JOB = """
import sys, time
from pathlib import Path
from bloxopt.runtime import client
client.should_checkpoint()
done = int(Path("done").read_text()) if Path("done").exists() else 0
for number in client.steps(range(done, int(sys.argv[1])), done):
    with open("steps", "a") as ledger:
        print(client.attempt(), number, file=ledger)
    time.sleep(0.05)
    Path("done").write_text(str(number + 1))
    if client.should_checkpoint():
        break
"""


@pytest.fixture
def place(folder: Path) -> Iterator[Path]:
    yield folder / "cluster"
    until(lambda: processes_of(folder) == [])


@pytest.mark.slow
def test_jobs_do_not_notice_that_it_was_killed_and_started_again(place: Path) -> None:
    options = [*OPTIONS, "--folder", str(place)]
    first = up(*options)
    jobs = {}
    with reached(first, place) as people:
        environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        for number, steps in enumerate((400, 450)):
            work = place / "work" / f"job-{number}"
            work.mkdir()
            spec = {
                "command": [sys.executable, "-c", JOB, str(steps)],
                "workdir": str(work),
                "environment": environment,
            }
            spec |= {"total_steps": steps, "num_gpus": 2, "processes": "per_node"}
            jobs[work, steps] = people.post("/v1/jobs", spec)["job_id"]
        until(lambda: all((work / "steps").exists() for work, _ in jobs))
        # More than there are GPUs for: it waits.
        waits = people.post("/v1/jobs", {"command": ["true"], "num_gpus": 4})["job_id"]
    guards = {node: guards_of(place / node) for node in ("node-0", "node-1")}
    first.kill()
    first.communicate()
    until(lambda: not any(" scheduler " in line or " agent " in line for line in processes_of(place)))
    assert {node: guards_of(place / node) for node in guards} == guards, "guards and jobs go on"
    time.sleep(1.0)
    again = up(*options)
    try:
        with reached(again, place) as people:
            for job_id in [*jobs.values(), waits]:
                until(lambda job_id=job_id: people.get(f"/v1/jobs/{job_id}")["status"] == "succeeded")
                view = people.get(f"/v1/jobs/{job_id}")
                assert (view["attempt"], view["preemptions"], view["retries"]) == (1, 0, 0)
    finally:
        again.terminate()
        again.communicate(timeout=PATIENCE)
    assert again.returncode == 0
    for work, steps in jobs:
        assert (work / "steps").read_text().splitlines() == [f"1 {number}" for number in range(steps)]
