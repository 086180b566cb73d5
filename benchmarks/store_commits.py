"""What it costs to store a change: the store against the driver of SQLite alone, which is given rows that are ready.

Processor time, as waiting for the disk is not the store's. The store may take twice what the driver takes, and three
times for an event that is all JSON, which the driver is given as text."""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from bloxopt.runtime.messages import JobSpec, JobStatus, RunState
from bloxopt.runtime.store import Change, Event, JobRecord, NodeRecord, RunRecord, Store
from bloxopt.runtime.store.rows import Statements

JOBS = 256
NODES = 64
ENTRIES = 8_000
REPETITIONS = 5


class Kind(NamedTuple):
    """A kind of change: what makes such ones, how many are timed together, and the limit of the ratio."""

    name: str
    changes: Callable[[], Iterator[Change]]
    count: int
    limit: float


def jobs() -> list[JobRecord]:
    spec = JobSpec(command=["python", "train.py"], num_gpus=2)
    return [JobRecord(f"j-{number:06d}", "ada", spec, 1.7e9 + number / 7) for number in range(JOBS)]


def run_of(job: JobRecord) -> RunRecord:
    node = f"n{int(job.job_id[2:]) % NODES}"
    return RunRecord(job.job_id, job.attempt, node, 0, 1, "A100", [0, 3], 0, 2, "10.0.0.1", 20_000, 1.7e9, "agent")


def first() -> Change:
    """What is there before anything is timed."""
    change = Change(nodes={f"n{number}": NodeRecord(f"n{number}", "10.0.0.1", 1.7e9) for number in range(NODES)})
    change.jobs.update((job.job_id, job) for job in jobs())
    return change


def starts() -> Iterator[Change]:
    """All jobs start anew: each is updated, and has a run and an event more."""
    records = jobs()
    while True:
        change = Change(jobs={job.job_id: job for job in records}, known={job.job_id for job in records})
        for job in records:
            job.attempt += 1
            job.status, job.started_at = JobStatus.RUNNING, 1.7e9 + job.attempt / 3
            run = run_of(job)
            change.runs[run.key] = run
            data = {"attempt": job.attempt, "gpu_type": "A100", "gpus": {run.node: run.gpus}}
            change.events.append(Event(job.started_at, "attempt.started", job.job_id, data))
        yield change


def heartbeats() -> Iterator[Change]:
    """Two runs are in another state."""
    runs = [run_of(job) for job in jobs()[:2]]
    while True:
        for state in (RunState.STARTING, RunState.RUNNING):
            for run in runs:
                run.state = state
            yield Change(runs={run.key: run for run in runs})


def rounds() -> Iterator[Change]:
    """One event of 500 kB."""
    now = 1.7e9
    while True:
        now += 1 / 3
        progress = {f"j-{number:06d}": [now / (number + 1), now + number / 7, number / 3] for number in range(ENTRIES)}
        yield Change(events=[Event(now, "round", "", {"progress": progress})])


KINDS = (
    Kind(f"{JOBS} jobs start", starts, 20, 2.0),
    Kind("two runs are updated", heartbeats, 500, 2.0),
    Kind("one event of 500 kB", rounds, 20, 3.0),
)


def least(kind: Kind, commit: Callable[[Change], float]) -> float:
    """The best of some repetitions (µs of processor time a change), as other programs only ever add time."""
    changes = kind.changes()
    return min(sum(map(commit, islice(changes, kind.count))) for _ in range(REPETITIONS)) / kind.count * 1e6


def through_store(path: Path, kind: Kind) -> float:
    store = Store(str(path))
    store.commit(first())

    def commit(change: Change) -> float:
        begin = time.thread_time()
        store.commit(change)
        return time.thread_time() - begin

    try:
        return least(kind, commit)
    finally:
        store.close()


def through_driver(path: Path, kind: Kind) -> float:
    """The same changes in a file of the same making; what the rows are made with is not timed."""
    store = Store(str(path))
    store.commit(first())
    statements = Statements(store._engine.dialect)
    store.close()
    connection = sqlite3.connect(path, isolation_level=None)
    for setting in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {setting}")

    def commit(change: Change) -> float:
        made = list(statements.of(change))
        begin = time.thread_time()
        connection.execute("BEGIN IMMEDIATE")
        for statement, rows in made:
            connection.executemany(statement, rows)
        connection.execute("COMMIT")
        return time.thread_time() - begin

    try:
        return least(kind, commit)
    finally:
        connection.close()


def main() -> int:
    kept = True
    print(f"{'µs of processor time':24s} {'driver':>10s} {'store':>10s} {'ratio':>6s} {'limit':>6s}")
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            alone = through_driver(Path(folder) / "driver.db", kind)
            found = through_store(Path(folder) / "store.db", kind)
        print(f"{kind.name:24s} {alone:10.1f} {found:10.1f} {found / alone:6.2f} {kind.limit:6.1f}")
        kept = kept and found <= kind.limit * alone
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
