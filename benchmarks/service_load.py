"""One scheduler under load: latency as clients see it, rounds, memory and submissions, beside their limits.

    python benchmarks/service_load.py [--policies fifo,las,max_min_fairness] [--nodes 1000] [--jobs 10000]
                                      [--seconds 120]

A real ``bloxopt scheduler`` with its default settings and a SQLite file; nodes of 8 GPUs that send heartbeats every 5 s
and report the runs that they were told of; as many jobs as run on them and ``--jobs`` more that wait; and people who
submit, look and ask. The load is made on the same CPUs, and is part of what they have to do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from service_nodes import Connection, Node  # noqa: E402

GPUS_PER_NODE = 8
SIZES, SHARES = (1, 2, 4, 8), (0.6, 0.15, 0.15, 0.1)
INTERVAL = 5.0
MEAN_DURATION = 3600.0
SUBMITTERS = 8
LATENCY_LIMIT, ROUND_LIMIT, MEMORY_LIMIT, SUBMIT_LIMIT = 0.1, 1.0, 2.0**30, 200.0


@dataclass
class Seen:
    """What clients saw in one phase: seconds by kind of request, and answers that were not as they should be."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def everything(self) -> list[float]:
        return [value for values in self.seconds.values() for value in values]

    def note(self, kind: str, status: int, seconds: float) -> None:
        self.seconds[kind].append(seconds)
        if status not in (200, 201):
            self.refused[f"{kind} {status}"] += 1


def job(random_numbers: random.Random) -> dict[str, Any]:
    """A job as people submit it."""
    (size,) = random_numbers.choices(SIZES, SHARES)
    duration = 30.0 + random_numbers.expovariate(1 / MEAN_DURATION)
    return {
        "name": "train",
        "job_type": f"model-{random_numbers.randrange(20)}",
        "command": ["python", "train.py", "--config", "configs/default.yaml", "--seed", "1"],
        "environment": {"WANDB_MODE": "offline", "OMP_NUM_THREADS": "8"},
        "workdir": "/data/people/ada/project",
        "num_gpus": size,
        "total_steps": 10.0 * duration * size,
        "duration": duration,
    }


# -- the nodes, in a process of their own ------------------------------------------------------------------------------


def nodes_process(port: int, tokens: dict[str, str], stop: Event, results: Any) -> None:
    """Let nodes live until ``stop``; puts (moment, status, seconds) of every heartbeat into ``results``."""
    beats: list[tuple[float, int, float]] = []

    async def run() -> None:
        nodes = [Node(name, GPUS_PER_NODE, Connection(port, token)) for name, token in tokens.items()]

        def note(status: int, seconds: float) -> None:
            beats.append((time.time(), status, seconds))

        await asyncio.gather(*(node.live(stop.is_set, note) for node in nodes))

    asyncio.run(run())
    results.put((beats, time.process_time()))


# -- people ------------------------------------------------------------------------------------------------------------


@dataclass
class People:
    """Everything but heartbeats."""

    port: int
    admin: str
    user: str
    seen: Seen = field(default_factory=Seen)
    random: random.Random = field(default_factory=lambda: random.Random(0))
    jobs: list[str] = field(default_factory=list)

    async def ask(self, link: Connection, kind: str, method: str, path: str, body: Any = None) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        status, content, seconds = await link.ask(method, path, data)
        self.seen.note(kind, status, seconds)
        return json.loads(content) if status in (200, 201) and path != "/metrics" else content

    async def submit_singly(self, count: int) -> float:
        """Several people submit ``count`` jobs, one a request; jobs/s."""
        left = [count]

        async def one() -> None:
            link = Connection(self.port, self.user)
            while left[0] > 0:
                left[0] -= 1
                made = await self.ask(link, f"submit ({SUBMITTERS} clients)", "POST", "/v1/jobs", job(self.random))
                self.jobs.append(made["job_id"])

        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(SUBMITTERS)))
        return count / (time.perf_counter() - began)

    async def submit_batches(self, count: int, size: int) -> float:
        """One person submits the jobs ``size`` a request; jobs/s."""
        link = Connection(self.port, self.user)
        began = time.perf_counter()
        for start in range(0, count, size):
            specs = [job(self.random) for _ in range(min(size, count - start))]
            made = await self.ask(link, f"submit {size} at once", "POST", "/v1/jobs/batch", specs)
            self.jobs += [entry["job_id"] for entry in made]
        return count / (time.perf_counter() - began)

    async def go_on(self, seconds: float) -> None:
        """What people and monitoring ask all the time, in turns that do not wait for each other."""
        end = time.monotonic() + seconds

        async def every(pause: float, token: str, what: Callable[[Connection], Awaitable[Any]]) -> None:
            link = Connection(self.port, token)
            await asyncio.sleep(self.random.random() * pause)
            while time.monotonic() < end:
                await what(link)
                await asyncio.sleep(pause * self.random.uniform(0.8, 1.2))

        def look(kind: str, path: Callable[[], str]) -> Callable[[Connection], Awaitable[Any]]:
            return lambda link: self.ask(link, kind, "GET", path())

        def some_job() -> str:
            return self.random.choice(self.jobs)

        async def submit(link: Connection) -> None:
            made = await self.ask(link, "submit", "POST", "/v1/jobs", job(self.random))
            self.jobs.append(made["job_id"])

        async def cancel(link: Connection) -> None:
            await self.ask(link, "cancel", "POST", f"/v1/jobs/{some_job()}/cancel")

        await asyncio.gather(
            every(0.5, self.user, look("queue page", lambda: "/v1/jobs?status=pending&limit=100")),
            every(0.5, self.admin, look("queue page", lambda: "/v1/jobs?limit=100")),
            every(0.2, self.user, look("job", lambda: f"/v1/jobs/{some_job()}")),
            every(1.0, self.user, look("history", lambda: f"/v1/jobs/{some_job()}/history")),
            every(1.0, self.user, submit),
            every(5.0, self.user, cancel),
            every(15.0, self.admin, look("nodes", lambda: "/v1/nodes")),
            every(15.0, self.admin, look("metrics", lambda: "/metrics")),
            every(20.0, self.user, look("explain", lambda: f"/v1/jobs/{some_job()}/explain")),
        )


# -- the scheduler -----------------------------------------------------------------------------------------------------


class Scheduler:
    """The process, and what the system knows of it."""

    def __init__(self, folder: Path, policy: str, nice: int) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = int(listener.getsockname()[1])
        config = folder / "scheduler.toml"
        config.write_text(f'policy = "{policy}"\n[server]\nport = {self.port}\n')
        self._token, self._log = folder / "admin.token", folder / "scheduler.log"
        command = [sys.executable, "-m", "bloxopt.cli", "scheduler", "--config", str(config)]
        if nice:
            command = ["nice", "-n", str(nice), *command]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([*command, "--admin-token-file", str(self._token)], stderr=log, cwd=ROOT)

    async def started(self) -> str:
        """The admin's token, once the scheduler answers."""
        for _ in range(600):
            try:
                if (await Connection(self.port, "").ask("GET", "/healthz"))[0]:
                    return self._token.read_text().strip()
            except OSError:
                await asyncio.sleep(0.1)
        raise SystemExit(f"the scheduler does not start:\n{self._log.read_text()}")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    @property
    def pid(self) -> int:
        return self._process.pid

    def _workers(self) -> list[int]:
        """Processes that solve for it."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def cpu_seconds(self) -> float:
        """CPU time of the scheduler itself so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_bytes(self) -> tuple[float, float]:
        """The most memory that the scheduler, and with it the processes that solve for it, have had."""
        peaks = []
        for pid in (self.pid, *self._workers()):
            match = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
            peaks.append(1024.0 * int(match[1]) if match else 0.0)
        return peaks[0], sum(peaks)

    def rounds(self, since: float) -> list[tuple[float, int]]:
        """Seconds of each logged round after ``since`` (epoch s), and the jobs it moved."""
        found = []
        for text in self._log.read_text().splitlines():
            line = json.loads(text)
            if line["message"] == "round" and _epoch(line) >= since:
                found.append((line["decide_seconds"], line["started"] + line["stopped"]))
        return found

    def slowest(self, since: float) -> list[dict[str, Any]]:
        """The logged rounds after ``since`` (epoch s) that took longest."""
        lines = [json.loads(text) for text in self._log.read_text().splitlines()]
        rounds = [line for line in lines if line["message"] == "round" and _epoch(line) >= since]
        return sorted(rounds, key=lambda line: -float(line["decide_seconds"]))[:3]

    def complaints(self) -> Counter[str]:
        lines = [json.loads(text) for text in self._log.read_text().splitlines()]
        return Counter(line["message"] for line in lines if line["level"] in ("warning", "error"))


def _epoch(line: dict[str, Any]) -> float:
    return time.mktime(time.strptime(line["time"][:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone


def value_of(metrics: str, name: str) -> float:
    match = re.search(rf"^{re.escape(name)} (\S+)$", metrics, re.MULTILINE)
    return float(match[1]) if match else 0.0


# -- measuring ---------------------------------------------------------------------------------------------------------


def line(what: str, value: float, unit: str, limit: float | None = None, least: bool = False, note: str = "") -> None:
    text = f"{what:44s} {value:10.3f} {unit:6s}"
    if limit is not None:
        ratio = limit / value if least else value / limit
        text += f" limit {limit:8.3f}   {ratio:5.2f} of it{'' if ratio <= 1 else '  MISSED'}"
    print(f"{text}   {note}".rstrip(), flush=True)


def latencies(title: str, seen: Seen, limit: float | None) -> None:
    print(f"-- {title}: ms as clients see it")
    for kind, seconds in [*sorted(seen.seconds.items()), ("all", seen.everything)]:
        if seconds:
            half, most = np.quantile(seconds, (0.5, 0.99)) * 1e3
            text = f"   {kind:28s} {len(seconds):7d} requests   p50 {half:8.1f}   p99 {most:8.1f}"
            text += f"   max {max(seconds) * 1e3:8.1f}"
            if limit is not None:
                text += f"   p99 {most / 1e3 / limit:6.2f} of the limit"
            print(text, flush=True)
    if seen.refused:
        print(f"   refused: {dict(seen.refused)}")


async def measure(policy: str, nodes: int, queued: int, seconds: float, nice: int) -> None:
    print(f"== {policy}: {nodes} nodes of {GPUS_PER_NODE} GPUs, {queued} queued jobs", flush=True)
    with tempfile.TemporaryDirectory(prefix="bloxopt-load-") as folder:
        scheduler = Scheduler(Path(folder), policy, nice)
        context = multiprocessing.get_context("spawn")
        stop, results = context.Event(), context.Queue()
        try:
            admin = await scheduler.started()
            link = Connection(scheduler.port, admin)

            async def token(role: str, subject: str) -> str:
                request = json.dumps({"role": role, "subject": subject}).encode()
                return str(json.loads((await link.ask("POST", "/v1/tokens", request))[1])["token"])

            tokens = {f"gpu-{number:04d}": await token("node", f"gpu-{number:04d}") for number in range(nodes)}
            people = People(scheduler.port, admin, await token("user", "ada"))
            agents = context.Process(target=nodes_process, args=(scheduler.port, tokens, stop, results), daemon=True)
            agents.start()
            await asyncio.sleep(2 * INTERVAL)

            filling = time.time()
            running = round(nodes * GPUS_PER_NODE / float(np.dot(SIZES, SHARES)))
            singles = min(2000, queued // 2)
            line("submit, one a request", await people.submit_singly(singles), "jobs/s", SUBMIT_LIMIT, least=True)
            rate = await people.submit_batches(queued + running - singles, 1000)
            line("submit, 1,000 a request", rate, "jobs/s", SUBMIT_LIMIT, least=True)
            while time.time() < filling + 180:
                await asyncio.sleep(5)
                metrics = (await link.ask("GET", "/metrics"))[1].decode()
                if value_of(metrics, 'bloxopt_jobs{status="running"}') > 0.9 * running:
                    break
            await asyncio.sleep(3 * INTERVAL)

            steady, cpu = time.time(), scheduler.cpu_seconds()
            before, people.seen = people.seen, Seen()
            await people.go_on(seconds)
            end, cpu = time.time(), scheduler.cpu_seconds() - cpu
            metrics = (await link.ask("GET", "/metrics"))[1].decode()
            memory, with_workers = scheduler.peak_bytes()
            stop.set()
            beats, load_cpu = await asyncio.to_thread(results.get)
            for at, status, took in beats:
                if at < end:
                    (before if at < steady else people.seen).note("heartbeat", status, took)
            count = sum(steady <= at < end for at, _, _ in beats)

            latencies("while the cluster fills", before, None)
            latencies("steady", people.seen, LATENCY_LIMIT)
            line("p99 of all requests", float(np.quantile(people.seen.everything, 0.99)), "s", LATENCY_LIMIT)
            for title, since in (("first rounds", filling), ("rounds in steady state", steady)):
                rounds = [took for took, _ in scheduler.rounds(since)]
                if title == "first rounds":
                    rounds = rounds[: max(len(rounds) - len(scheduler.rounds(steady)), 0)]
                if rounds:
                    moved = sum(moves for _, moves in scheduler.rounds(since)) / len(rounds)
                    line(f"{title}: longest of {len(rounds)}", max(rounds), "s", ROUND_LIMIT, note=f"{moved:.0f} moves")
                    line(f"{title}: median", float(np.median(rounds)), "s", ROUND_LIMIT)
            for slow in scheduler.slowest(filling):
                print(f"   slow round: {slow}")
            line("memory of the scheduler at most", memory / 2**30, "GiB", MEMORY_LIMIT / 2**30)
            line("… with the processes that solve for it", with_workers / 2**30, "GiB")
            line("heartbeats a second", count / (end - steady), "1/s")
            line("CPU of the scheduler", cpu / (end - steady), "cores", note=f"{cpu / count * 1e3:.2f} ms a heartbeat")
            line("CPU of the nodes that are not there", load_cpu / (time.time() - filling), "cores")
            queue = value_of(metrics, 'bloxopt_jobs{status="pending"}')
            at_work = value_of(metrics, 'bloxopt_jobs{status="running"}')
            done = value_of(metrics, "bloxopt_finished_jobs")
            print(f"   at the end: {queue:.0f} jobs pending, {at_work:.0f} running, {done:.0f} over")
            print(f"   the scheduler's complaints: {dict(scheduler.complaints())}", flush=True)
        finally:
            stop.set()
            scheduler.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", default="fifo,las,max_min_fairness")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--nice", type=int, default=0, help="of the scheduler; to find out what the load itself costs")
    given = parser.parse_args()
    for policy in given.policies.split(","):
        asyncio.run(measure(policy, given.nodes, given.jobs, given.seconds, given.nice))


if __name__ == "__main__":
    main()
