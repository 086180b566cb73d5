"""A plain replica of Shockwave's simulator (NSDI 2023), job by job and round by round, to check ours against.

Written from the published code's behaviour, without bloxopt: batch sizes epoch by epoch, integer steps, the rounding of
progress to whole epochs when a batch size changes, and Gavel's priorities on one GPU type.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parents[2] / "traces" / "shockwave"
SAMPLES = {"ResNet-18": 50000, "ResNet-50": 100000, "Transformer": 10000, "LM": 59675, "Recommendation": 117907}
LARGEST = {"ResNet-18": 256, "ResNet-50": 128, "LM": 80, "Recommendation": 8192}
SMALLEST = {"ResNet-18": 16, "ResNet-50": 16, "LM": 5, "Recommendation": 512}
GPUS, ROUND, OVERHEAD, INTERVAL = 32, 120, 20, 1000

DOUBLED = """
ResNet-18 16 1: 31 41 51 71 | ResNet-18 32 1: 21 31 51 | ResNet-18 64 1: 11 31 | ResNet-18 128 1: 11
ResNet-18 16 2: 21 31 91 111 | ResNet-18 32 2: 11 21 41 | ResNet-18 64 2: 21 41 | ResNet-18 128 2: 41
ResNet-18 16 4: 11 21 81 91 | ResNet-18 32 4: 21 31 61 | ResNet-18 64 4: 11 61 | ResNet-18 128 4: 11
ResNet-50 64 1: 101 | ResNet-50 32 2: 101 111 | ResNet-50 64 2: 81 | ResNet-50 32 4: 131 221 | ResNet-50 64 4: 191
LM 5 1: 31 41 61 71 | LM 10 1: 11 21 41 | LM 20 1: 11 41 | LM 40 1: 11
LM 5 2: 31 51 61 71 | LM 10 2: 11 31 41 | LM 20 2: 31 41 | LM 40 2: 11
LM 5 4: 11 31 71 91 | LM 10 4: 11 31 61 | LM 20 4: 11 61 | LM 40 4: 61
Recommendation 512 1: 21 41 71 91 | Recommendation 1024 1: 21 51 91 | Recommendation 2048 1: 21 41
Recommendation 4096 1: 41
"""


@cache
def doubled_from(model: str, first: int, gpus: int) -> list[int]:
    """Epochs from which on GNS doubles the batch size."""
    for entry in re.split(r"[|\n]", DOUBLED):
        key, _, epochs = entry.partition(":")
        if key.split() == [model, str(first), str(gpus)]:
            return [int(epoch) for epoch in epochs.split()]
    return []


def gns_size(model: str, first: int, gpus: int, epoch: int) -> int:
    size = first
    for start in doubled_from(model, first, gpus):
        if epoch >= start:
            size *= 2
    return min(size, LARGEST.get(model, 128))


def accordion_profile(model: str, first: int, epochs: int) -> list[int]:
    sizes = []
    for epoch in range(epochs):
        if model == "ResNet-18":
            critical = epoch < (20 if first == 256 else 10) or 150 <= epoch < 160 or 250 <= epoch < 260
        elif model == "ResNet-50":
            critical = epoch % 30 < 10
        elif model == "LM":
            critical = epoch < 10
        elif model == "Recommendation":
            start = {512: 30, 1024: 30, 2048: 40, 4096: 10, 8192: 10}[first]
            critical = epoch < start or 60 <= epoch < 70 or 80 <= epoch < 90
        else:
            critical = True
        sizes.append(LARGEST[model] if not critical and epoch > epochs * 0.3 else first)
    return sizes


def profile(model: str, first: int, gpus: int, mode: str, epochs: int) -> list[int]:
    """The batch size of every epoch that Shockwave assumes (without the last epoch's return to the first size)."""
    if mode == "gns":
        return [gns_size(model, first, gpus, epoch) for epoch in range(epochs)]
    return accordion_profile(model, first, epochs) if mode == "accordion" else [first] * epochs


@dataclass
class ReplicaJob:
    number: int
    model: str
    first: int
    steps: int
    gpus: int
    mode: str
    arrival: float
    rates: Mapping[tuple[str, int], float]
    size: int = 0
    done: int = 0
    wanted: str | None = None
    finish: float = math.nan
    received: float = ROUND / 2
    owed: float = 0.0

    def __post_init__(self) -> None:
        self.size = self.first
        self.epochs = math.ceil(self.steps / self.per_epoch(self.first))
        sizes = profile(self.model, self.first, self.gpus, self.mode, self.epochs)
        if (
            self.mode == "gns"
            and sum(start < self.epochs for start in doubled_from(self.model, self.first, self.gpus)) > 1
        ):
            sizes[-1] = self.first
        self.alone = sum(SAMPLES[self.model] / size / self.rate(size) for size in sizes)

    def per_epoch(self, size: int) -> int:
        return math.ceil(SAMPLES[self.model] / size)

    def rate(self, size: int) -> float:
        return self.rates[f"{self.model} (batch size {size})", self.gpus]

    def wants(self) -> str | None:
        """The change of batch size that the job asks for at the end of a round."""
        epoch = math.ceil(self.done / self.per_epoch(self.size))
        if self.mode == "gns":
            next_sizes = [gns_size(self.model, self.first, self.gpus, epoch + ahead) for ahead in (0, 1)]
            return "larger" if max(next_sizes) > self.size else None
        if self.mode == "static" or self.model == "Transformer":
            return None
        if self.model == "ResNet-18":
            critical = epoch < (20 if self.first == 256 else 10) or 150 <= epoch < 160 or 250 <= epoch < 260
        elif self.model == "ResNet-50":
            critical = epoch % 30 < 10
        elif self.model == "LM":
            critical = epoch < 10
        else:
            critical = epoch < {512: 30, 1024: 30, 2048: 40, 4096: 10, 8192: 10}[self.first]
        if self.size == self.first and not critical and self.size < LARGEST[self.model]:
            return "larger"
        if self.size != self.first and critical and self.size > SMALLEST[self.model]:
            return "first"
        return None

    def change_size(self) -> None:
        """Take the batch size asked for; what is done and what there is to do become whole epochs."""
        if self.first == LARGEST.get(self.model):
            return
        larger = self.size * 2 if self.mode == "gns" else LARGEST[self.model]
        new = larger if self.wanted == "larger" else self.first
        old_epoch, new_epoch = self.per_epoch(self.size), self.per_epoch(new)
        steps = math.ceil(self.steps * self.size / new)
        if math.ceil(steps / new_epoch) != math.ceil(self.steps / old_epoch):
            steps = new_epoch * math.ceil(self.steps / old_epoch)
        self.done = math.ceil(self.done / old_epoch) * new_epoch
        self.steps, self.size = steps, new


@cache
def load_rates() -> dict[tuple[str, int], float]:
    table = json.loads(gzip.decompress((DATA / "tacc_throughputs.json.gz").read_bytes()))["v100"]
    rates = {}
    for key, partners in table.items():
        name, gpus = re.fullmatch(r"\('(.*)', (\d+)\)", key).groups()  # type: ignore[union-attr]
        rates[name, int(gpus)] = partners["null"]
    return rates


def load_jobs() -> list[ReplicaJob]:
    jobs = []
    for number, line in enumerate((DATA / "canonical_120jobs.trace").read_text().splitlines()):
        fields = line.split("\t")
        model, size = re.fullmatch(r"(.*) \(batch size (\d+)\)", fields[0]).groups()  # type: ignore[union-attr]
        jobs.append(
            ReplicaJob(
                number, model, int(size), int(fields[5]), int(fields[6]), fields[7], float(fields[11]), load_rates()
            )
        )
    return jobs


@dataclass
class ReplicaResult:
    makespan: float
    completion: np.ndarray
    ratios: np.ndarray
    rounds: int = field(default=0)


def simulate(jobs: list[ReplicaJob], shares: Callable[[list[ReplicaJob]], Mapping[int, float]]) -> ReplicaResult:
    """``shares`` gives the time share of each active job by number."""
    waiting, active, running = list(jobs), [], []
    now = begin = jobs[0].arrival
    allocation: Mapping[int, float] = {}
    changed, planned_at, count = False, 0.0, 0
    before: set[int] = set()
    last: set[int] = set()
    while True:
        if running:
            begin, now = now, max(end for end, _, _ in running)
            for end, job, steps in running:
                seconds = end - begin
                if count != 1 and job.number not in before and seconds > ROUND - 5:
                    steps = int(steps * (seconds - OVERHEAD) / seconds)
                    seconds -= OVERHEAD
                job.done += steps
                job.received += seconds
                finished = job.done >= job.steps
                if job.wanted is not None and not finished:
                    job.change_size()
                job.wanted = None
                if finished:
                    job.finish = end
                    active.remove(job)
                    changed = True
        for job in active:
            job.wanted = job.wants() or job.wanted
        while waiting and waiting[0].arrival <= now:
            active.append(waiting.pop(0))
            changed = True
        if not active:
            break
        if changed and (now - planned_at >= INTERVAL or planned_at == 0):
            for job in active:
                job.owed += allocation.get(job.number, 0.0) * (now - planned_at) - (job.received - ROUND / 2)
                job.received = ROUND / 2
            allocation, planned_at, changed = shares(active), now, False
        total = sum(job.received for job in active)
        rank = {
            job.number: (
                allocation.get(job.number, 0.0) * total / job.received,
                job.owed,
                allocation.get(job.number, 0.0),
            )
            for job in active
        }
        left, running, before = GPUS, [], last
        for job in sorted(active, key=lambda job: rank[job.number], reverse=True):
            if job.gpus <= left:
                left -= job.gpus
                if job.number in allocation:
                    rate = job.rate(job.size)
                    steps = min(int(rate * ROUND), job.steps - job.done)
                    running.append((now + steps / rate, job, steps))
        last = {job.number for _, job, _ in running}
        count += 1
    completion = np.array([job.finish - job.arrival for job in jobs])
    alone = np.array([job.alone for job in jobs]) * max(1.0, len(jobs) / GPUS)
    return ReplicaResult(now, completion, np.round(completion / alone, 5), count)
