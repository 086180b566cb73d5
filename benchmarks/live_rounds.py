"""What a round over a large live cluster costs beside the decision itself, part by part.

    python benchmarks/live_rounds.py [--policy max_min_fairness] [--nodes 1000] [--queued 5000] [--rounds 8] [--profile]

A live cluster in this process, with a SQLite file and nodes of 8 GPUs whose heartbeats are answered between rounds, on
a clock that moves by itself. Seconds are processor time of the thread that decides; the ratio is to the decision alone.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from service_load import SHARES, SIZES, job
from service_nodes import measured_gpus

from bloxopt.placement import get_placement
from bloxopt.rounds import Scheduler
from bloxopt.runtime.live import Clock, LiveBackend, LiveCluster
from bloxopt.runtime.live.heartbeats import answer_together
from bloxopt.runtime.live.reception import MOST_TOGETHER
from bloxopt.runtime.messages import DesiredState, GpuInfo, Heartbeat, JobSpec, RunReport, RunState
from bloxopt.runtime.service.config import make_config
from bloxopt.runtime.store import Store
from bloxopt.selection import get_selector

GPUS_PER_NODE, INTERVAL = 8, 5.0


class MovedClock(Clock):
    """Waiting moves it at once, and calls ``each_second``."""

    def __init__(self) -> None:
        self.at = 0.0
        self.each_second: Callable[[], None] = lambda: None
        super().__init__()

    def monotonic(self) -> float:
        return self.at

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.at += min(seconds, 1.0)
        self.each_second()
        return event.is_set()


class Nodes:
    """Nodes that keep to the protocol: what they were told of runs, and is reported in the next heartbeat."""

    def __init__(self, live: LiveCluster, count: int) -> None:
        self.live, self.names = live, [f"gpu-{number:04d}" for number in range(count)]
        self.gpus = {
            name: [GpuInfo.model_validate(gpu) for gpu in measured_gpus(name, GPUS_PER_NODE)] for name in self.names
        }
        self.runs: dict[str, dict[tuple[str, int], float]] = {name: {} for name in self.names}
        self.sequence, self.turn = 0, 0

    def heartbeat(self, name: str) -> Heartbeat:
        now = self.live.clock.monotonic()
        reports = [
            RunReport.model_construct(
                job_id=job_id,
                attempt=attempt,
                state=RunState.RUNNING,
                exit_code=None,
                preempted=False,
                steps=10.0 * (now - since),
                steps_per_second=10.0,
                message="",
            )
            for (job_id, attempt), since in self.runs[name].items()
        ]
        return Heartbeat.model_construct(
            node=name,
            instance="one",
            sequence=self.sequence,
            address="10.0.0.1",
            gpus=self.gpus[name],
            cpus=None,
            memory_gib=None,
            healthy=True,
            message="",
            runs=reports,
            version="",
        )

    def beat(self, names: list[str]) -> None:
        self.sequence += 1
        for first in range(0, len(names), MOST_TOGETHER):
            group = names[first : first + MOST_TOGETHER]
            for name, told in zip(group, answer_together(self.live, [*map(self.heartbeat, group)]), strict=True):
                assert isinstance(told, DesiredState)
                before, now = self.runs[name], self.live.clock.monotonic()
                self.runs[name] = {
                    (run.job_id, run.attempt): before.get((run.job_id, run.attempt), now) for run in told.runs
                }

    def beat_some(self) -> None:
        """The part of them whose turn it is in a second."""
        parts = round(INTERVAL)
        self.turn = (self.turn + 1) % parts
        self.beat(self.names[self.turn :: parts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="max_min_fairness")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--queued", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--profile", action="store_true", help="where the time goes, by function")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(given, Path(folder))


def measure(given: argparse.Namespace, folder: Path) -> None:
    clock = MovedClock()
    config = make_config({"policy": given.policy}, folder)
    live = LiveCluster(Store(str(folder / "bloxopt.db")), config.terms, clock)
    nodes = Nodes(live, given.nodes)
    nodes.beat(nodes.names)
    backend = LiveBackend(live, config.live_rounds)
    backend.recording.header = {"config": {}, "versions": {}}
    numbers = random.Random(0)
    running = round(given.nodes * GPUS_PER_NODE / float(np.dot(SIZES, SHARES)))
    specs = [JobSpec.model_validate(job(numbers)) for _ in range(running + given.queued)]
    live.submit("ada", specs)
    assert backend.start_over()
    scheduler = Scheduler(backend, config.make_policy(), get_selector("priorities"), get_placement("consolidated"))
    spent: dict[str, float] = defaultdict(float)

    def timed(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*args)
            finally:
                spent[part] += time.thread_time() - began

        return run

    def beat() -> None:
        began = time.thread_time()
        nodes.beat_some()
        spent["heartbeats"] += time.thread_time() - began
        spent["wait"] -= time.thread_time() - began

    clock.each_second = beat
    for part in ("observe", "apply", "wait"):
        setattr(backend, part, timed(part, getattr(backend, part)))
    scheduler.decide = timed("decide", scheduler.decide)  # type: ignore[method-assign]
    profile = cProfile.Profile(time.thread_time)
    print(f"{given.policy}: {given.nodes} nodes, {running} jobs that run, {given.queued} that wait; s of a round")
    print(f"{'':8s}{'moves':>8s}" + "".join(f"{part:>12s}" for part in ("observe", "decide", "apply", "wait")))
    for number in range(given.rounds):
        spent.clear()
        # Some come while others run, so that every round has another table.
        live.submit("ada", [JobSpec.model_validate(job(numbers)) for _ in range(2)])
        if given.profile and number >= given.rounds // 2:
            profile.enable()
        record = scheduler.run_round()
        profile.disable()
        parts = "".join(f"{spent[part]:12.3f}" for part in ("observe", "decide", "apply", "wait"))
        beside = spent["observe"] + spent["apply"] + spent["wait"]
        ratio = f"   beside the decision: {beside / max(spent['decide'], 1e-3):.2f} of it"
        print(f"{number:8d}{record.started + record.stopped:8d}{parts}{ratio}", flush=True)
    if given.profile:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(60)


if __name__ == "__main__":
    main()
