"""Limits of runs in cgroups, where this machine lets a test make one; and what is said where it does not."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bloxopt.runtime.agent import limits
from bloxopt.runtime.messages import RunState
from tests.runtime.agent_support import (
    SmallScheduler,
    agent_thread,
    guards_of,
    home,
    processes_of,
    python,
    run_of,
    scheduler,
    wait_until,
)

__all__ = ["home", "scheduler"]


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup (v2) for an agent."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    roots = [Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"]
    if not roots:
        pytest.skip("no cgroup v2")
    own = roots[0] / f"bloxopt-test-{os.getpid()}"
    try:
        own.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup may be made here: {error}")
    yield own
    for folder in [*own.glob("*@*"), own]:
        limits.kill_cgroup(folder)
        wait_until(lambda folder=folder: not (folder / "cgroup.procs").read_text())  # type: ignore[misc]
        folder.rmdir()


def test_a_run_has_a_cgroup_of_its_own_that_goes_with_it(scheduler: SmallScheduler, home: Path, cgroup: Path) -> None:
    code = "import time; print(open('/proc/self/cgroup').read(), flush=True); time.sleep(600)"
    with agent_thread(scheduler, home, cgroup=cgroup):
        key = scheduler.want(run_of("job", python(code), cpus_per_gpu=1, memory_gib_per_gpu=0.25))
        wait_until(lambda: f"0::/{cgroup.name}/job@1\n" in scheduler.log("job"))
        inside = (cgroup / "job@1" / "cgroup.procs").read_text().split()
        assert sorted(map(int, inside)) == sorted(processes_of(home))
        message = scheduler.wait_for(key, RunState.RUNNING).message
        if (cgroup / "job@1" / "memory.max").exists():
            assert (cgroup / "job@1" / "memory.max").read_text() == f"{1 << 28}\n"
            assert message == ""
        else:
            assert "memory is limited for each process, not for the run" in message
        scheduler.unwant(key)
        scheduler.wait_for(key, RunState.ENDED)
        assert not (cgroup / "job@1").exists()


def test_what_hides_from_the_agent_is_found_in_the_cgroup(scheduler: SmallScheduler, home: Path, cgroup: Path) -> None:
    """A guard is killed, and a stray has taken off its environment: the cgroup still has it."""
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: os.execve('/bin/sleep', ['sleep', '600'], {})\n"
        "    os._exit(0)\n"
        "print('up', flush=True); time.sleep(600)"
    )
    with agent_thread(scheduler, home, cgroup=cgroup):
        key = scheduler.want(run_of("job", python(code)))
        wait_until(lambda: scheduler.log("job") == "up\n")
        wait_until(lambda: len((cgroup / "job@1" / "cgroup.procs").read_text().split()) == 2)
        os.kill(guards_of(home)["job@1"], 9)
        scheduler.wait_for(key, RunState.ENDED)
        time.sleep(0.05)
        assert not (cgroup / "job@1").exists()


def test_a_cgroup_that_cannot_be_used_is_said_and_stops_no_run(scheduler: SmallScheduler, home: Path) -> None:
    (home / "plain").mkdir()
    with agent_thread(scheduler, home, cgroup=home / "plain"):
        key = scheduler.want(run_of("job", python("import time; time.sleep(600)")))
        message = scheduler.wait_for(key, RunState.RUNNING).message
        assert message == f"no cgroup in {home / 'plain'}: No such file or directory"


def test_limits_say_what_could_not_be_done(tmp_path: Path) -> None:
    found = limits.establish(None, "job@1", [0], 1 << 30)
    assert found.complaints == ["memory is limited for each process, not for the run: no cgroup"]
    assert (found.cpus, found.data_bytes) == ([0], 1 << 30)
    assert limits.establish(None, "job@1", None, None).complaints == []
    assert limits.killed_for_memory(tmp_path) is False
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\n")
    assert limits.killed_for_memory(tmp_path) is True
