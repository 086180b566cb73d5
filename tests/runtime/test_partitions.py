"""Agents that are cut off from the scheduler, for less and for more than their lease; clocks that are an hour off."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from tests.runtime.crash_cluster import (
    GRACE_SECONDS,
    LEASE_SECONDS,
    CrashCluster,
    crash_cluster,
    until,
)
from tests.runtime.crash_ledger import faults, read_ledger
from tests.runtime.crash_nursery import Nursery
from tests.runtime.crash_wire import Mode, Wire

NODES = {"one": "2xA100", "two": "2xA100"}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    one = Nursery()
    yield one
    one.close()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path, nursery: Nursery) -> Iterator[CrashCluster]:
    """One with the usual lease, or the one that the test is parametrised with."""
    with crash_cluster(tmp_path, nursery, NODES, lease_seconds=getattr(request, "param", LEASE_SECONDS)) as made:
        yield made


@pytest.fixture
def wires(cluster: CrashCluster) -> Iterator[dict[str, Wire]]:
    """Between each agent and the scheduler."""
    made = {name: Wire(cluster.port) for name in NODES}
    cluster.agent_url = {name: wire.url for name, wire in made.items()}
    yield made
    for wire in made.values():
        wire.close()


def runs_on(cluster: CrashCluster, job_id: str) -> str:
    """The node of a job that runs on one; "" while it does not."""
    job = cluster.job(job_id)
    return next(iter(job["gpus"]), "") if job["status"] == "running" else ""


def executed(cluster: CrashCluster, key: str) -> list[tuple[int, int]]:
    """Attempt and number of every step that was executed, in order."""
    return [(one.attempt, one.number) for one in read_ledger(cluster.work / key / "ledger") if one.what == "step"]


SLOW_MODES = [pytest.param(mode, marks=pytest.mark.slow) for mode in ("silent", "deaf")]


@pytest.mark.parametrize("cluster", [20.0], indirect=True)
@pytest.mark.parametrize("mode", ["cut", *SLOW_MODES])
def test_an_agent_cut_off_for_less_than_its_lease_keeps_its_job(
    cluster: CrashCluster, wires: dict[str, Wire], mode: Mode
) -> None:
    cluster.start()
    job = cluster.submit("job", 110)
    until(lambda: runs_on(cluster, job), "the job runs")
    wire = wires[runs_on(cluster, job)]
    wire.become(mode)
    until(lambda: "lost" in {node["state"] for node in cluster.get("/v1/nodes")} or mode == "deaf", "the node is lost")
    time.sleep(0.5)
    wire.become("open")
    over = cluster.until_over(job)
    assert (over["status"], over["attempt"], over["preemptions"]) == ("succeeded", 1, 0)
    assert executed(cluster, "job") == [(1, number) for number in range(110)]


@pytest.mark.parametrize("mode", ["cut", SLOW_MODES[0]])
def test_an_agent_cut_off_for_longer_has_stopped_its_job_before_another_starts_it(
    cluster: CrashCluster, wires: dict[str, Wire], mode: Mode
) -> None:
    cluster.start()
    job = cluster.submit("job", 160)
    until(lambda: runs_on(cluster, job), "the job runs")
    first = runs_on(cluster, job)
    cut_at = time.monotonic()
    wires[first].become(mode)
    until(lambda: runs_on(cluster, job) not in ("", first), "the job runs elsewhere")
    ledger = cluster.work / "job" / "ledger"
    ends = [one.at for one in read_ledger(ledger) if one.attempt == 1]
    begins = [one.at for one in read_ledger(ledger) if one.attempt == 2]
    assert ends[-1] < cut_at + LEASE_SECONDS < min(begins), "the lease lies between them"
    wires[first].become("open")
    over = cluster.until_over(job)
    # It was told to stop in time to save: no step was lost, and no retry spent.
    assert (over["status"], over["attempt"], over["retries"]) == ("succeeded", 2, 0)
    assert faults(read_ledger(ledger)) == []
    assert [number for _, number in executed(cluster, "job")] == list(range(160))
    until(lambda: {node["state"] for node in cluster.get("/v1/nodes")} == {"up"}, "the node is back")
    last = cluster.submit("last", 3, num_gpus=4)
    assert cluster.until_over(last)["status"] == "succeeded"


@pytest.mark.slow
def test_a_job_whose_agent_hears_nothing_more_goes_on_when_it_does(
    cluster: CrashCluster, wires: dict[str, Wire]
) -> None:
    """Its heartbeats come and its answers are lost: the scheduler is told what becomes of the lease."""
    cluster.start()
    job = cluster.submit("job", 200)
    until(lambda: runs_on(cluster, job), "the job runs")
    wire = wires[runs_on(cluster, job)]
    wire.become("deaf")
    until(lambda: cluster.job(job)["attempt"] > 1, "the run has ended with its lease")
    wire.become("open")
    over = cluster.until_over(job)
    assert (over["status"], over["retries"]) == ("succeeded", 0)
    assert faults(read_ledger(cluster.work / "job" / "ledger")) == []
    assert [number for _, number in executed(cluster, "job")] == list(range(200))


def test_a_job_does_not_wait_for_an_agent_that_cannot_be_told_of_it(
    cluster: CrashCluster, wires: dict[str, Wire]
) -> None:
    """Only answers are lost: every heartbeat comes and is answered, and nothing starts."""
    cluster.start()
    for wire in wires.values():
        wire.become("deaf")
    job = cluster.submit("job", 10)
    until(lambda: cluster.job(job)["status"] == "starting", "it is to start on a node that does not hear of it")
    deaf = next(iter(cluster.job(job)["gpus"]))
    other = next(name for name in NODES if name != deaf)
    wires[other].become("open")
    assert cluster.until_over(job)["status"] == "succeeded"
    (done,) = {one.node for one in read_ledger(cluster.work / "job" / "ledger")}
    assert done == other
    assert faults(read_ledger(cluster.work / "job" / "ledger")) == []
    told = [event for event in cluster.get("/v1/events", kind="attempt.stopped") if event["subject"] == job]
    assert "do not reach it" in told[0]["data"]["reason"]
    wires[deaf].become("open")
    until(lambda: {node["state"] for node in cluster.get("/v1/nodes")} == {"up"}, "the node is back")


# -- clocks ------------------------------------------------------------------------------------------------------------

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Seconds by which the time of day is off, from a file that the test writes. */
static double offset(void) {
    double seconds = 0;
    const char *path = getenv("CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        if (read(file, &seconds, sizeof seconds) != sizeof seconds) seconds = 0;
        close(file);
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, time);
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += (time_t) offset();
    return code;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}
"""


class WrongClock:
    """A Python whose time of day, and that of all that it starts with itself, is off by what the test says."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler: clocks cannot be made to go wrong")
        self._offset = folder / "offset"
        self.set(0.0)
        source, library = folder / "clock.c", folder / "clock.so"
        source.write_text(SHIM)
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True, text=True
        )
        # Under the name of the script, so that the interpreters that an agent starts come here too.
        self.python = folder / "python"
        self.python.write_text(
            f"#!/bin/bash\nexport LD_PRELOAD={library} CLOCK_OFFSET={self._offset}\n"
            f'exec -a "$0" {sys.executable} "$@"\n'
        )
        self.python.chmod(0o755)
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def set(self, seconds: float) -> None:
        """Set the clock by so much, while processes use it."""
        draft = self._offset.with_name("draft")
        draft.write_bytes(struct.pack("d", seconds))
        draft.replace(self._offset)

    def start(self, log: Path, *arguments: str, **environment: str) -> int:
        """The process id of a bloxopt command whose clock this is."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                [str(self.python), "-m", "bloxopt.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**self.environment, **environment},
            )
        self._processes[process.pid] = process
        return process.pid

    def kill(self, pid: int) -> None:
        """kill -9 of a process that was started here."""
        self._processes[pid].kill()
        self._processes.pop(pid).wait()

    def read(self) -> float:
        """What the time of day is by this clock."""
        code = "import time; print(time.time())"
        done = subprocess.run(
            [str(self.python), "-c", code], capture_output=True, text=True, check=True, env=self.environment
        )
        return float(done.stdout)


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[WrongClock]:
    folder = tmp_path / "clock"
    folder.mkdir()
    one = WrongClock(folder)
    yield one
    for pid in list(one._processes):
        one.kill(pid)


@pytest.mark.slow
def test_an_agents_clock_that_jumps_by_an_hour_changes_nothing(cluster: CrashCluster, clock: WrongClock) -> None:
    cluster.start_scheduler()
    for name in NODES:
        settings = cluster.agent_settings(name)
        arguments = ["agent", "--scheduler", settings["scheduler"], "--node", name, "--address", "127.0.0.1"]
        arguments += ["--state-folder", str(settings["state_folder"]), "--workdir", str(cluster.work)]
        arguments += ["--simulate", NODES[name]] + (["--user", settings["user"]] if settings["user"] else [])
        log = cluster.folder / f"{name}.log"
        cluster.agents[name] = clock.start(log, *arguments, BLOXOPT_TOKEN=settings["token"])
    job = cluster.submit("job", 200)
    until(lambda: runs_on(cluster, job), "the job runs")
    for offset in (3600.0, -3600.0):
        clock.set(offset)
        assert clock.read() - time.time() == pytest.approx(offset, abs=60.0)
        time.sleep(LEASE_SECONDS / 3)
        # Neither a lease that ended early, nor one that never ends.
        assert cluster.job(job)["attempt"] == 1
    name = runs_on(cluster, job)
    killed_at = time.monotonic()
    clock.kill(cluster.agents[name])
    until(lambda: runs_on(cluster, job) not in ("", name), "the job runs elsewhere")
    entries = read_ledger(cluster.work / "job" / "ledger")
    stopped = max(entry.at for entry in entries if entry.attempt == 1) - killed_at
    assert LEASE_SECONDS / 2 < stopped < LEASE_SECONDS + GRACE_SECONDS, "the lease is as long as ever"
    assert cluster.until_over(job)["status"] == "succeeded"
    assert faults(read_ledger(cluster.work / "job" / "ledger")) == []


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [60.0], indirect=True)
def test_a_schedulers_clock_that_jumps_by_an_hour_changes_nothing(cluster: CrashCluster, clock: WrongClock) -> None:
    def start() -> None:
        arguments = ["scheduler", "--config", str(cluster.config), "--port", str(cluster.port)]
        cluster.scheduler = clock.start(cluster.folder / "scheduler.log", *arguments)

    start()
    for name in NODES:
        cluster.start_agent(name)
    job = cluster.submit("job", 200)
    until(lambda: runs_on(cluster, job), "the job runs")
    before = time.time()
    for offset in (3600.0, -3600.0):
        clock.set(offset)
        time.sleep(1.0)
        assert (cluster.job(job)["attempt"], cluster.job(job)["preemptions"]) == (1, 0)
        # Nor does a start with the wrong clock: nothing is earlier than what was noted before.
        clock.kill(cluster.scheduler)
        start()
        until(lambda: runs_on(cluster, job), "the job is known to run")
    over = cluster.until_over(job)
    assert (over["status"], over["attempt"], over["preemptions"]) == ("succeeded", 1, 0)
    assert over["submitted_at"] <= over["started_at"] <= over["finished_at"]
    # The second start had a clock that was two hours behind that of the first.
    assert over["finished_at"] >= before + 3600.0
