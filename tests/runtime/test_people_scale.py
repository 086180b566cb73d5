"""The command line of a large cluster: complete in a pipe, fitted to a narrow terminal, and never a traceback."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from bloxopt.runtime.live import Clock
from bloxopt.runtime.service.tokens import Tokens
from bloxopt.runtime.store import Change, Event, JobRecord, NodeRecord, Store
from tests.runtime.live_world import gpus, spec
from tests.runtime.test_service_process import _free_port, scheduler

NODES, JOBS, EVENTS = 300, 2500, 2100
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Of a command on a cluster with many nodes that are lost and many jobs that wait."""
    folder, port = tmp_path_factory.mktemp("large"), _free_port()
    store, now = Store(str(folder / "bloxopt.db")), Clock().now()
    name = "training-of-a-very-large-model-with-a-name-of-many-words"
    jobs = {
        f"job-{number:05d}": JobRecord(
            f"job-{number:05d}", "ada", spec(1e6, gpu_types=["None"], name=name), now - 10_000.0 + number
        )
        for number in range(JOBS)
    }
    jobs["job-00000"].spec = spec(1e6, gpu_types=["None"]).model_copy(update={"command": ["x", "\x1b[2Jgone\x07"]})
    nodes = {
        f"gpu-{number:04d}.cluster.example": NodeRecord(
            f"gpu-{number:04d}.cluster.example", "10.0.0.1", now - 9e4, gpus=gpus(8), slots={"A100": number}
        )
        for number in range(NODES)
    }
    events = [Event(now - 10_000.0 + number, "job.note", "job-00001", {"n": number}) for number in range(EVENTS)]
    store.commit(Change(jobs=jobs, nodes=nodes, events=events))
    token = Tokens(store, Clock()).create("admin", "root")[0]
    store.close()
    (folder / "s.toml").write_text('policy = "fifo"\n[rounds]\nseconds = 600.0\n')
    command = ["-m", "bloxopt.cli", "scheduler", "-c", str(folder / "s.toml"), "--port", str(port)]
    with (folder / "log").open("wb") as log, scheduler(*command, port=port, stderr=log):
        yield {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "BLOXOPT_SCHEDULER": f"http://127.0.0.1:{port}",
            "BLOXOPT_TOKEN": token,
            "TERM": "xterm",
        }


def _piped(environment: dict[str, str], *arguments: str, then: str = "cat") -> tuple[str, str]:
    """Standard output at the end of the pipe, and standard error."""
    line = f'"$0" -m bloxopt.cli "$@" | {then}'
    command = ["/bin/sh", "-c", line, sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout, done.stderr


def _on_terminal(
    environment: dict[str, str], columns: int, *arguments: str, seconds: float | None = None
) -> tuple[str, int]:
    """What appears on a terminal of so many columns and 30 lines, and the exit code; Ctrl-C after ``seconds``."""
    process, terminal = pty.fork()
    if process == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell may have had it ignored
        os.execve(sys.executable, [sys.executable, "-m", "bloxopt.cli", *arguments], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    data, end, interrupted = b"", None, False
    while True:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                piece = os.read(terminal, 65_536)
            except OSError:
                break
            if not piece:
                break
            data += piece
            if seconds is not None and end is None:
                end = time.monotonic() + seconds
        if end is not None and time.monotonic() > end:
            os.kill(process, signal.SIGKILL if interrupted else signal.SIGINT)
            end, interrupted = time.monotonic() + 30.0, True
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.close(terminal)
    return data.decode(errors="replace").replace("\r", ""), code


def test_in_a_pipe_all_is_there_line_by_line(environment: dict[str, str]) -> None:
    for arguments, count in ((["queue", "--limit", "10000"], JOBS), (["nodes"], NODES)):
        out, err = _piped(environment, *arguments)
        assert err == ""
        assert out.count("\n") == count + 1
    jobs = json.loads(_piped(environment, "queue", "--limit", "10000", "--json")[0])
    assert len({job["job_id"] for job in jobs}) == JOBS


def test_history_goes_on_beyond_a_page(environment: dict[str, str]) -> None:
    out, err = _piped(environment, "history", "job-00001", "--json")
    assert err == ""
    assert [event["data"]["n"] for event in json.loads(out) if event["kind"] == "job.note"] == list(range(EVENTS))


@pytest.mark.parametrize("arguments", [["queue", "--limit", "10000"], ["nodes"], ["top"], ["history"]])
def test_a_reader_that_has_seen_enough_leaves_no_traceback(environment: dict[str, str], arguments: list[str]) -> None:
    out, err = _piped(environment, *arguments, then="head -n 1")
    assert out.count("\n") == 1
    assert err == ""


@pytest.mark.parametrize("arguments", [["queue"], ["nodes"], ["token", "list"], ["status", "job-00002"]])
def test_a_narrow_terminal_shows_what_matters_most(environment: dict[str, str], arguments: list[str]) -> None:
    shown, code = _on_terminal(environment, 40, *arguments)
    lines = [_ESCAPES.sub("", line) for line in shown.splitlines()]
    assert code == 0
    assert "Traceback" not in shown
    assert max(map(len, lines)) <= 40
    assert any("status" in line or "state" in line for line in lines)


def test_top_fits_a_terminal_whatever_the_cluster(environment: dict[str, str]) -> None:
    shown, code = _on_terminal(environment, 100, "top", "--interval", "0.5", seconds=2.0)
    assert code == 130
    assert "Traceback" not in shown
    text = _ESCAPES.sub("", shown)
    assert f"{NODES} nodes ({NODES} lost), 0 of 2,400 GPUs in use" in text
    assert "… and " in text
    assert "job-02499" in text, "jobs have room too"


def test_no_terminal_obeys_what_others_wrote(environment: dict[str, str]) -> None:
    for shown in (
        _on_terminal(environment, 80, "status", "job-00000")[0],
        _piped(environment, "status", "job-00000")[0],
    ):
        assert "\x1b[2J" not in shown
        assert "\x07" not in shown
        assert r"\x1b[2Jgone\x07" in shown
