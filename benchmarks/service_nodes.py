"""Nodes that are not there, for loading a scheduler: they keep to the agents' protocol, and cost little themselves."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Connection:
    """One kept-alive HTTP connection. A few lines of its own, because whole clients cost as much CPU as the server."""

    def __init__(self, port: int, token: str) -> None:
        self._port, self._token = port, token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes, float]:
        """Status, body and seconds of one request."""
        kept = self._streams is not None
        try:
            return await self._ask(method, path, body)
        except EOFError as error:
            self.close()
            if not kept or getattr(error, "partial", b""):
                raise
            # The server had closed the connection by then, and has not seen the request.
            return await self._ask(method, path, body)
        except OSError:
            self.close()
            raise

    async def _ask(self, method: str, path: str, body: bytes) -> tuple[int, bytes, float]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=2**26)
        reader, writer = self._streams
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        began = time.perf_counter()
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(answer.split("content-length:", 1)[1].split("\r\n", 1)[0])
        content = await reader.readexactly(length)
        seconds = time.perf_counter() - began
        if "connection: close" in answer:
            self.close()
        return int(answer.split(" ", 2)[1]), content, seconds

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def measured_gpus(node: str, count: int) -> list[dict[str, Any]]:
    """GPUs as NVML shows them, with everything that an agent sends of them."""
    return [
        {
            "index": index,
            "uuid": f"GPU-{node}-{index:04d}-4a1c-9d7e-8f00a1b2c3d4",
            "gpu_type": "A100",
            "memory_gib": 79.15,
            "memory_used_gib": 41.3,
            "utilisation": 0.97,
            "temperature": 61.0,
            "power": 312.4,
            "ecc_errors": 0,
            "xid_errors": [],
            "throttled": [],
            "processes": [40_000 + index],
            "links": {str(other): 12 for other in range(count) if other != index},
            "pcie": {str(other): "node" for other in range(count) if other != index},
            "mig_profiles": [],
            "health": "healthy",
            "message": "",
        }
        for index in range(count)
    ]


@dataclass
class Run:
    """One run that a node has been told of: ``rate`` steps/s for ``total`` steps, from ``begun`` (s) on."""

    job_id: str
    attempt: int
    resume: float
    rate: float
    total: float
    begun: float
    state: str = "starting"
    exit_code: int | None = None
    preempted: bool = False

    def report(self, now: float) -> dict[str, Any]:
        if self.state == "starting" and now >= self.begun + 0.5:
            self.state = "running"
        steps = min(self.resume + self.rate * (now - self.begun), self.total)
        if self.state == "running" and steps >= self.total:
            self.state, self.exit_code = "ended", 0
        return {
            "job_id": self.job_id,
            "attempt": self.attempt,
            "state": self.state,
            "exit_code": self.exit_code,
            "preempted": self.preempted,
            "steps": steps,
            "steps_per_second": self.rate,
            "message": "",
        }


@dataclass
class Node:
    """A node that sends heartbeats and converges to what it is told, at once."""

    name: str
    gpus: int
    connection: Connection
    sequence: int = 0
    interval: float = 5.0
    soonest: float = 0.5
    runs: dict[tuple[str, int], Run] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # What does not change from one heartbeat to the next is written once.
        self._gpus = json.dumps(measured_gpus(self.name, self.gpus))

    def heartbeat(self) -> bytes:
        self.sequence += 1
        now = time.monotonic()
        runs = json.dumps([run.report(now) for run in self.runs.values()])
        return (
            f'{{"node":"{self.name}","instance":"load","sequence":{self.sequence},"address":"10.0.0.1",'
            f'"cpus":128.0,"memory_gib":1007.5,"healthy":true,"message":"","version":"0.1.0",'
            f'"gpus":{self._gpus},"runs":{runs}}}'
        ).encode()

    def take(self, answer: bytes) -> bool:
        """Start, stop and forget runs; whether there is something new to report soon."""
        desired = json.loads(answer)
        self.interval, self.soonest = desired["heartbeat_seconds"], desired["news_seconds"]
        now = time.monotonic()
        for job_id, attempt in desired["forget"]:
            self.runs.pop((job_id, attempt), None)
        wanted = {(run["job_id"], run["attempt"]): run for run in desired["runs"]}
        news = False
        for key, run in self.runs.items():
            if key not in wanted and run.state != "ended":
                run.state, run.exit_code, run.preempted, news = "ended", -15, True, True
        for key, run in wanted.items():
            if key not in self.runs:
                news = True
                spec = run["spec"]
                rate = spec["total_steps"] / spec["duration"] * run["world_size"] / spec.get("num_gpus", 1)
                self.runs[key] = Run(*key, run["resume_steps"], rate, spec["total_steps"], now)
        return news or any(run.state == "starting" for run in self.runs.values())

    async def live(self, until: Callable[[], bool], note: Callable[[int, float], None]) -> None:
        """Send heartbeats when they are due, as agents do; ``note`` is told status and seconds."""
        due = time.monotonic() + random.random() * self.interval
        while not until():
            await asyncio.sleep(max(due - time.monotonic(), 0.0))
            began = time.monotonic()
            try:
                status, body, seconds = await self.connection.ask(
                    "POST", f"/v1/nodes/{self.name}/heartbeat", self.heartbeat()
                )
            except (OSError, EOFError):
                note(0, time.monotonic() - began)
                due = began + self.interval
                continue
            note(status, seconds)
            news = status == 200 and self.take(body)
            regular = self.interval * random.uniform(0.9, 1.0)
            due = began + (min(self.soonest, regular) if news else regular)
