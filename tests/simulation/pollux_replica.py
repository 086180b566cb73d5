"""The semantics of Pollux' simulator at fixed batch sizes, one job and one second rule at a time, without bloxopt.

Written from its description (see docs/simulation.md) as plain loops, to test preset ``pollux`` against.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from scipy.interpolate import LinearNDInterpolator, interp1d

Alloc = dict[str, list[int]]
"""The node of every GPU of each job that runs."""


class App:
    """The measurements of one application."""

    def __init__(self, folder: Path) -> None:
        def rows(name: str) -> list[dict[str, str]]:
            with (folder / name).open() as file:
                return list(csv.DictReader(file))

        self.name = folder.name
        self.validation = {
            int(path.stem.split("-")[1]): rows(path.name) for path in sorted(folder.glob("validation-*.csv"))
        }
        self.sizes = sorted(self.validation)
        self.epochs = min(map(len, self.validation.values()))
        ends = [min(float(data[e]["progress"]) for data in self.validation.values()) for e in range(self.epochs)]
        self.progress = [0.0, *ends]
        placements = rows("placements.csv")
        local = [float(row["local_bsz"]) for row in placements]
        self.min_local, self.max_local = int(min(local)), 8 if self.name == "yolov3" else int(max(local))
        self.lines: dict[str, interp1d] = {}
        for placement in {row["placement"] for row in placements}:
            mine = [row for row in placements if row["placement"] == placement]
            times = [[float(row["step_time"]), float(row["sync_time"])] for row in mine]
            self.lines[placement] = interp1d([float(row["local_bsz"]) for row in mine], times, axis=0)
        groups: dict[tuple[int, int, int], list[list[float]]] = {}
        for row in placements:
            digits = [int(digit) for digit in row["placement"]]
            at = len(digits), sum(digits), int(row["local_bsz"])
            groups.setdefault(at, []).append([float(row["step_time"]), float(row["sync_time"])])
        points = [*sorted(groups)]
        values = [np.mean(groups[at], axis=0) for at in points]
        for row in rows("scalability.csv"):
            points.append((int(row["num_nodes"]), int(row["num_replicas"]), int(row["local_bsz"])))
            values.append(np.array([float(row["step_time"]), float(row["sync_time"])]))
        self.volume = LinearNDInterpolator(np.array(points, dtype=float), np.array(values))

    def between(self, batch: int, column: str, epoch: int) -> float:
        low = max(size for size in self.sizes if size <= batch)
        high = min(size for size in self.sizes if size >= batch)
        first, second = (float(self.validation[size][epoch][column]) for size in (low, high))
        return first if low == high else ((batch - low) * second + (high - batch) * first) / (high - low)

    def split(self, batch: int, gpus: int, always_accumulate: bool = False) -> tuple[int, int]:
        """Local batch size and passes without a step."""
        share = math.ceil(batch / gpus - 1e-8)
        extra = math.ceil(share / self.max_local - 1e-8) - 1
        if gpus == 1 and (batch > self.sizes[0] or always_accumulate):
            extra = max(1, extra)
        local = math.ceil(share / (extra + 1) - 1e-8)
        return min(local, int(self.sizes[-1] / (gpus * (extra + 1)))), extra

    @cache  # noqa: B019
    def step(self, placement: tuple[int, ...], local: int) -> tuple[float, float]:
        turned = min(placement[k:] + placement[:k] for k in range(len(placement)))
        line = self.lines.get("".join(map(str, turned)))
        times = line(local) if line else self.volume([min(len(turned), 16), sum(turned), local])[0]
        assert not np.isnan(times).any()
        return float(times[0]), float(times[1])


@dataclass
class Job:
    name: str
    app: App
    arrival: int
    gpus: int
    batch: int
    placement: tuple[int, ...] = ()
    progress: float = 0.0
    epoch: int = 0
    stall: float = 0.0
    restarts: int = -1
    now: float = 0.0
    finish: float | None = None

    def pass_time(self, seconds: float) -> None:
        if not self.placement or self.finish is not None:
            self.now += seconds
            return
        delay = min(self.stall, seconds)
        self.stall -= delay
        self.now += delay
        seconds -= delay
        while seconds > 0 and self.finish is None:
            app, gpus = self.app, sum(self.placement)
            local, extra = app.split(self.batch, gpus)
            batch = local * (extra + 1) * gpus
            step, sync = app.step(self.placement, local)
            sqr, var = (app.between(batch, name, self.epoch) for name in ("grad_sqr", "grad_var"))
            gain = (var + sqr) / (var * app.sizes[0] / batch + sqr)
            rate = gain / (step + (step - sync) * extra)
            end = app.progress[self.epoch + 1]
            if self.progress + rate * seconds < end:
                self.progress += rate * seconds
                self.now += seconds
                return
            whole = round((end - self.progress) / rate)
            self.progress, self.epoch = end, self.epoch + 1
            self.now += whole
            seconds -= whole
            if self.epoch == app.epochs:
                self.finish = self.now
        self.now += seconds


@dataclass
class Tiresias:
    """Two lists; a job that has had the limit of GPU-seconds goes to the end of the second for good."""

    limit: float
    lists: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    ran: dict[str, float] = field(default_factory=dict)

    def __call__(self, jobs: dict[str, Job], before: Alloc, free: list[int], round_seconds: float) -> Alloc:
        first, second = ([name for name in names if name in jobs] for names in self.lists)
        first += [name for name in jobs if name not in first + second]
        for name in jobs:
            self.ran[name] = self.ran.get(name, 0.0) + (round_seconds if name in before else 0.0)
            if name in first and self.ran[name] * jobs[name].gpus >= self.limit:
                first.remove(name)
                second.append(name)
        self.lists = first, second
        left, runs = sum(free), []
        for name in first + second:
            if jobs[name].gpus <= left:
                left -= jobs[name].gpus
                runs.append(name)
        kept = {name: nodes for name, nodes in before.items() if name in runs}
        return emptiest_first(kept, runs, {name: jobs[name].gpus for name in runs}, free)


class Optimus:
    """One GPU each in order of arrival, then one after the other to the job that it saves most time."""

    def __call__(self, jobs: dict[str, Job], before: Alloc, free: list[int], round_seconds: float) -> Alloc:
        def seconds(job: Job, gpus: int) -> float:
            local, extra = job.app.split(job.batch, gpus, always_accumulate=True)
            packed = (4,) * (gpus // 4) + ((gpus % 4,) if gpus % 4 else ())
            step, sync = job.app.step(packed, local)
            last = job.app.epochs - 1
            made = job.app.between(job.batch, "iteration", last) - job.app.between(job.batch, "iteration", job.epoch)
            return (step + (step - sync) * extra) * (made if job.epoch < last else 1.0)

        def gain(name: str) -> float:
            job, gpus = jobs[name], given[name]
            most = 1 if job.app.name == "ncf" else job.batch // job.app.min_local
            return seconds(job, gpus) - seconds(job, gpus + 1) if gpus < min(most, sum(free)) else 0.0

        left = sum(free)
        given = {}
        for name in jobs:
            given[name] = min(1, left)
            left -= given[name]
        gains = {name: gain(name) for name in jobs if given[name]}
        while left and max(gains.values()) > 0:
            name = max(gains, key=lambda name: gains[name])
            given[name] += 1
            left -= 1
            gains[name] = gain(name)
        kept = {name: nodes for name, nodes in before.items() if given[name] == len(nodes)}
        return emptiest_first(kept, sorted(jobs, key=lambda name: given[name]), given, free)


def emptiest_first(kept: Alloc, order: list[str], gpus: dict[str, int], free: list[int]) -> Alloc:
    alloc, left = dict(kept), list(free)
    for nodes in kept.values():
        for node in nodes:
            left[node] -= 1
    for name in order:
        if gpus[name] and name not in alloc:
            alloc[name] = []
            while len(alloc[name]) < gpus[name]:
                node = left.index(max(left))
                taken = min(left[node], gpus[name] - len(alloc[name]))
                alloc[name] += [node] * taken
                left[node] -= taken
    return alloc


def run(jobs: list[Job], policy: Callable[[dict[str, Job], Alloc, list[int], float], Alloc], nodes: int) -> None:
    """Simulate rounds of 60 s on nodes of four GPUs until all jobs have finished."""
    alloc: Alloc = {}
    now = 0.0
    while any(job.finish is None for job in jobs):
        for job in jobs:
            job.pass_time(60.0)
        now += 60.0
        active = {job.name: job for job in jobs if job.arrival <= now and job.finish is None}
        before = {name: on for name, on in alloc.items() if name in active}
        alloc = policy(active, before, [4] * nodes, 60.0) if active else {}
        for name, job in active.items():
            on = alloc.get(name, [])
            if on != before.get(name, []):
                job.placement = tuple(on.count(node) for node in dict.fromkeys(on))
                job.stall = 30.0
                job.restarts += bool(on)
