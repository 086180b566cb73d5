"""A whole cluster of processes for tests that break it: a scheduler, agents with simulated GPUs, guards and jobs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

import bloxopt
from bloxopt.runtime.live import Clock
from bloxopt.runtime.service.tokens import Tokens
from bloxopt.runtime.store import Store
from tests.runtime.agent_support import ACCOUNT, guards_of, processes_of
from tests.runtime.crash_nursery import Nursery

JOB = Path(__file__).with_name("crash_job.py")
LEASE_SECONDS, GRACE_SECONDS, MARGIN_SECONDS = 6.0, 2.0, 0.5
FINAL = {"succeeded", "failed", "cancelled", "rejected"}

_CONFIG = """
policy = "{policy}"
database = "{database}"

[rounds]
seconds = 0.5
shortest = 0.1
budget = 0.0

[leases]
lease_seconds = {lease}
heartbeat_seconds = 0.3
lost_seconds = 2.5
margin_seconds = {margin}
"""


class CrashCluster:
    """Processes and files of a cluster, all in ``folder``. Each process is started, and started again, by the test.

    ``nodes`` are names and the GPUs that each pretends to have. ``database`` is a URL; by default a file beside the
    configuration, which is in ``place`` or else in the folder. ``agent_url`` says where the agent of a node finds the
    scheduler, if not where that listens.
    """

    def __init__(
        self,
        folder: Path,
        nursery: Nursery,
        nodes: dict[str, str],
        database: str | None = None,
        policy: str = "fifo",
        lease_seconds: float = LEASE_SECONDS,
        place: Path | None = None,
    ) -> None:
        self.folder, self.nodes, self._nursery = folder, nodes, nursery
        self.work = folder / "work"
        (self.work / "gpus").mkdir(parents=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.config = (place or folder) / "scheduler.toml"
        self.database = str(self.config.with_name("live.db")) if database is None else database
        self.config.write_text(
            _CONFIG.format(policy=policy, database=self.database, lease=lease_seconds, margin=MARGIN_SECONDS)
        )
        store = Store(self.database)
        tokens = Tokens(store, Clock())
        self.token = tokens.create("admin", "ada")[0]
        self._node_tokens = {name: tokens.create("node", name)[0] for name in nodes}
        store.close()
        self.agent_url = dict.fromkeys(nodes, self.url)
        self.scheduler = 0
        self.agents = dict.fromkeys(nodes, 0)
        self.client = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {self.token}"}, timeout=5.0, trust_env=False
        )

    def start_scheduler(self, point: tuple[str, int] | None = None) -> None:
        self.scheduler = self._nursery.scheduler(self.config, self.port, self.folder / "scheduler.log", point)

    def start_agent(self, name: str, die_at: int | None = None) -> None:
        settings = self.agent_settings(name)
        self.agents[name] = self._nursery.agent(settings, self.nodes[name], self.folder / f"{name}.log", die_at)

    def agent_settings(self, name: str) -> dict[str, Any]:
        return {
            "scheduler": self.agent_url[name],
            "token": self._node_tokens[name],
            "node": name,
            "address": "127.0.0.1",
            "state_folder": self.home(name) / "state",
            "user": ACCOUNT,
            "workdirs": [self.work],
            "patience_seconds": 1.0,
        }

    def start(self) -> None:
        """Everything, until every node is up."""
        self.start_scheduler()
        for name in self.nodes:
            self.start_agent(name)
        until(lambda: {"up"} == {node["state"] for node in self.get("/v1/nodes") or ({"state": ""},)}, "nodes come up")

    def home(self, name: str) -> Path:
        """The folder of a node's agent."""
        return self.folder / name

    def close(self) -> None:
        """Kill whatever is left."""
        self.client.close()
        for pid in [self.scheduler, *self.agents.values()]:
            kill(pid)
        for name in self.nodes:
            for pid in [*guards_of(self.home(name)).values(), *processes_of(self.home(name))]:
                kill(pid)

    # -- what is asked of it -------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        """The answer; None where none came."""
        try:
            return self.client.request(method, path, **more)
        except httpx.TransportError:
            return None

    def get(self, path: str, **query: Any) -> Any:
        """A good answer's content; None where there was none."""
        answer = self.ask("GET", path, params=query)
        return answer.json() if answer is not None and answer.is_success else None

    def spec(
        self, key: str, steps: int, seconds: float = 0.05, every: int = 1, kind: str = "trains", **more: Any
    ) -> Any:
        """A job that keeps a ledger in a folder of its own."""
        folder = self.work / key
        folder.mkdir(exist_ok=True)
        return {
            "name": key,
            "command": [sys.executable, "-S", str(JOB), str(folder), str(steps), str(seconds), str(every), kind],
            "workdir": str(folder),
            "environment": {"PYTHONPATH": str(Path(bloxopt.__file__).parents[1])},
            "total_steps": steps,
            "duration": steps * seconds,
            "grace_seconds": GRACE_SECONDS,
            **more,
        }

    def submit(self, key: str, steps: int, *details: Any, **more: Any) -> str:
        """The id of a new job, submitted as soon as there is a scheduler."""
        until(lambda: self.ask("GET", "/healthz") is not None, "the scheduler answers")
        answer = self.ask("POST", "/v1/jobs", json=self.spec(key, steps, *details, **more))
        assert answer is not None
        assert answer.status_code == 201, answer.text
        return str(answer.json()["job_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """The job as it is; an empty one where no answer came."""
        return self.get(f"/v1/jobs/{job_id}") or {"status": "", "attempt": 0, "steps": -1}

    def until_over(self, job_id: str, patience: float = 30.0) -> dict[str, Any]:
        """The job when it is over."""
        until(lambda: self.job(job_id)["status"] in FINAL, f"{job_id} ends", patience)
        return self.job(job_id)

    def is_quiet(self) -> bool:
        """Whether no process of any run is left."""
        return not any(guards_of(self.home(name)) or processes_of(self.home(name)) for name in self.nodes)


@contextmanager
def crash_cluster(folder: Path, nursery: Nursery, nodes: dict[str, str], **more: Any) -> Iterator[CrashCluster]:
    """A cluster that is not started yet, and of which nothing is left afterwards."""
    cluster = CrashCluster(folder, nursery, nodes, **more)
    try:
        yield cluster
    finally:
        cluster.close()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def kill(pid: int) -> bool:
    """kill -9; whether there was anything to kill."""
    with contextlib.suppress(ProcessLookupError):
        if pid:
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def until(condition: Callable[[], object], what: str, patience: float = 30.0) -> None:
    """Wait until something holds; an AssertionError says ``what`` did not come."""
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, f"waited {patience:g} s in vain until {what}"
        time.sleep(0.05)
