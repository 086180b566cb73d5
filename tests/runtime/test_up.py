"""A cluster on this machine in one command: it comes up, runs jobs, stops in order, and goes on where it was."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from bloxopt.cli import run as run_cli
from bloxopt.runtime.people import People

PATIENCE = 30.0
OPTIONS = ["--simulate", "2x2xA100", "--policy", "fifo", "--round-seconds", "1"]
if os.geteuid() == 0:
    OPTIONS += ["--user", "root"]  # whose Python may be where no other account can go
BLOXOPT = [sys.executable, "-m", "bloxopt.cli"]
JOB = """
import time
from bloxopt.runtime import client
client.should_checkpoint()
print("attempt", client.attempt(), flush=True)
while client.attempt() == 1 and not client.should_checkpoint():
    time.sleep(0.05)
print("saved" if client.attempt() == 1 else "resumed", flush=True)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that the account of jobs can reach."""
    path = Path(tempfile.mkdtemp(prefix="bloxopt-up-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def up(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*BLOXOPT, "up", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def reached(process: subprocess.Popen[str], folder: Path) -> People:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise AssertionError(process.communicate()[1])
    return People(line.removeprefix("export BLOXOPT_SCHEDULER="), (folder / "admin.token").read_text().strip())


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


def processes_of(folder: Path) -> list[str]:
    """Command lines of this machine's processes that have to do with the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = entry.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if str(folder) in text:
            found.append(text)
    return found


def test_jobs_are_preempted_at_the_end_and_go_on_when_it_starts_again(folder: Path) -> None:
    place = folder / "cluster"
    first = up(*OPTIONS, "--folder", str(place))
    try:
        with reached(first, place) as people:
            assert [len(node["gpus"]) for node in people.get("/v1/nodes")] == [2, 2]
            secrets = [place / "admin.token", place / "node-0" / "token", place / "node-1" / "token"]
            assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
            environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            command = [sys.executable, "-c", JOB]
            job = people.post("/v1/jobs", {"command": command, "environment": environment})["job_id"]
            until(lambda: b"attempt 1" in people.output(job)[0])
        second = subprocess.run(
            [*BLOXOPT, "up", "--simulate", "1x1xA100", "--folder", str(place)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (second.returncode, second.stderr.count("\n")) == (2, 1)
        assert "in use" in second.stderr
    finally:
        first.send_signal(signal.SIGINT)
        _, said = first.communicate(timeout=PATIENCE)
    assert first.returncode == 0, said
    assert processes_of(place) == []

    again = up(*OPTIONS, "--folder", str(place))
    try:
        with reached(again, place) as people:
            until(lambda: people.get(f"/v1/jobs/{job}")["status"] == "succeeded")
            view = people.get(f"/v1/jobs/{job}")
            assert (view["attempt"], view["preemptions"]) == (2, 1)
            assert b"saved" in people.output(job, attempt=1)[0]
    finally:
        again.terminate()
        again.communicate(timeout=PATIENCE)
    assert again.returncode == 0
    assert processes_of(place) == []


@pytest.mark.slow
def test_a_command_finds_the_cluster_and_its_exit_code_is_passed_on() -> None:
    script = 'set -e; job=$("$@" submit --duration 5 -- id -un); "$@" logs -f $job; "$@" nodes; exit 7'
    done = subprocess.run(
        [*BLOXOPT, "up", "--simulate", "1x4xV100", "--round-seconds", "1", "--", "sh", "-c", script, "sh", *BLOXOPT],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    account, table = done.stdout.split("\n", 1)
    assert account == ("nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name)
    assert "4xV100" in table
    assert "1 node is up" in done.stderr
    place = Path(done.stderr.split("below ", 1)[1].split("\n", 1)[0]).parent
    assert not place.exists(), "a folder that nobody named is removed"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--simulate", "many"], "many"),
        (["--simulate", "1x2xA100", "--policy", "fife"], "--policy: unknown policy 'fife': did you mean 'fifo'"),
        (["--simulate", "1x2xA100", "--user", "no-such-account"], "no-such-account"),
        (["--simulate", "1x2xA100", "--port", "70000"], "65535"),
        (["--simulate", "1x2xA100", "--workdir", "/no/such/folder"], "/no/such/folder: there is no such folder"),
        ([], "--simulate"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    arguments: list[str], words: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert run_cli(["up", "--folder", str(folder / "cluster"), *arguments]) == 2
    told = capfd.readouterr().err.splitlines()
    assert sum(line.startswith("error: ") for line in told) == 1
    assert words in told[0]
    assert processes_of(folder) == []


def test_a_folder_with_other_things_and_a_port_in_use_are_refused(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "thesis.tex").write_text("mine")
    assert run_cli(["up", "--simulate", "1x1xA100", "--folder", str(folder)]) == 2
    assert "other files" in capfd.readouterr().err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert run_cli(["up", "--simulate", "1x1xA100", "--folder", str(folder / "new"), "--port", port]) == 2
    assert f"127.0.0.1:{port}" in capfd.readouterr().err
    assert processes_of(folder) == []
    assert (folder / "thesis.tex").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_folder_that_the_account_of_jobs_cannot_reach_is_refused(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder.chmod(0o700)
    assert run_cli(["up", "--simulate", "1x1xA100", "--folder", str(folder / "cluster")]) == 2
    assert "cannot enter" in capfd.readouterr().err
