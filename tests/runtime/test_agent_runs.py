"""Runs under an agent, with real processes: how they start, how they are stopped, how their end is told."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from bloxopt.runtime.messages import RunState
from tests.runtime.agent_support import (
    SmallScheduler,
    agent_thread,
    home,
    processes_of,
    python,
    run_of,
    scheduler,
    wait_until,
)

__all__ = ["home", "scheduler"]

FOREVER = python("import time; time.sleep(600)")


def test_ranks_see_the_environment_that_torchrun_gives(scheduler: SmallScheduler, home: Path) -> None:
    show = python("import json, os; print(json.dumps(dict(os.environ)))")
    wanted = run_of(
        "job",
        show,
        gpus=[1, 3],
        environment={"RANK": "99", "CUDA_VISIBLE_DEVICES": "0,1,2,3", "BLOXOPT_JOB_ID": "other", "MINE": "a b;$c"},
    ).model_copy(update={"first_rank": 2, "world_size": 4, "node_rank": 1, "num_nodes": 2, "resume_steps": 12.5})
    os.environ["SECRET_OF_THE_AGENT"] = "token"
    with agent_thread(scheduler, home):
        report = scheduler.wait_for(scheduler.want(wanted), RunState.ENDED)
        assert report.exit_code == 0, report
        wait_until(lambda: all(scheduler.log("job", 1, rank).endswith("\n") for rank in (2, 3)))
    for local, rank in enumerate((2, 3)):
        seen = json.loads(scheduler.log("job", 1, rank))
        assert (
            seen.items()
            >= {
                "RANK": str(rank),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": "4",
                "LOCAL_WORLD_SIZE": "2",
                "NODE_RANK": "1",
                "GROUP_RANK": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "29500",
                "CUDA_VISIBLE_DEVICES": "1,3",
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "BLOXOPT_JOB_ID": "job",
                "BLOXOPT_ATTEMPT": "1",
                "BLOXOPT_RESUME_STEPS": "12.5",
                "MINE": "a b;$c",
            }.items()
        )
        assert "SECRET_OF_THE_AGENT" not in seen
        # torch takes these for a sign that an agent of torchrun holds the rendezvous.
        assert not [name for name in seen if name.startswith("TORCHELASTIC")]


def test_one_process_per_node_has_all_its_gpus(scheduler: SmallScheduler, home: Path) -> None:
    show = python("import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['LOCAL_WORLD_SIZE'])")
    with agent_thread(scheduler, home):
        scheduler.wait_for(scheduler.want(run_of("job", show, gpus=[0, 2], processes="per_node")), RunState.ENDED)
        wait_until(lambda: scheduler.log("job") == "0,2 1\n")
    assert ("job", 1, 1) not in scheduler.logs


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_exit_codes_and_signals_are_told(scheduler: SmallScheduler, home: Path, code: str, ending: int) -> None:
    with agent_thread(scheduler, home):
        report = scheduler.wait_for(scheduler.want(run_of("job", python(code))), RunState.ENDED)
    assert (report.exit_code, report.preempted) == (ending, False)


def test_a_rank_that_fails_ends_the_others_and_its_code_is_the_runs(scheduler: SmallScheduler, home: Path) -> None:
    code = "import os, time; time.sleep(600) if os.environ['RANK'] != '1' else os._exit(5)"
    with agent_thread(scheduler, home):
        report = scheduler.wait_for(scheduler.want(run_of("job", python(code), gpus=[0, 1, 2])), RunState.ENDED)
    assert (report.exit_code, report.preempted) == (5, False)
    assert report.message == "rank 1 exited with code 5"
    assert not processes_of(home)


def test_preempted_jobs_have_their_grace_to_save(scheduler: SmallScheduler, home: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "def save(number, frame):\n    time.sleep(0.5); print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('up', flush=True)\nwhile True: time.sleep(1)"
    )
    with agent_thread(scheduler, home):
        key = scheduler.want(run_of("job", python(code)))
        wait_until(lambda: scheduler.log("job") == "up\n")
        scheduler.unwant(key)
        report = scheduler.wait_for(key, RunState.ENDED)
        wait_until(lambda: scheduler.log("job") == "up\nsaved\n")
    assert (report.exit_code, report.preempted) == (0, True)


def test_jobs_that_ignore_sigterm_are_killed_after_their_grace(scheduler: SmallScheduler, home: Path) -> None:
    code = (
        "import signal, time, os\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.fork(); os.write(1, b'up\\n'); time.sleep(600)"
    )
    with agent_thread(scheduler, home):
        key = scheduler.want(run_of("job", python(code), grace_seconds=1.0))
        wait_until(lambda: scheduler.log("job") == "up\nup\n")
        scheduler.unwant(key)
        began = time.monotonic()
        report = scheduler.wait_for(key, RunState.ENDED)
    assert 1.0 <= time.monotonic() - began < 5.0
    assert (report.exit_code, report.preempted) == (-signal.SIGKILL, True)
    assert not processes_of(home)


def test_strays_in_sessions_of_their_own_end_with_the_run(scheduler: SmallScheduler, home: Path) -> None:
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: print('stray', os.getpid(), flush=True); time.sleep(600)\n"
        "    os._exit(0)\n"
        "time.sleep(0.3)"
    )
    with agent_thread(scheduler, home):
        report = scheduler.wait_for(scheduler.want(run_of("job", python(code))), RunState.ENDED)
        assert report.exit_code == 0
        wait_until(lambda: scheduler.log("job").startswith("stray"))
    stray = int(scheduler.log("job").split()[1])
    assert not Path(f"/proc/{stray}").exists()


def test_only_the_process_that_uses_the_client_is_told_to_stop(scheduler: SmallScheduler, home: Path) -> None:
    """The workers of its data loader must live on until it has saved; the shell around it passes nothing on."""
    script = home / "train.py"
    script.write_text(
        "import os, time\n"
        "from bloxopt.runtime import client\n"
        "worker = os.fork()\n"
        "if worker == 0: time.sleep(600)\n"
        "for step in client.steps(range(10**9), start=100):\n"
        "    time.sleep(0.01)\n"
        "    if client.should_checkpoint(): break\n"
        "assert os.waitpid(worker, os.WNOHANG) == (0, 0)\n"
        "print('saved with its worker alive', flush=True)\n"
    )
    command = ["/bin/sh", "-c", f"{sys.executable} {script}; echo the shell lives"]
    with agent_thread(scheduler, home):
        key = scheduler.want(run_of("job", command))
        wait_until(lambda: key in scheduler.reports and (scheduler.reports[key].steps_per_second or 0) > 1)
        assert (scheduler.reports[key].steps or 0) >= 100
        scheduler.unwant(key)
        report = scheduler.wait_for(key, RunState.ENDED)
        assert (report.exit_code, report.preempted) == (0, True)
        assert report.steps is not None
        wait_until(lambda: scheduler.log("job") == "saved with its worker alive\nthe shell lives\n")


def test_a_gpu_is_never_given_to_a_run_while_another_holds_it(
    scheduler: SmallScheduler, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "bloxopt.agent")
    stubborn = python(
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    with agent_thread(scheduler, home):
        first = scheduler.want(run_of("first", stubborn, gpus=[0, 1], grace_seconds=0.8))
        wait_until(lambda: scheduler.log("first") == "up\n")
        second = scheduler.want(run_of("second", FOREVER, gpus=[1, 2]))
        other = scheduler.want(run_of("other", FOREVER, gpus=[3]))
        scheduler.wait_for(other, RunState.RUNNING)
        wait_until(lambda: "second attempt 1 waits for GPU 1: first still holds it" in caplog.text)
        scheduler.unwant(first)
        scheduler.wait_for(second, RunState.RUNNING)
        assert scheduler.state(first) is RunState.ENDED


def test_a_new_attempt_waits_for_the_end_of_the_one_before(
    scheduler: SmallScheduler, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "bloxopt.agent")
    with agent_thread(scheduler, home):
        scheduler.wait_for(scheduler.want(run_of("job", FOREVER, gpus=[0])), RunState.RUNNING)
        again = scheduler.want(run_of("job", FOREVER, gpus=[1], attempt=2))
        wait_until(lambda: "job attempt 2 waits for the end of attempt 1" in caplog.text)
        scheduler.unwant(("job", 1))
        scheduler.wait_for(again, RunState.RUNNING)
        assert len(processes_of(home)) == 1


def test_what_cannot_start_says_why_and_the_agent_goes_on(scheduler: SmallScheduler, home: Path) -> None:
    allowed, outside = home / "allowed", home / "outside"
    allowed.mkdir()
    outside.mkdir()
    (allowed / "link").symlink_to(outside)
    (home / "plain").write_text("no program")
    expected = {
        "missing": (run_of("missing", ["no-such-program"]), 127, "command not found: no-such-program"),
        "plain": (run_of("plain", [str(home / "plain")]), 126, f"not executable: {home / 'plain'}"),
        "outside": (run_of("outside", ["true"], workdir=str(outside)), 78, f"workdir {outside} is not below a folder"),
        "dots": (run_of("dots", ["true"], workdir=f"{allowed}/../outside"), 78, "is not below a folder that this node"),
        "link": (run_of("link", ["true"], workdir=str(allowed / "link")), 78, "is not below a folder that this node"),
        "absent": (run_of("absent", ["true"], workdir=str(allowed / "absent")), 78, "No such file or directory"),
        "zero": (run_of("zero", ["echo", "a\0b"]), 78, "the command or its environment cannot be used"),
        "gpu": (run_of("gpu", ["true"], gpus=[17]), 78, "this node has no GPU 17"),
        "twice": (run_of("twice", ["true"], gpus=[2, 2]), 78, "a GPU is named twice"),
    }
    with agent_thread(scheduler, home, workdirs=(allowed,)):
        for place, (run, _, _) in enumerate(expected.values()):
            scheduler.want(run if run.gpus != [0] else run.model_copy(update={"gpus": [place]}))
        for name, (_, code, message) in expected.items():
            report = scheduler.wait_for((name, 1), RunState.ENDED)
            assert (name, report.exit_code, report.preempted) == (name, code, False)
            assert message in report.message
        good = run_of("good", ["/bin/pwd"], workdir=str(allowed))
        assert scheduler.wait_for(scheduler.want(good), RunState.ENDED).exit_code == 0
        wait_until(lambda: scheduler.log("good") == f"{allowed}\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start jobs as somebody else")
def test_jobs_run_as_the_configured_account_and_cannot_reach_the_agents_files(
    scheduler: SmallScheduler, home: Path
) -> None:
    for folder in [home, *home.parents]:
        if str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    code = (
        "import os\n"
        "print(os.getresuid(), os.getresgid(), os.getgroups(), os.environ['USER'])\n"
        "open(os.environ['BLOXOPT_RUN_DIR'] + '/mine', 'w').write('x')\n"
        f"print(os.access({str(home / 'state' / 'runs')!r}, os.R_OK), os.getcwd() == os.environ['BLOXOPT_RUN_DIR'])\n"
        "try: os.kill(os.getppid(), 9)\nexcept PermissionError: print('may not kill its guard')"
    )
    command = ["/usr/bin/python3", "-c", code]
    if not Path("/usr/bin/python3").exists():
        pytest.skip("no Python that other accounts may use")
    with agent_thread(scheduler, home, user="nobody"):
        report = scheduler.wait_for(scheduler.want(run_of("job", command)), RunState.ENDED)
        assert report.exit_code == 0, (report, scheduler.log("job"))
        wait_until(lambda: scheduler.log("job").count("\n") == 3)
    first, second, third = scheduler.log("job").splitlines()
    assert first == "(65534, 65534, 65534) (65534, 65534, 65534) [65534] nobody"
    assert second == "False True"
    assert third == "may not kill its guard"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start jobs as somebody else")
def test_folders_in_path_that_the_account_cannot_enter_hold_no_command(
    scheduler: SmallScheduler, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in [home, *home.parents]:
        if str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    closed, plain = home / "closed", home / "plain"
    closed.mkdir(mode=0o700)
    (closed / "hidden").write_text("#!/bin/sh\n")
    (closed / "hidden").chmod(0o755)
    plain.mkdir(mode=0o755)
    (plain / "text").write_text("no program")
    monkeypatch.setenv("PATH", f"{closed}:{plain}:{os.environ['PATH']}")
    with agent_thread(scheduler, home, user="nobody"):
        for place, (name, code, message) in enumerate(
            [
                ("no-such-program", 127, "command not found: no-such-program"),
                ("hidden", 127, "command not found: hidden"),
                ("text", 126, "not executable: text"),
                ("true", 0, ""),
            ]
        ):
            report = scheduler.wait_for(scheduler.want(run_of(f"job-{place}", [name])), RunState.ENDED)
            assert (name, report.exit_code, report.message) == (name, code, message)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start jobs as somebody else")
def test_an_unknown_account_is_the_runs_message(scheduler: SmallScheduler, home: Path) -> None:
    with agent_thread(scheduler, home, user="no-such-account"):
        report = scheduler.wait_for(scheduler.want(run_of("job", ["true"])), RunState.ENDED)
    assert (report.exit_code, report.message) == (78, "there is no user 'no-such-account' on this node")


def test_a_state_folder_that_cannot_be_written_is_the_runs_message(scheduler: SmallScheduler, home: Path) -> None:
    with agent_thread(scheduler, home):
        wait_until(lambda: len(scheduler.heartbeats) > 0)
        (home / "state" / "shared").rmdir()
        (home / "state" / "shared").write_text("in the way")
        report = scheduler.wait_for(scheduler.want(run_of("job", ["true"])), RunState.ENDED)
        assert report.exit_code == 74
        assert report.message.startswith("the state folder of the node's agent cannot be written: ")
        (home / "state" / "shared").unlink()
        (home / "state" / "shared").mkdir()
        assert scheduler.wait_for(scheduler.want(run_of("next", ["true"])), RunState.ENDED).exit_code == 0


def test_cpus_are_each_given_to_one_run(scheduler: SmallScheduler, home: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    show = python("import os, time; print(sorted(os.sched_getaffinity(0)), flush=True); time.sleep(600)")
    with agent_thread(scheduler, home):
        for index in range(len(cpus[:2])):
            scheduler.want(run_of(f"job{index}", show, gpus=[index], cpus_per_gpu=1))
        many = scheduler.want(run_of("many", show, gpus=[3], cpus_per_gpu=len(cpus)))
        wait_until(lambda: all(scheduler.log(name) for name in ("job0", "many")))
        seen = [
            json.loads(scheduler.log(f"job{index}")) for index in range(len(cpus[:2])) if scheduler.log(f"job{index}")
        ]
        assert all(len(each) == 1 for each in seen)
        assert len({each[0] for each in seen}) == len(seen)
        assert json.loads(scheduler.log("many")) == cpus
        assert "runs on any CPU" in scheduler.wait_for(many, RunState.RUNNING).message


def test_memory_is_limited_and_the_report_says_how(scheduler: SmallScheduler, home: Path) -> None:
    hungry = python("import time; print('up', flush=True); time.sleep(1.0); b = bytearray(1 << 28)")
    with agent_thread(scheduler, home):
        key = scheduler.want(run_of("job", hungry, memory_gib_per_gpu=0.125))
        running = scheduler.wait_for(key, RunState.RUNNING)
        assert "memory is limited for each process" in running.message
        report = scheduler.wait_for(key, RunState.ENDED)
        assert report.exit_code != 0
        wait_until(lambda: "MemoryError" in scheduler.log("job"))
