"""What people do on the command line, against a real scheduler and the agent of a node with simulated GPUs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from bloxopt.cli import run as run_cli

PATIENCE = 60.0
CONFIG = """
[rounds]
seconds = 2.0
shortest = 0.2

[leases]
lease_seconds = 120.0
heartbeat_seconds = 0.3
lost_seconds = 30.0

[server]
port = {port}
"""


def _until(what: Callable[[], object], why: str) -> object:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{why} within {PATIENCE:g} s")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Cluster:
    """A scheduler and one node of four simulated GPUs; ``run`` is the command line of an admin."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str] | None = None) -> None:
        self.folder = folder
        self.port = _free_port()
        (folder / "scheduler.toml").write_text(CONFIG.format(port=self.port))
        self.processes: list[subprocess.Popen[bytes]] = []
        self.work = folder / "work"
        self.work.mkdir(mode=0o777)
        self.work.chmod(0o777)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        token = self.folder / "admin.token"
        self._spawn("scheduler", "-c", str(self.folder / "scheduler.toml"), "--admin-token-file", str(token))
        _until(lambda: token.exists() and token.read_text().strip(), "the admin's token was not written")
        os.environ["BLOXOPT_SCHEDULER"], os.environ["BLOXOPT_TOKEN"] = self.url, token.read_text().strip()

    def join(self, node_token: str) -> None:
        path = self.folder / "node.token"
        path.write_text(node_token)
        path.chmod(0o600)
        account = ("--user", "nobody") if os.geteuid() == 0 else ()
        self._spawn(
            *("agent", "--scheduler", self.url, "--token-file", str(path), "--node", "node-1", "--simulate", "4xA100"),
            *("--state-folder", str(self.folder / "state"), "--workdir", str(self.work), *account),
        )

    def _spawn(self, *arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BLOXOPT_")}
        command = [sys.executable, "-m", "bloxopt.cli", *arguments]
        log = (self.folder / f"{arguments[0]}.log").open("wb")
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=self.folder))

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("live")
    for parent in (folder, *folder.parents):  # the account that jobs run as must reach the work folder
        if Path(tempfile.gettempdir()) in parent.parents:
            parent.chmod(parent.stat().st_mode | 0o055)
    saved = {name: os.environ.get(name) for name in ("BLOXOPT_SCHEDULER", "BLOXOPT_TOKEN")}
    one = Cluster(folder)
    one.start()
    yield one
    one.stop()
    for name, value in saved.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture
def command(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must succeed; gives what it printed."""

    def run(*arguments: str, code: int = 0) -> str:
        capfd.readouterr()
        assert run_cli(list(arguments)) == code, capfd.readouterr().err
        out, err = capfd.readouterr()
        return out if code == 0 else err

    return run


def _statuses(command: Callable[..., str]) -> dict[str, str]:
    return {job["job_id"]: job["status"] for job in json.loads(command("queue", "--all", "--json"))}


def _has_joined(cluster: Cluster, command: Callable[..., str]) -> None:
    if command("nodes") == "":  # no other test of this process has had it join
        cluster.join(command("token", "node", "node-1").strip())
        _until(lambda: "node-1" in command("nodes"), "the node did not join")


def test_from_an_empty_cluster_to_the_output_of_jobs(cluster: Cluster, command: Callable[..., str]) -> None:
    _until(lambda: run_cli(["nodes", "--json"]) == 0, "the scheduler did not answer")
    assert json.loads(command("nodes", "--json")) == []
    waiting = command(
        "submit",
        "--gpus",
        "2",
        "--duration",
        "5",
        "--workdir",
        str(cluster.work),
        "--",
        "/bin/sh",
        "-c",
        "echo rank $RANK of $WORLD_SIZE",
    ).strip()
    assert "registered" in command("explain", waiting), "no node has come yet"

    cluster.join(command("token", "node", "node-1").strip())
    _until(lambda: json.loads(command("nodes", "--json")), "the node did not come")
    assert "4xA100" in command("nodes")
    _until(lambda: _statuses(command)[waiting] == "succeeded", "the job did not end")
    _until(lambda: command("logs", waiting, "--rank", "1"), "its output did not come")
    assert command("logs", waiting, "--follow", "--rank", "1") == "rank 1 of 2\n"
    assert "succeeded" in command("status", waiting)
    kinds = [event["kind"] for event in json.loads(command("history", waiting, "--json"))]
    assert kinds[0] == "job.submitted"
    assert kinds[-1] == "job.ended"
    assert "attempt.started" in kinds


def test_jobs_of_a_file_wait_are_explained_and_cancelled(cluster: Cluster, command: Callable[..., str]) -> None:
    jobs = cluster.folder / "jobs.toml"
    jobs.write_text(
        f'[[jobs]]\ncommand = ["/bin/sleep", "600"]\nnum_gpus = 4\nworkdir = "{cluster.work}"\nduration = 600\n'
        f'[[jobs]]\ncommand = ["/bin/sleep", "600"]\nnum_gpus = 8\nworkdir = "{cluster.work}"\nduration = 600\n'
    )
    runs, waits = command("submit", "--file", str(jobs)).split()
    _until(lambda: _statuses(command)[runs] == "running", "the job that fits did not start")
    assert _statuses(command)[waits] == "pending"
    answer = json.loads(command("explain", waits, "--json"))
    assert answer["job_id"] == waits
    assert answer["reason"] not in ("running", "finished")
    assert runs in command("top")
    assert "cancelled" in command("cancel", waits)
    command("cancel", runs)
    _until(lambda: _statuses(command)[runs] == "cancelled", "the job did not stop")
    assert {runs, waits}.isdisjoint(job["job_id"] for job in json.loads(command("queue", "--json")))


def test_a_drained_node_gets_nothing_until_it_is_put_back(cluster: Cluster, command: Callable[..., str]) -> None:
    _has_joined(cluster, command)
    assert command("drain", "node-1") == "node-1 drained\n"
    job = command("submit", "--workdir", str(cluster.work), "--duration", "5", "--", "/bin/true").strip()
    time.sleep(3.0)
    assert _statuses(command)[job] == "pending"
    assert command("drain", "node-1", "--undo") == "node-1 up\n"
    _until(lambda: _statuses(command)[job] == "succeeded", "the job did not run after all")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["submit"], "nothing to submit"),
        (["submit", "--", ""], "command"),
        (["submit", "--env", "novalue", "--", "true"], "NAME=VALUE"),
        (["submit", "--min-gpus", "4", "--gpus", "2", "--", "true"], "gpus"),
        (["submit", "--file", "nowhere.toml"], "nowhere.toml"),
        (["submit", "--workdir", "relative", "--", "true"], "must be an absolute path"),
        (["status", "no-such-job"], "no job"),
        (["cancel", "no-such-job"], "no job"),
        (["logs", "no-such-job"], "no job"),
        (["explain", "no-such-job"], "no job"),
        (["drain", "no-such-node"], "no node"),
        (["explain", "a", "b", "c"], "explain takes"),
        (["explain", "job", "--at", "3"], "--at"),
        (["token", "emperor", "me"], "emperor"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(command: Callable[..., str], arguments: list[str], words: str) -> None:
    error = command(*arguments, code=2)
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert words in error


def test_a_rank_that_a_job_does_not_have_is_said(command: Callable[..., str]) -> None:
    job = command("submit", "--gpus", "8", "--gpu-type", "none", "--", "true").strip()
    assert command("logs", job, "--rank", "7") == ""
    error = command("logs", job, "--rank", "8", code=2)
    assert error.endswith(f"job '{job}' has ranks 0 to 7: there is no rank 8\n")
    command("cancel", job)


def test_a_rank_that_an_attempt_did_not_have_is_said_though_the_job_could_have_had_it(
    cluster: Cluster, command: Callable[..., str]
) -> None:
    _has_joined(cluster, command)
    elastic = ("submit", "--min-gpus", "1", "--max-gpus", "8", "--duration", "600", "--workdir", str(cluster.work))
    job = command(*elastic, "--", "/bin/sh", "-c", "echo $WORLD_SIZE; sleep 600").strip()
    world = int(str(_until(lambda: command("logs", job), "the job wrote nothing")))
    assert world <= 4
    has = "rank 0 alone" if world == 1 else f"ranks 0 to {world - 1}"
    for follow in ([], ["--follow"], ["--attempt", "1"]):
        error = command("logs", job, "--rank", "6", *follow, code=2)
        assert error.endswith(f": attempt 1 of job '{job}' has {has}: there is no rank 6\n")
        assert error.count("\n") == 1
    error = command("logs", job, "--attempt", "2", code=2)
    assert error.endswith(f": job '{job}' was started 1 time: there is no attempt 2\n")
    command("cancel", job)
    _until(lambda: _statuses(command)[job] == "cancelled", "the job did not stop")
    error = command("logs", job, "--rank", "6", code=2)
    assert error.endswith(f": attempt 1 of job '{job}' has {has}: there is no rank 6\n")
    assert command("logs", job) == f"{world}\n"


def test_a_wrong_token_and_a_scheduler_that_is_not_there_are_said(
    command: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BLOXOPT_TOKEN", "wrong")
    assert "token" in command("queue", code=2)
    assert "cannot be reached" in command("queue", "--scheduler", f"http://127.0.0.1:{_free_port()}", code=2)
    assert "is no address" in command("queue", "--scheduler", "localhost", code=2)
    monkeypatch.delenv("BLOXOPT_TOKEN")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "no token" in command("queue", code=2)
    file = tmp_path / ".config" / "bloxopt" / "token"
    file.parent.mkdir(parents=True)
    file.write_text("secret")
    file.chmod(0o644)
    assert "chmod 600" in command("queue", code=2)


def test_a_user_sees_and_touches_only_their_own_jobs(
    cluster: Cluster, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = command("submit", "--workdir", str(cluster.work), "--duration", "5", "--", "/bin/true").strip()
    monkeypatch.setenv("BLOXOPT_TOKEN", command("token", "user", "alice").strip())
    mine = command("submit", "--workdir", str(cluster.work), "--duration", "5", "--", "/bin/true").strip()
    assert set(_statuses(command)) == {mine}
    for arguments in (
        ["status", theirs],
        ["cancel", theirs],
        ["logs", theirs],
        ["explain", theirs],
        ["history", theirs],
    ):
        assert "no job" in command(*arguments, code=2)
    for arguments in (["drain", "node-1"], ["history"], ["token", "admin", "alice"]):
        command(*arguments, code=2)
