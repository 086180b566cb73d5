"""For tests of the agent: a small scheduler that speaks the messages over HTTP, agents in threads and in processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from bloxopt.runtime.agent import Agent, AgentConfig, SimulatedGpus
from bloxopt.runtime.agent.files import boot_id
from bloxopt.runtime.agent.orders import Order
from bloxopt.runtime.messages import DesiredRun, DesiredState, Heartbeat, JobSpec, RunReport, RunState

ROOT = os.geteuid() == 0
ACCOUNT = "root" if ROOT else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Agents that are killed leave their connections as they are."""


class SmallScheduler:
    """Answers heartbeats with what a test desires, and stores logs; ``fault`` may spoil a request or its answer."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.desired: dict[tuple[str, int], DesiredRun] = {}
        self.reports: dict[tuple[str, int], RunReport] = {}
        self.ended: dict[tuple[str, int], RunReport] = {}
        self.heartbeats: list[Heartbeat] = []
        self.logs: dict[tuple[str, int, int], bytearray] = {}
        self.tokens: list[str | None] = []
        self.lease_seconds = 30.0
        self.heartbeat_seconds = 0.1
        self.forget_ended = True
        self.fault: Callable[[], str] = lambda: ""
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, heartbeat: Heartbeat) -> DesiredState:
        with self.lock:
            self.heartbeats.append(heartbeat)
            self.reports = {(each.job_id, each.attempt): each for each in heartbeat.runs}
            forget = []
            for key, report in self.reports.items():
                if report.state is RunState.ENDED:
                    self.ended[key] = report
                    self.desired.pop(key, None)
                    if self.forget_ended:
                        forget.append(key)
            return DesiredState(
                sequence=heartbeat.sequence,
                runs=list(self.desired.values()),
                forget=forget,
                lease_seconds=self.lease_seconds,
                heartbeat_seconds=self.heartbeat_seconds,
            )

    def store_log(self, key: tuple[str, int, int], offset: int, data: bytes) -> int:
        with self.lock:
            log = self.logs.setdefault(key, bytearray())
            if offset <= len(log):
                log += data[len(log) - offset :]
            return len(log)

    def want(self, run: DesiredRun) -> tuple[str, int]:
        with self.lock:
            self.desired[run.job_id, run.attempt] = run
        return run.job_id, run.attempt

    def unwant(self, key: tuple[str, int]) -> None:
        with self.lock:
            self.desired.pop(key, None)

    def state(self, key: tuple[str, int]) -> RunState | None:
        with self.lock:
            if key in self.ended:
                return RunState.ENDED
            return self.reports[key].state if key in self.reports else None

    def wait_for(self, key: tuple[str, int], state: RunState, seconds: float = 15.0) -> RunReport:
        wait_until(lambda: self.state(key) is state, seconds, lambda: f"{key} is {self.reports.get(key)}")
        with self.lock:
            return self.ended[key] if state is RunState.ENDED else self.reports[key]

    def log(self, job_id: str, attempt: int = 1, rank: int = 0) -> str:
        with self.lock:
            return bytes(self.logs.get((job_id, attempt, rank), b"")).decode()


def _handler(scheduler: SmallScheduler) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: Any) -> None: ...

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = scheduler.fault()
            scheduler.tokens.append(self.headers.get("Authorization"))
            if fault == "lose request":
                self.close_connection = True
                return
            parts = urlsplit(self.path)
            names = parts.path.strip("/").split("/")
            if names[-1] == "heartbeat":
                answer = scheduler.answer(Heartbeat.model_validate_json(body)).model_dump_json().encode()
            else:
                key = (names[4], int(names[5]), int(names[6]))
                stored = scheduler.store_log(key, int(parse_qs(parts.query)["offset"][0]), body)
                answer = json.dumps({"offset": stored}).encode()
            if fault == "lose answer":
                self.close_connection = True
                return
            code = 500 if fault == "error" else 200
            answer = b"{" if fault == "garbage" else answer
            self.send_response(code)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    return Handler


def wait_until(condition: Callable[[], bool], seconds: float = 15.0, told: Callable[[], str] = lambda: "") -> None:
    """Until ``condition`` holds; fails after ``seconds``."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            pytest.fail(f"waited {seconds} s in vain: {told()}")
        time.sleep(0.02)


def python(code: str) -> list[str]:
    """The command of a job that is a Python program."""
    return [sys.executable, "-S", "-c", code]


def run_of(job_id: str, command: list[str], gpus: list[int] | None = None, attempt: int = 1, **spec: Any) -> DesiredRun:
    """A run on one node with all ranks of its job."""
    gpus = [0] if gpus is None else gpus
    settings = {"num_gpus": len(gpus), "grace_seconds": 5.0, **spec}
    ranks = 1 if settings.get("processes") == "per_node" else len(gpus)
    return DesiredRun(
        job_id=job_id,
        attempt=attempt,
        user="alice",
        spec=JobSpec(command=command, **settings),
        gpus=gpus,
        first_rank=0,
        world_size=ranks,
        node_rank=0,
        num_nodes=1,
        master_address="127.0.0.1",
        master_port=29_500,
    )


def order(run_dir: Path, **changes: object) -> Order:
    """The order of a run of one rank, as an agent would write it."""
    fields = {
        "job_id": "job",
        "attempt": 1,
        "boot_id": boot_id(),
        "gpus": [0],
        "command": ["true"],
        "ranks": [0],
        "ranks_environment": [{"BLOXOPT_RUN_DIR": str(run_dir)}],
        "environment": {},
        "job_environment": {},
        "user": None,
        "workdir": None,
        "workdirs": [],
        "run_dir": str(run_dir),
        "grace_seconds": 1.0,
        "cpus": None,
        "memory_bytes": None,
        "cgroup": None,
        "log_segment_bytes": 1 << 20,
        "log_segments": 4,
        **changes,
    }
    return Order(**fields)  # type: ignore[arg-type]


def settings_for(scheduler: SmallScheduler, folder: Path, **settings: Any) -> dict[str, Any]:
    return {
        "scheduler": scheduler.url,
        "node": "node-0",
        "address": "127.0.0.1",
        "state_folder": folder / "state",
        "user": ACCOUNT,
        "patience_seconds": 2.0,
        **settings,
    }


@contextmanager
def agent_thread(scheduler: SmallScheduler, folder: Path, gpus: str = "16xA100", **settings: Any) -> Iterator[Agent]:
    """An agent in a thread of the test. What it left running is ended by the caller's fixture."""
    agent = Agent(AgentConfig.create(**settings_for(scheduler, folder, **settings)), SimulatedGpus(gpus))
    thread = threading.Thread(target=agent.run)
    thread.start()
    try:
        yield agent
    finally:
        agent.stop()
        thread.join(20)


_NURSERY = """
import itertools, json, os, signal, sys
from bloxopt.runtime.agent import Agent, AgentConfig, SimulatedGpus
import bloxopt.runtime.agent.agent, httpx, pynvml
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
httpx.Client(verify=False).close()

def die_after(calls):
    # Killed at exactly this call of a C function: between any two things that the agent does.
    count = itertools.count(1)
    def profile(frame, event, argument):
        if event == "c_call" and next(count) == calls:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.setprofile(profile)

for line in sys.stdin:
    calls, settings = json.loads(line)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        try:
            if calls:
                die_after(calls)
            Agent(AgentConfig.create(**settings), SimulatedGpus("16xA100")).run()
        finally:
            os._exit(1)
    print(pid, flush=True)
"""


class Nursery:
    """A process that has imported everything and forks agents, which are thus up in no time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def bear(self, settings: dict[str, Any], die_after_calls: int) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([die_after_calls, settings], default=str) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


class AgentProcesses:
    """One node's agent as a process of its own, that can be killed and started again."""

    def __init__(self, scheduler: SmallScheduler, folder: Path, nursery: Nursery) -> None:
        self._settings = settings_for(scheduler, folder)
        self._nursery = nursery
        self.pid = 0

    def start(self, die_after_calls: int = 0) -> None:
        self.pid = self._nursery.bear(self._settings, die_after_calls)

    def is_alive(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()

    def kill(self) -> None:
        """kill -9, and wait until it has gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        wait_until(lambda: not self.is_alive())

    def close(self) -> None:
        if self.pid:
            self.kill()


def processes_of(folder: Path) -> list[int]:
    """Every process of a job, at any depth, whose agent keeps its state in ``folder``."""
    marker = f"BLOXOPT_RUN_DIR={folder / 'state'}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                if marker in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(int(name))
            except OSError:
                continue
    return found


def guards_of(folder: Path) -> dict[str, int]:
    """The guards of an agent's runs: process id by the name of the run's folder."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().decode().split("\0")
            except (OSError, UnicodeDecodeError):
                continue
            if "bloxopt.runtime.agent.guard" in words and words[-2].startswith(str(folder)):
                found[Path(words[-2]).name] = int(name)
    return found


@pytest.fixture
def scheduler() -> Iterator[SmallScheduler]:
    small = SmallScheduler()
    yield small
    small.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A folder for an agent; whatever its runs have left is ended afterwards."""
    yield tmp_path
    for pid in [*guards_of(tmp_path).values(), *processes_of(tmp_path)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    one = Nursery()
    yield one
    one.close()


@pytest.fixture
def agents(scheduler: SmallScheduler, home: Path, nursery: Nursery) -> Iterator[AgentProcesses]:
    """After ``home``, so that agents are gone before what they left is."""
    started = AgentProcesses(scheduler, home, nursery)
    yield started
    started.close()
