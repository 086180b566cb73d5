"""kill -9 of schedulers, agents, guards and ranks at work: no job lost, none run twice, no GPU leaked."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from bloxopt.runtime.messages import JobStatus
from bloxopt.runtime.store import JobRecord, Store
from tests.runtime.agent_support import guards_of, processes_of
from tests.runtime.crash_cluster import FINAL, CrashCluster, crash_cluster, is_alive, kill, until
from tests.runtime.crash_ledger import Entry, faults, read_ledger
from tests.runtime.crash_nursery import Nursery, ended_by_itself
from tests.runtime.postgres_server import PostgresServer, postgres_server

NODES = {f"node-{number}": "4xA100" for number in range(4)}
LONGEST_LIFE = 6.0
"""Seconds after which a process is killed that has not come to its point."""
BETWEEN_DATABASES = 8.0
"""Seconds between two kills of PostgreSQL, on average."""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    one = Nursery()
    yield one
    one.close()


class Killer:
    """Kills, and starts again at once what systemd would; all drawn from one seed."""

    def __init__(self, cluster: CrashCluster, seed: int, server: PostgresServer | None) -> None:
        self.cluster, self.server = cluster, server
        self.draw = random.Random(seed)
        self.count = Counter[str]()
        self.ranks: dict[int, tuple[str, int]] = {}
        """Job and attempt of the processes of jobs that were killed."""
        self.guards = set[tuple[str, int, str]]()
        """Job, attempt and node of the guards that were killed."""
        self._deaths: dict[str, tuple[float, str]] = {}
        self._next = {"guard": 0.0, "rank": 0.0, "database": time.monotonic() + BETWEEN_DATABASES}

    def look(self) -> None:
        """Kill whose time has come, and start what has died."""
        now = time.monotonic()
        for name, pid in {"scheduler": self.cluster.scheduler, **self.cluster.agents}.items():
            at, how = self._deaths.get(name, (now, ""))
            if is_alive(pid) and now >= at:
                kill(pid)
                until(lambda pid=pid: not is_alive(pid), "a killed process is gone")
                how = "at any time"
            if not is_alive(pid):
                if how and not ended_by_itself(self.cluster.folder / f"{name}.log", pid).exists():
                    self.count[f"{'scheduler' if name == 'scheduler' else 'agent'} {how}"] += 1
                self._start(name)
        for kind, act in (("guard", self._kill_guard), ("rank", self._kill_rank)):
            if now >= self._next[kind]:
                self._next[kind] = now + self.draw.expovariate(1.0)
                act()

        if self.server is not None and now >= self._next["database"]:
            self.server.kill()
            self.server.start()
            self.count["database"] += 1
            self._next["database"] = now + self.draw.expovariate(1 / BETWEEN_DATABASES)

    def start_all(self) -> None:
        """Have everything that is not there be there, to stay."""
        for name, pid in {"scheduler": self.cluster.scheduler, **self.cluster.agents}.items():
            kill(pid)
            until(lambda pid=pid: not is_alive(pid), "a killed process is gone")
            if name == "scheduler":
                self.cluster.start_scheduler()
            else:
                self.cluster.start_agent(name)

    def _start(self, name: str) -> None:
        """Start a process, and draw how it dies: at a point of its own work, or at any time."""
        draw = self.draw
        armed = draw.random() < 0.7
        life = LONGEST_LIFE if armed else draw.uniform(0.05, LONGEST_LIFE)
        how = "at any time"
        if name == "scheduler":
            farthest = {"before": 10, "after": 10, "heartbeat": 15, "submission": 2, "call": 60_000}
            how = draw.choice(list(farthest)) if armed else how
            self.cluster.start_scheduler((how, draw.randint(1, farthest[how])) if armed else None)
        else:
            how = "at a call" if armed else how
            self.cluster.start_agent(name, draw.randint(1, 30_000) if armed else None)
        self._deaths[name] = (time.monotonic() + life, how)

    def _kill_guard(self) -> None:
        found = [(run, node, pid) for node in NODES for run, pid in sorted(guards_of(self.cluster.home(node)).items())]
        if found:
            run, node, pid = self.draw.choice(found)
            job_id, _, attempt = run.rpartition("@")
            self.guards.add((job_id, int(attempt), node))
            self.count["guard"] += kill(pid)

    def _kill_rank(self) -> None:
        found = [pid for node in NODES for pid in sorted(processes_of(self.cluster.home(node)))]
        if found:
            pid = self.draw.choice(found)
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
                seen = dict(word.split("=", 1) for word in words if "=" in word)
                self.ranks[pid] = (seen["BLOXOPT_JOB_ID"], int(seen["BLOXOPT_ATTEMPT"]))
                self.count["rank"] += kill(pid)


class Submitter(threading.Thread):
    """A client that submits jobs one after the other, and each again until it is answered, under the same key; a few it
    takes back."""

    def __init__(self, cluster: CrashCluster, seed: int, jobs: int, pause: float) -> None:
        super().__init__(daemon=True)
        draw = random.Random(seed)
        self.cluster, self.pause = cluster, pause
        self.specs = {f"job-{number}": self._spec(f"job-{number}", draw) for number in range(jobs)}
        self.cancelled = {key for key in self.specs if draw.random() < 0.1}
        self.answered: dict[str, str] = {}
        self.wrong: list[str] = []

    def _spec(self, key: str, draw: random.Random) -> Any:
        kind = draw.choices(["trains", "helped", "fails"], [6, 2, 1])[0]
        # Most may be started again as often as need be; the others fail when a rank of theirs is killed.
        retries = 1 if kind == "fails" else draw.choice([1000, 1000, 1000, 0])
        return self.cluster.spec(
            key,
            draw.randint(20, 80),
            draw.uniform(0.02, 0.06),
            draw.randint(1, 8),
            kind,
            num_gpus=draw.choice([1, 1, 2, 3, 6]),
            processes=draw.choice(["per_gpu", "per_node"]),
            max_retries=retries,
        )

    def run(self) -> None:
        for key, spec in self.specs.items():
            answer = self._asked("/v1/jobs", 201, json=spec, headers={"Idempotency-Key": key})
            self.answered[key] = answer["job_id"]
            time.sleep(self.pause)
            if key in self.cancelled:
                self._asked(f"/v1/jobs/{answer['job_id']}/cancel", 200)

    def _asked(self, path: str, good: int, **request: Any) -> Any:
        """The good answer, asked for until it comes."""
        while True:
            answer = self.cluster.ask("POST", path, timeout=3.0, **request)
            if answer is not None and answer.status_code == good:
                return answer.json()
            if answer is not None and answer.status_code != 503:
                self.wrong.append(f"{path}: {answer.status_code} {answer.text}")
                raise AssertionError(self.wrong)
            time.sleep(0.05)


def _survives(
    folder: Path, nursery: Nursery, seed: int, kills: int, jobs: int, server: PostgresServer | None = None
) -> None:
    database = None if server is None else server.url
    with crash_cluster(folder, nursery, NODES, database=database, policy="las") as cluster:
        killer = Killer(cluster, seed, server)
        submitter = Submitter(cluster, seed, jobs, pause=kills / jobs / 5)
        submitter.start()
        give_up = time.monotonic() + 10.0 + 2.0 * kills
        while killer.count.total() < kills:
            killer.look()
            assert time.monotonic() < give_up, f"only {killer.count} in time"
            time.sleep(0.01)
        killer.start_all()
        submitter.join(60.0)
        assert not submitter.is_alive()
        assert submitter.wrong == []
        ids = submitter.answered

        def left() -> list[dict[str, Any]]:
            listed = cluster.get("/v1/jobs", limit=1000)
            return [{"job_id": ""}] if listed is None else [j for j in listed["jobs"] if j["status"] not in FINAL]

        until(lambda: not left(), "all jobs are over", 60.0 + 3.0 * jobs)
        until(cluster.is_quiet, "no process of a run is left")
        # Every GPU can be had, all at once.
        until(lambda: {node["gpus_in_use"] for node in cluster.get("/v1/nodes")} == {0}, "all GPUs are free")
        last = cluster.submit("last", 3, num_gpus=16, processes="per_node")
        assert cluster.until_over(last)["status"] == "succeeded"
        until(
            lambda: not any(os.listdir(cluster.home(node) / "state" / "runs") for node in NODES), "runs are forgotten"
        )
        kill(cluster.scheduler)
        until(lambda: not is_alive(cluster.scheduler), "the scheduler is gone")

        store = Store(cluster.database)
        known = {job.job_id: job for job in store.jobs(limit=1000)}
        assert set(known) == {*ids.values(), last}, "no job is lost, and none is there twice"
        for key, job_id in ids.items():
            entries = read_ledger(cluster.work / key / "ledger")
            guardless = {(attempt, node) for job, attempt, node in killer.guards if job == job_id}
            assert faults(entries, killer.ranks, guardless) == [], job_id
            killed = {attempt for job, attempt in killer.ranks.values() if job == job_id}
            # What looks like a guard may be a rank that the guard has just forked.
            killed |= {attempt for attempt, _ in guardless}
            _check_end(store, known[job_id], entries, killed, key in submitter.cancelled)
        store.close()
        for log in folder.glob("*.log"):
            assert "Traceback" not in log.read_text(), "nothing but a kill ended any of them"
        print({**killer.count, "preemptions": sum(job.preemptions for job in known.values())})


def _check_end(store: Store, job: JobRecord, entries: list[Entry], killed: set[int], cancelled: bool) -> None:
    """That a job ended as it should, and the store says of it what happened. ``killed``: attempts that lost a rank."""
    runs = store.runs(job.job_id)
    assert all(run.ended for run in runs)
    assert sorted({run.attempt for run in runs}) == list(range(1, job.attempt + 1)), "attempts are consecutive"
    fails = job.spec.command[-1] == "fails"
    if cancelled and job.status is JobStatus.CANCELLED:
        assert job.reason == "cancelled by ada"
    elif fails:
        assert (job.status, job.retries) == (JobStatus.FAILED, 1)
    elif job.status is JobStatus.FAILED:
        assert job.spec.max_retries == 0
        assert killed, "only a killed rank fails a job"
    else:
        assert job.status is JobStatus.SUCCEEDED
        total = job.spec.total_steps
        # One that was told to stop may have ended by then, and the next attempt never began.
        last = max(entry.attempt for entry in entries)
        done = {entry.rank: entry.number for entry in entries if entry.what == "leaves" and entry.attempt == last}
        assert set(done.values()) == {total}
        assert job.steps == total
    if not fails:
        assert job.retries <= len(killed), "nothing but a killed rank spends a retry"


def test_twenty_kills_lose_no_job_run_none_twice_and_leak_no_gpu(tmp_path: Path, nursery: Nursery) -> None:
    _survives(tmp_path, nursery, seed=1, kills=20, jobs=6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_two_hundred_kills_do_no_harm_either(tmp_path: Path, nursery: Nursery, seed: int) -> None:
    _survives(tmp_path, nursery, seed, kills=200, jobs=30)


@pytest.mark.slow
def test_two_hundred_kills_do_no_harm_over_postgresql(tmp_path: Path, nursery: Nursery) -> None:
    with postgres_server() as server:
        _survives(tmp_path, nursery, seed=4, kills=200, jobs=30, server=server)
