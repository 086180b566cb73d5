"""A plain-Python replica of one simulated round of Blox, written from its semantics alone, as an oracle."""

from __future__ import annotations

from dataclasses import dataclass, field

ROUND = 300


@dataclass
class ReplicaJob:
    number: int
    submit: int
    total: float
    need: int
    executed: float = 0.0
    attained: float = 0.0
    nodes: dict[int, int] = field(default_factory=dict)
    start: float | None = None
    finish: float | None = None
    preemptions: int = 0

    @property
    def running(self) -> bool:
        return bool(self.nodes)


KEYS = {
    "fifo": lambda job: job.submit,
    "las": lambda job: job.attained,
    "srtf": lambda job: job.total - job.attained,
}


def scattered(free: list[int], need: int) -> dict[int, int] | None:
    taken: dict[int, int] = {}
    for node, count in enumerate(free):
        if count > 0:
            taken[node] = min(count, need)
            if sum(taken.values()) == need:
                return taken
    return None


def run(workload: list[tuple[int, float, int]], nodes: int, gpus: int, policy: str) -> list[ReplicaJob]:
    """Simulate (submit, seconds of work, GPUs) jobs until all have finished; arrivals in order."""
    jobs = [ReplicaJob(i, *row) for i, row in enumerate(workload)]
    free = [gpus] * nodes
    active: list[ReplicaJob] = []
    arrived = 0
    time = 0
    while arrived < len(jobs) or active:
        for job in active:
            if job.running:
                job.executed += ROUND
                job.attained += ROUND
        for job in list(active):
            if job.executed >= job.total:
                job.finish = time
                release(job, free)
                active.remove(job)
        while arrived < len(jobs) and jobs[arrived].submit <= time:
            active.append(jobs[arrived])
            arrived += 1
        place(sorted(active, key=KEYS[policy]), free, time)
        time += ROUND
    return jobs


def release(job: ReplicaJob, free: list[int]) -> None:
    for node, count in job.nodes.items():
        free[node] += count
    job.nodes = {}


def place(order: list[ReplicaJob], free: list[int], time: int) -> None:
    launched: set[int] = set()
    for position, job in enumerate(order):
        if job.running:
            continue
        found = scattered(free, job.need)
        victim = len(order) - 1
        while found is None and victim > position:
            other = order[victim]
            if other.running and other.number not in launched:
                release(other, free)
                other.preemptions += 1
                found = scattered(free, job.need)
            victim -= 1
        if found is None:
            return
        for node, count in found.items():
            free[node] -= count
        job.nodes = found
        launched.add(job.number)
        if job.start is None:
            job.start = time
