"""A scheduler whose disk is full, or whose database goes away: nothing that was answered is lost, and jobs go on."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

pytest.importorskip("fastapi")

from tests.runtime.crash_cluster import LEASE_SECONDS, CrashCluster, crash_cluster, is_alive, kill, until
from tests.runtime.crash_ledger import faults, read_ledger
from tests.runtime.crash_nursery import Nursery
from tests.runtime.postgres_server import PostgresServer, postgres_server

NODES = {"one": "2xA100", "two": "2xA100"}
LONG_LEASE = 60.0


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    one = Nursery()
    yield one
    one.close()


class Trouble(Protocol):
    """Something that keeps the scheduler from storing anything, and goes away again."""

    def begin(self, cluster: CrashCluster) -> None: ...

    def end(self, cluster: CrashCluster) -> None: ...


class FullDisk:
    """The scheduler's folder is a file system of its own, and somebody fills it."""

    def begin(self, cluster: CrashCluster) -> None:
        with (cluster.config.parent / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1024))

    def end(self, cluster: CrashCluster) -> None:
        (cluster.config.parent / "ballast").unlink()


class NoMoreBytes:
    """The scheduler may write nothing beyond the first byte of a file, as with ulimit -f: what a disk says that is
    full, for whoever is not root."""

    def begin(self, cluster: CrashCluster) -> None:
        _, most = resource.prlimit(cluster.scheduler, resource.RLIMIT_FSIZE)
        resource.prlimit(cluster.scheduler, resource.RLIMIT_FSIZE, (1, most))

    def end(self, cluster: CrashCluster) -> None:
        _, most = resource.prlimit(cluster.scheduler, resource.RLIMIT_FSIZE)
        resource.prlimit(cluster.scheduler, resource.RLIMIT_FSIZE, (most, most))


class Stopped:
    """PostgreSQL is stopped in order."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server

    def begin(self, cluster: CrashCluster) -> None:
        self.server.stop()

    def end(self, cluster: CrashCluster) -> None:
        self.server.start()


class Killed(Stopped):
    """All of PostgreSQL is killed with kill -9."""

    def begin(self, cluster: CrashCluster) -> None:
        self.server.kill()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    folder = tmp_path / "place"
    folder.mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], check=False, capture_output=True
        ).returncode
    )
    if not mounted:
        pytest.skip("needs root, and the right to mount: the other way to fill a disk is tested everywhere")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


def submit(cluster: CrashCluster, spec: Any, key: str) -> tuple[int, str]:
    """Status of the answer, and the job's id or what is wrong."""
    answer = cluster.ask("POST", "/v1/jobs", json=spec, headers={"Idempotency-Key": key})
    assert answer is not None
    return answer.status_code, answer.json()["job_id" if answer.is_success else "detail"]


def goes_through(cluster: CrashCluster, trouble: Trouble, is_read: bool) -> None:
    """``trouble`` comes and goes while a job runs and others are submitted; ``is_read``: the database can be read."""
    cluster.start()
    going = cluster.submit("going", 100)
    before = cluster.submit("before", 20, num_gpus=4)  # waits for GPUs
    until(lambda: cluster.job(going)["status"] == "running", "the job runs")
    ledger = cluster.work / "going" / "ledger"
    trouble.begin(cluster)
    done = len(read_ledger(ledger))
    spec = cluster.spec("during", 10)
    code, text = submit(cluster, spec, "during")
    assert (code, text) == (503, "the scheduler's database does not work: try again later")
    until(lambda: cluster.ask("GET", "/healthz").status_code == 503, "monitoring hears of it")  # type: ignore[union-attr]
    if is_read:
        assert {job["job_id"] for job in cluster.get("/v1/jobs")["jobs"]} == {going, before}
    else:
        assert cluster.ask("GET", "/v1/jobs").status_code == 503  # type: ignore[union-attr]
    time.sleep(1.0)
    assert submit(cluster, spec, "during")[0] == 503
    assert is_alive(cluster.scheduler)
    assert len(read_ledger(ledger)) > done, "the job goes on"
    trouble.end(cluster)
    until(lambda: submit(cluster, spec, "during")[0] == 201, "submissions are taken again")
    until(lambda: cluster.ask("GET", "/healthz").status_code == 200, "monitoring hears of it")  # type: ignore[union-attr]
    during = submit(cluster, spec, "during")[1]
    over = [cluster.until_over(job_id) for job_id in (going, before, during)]
    assert {job["status"] for job in over} == {"succeeded"}
    assert (over[0]["attempt"], over[0]["preemptions"]) == (1, 0)
    assert len(cluster.get("/v1/jobs")["jobs"]) == 3
    assert [one.number for one in read_ledger(ledger) if one.what == "step"] == list(range(100))
    assert "Traceback" not in (cluster.folder / "scheduler.log").read_text()


def test_a_scheduler_that_may_not_write_answers_so_and_goes_on_when_it_may(tmp_path: Path, nursery: Nursery) -> None:
    with crash_cluster(tmp_path, nursery, NODES, lease_seconds=LONG_LEASE) as cluster:
        goes_through(cluster, NoMoreBytes(), is_read=True)


@pytest.mark.slow
def test_a_scheduler_whose_disk_is_full_answers_so_and_goes_on_when_it_is_not(
    tmp_path: Path, nursery: Nursery, place: Path
) -> None:
    with crash_cluster(tmp_path, nursery, NODES, lease_seconds=LONG_LEASE, place=place) as cluster:
        goes_through(cluster, FullDisk(), is_read=True)


@pytest.mark.slow
def test_a_scheduler_killed_while_its_disk_is_full_starts_when_it_is_not(
    tmp_path: Path, nursery: Nursery, place: Path
) -> None:
    with crash_cluster(tmp_path, nursery, NODES, lease_seconds=LONG_LEASE, place=place) as cluster:
        cluster.start()
        job = cluster.submit("job", 100)
        until(lambda: cluster.job(job)["status"] == "running", "the job runs")
        FullDisk().begin(cluster)
        assert submit(cluster, cluster.spec("more", 10), "more")[0] == 503
        kill(cluster.scheduler)
        until(lambda: not is_alive(cluster.scheduler), "the scheduler is gone")
        command = [sys.executable, "-m", "bloxopt.cli", "scheduler", "--config", str(cluster.config)]
        tried = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert tried.returncode == 2
        assert tried.stderr == f"error: database {cluster.database}: database or disk is full\n"
        FullDisk().end(cluster)
        cluster.start_scheduler()
        over = cluster.until_over(job)
        assert (over["status"], over["attempt"]) == ("succeeded", 1)


@pytest.mark.parametrize("trouble", [Stopped, pytest.param(Killed, marks=pytest.mark.slow)])
def test_jobs_go_on_while_postgresql_is_away_and_all_else_does_when_it_is_back(
    tmp_path: Path, nursery: Nursery, postgres: PostgresServer, trouble: type[Stopped]
) -> None:
    with crash_cluster(tmp_path, nursery, NODES, lease_seconds=LONG_LEASE, database=postgres.url) as cluster:
        goes_through(cluster, trouble(postgres), is_read=False)


@pytest.mark.slow
def test_jobs_are_preempted_where_postgresql_is_away_for_longer_than_their_lease(
    tmp_path: Path, nursery: Nursery, postgres: PostgresServer
) -> None:
    with crash_cluster(tmp_path, nursery, NODES, database=postgres.url) as cluster:
        cluster.start()
        job = cluster.submit("job", 200)
        until(lambda: cluster.job(job)["status"] == "running", "the job runs")
        postgres.kill()
        until(cluster.is_quiet, "the lease has ended", LEASE_SECONDS + 5.0)
        postgres.start()
        over = cluster.until_over(job)
        assert (over["status"], over["attempt"], over["retries"]) == ("succeeded", 2, 0)
        entries = read_ledger(cluster.work / "job" / "ledger")
        assert faults(entries) == []
        assert [one.number for one in entries if one.what == "step"] == list(range(200))
