"""Agents and guards that are killed, stopped or cut off: no run twice, none lost, none beyond its lease."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bloxopt.errors import AgentError
from bloxopt.runtime.agent import processes
from bloxopt.runtime.agent.files import FolderLock, Record, boot_id, boottime
from bloxopt.runtime.agent.generation import next_generation
from bloxopt.runtime.agent.guard import STATE
from bloxopt.runtime.agent.runs import RunFolders
from bloxopt.runtime.messages import RunState
from tests.runtime.agent_support import (
    AgentProcesses,
    SmallScheduler,
    agent_thread,
    agents,
    guards_of,
    home,
    nursery,
    order,
    processes_of,
    python,
    run_of,
    scheduler,
    wait_until,
)

__all__ = ["agents", "home", "nursery", "scheduler"]

COUNTED = "import os, time; os.write(os.open({path!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT), b'start\\n'); "
STUBBORN = (
    "import os, signal, time; signal.signal(15, signal.SIG_IGN); os.fork() or os.setsid(); "
    "os.write(1, b'up\\n'); time.sleep(600)"
)


def counting(home: Path, rest: str) -> list[str]:
    """A job that leaves a line in ``home/starts`` each time it is started."""
    return python(COUNTED.format(path=str(home / "starts")) + rest)


def test_runs_outlive_their_agent_and_are_adopted_without_a_second_start(
    scheduler: SmallScheduler, home: Path, agents: AgentProcesses
) -> None:
    agents.start()
    goes_on = scheduler.want(run_of("goes-on", counting(home, "print('one', flush=True); time.sleep(600)"), gpus=[0]))
    ends = scheduler.want(
        run_of(
            "ends",
            python(f"import os, time\nwhile not os.path.exists({str(home / 'go')!r}): time.sleep(0.02)\nos._exit(7)"),
            [1],
        )
    )
    scheduler.wait_for(goes_on, RunState.RUNNING)
    scheduler.wait_for(ends, RunState.RUNNING)
    wait_until(lambda: scheduler.log("goes-on") == "one\n")
    agents.kill()
    before = processes_of(home)
    (home / "go").touch()
    wait_until(lambda: "ends@1" not in guards_of(home))
    agents.start()
    # What ended while no agent was there is told by the next one.
    assert scheduler.wait_for(ends, RunState.ENDED).exit_code == 7
    count = len(scheduler.heartbeats)
    wait_until(lambda: len(scheduler.heartbeats) > count + 3)
    assert scheduler.state(goes_on) is RunState.RUNNING
    assert set(processes_of(home)) <= set(before)
    assert (home / "starts").read_text() == "start\n"
    scheduler.unwant(goes_on)
    assert scheduler.wait_for(goes_on, RunState.ENDED).preempted
    # Not sent twice either.
    assert scheduler.log("goes-on") == "one\n"


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_guards_end_their_runs_with_the_lease_whatever_the_agent_does(
    scheduler: SmallScheduler, home: Path, agents: AgentProcesses, how: str
) -> None:
    scheduler.lease_seconds = 1.5
    agents.start()
    key = scheduler.want(run_of("job", python(STUBBORN)))
    wait_until(lambda: scheduler.log("job") == "up\nup\n")
    last_answer = boottime()
    os.kill(agents.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    wait_until(lambda: not processes_of(home))
    # A third of the lease is the most it takes for SIGTERM and grace; at its end, nothing is left.
    assert 0.5 * 1.5 < boottime() - last_answer < 1.5 + 1.5
    if how == "killed":
        agents.start()
    else:
        os.kill(agents.pid, signal.SIGCONT)
    report = scheduler.wait_for(key, RunState.ENDED)
    assert report.preempted
    assert "lease" in report.message


def test_runs_end_with_the_lease_where_the_scheduler_is_gone_and_not_before(
    scheduler: SmallScheduler, home: Path
) -> None:
    scheduler.lease_seconds = 2.7
    with agent_thread(scheduler, home):
        key = scheduler.want(run_of("job", python("import time; time.sleep(600)")))
        scheduler.wait_for(key, RunState.RUNNING)
        # Cut off for less than the lease: nothing happens.
        scheduler.fault = lambda: "lose request"
        time.sleep(0.6)
        scheduler.fault = lambda: ""
        count = len(scheduler.heartbeats)
        wait_until(lambda: len(scheduler.heartbeats) > count + 1)
        assert scheduler.state(key) is RunState.RUNNING
        scheduler.fault = lambda: "lose request"
        wait_until(lambda: not processes_of(home))
        scheduler.fault = lambda: ""
        report = scheduler.wait_for(key, RunState.ENDED)
        assert (report.exit_code, report.preempted) == (-signal.SIGTERM, True)


def test_a_killed_guard_takes_its_ranks_along_and_the_agent_finds_the_rest(
    scheduler: SmallScheduler, home: Path
) -> None:
    with agent_thread(scheduler, home):
        key = scheduler.want(run_of("job", python(STUBBORN), gpus=[0, 1]))
        wait_until(lambda: scheduler.log("job", 1, 0) == scheduler.log("job", 1, 1) == "up\nup\n")
        assert len(processes_of(home)) == 4
        os.kill(guards_of(home)["job@1"], signal.SIGKILL)
        report = scheduler.wait_for(key, RunState.ENDED)
        assert not processes_of(home)
    assert (report.exit_code, report.preempted) == (None, True)
    assert "guard" in report.message


def test_a_killed_guard_takes_its_ranks_along_without_an_agent(
    scheduler: SmallScheduler, home: Path, agents: AgentProcesses
) -> None:
    agents.start()
    scheduler.wait_for(scheduler.want(run_of("job", python("import time; time.sleep(600)"), [0, 1])), RunState.RUNNING)
    agents.kill()
    os.kill(guards_of(home)["job@1"], signal.SIGKILL)
    wait_until(lambda: not processes_of(home), 5.0)


def begun(pid: int) -> dict[str, object]:
    """The record of a guard that was killed while it ran rank 0 as process ``pid``."""
    return {
        "stage": "running",
        "exit_code": None,
        "preempted": False,
        "message": "",
        "ranks": [(pid, 0)],
        "guard": pid,
        "steps": None,
        "steps_per_second": None,
    }


@pytest.mark.parametrize("boot", ["this", "an earlier one"])
def test_a_process_with_a_recycled_id_is_left_alone(home: Path, boot: str) -> None:
    folders = RunFolders(home / "state")
    innocent = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        run_dir = folders.run_dir(("job", 1))
        run = folders.create(order(run_dir, boot_id=boot_id() if boot == "this" else "other"), boottime() + 100, 100)
        Record(run.folder / STATE).write(begun(innocent.pid))
        report = run.look()
        assert (report.state, report.exit_code, report.preempted) == (RunState.ENDED, None, True)
        assert innocent.poll() is None
        found = processes.process(innocent.pid)
        assert found is not None
        processes.send(found._replace(start=found.start - 1), signal.SIGKILL)
        assert not processes.is_alive(innocent.pid, found.start - 1)
        time.sleep(0.05)
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()
        folders.close()


def test_a_run_that_was_told_to_stop_before_it_began_never_begins(home: Path) -> None:
    folders = RunFolders(home / "state")
    run_dir = folders.run_dir(("job", 1))
    run = folders.create(order(run_dir, command=["touch", str(home / "began")]), boottime() + 100, 100)
    run.stop()
    assert run.look().preempted
    for _ in range(2):
        late = subprocess.run([sys.executable, "-m", "bloxopt.runtime.agent.guard", str(run.folder)], check=True)
        assert late.returncode == 0
    assert not (home / "began").exists()
    folders.close()


def test_many_guards_of_one_run_start_it_once(home: Path) -> None:
    folders = RunFolders(home / "state")
    run_dir = folders.run_dir(("job", 1))
    run = folders.create(order(run_dir, command=counting(home, "time.sleep(0.2)")), boottime() + 100, 100)
    guards = [
        subprocess.Popen([sys.executable, "-m", "bloxopt.runtime.agent.guard", str(run.folder)]) for _ in range(4)
    ]
    for guard in guards:
        assert guard.wait(20) == 0
    assert run.look().state is RunState.ENDED
    assert (home / "starts").read_text() == "start\n"
    folders.close()


def test_two_agents_never_share_a_state_folder(home: Path) -> None:
    first = RunFolders(home / "state")
    with pytest.raises(AgentError, match="another agent uses the state folder"):
        RunFolders(home / "state")
    first.close()
    RunFolders(home / "state").close()


def test_half_made_and_half_removed_folders_are_cleared_away(home: Path) -> None:
    folders = RunFolders(home / "state")
    run = folders.create(order(folders.run_dir(("job", 1))), boottime() + 100, 100)
    (home / "state" / "runs" / ".other@1").mkdir()
    (home / "state" / "runs" / "broken@1").mkdir()
    (home / "state" / "shared" / "other@1").mkdir()
    assert [each.key for each in folders.load()] == [("job", 1)]
    assert os.listdir(home / "state" / "runs") == ["job@1"]
    assert os.listdir(home / "state" / "shared") == ["job@1"]
    folders.remove(run)
    assert list(folders.load()) == []
    folders.close()


def test_a_torn_record_is_the_one_before(tmp_path: Path) -> None:
    record = Record(tmp_path / "state")
    record.create()
    assert record.read() is None
    for count in range(5):
        record.write({"count": count})
        whole = (tmp_path / "state").read_bytes()
        for cut in (0, 3, 17, 25):
            # The write of the next one stops after so many bytes.
            Record(tmp_path / "state").write({"count": count + 1, "more": "x" * 50})
            after = (tmp_path / "state").read_bytes()
            slot = 4096 * (after[4096:] != whole[4096:])
            (tmp_path / "state").write_bytes(whole[:slot] + after[slot : slot + cut] + whole[slot + cut :])
            assert record.read() == {"count": count}
        (tmp_path / "state").write_bytes(whole)


def test_every_start_of_an_agent_has_a_larger_number_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = []
    for offset in (0.0, 3600.0, 0.0, -3600.0, -3600.0):
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda now=time.time() + offset: now)
            numbers.append(next_generation(tmp_path))
    assert numbers == sorted(set(numbers))
    # A folder that is new goes by the clock, and so does one that cannot be used.
    assert next_generation(tmp_path.parent) >= numbers[0]
    (tmp_path / "generation").unlink()
    (tmp_path / "generation").mkdir()
    assert next_generation(tmp_path) >= numbers[0]


def test_an_agent_says_when_it_started_and_which_answer_it_has_taken(scheduler: SmallScheduler, home: Path) -> None:
    for _ in range(2):
        count = len(scheduler.heartbeats)
        with agent_thread(scheduler, home):
            wait_until(lambda count=count: len(scheduler.heartbeats) > count + 2)
    first, second = (
        [each for each in scheduler.heartbeats if each.instance == instance]
        for instance in dict.fromkeys(each.instance for each in scheduler.heartbeats)
    )
    assert [each.taken for each in first[:3]] == [each.taken for each in second[:3]] == [-1, 0, 1]
    assert {each.generation for each in first} == {first[0].generation}
    assert first[0].generation < second[0].generation
    scheduler.fault = lambda: "lose answer"
    count = len(scheduler.heartbeats)
    with agent_thread(scheduler, home):
        wait_until(lambda: len(scheduler.heartbeats) > count + 1)
    assert {each.taken for each in scheduler.heartbeats[count:]} == {-1}


def test_a_lock_is_free_when_its_holder_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom bloxopt.runtime.agent.files import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1])); print(lock.take(), flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    assert not FolderLock(tmp_path / "lock").take()
    holder.kill()
    holder.communicate()
    assert FolderLock(tmp_path / "lock").take(patience=1.0)


class Watcher(threading.Thread):
    """Looks all the time for two processes of one job, and two runs on one GPU."""

    def __init__(self, home: Path) -> None:
        super().__init__(daemon=True)
        self.home, self.wrong, self.done = home, list[str](), threading.Event()

    def run(self) -> None:
        while not self.done.is_set():
            jobs: dict[str, set[int]] = {}
            gpus: dict[str, set[str]] = {}
            for pid in processes_of(self.home):
                try:
                    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                except OSError:
                    continue
                seen = dict(word.split("=", 1) for word in words if "=" in word)
                if b"sleep" in command:
                    jobs.setdefault(seen["BLOXOPT_JOB_ID"], set()).add(pid)
                    gpus.setdefault(seen["CUDA_VISIBLE_DEVICES"], set()).add(seen["BLOXOPT_JOB_ID"])
            again = set(processes_of(self.home))
            self.wrong += [f"{job} runs as {pids}" for job, pids in jobs.items() if len(pids & again) > 1]
            self.wrong += [f"GPU {gpu} has {names}" for gpu, names in gpus.items() if len(names) > 1 and again]
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("points", "also_guards"),
    [
        (8, False),
        pytest.param(60, False, marks=pytest.mark.slow),
        pytest.param(60, True, marks=pytest.mark.slow),
    ],
)
def test_kill_minus_nine_of_the_agent_at_any_point_loses_nothing_and_starts_nothing_twice(
    scheduler: SmallScheduler, home: Path, agents: AgentProcesses, points: int, also_guards: bool
) -> None:
    """A script of starts, preemptions, moves and ends goes on while the agent is killed and comes back, and guards
    are killed too."""
    draw = random.Random(points)
    faults = [*[""] * 12, "lose answer", "lose request", "error", "garbage"]
    scheduler.fault = lambda: draw.choice(faults)
    watcher = Watcher(home)
    watcher.start()
    agents.start()
    attempts = {f"job{index}": 0 for index in range(4)}
    wanted: dict[str, tuple[str, int]] = {}
    codes: dict[tuple[str, int], int] = {}
    for _ in range(points):
        for index, name in enumerate(attempts):
            key = wanted.get(name)
            if key is None or scheduler.state(key) is RunState.ENDED:
                attempts[name] += 1
                code = draw.choice([0, 3])
                lasts = draw.choice([0.05, 0.3, 600])
                start = COUNTED.format(path=str(home / f"{name}.{attempts[name]}"))
                command = python(f"{start} time.sleep({lasts}); os._exit({code})")
                # Jobs take turns on the GPUs, so that each start waits for the end of another one.
                gpu = (index + attempts[name]) % 4
                wanted[name] = scheduler.want(run_of(name, command, [gpu], attempts[name], grace_seconds=0.5))
                codes[wanted[name]] = code if lasts < 600 else -15
            elif draw.random() < 0.4:
                scheduler.unwant(key)
        give_up = time.monotonic() + draw.uniform(0.1, 0.8)
        while agents.is_alive() and time.monotonic() < give_up:
            time.sleep(0.01)
        for guard in guards_of(home).values():
            if also_guards and draw.random() < 0.15:
                os.kill(guard, signal.SIGKILL)
        agents.kill()
        agents.start(die_after_calls=draw.choice([0, draw.randint(1, 6000)]))
    agents.kill()
    agents.start()
    scheduler.fault = lambda: ""
    for key in wanted.values():
        scheduler.unwant(key)
    # None is lost: every run that ever began is told to have ended; no process and no guard is left.
    wait_until(lambda: not processes_of(home) and not guards_of(home))
    wait_until(lambda: not os.listdir(home / "state" / "runs"))
    watcher.done.set()
    watcher.join()
    assert watcher.wrong == []
    began = 0
    for name, count in attempts.items():
        for attempt in range(1, count + 1):
            starts = home / f"{name}.{attempt}"
            if starts.exists():
                began += 1
                assert starts.read_text() == "start\n"
                report = scheduler.ended[name, attempt]
                assert report.exit_code is not None or also_guards, report
                assert report.preempted or report.exit_code == codes[name, attempt]
    assert began >= points / 6
    assert os.listdir(home / "state" / "shared") == []
    # No GPU is held by nothing: the whole node can be used at once.
    last = scheduler.want(run_of("last", ["true"], gpus=[0, 1, 2, 3]))
    assert scheduler.wait_for(last, RunState.ENDED).exit_code == 0


def test_lost_late_repeated_and_broken_answers_do_no_harm(scheduler: SmallScheduler, home: Path) -> None:
    draw = random.Random(1)
    with agent_thread(scheduler, home) as agent:
        key = scheduler.want(run_of("job", counting(home, "time.sleep(600)")))
        scheduler.wait_for(key, RunState.RUNNING)
        late = scheduler.answer(scheduler.heartbeats[-1])
        empty = late.model_copy(update={"runs": [], "sequence": 0})
        scheduler.fault = lambda: draw.choice(["", "lose answer", "lose request", "error", "garbage"])
        for _ in range(10):
            agent.take(empty, boottime())
            time.sleep(0.05)
        scheduler.fault = lambda: ""
        count = len(scheduler.heartbeats)
        wait_until(lambda: len(scheduler.heartbeats) > count + 2)
        assert scheduler.state(key) is RunState.RUNNING
        assert (home / "starts").read_text() == "start\n"
        sequences = [each.sequence for each in scheduler.heartbeats]
        assert len({each.instance for each in scheduler.heartbeats}) == 1
        assert max(sequences) >= len(set(sequences)) - 1


def test_what_is_in_doubt_is_never_started(scheduler: SmallScheduler, home: Path) -> None:
    """An answer older than its lease starts nothing, though it is the last that came."""
    with agent_thread(scheduler, home, gpus="1xA100") as agent:
        wait_until(lambda: len(scheduler.heartbeats) > 1)
        scheduler.fault = lambda: "lose request"
        wanted = run_of("job", counting(home, "time.sleep(600)"))
        answer = scheduler.answer(scheduler.heartbeats[-1])
        time.sleep(0.3)
        agent.take(answer.model_copy(update={"runs": [wanted], "sequence": 10**6}), boottime() - 31.0)
        time.sleep(0.6)
        assert not (home / "state" / "runs" / "job@1").exists()


def test_a_run_that_waits_starts_only_on_an_answer_to_the_last_heartbeat(scheduler: SmallScheduler, home: Path) -> None:
    """The scheduler hears that it has not been taken up, and may have given it to another node since."""
    flag = home / "go"
    holds = python(f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.02)")
    with agent_thread(scheduler, home):
        first = scheduler.want(run_of("first", holds))
        scheduler.wait_for(first, RunState.RUNNING)
        second = scheduler.want(run_of("second", counting(home, "time.sleep(600)")))
        count = len(scheduler.heartbeats)
        wait_until(lambda: len(scheduler.heartbeats) > count + 2)
        assert scheduler.state(second) is None
        scheduler.fault = lambda: "lose request"
        time.sleep(0.3)
        flag.touch()
        wait_until(lambda: not processes_of(home))
        time.sleep(0.5)
        assert not (home / "starts").exists()
        scheduler.fault = lambda: ""
        scheduler.wait_for(second, RunState.RUNNING)


def test_a_run_whose_folder_is_deleted_ends_and_the_agent_goes_on(scheduler: SmallScheduler, home: Path) -> None:
    with agent_thread(scheduler, home):
        key = scheduler.want(run_of("job", python(STUBBORN), grace_seconds=0.3))
        wait_until(lambda: scheduler.log("job") == "up\nup\n")
        shutil.rmtree(home / "state" / "runs" / "job@1")
        report = scheduler.wait_for(key, RunState.ENDED)
        assert (report.exit_code, report.preempted) == (None, True)
        assert not processes_of(home)
        assert scheduler.wait_for(scheduler.want(run_of("next", ["true"])), RunState.ENDED).exit_code == 0
        wait_until(lambda: not guards_of(home))


def test_an_agent_that_cannot_read_its_runs_says_nothing_of_them(
    scheduler: SmallScheduler, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat that leaves a run out would tell the scheduler that it is lost."""
    with agent_thread(scheduler, home):
        key = scheduler.want(run_of("job", python("import time; time.sleep(600)")))
        scheduler.wait_for(key, RunState.RUNNING)

        def fail(self: FolderLock, patience: float = 0.0) -> bool:
            raise OSError(24, "Too many open files")

        with monkeypatch.context() as patched:
            patched.setattr(FolderLock, "take", fail)
            time.sleep(0.4)
            count = len(scheduler.heartbeats)
            time.sleep(0.4)
            assert len(scheduler.heartbeats) == count
        wait_until(lambda: len(scheduler.heartbeats) > count)
        assert scheduler.state(key) is RunState.RUNNING
        assert all(len(each.runs) == 1 for each in scheduler.heartbeats[count:])
