"""What a heartbeat costs the scheduler, beside what it costs another checkout's, run in turns on the same machine.

    python benchmarks/service_requests.py [--baseline ../before] [--nodes 200] [--seconds 5] [--turns 4]

Real ``bloxopt scheduler`` processes, each with ``--nodes`` nodes of 8 GPUs and a job on every GPU. In each turn one of
them is sent heartbeats one after another, with nothing between them. CPU is that of the thread that reads and answers
requests; that of the whole process, with storing and rounds, is beside it. What other programs do at the time moves
requests/s, but hardly CPU, and ratios least.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from service_nodes import Connection, Node

ROOT = Path(__file__).resolve().parents[1]
GPUS_PER_NODE = 8
CONNECTIONS_AT_ONCE = 4
JOB = {
    "job_type": "model",
    "command": ["python", "train.py", "--config", "configs/default.yaml", "--seed", "1"],
    "environment": {"WANDB_MODE": "offline", "OMP_NUM_THREADS": "8"},
    "workdir": "/data/people/ada/project",
    "total_steps": 1e9,
    "duration": 1e8,
}


@dataclass
class Scheduler:
    """One scheduler process of a checkout, its nodes, and what their heartbeats have cost it, turn by turn."""

    name: str
    process: subprocess.Popen[bytes]
    nodes: list[Node]
    main_ms: list[float] = field(default_factory=list)
    process_ms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    async def beat(self, node: Node) -> None:
        status, body, _ = await node.connection.ask("POST", f"/v1/nodes/{node.name}/heartbeat", node.heartbeat())
        if status != 200:
            raise SystemExit(f"{self.name}: a heartbeat was answered with {status}: {body.decode()}")
        node.take(body)

    async def fill(self) -> None:
        """Send heartbeats until every GPU of every node has a running job."""
        for _ in range(600):
            for node in self.nodes:
                await self.beat(node)
            if all(
                len(node.runs) == GPUS_PER_NODE and all(run.state == "running" for run in node.runs.values())
                for node in self.nodes
            ):
                return
            await asyncio.sleep(0.2)
        raise SystemExit(f"{self.name}: jobs do not start")

    async def turn(self, seconds: float) -> None:
        """Send heartbeats for ``seconds``, over a few connections at once."""
        end, count = time.monotonic() + seconds, 0

        async def some(nodes: list[Node]) -> None:
            nonlocal count
            while time.monotonic() < end:
                for node in nodes:
                    await self.beat(node)
                    count += 1

        began, main, whole = time.monotonic(), self._main_seconds(), self._process_seconds()
        await asyncio.gather(*(some(self.nodes[start::CONNECTIONS_AT_ONCE]) for start in range(CONNECTIONS_AT_ONCE)))
        self.rates.append(count / (time.monotonic() - began))
        self.main_ms.append((self._main_seconds() - main) / count * 1e3)
        self.process_ms.append((self._process_seconds() - whole) / count * 1e3)

    def _main_seconds(self) -> float:
        """CPU time so far of the thread that the process began with."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

    def _process_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.asynccontextmanager
async def scheduler(name: str, checkout: Path, count: int, folder: Path) -> AsyncIterator[Scheduler]:
    """A scheduler of a checkout, whose ``count`` nodes are full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    config, token, log = (folder / part for part in ("scheduler.toml", "admin.token", "scheduler.log"))
    config.write_text(
        f'policy = "fifo"\n[server]\nport = {port}\n[rounds]\nseconds = 5.0\n'
        "[limits]\nrequests_per_second = 1e6\nburst = 1000000\n"
    )
    command = [sys.executable, "-m", "bloxopt.cli", "scheduler", "--config", str(config)]
    with log.open("wb") as errors:
        # Run from the checkout, which is where its package is found then.
        process = subprocess.Popen([*command, "--admin-token-file", str(token)], stderr=errors, cwd=checkout)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                if (await Connection(port, "").ask("GET", "/healthz"))[0]:
                    break
            await asyncio.sleep(0.1)
        else:
            raise SystemExit(f"{name}: the scheduler does not start:\n{log.read_text()}")
        admin = Connection(port, token.read_text().strip())

        async def node(number: int) -> Node:
            wanted = {"role": "node", "subject": f"gpu-{number:04d}"}
            made = json.loads((await admin.ask("POST", "/v1/tokens", json.dumps(wanted).encode()))[1])
            return Node(wanted["subject"], GPUS_PER_NODE, Connection(port, made["token"]))

        started = Scheduler(name, process, [await node(number) for number in range(count)])
        for _ in range(GPUS_PER_NODE):
            status, body, _ = await admin.ask("POST", "/v1/jobs/batch", json.dumps([JOB] * count).encode())
            if status != 201:
                raise SystemExit(f"{name}: jobs were refused: {body.decode()}")
        await started.fill()
        yield started
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


async def measure(baseline: Path | None, nodes: int, seconds: float, turns: int) -> None:
    checkouts = {"this": ROOT} | ({} if baseline is None else {"baseline": baseline.resolve()})
    async with contextlib.AsyncExitStack() as stack:
        schedulers = []
        for name, checkout in checkouts.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bloxopt-requests-")))
            schedulers.append(await stack.enter_async_context(scheduler(name, checkout, nodes, folder)))
        for one in schedulers:
            await one.turn(seconds / 2)  # not counted: whatever is made on first use
            one.main_ms, one.process_ms, one.rates = [], [], []
        for _ in range(turns):
            for one in schedulers:
                await one.turn(seconds)
    for one in schedulers:
        main, whole, rate = (float(np.median(values)) for values in (one.main_ms, one.process_ms, one.rates))
        print(f"{one.name:10s} {main:7.3f} ms a heartbeat in the main thread ({whole:.3f} in all)   {rate:7.1f} /s")
    if len(schedulers) == 2:
        ratios = np.array(schedulers[0].main_ms) / np.array(schedulers[1].main_ms)
        print(f"{'ratio':10s} {np.median(ratios):7.3f} (from {ratios.min():.3f} to {ratios.max():.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", type=Path, help="another checkout to compare with")
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--turns", type=int, default=4)
    given = parser.parse_args()
    asyncio.run(measure(given.baseline, given.nodes, given.seconds, given.turns))


if __name__ == "__main__":
    main()
