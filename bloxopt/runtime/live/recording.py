"""The record of rounds: what each was decided on and what was decided, so that it can be decided again, bit for bit.

A round is one event, stored together with what it decided, that says what is new since the round before; a snapshot,
an event just before it, says everything. A job that waits unchanged is in neither. Numbers are stored as they are:
JSON writes the shortest text that reads back as the same float. How the events are read: :mod:`bloxopt.runtime.replay`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from bloxopt.anytime import Rung
from bloxopt.formulations.allocation import Allocation
from bloxopt.jobs import BoolArray, FloatArray, JobTable
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.backend import ClusterState
from bloxopt.runtime.live.nodes import Layout
from bloxopt.runtime.live.throughput import LearnedThroughput
from bloxopt.runtime.messages import JobSpec
from bloxopt.runtime.resources import Grant
from bloxopt.runtime.store import JobRecord, Store, schema
from bloxopt.runtime.store.pruning import SNAPSHOT as SNAPSHOT
from bloxopt.state import JobLedger, JobStatus

ROUND = "round"
"""Kind of the events of rounds."""

SNAPSHOT_EVERY = 1000
"""Rounds after which everything is said again, so that older events can go."""

SCHEDULED_BY = (
    "job_type",
    "num_gpus",
    "min_gpus",
    "max_gpus",
    "gpu_types",
    "cpus_per_gpu",
    "memory_gib_per_gpu",
    "total_steps",
    "duration",
    "deadline_seconds",
    "weight",
    "restart_cost",
)
"""What of a job's specification rounds depend on: not what it runs."""

_DEFAULTS = {name: JobSpec.model_fields[name].default for name in SCHEDULED_BY}

Placement = list[Any]
"""Where a job is, as plain data: its GPU type, and the indices of its GPUs by node."""


class Noted(NamedTuple):
    """An event to be stored."""

    kind: str
    data: dict[str, Any]


class Seen(NamedTuple):
    """What a round is decided on. ``jobs`` by row; ``rebuilt``: table and catalog are others than the round before."""

    state: ClusterState
    jobs: Sequence[JobRecord]
    layout: Layout
    ledger: JobLedger
    rebuilt: bool


class Made(NamedTuple):
    """What came of a round: rows that stop, grants of those that start, and rows of those that did start."""

    stop: Sequence[int]
    start: Mapping[int, Grant]
    started: Sequence[int]


@dataclass
class _Known:
    """What the events so far say, once they are stored. ``running`` is where jobs are, as ``grants`` say in
    ``layout``, whose nodes are ``slots``."""

    table: JobTable | None = None
    row: dict[str, int] = field(default_factory=dict)
    values: FloatArray = field(default_factory=lambda: np.zeros((0, 6)))
    running: dict[str, Placement] = field(default_factory=dict)
    grants: dict[str, Grant] = field(default_factory=dict)
    layout: Layout | None = None
    slots: list[list[Any]] = field(default_factory=list)
    finished: int = 0


class Recording:
    """Makes the events of rounds; the backend stores them, and calls :meth:`keep` when they are stored.

    ``header`` is said with every snapshot: the scheduler's configuration and the versions of what it is made of. There
    is one when a scheduler begins, and after ``every`` rounds. ``number`` is that of the last round that was noted.
    """

    def __init__(self, oracle: LearnedThroughput, number: int = 0, every: int = SNAPSHOT_EVERY) -> None:
        self.oracle, self.number, self.every = oracle, number, every
        self.header: dict[str, Any] = {}
        self._since = every
        self._known, self._next = _Known(), _Known()
        self._ran: list[list[Any]] = []
        self._finished: int | None = None
        self._fresh = True
        self._seen: Seen | None = None
        self._applied: Seen | None = None
        self._after: dict[str, Any] = {}
        self._built: dict[str, list[tuple[str, int, float]]] = {}
        self._remembered: dict[str, Any] | None = None
        self._prepared: tuple[dict[str, Any], _Known] | None = None
        self._active = 0
        self._rejected: frozenset[int] = frozenset()
        self._planned: Allocation | None = None

    # -- what happens, in order ----------------------------------------------------------------------------------------

    def ran(self, spells: Iterable[Sequence[Any]], finished: int) -> None:
        """A round has gone by: who ran on what for how long, and how many jobs were over at its end."""
        self._ran += [list(spell) for spell in spells]
        self._finished = finished

    def start_over(self) -> None:
        """The next round is decided by a scheduler that remembers nothing."""
        self._fresh, self._seen = True, None

    def observed(self, seen: Seen) -> None:
        """A round is about to be decided."""
        self._seen = seen
        self._planned = self._remembered = self._prepared = None
        if seen.rebuilt:
            self._built = self.oracle.known()
        self._active = len(seen.ledger.active)
        self._rejected = _rejected(seen.ledger)

    def remember(self, memory: Callable[[], dict[str, Any] | None]) -> bool:
        """Take down what the scheduler remembers if a snapshot is due; whether that was done.

        ``memory`` gives it as plain data; None where that cannot be, and then there is no snapshot.
        """
        if self._fresh or self._since < self.every:
            return False
        self._remembered = memory()
        return self._remembered is not None

    def planned(self, allocation: Allocation) -> None:
        """The round has a new plan."""
        self._planned = allocation

    def prepare(self) -> None:
        """Work out what is new in what the round was decided on, so that :meth:`decided` takes no time."""
        assert self._seen is not None
        self._prepared = _news(_Known() if self._is_due else self._known, self._seen)

    def decided(self, made: Made, seconds: float) -> list[Noted]:
        """The events of a round that was decided in ``seconds``; none where nothing is there to decide about."""
        seen = self._seen
        assert seen is not None
        jobs, started = seen.jobs, set(made.started)
        start = {jobs[row].job_id: placement(grant, seen.layout) for row, grant in made.start.items()}
        facts: dict[str, Any] = {
            "admitted": [jobs[row].job_id for row in seen.ledger.active[self._active :].tolist()],
            "rejected": [jobs[row].job_id for row in sorted(_rejected(seen.ledger) - self._rejected)],
            "stopped": [jobs[row].job_id for row in made.stop],
            "started": start,
            "not_started": [jobs[row].job_id for row in made.start if row not in started],
            "plan": None if self._planned is None else plan_data(self._planned),
        }
        events = self._events(seen, facts, seconds)
        if events:
            for row in made.stop:
                self._next.running.pop(jobs[row].job_id, None)
                self._next.grants.pop(jobs[row].job_id, None)
            for row in made.started:
                self._next.running[jobs[row].job_id] = start[jobs[row].job_id]
                self._next.grants[jobs[row].job_id] = made.start[row]
        return events

    def applied(self, assignment: Assignment) -> None:
        """The round is stored, and ``assignment`` is what runs by now; the ledger shows that."""
        seen = self._applied
        assert seen is not None
        state = replace(seen.state, assignment=assignment)
        said, self._known = _news(self._known, seen._replace(state=state))
        self._after = {key: said[key] for key in ("progress", "running") if said[key]}

    def failed(self, reason: str, deciding: bool) -> list[Noted]:
        """The events of a round that failed while it was decided, or else applied; none if no round was going on."""
        if self._seen is None:
            return []
        return self._events(self._seen, {"failed": reason, "while_deciding": deciding}, None)

    def keep(self) -> None:
        """The events are stored."""
        self._known = self._next
        self.number += 1
        self._since = 1 if self._is_due else self._since + 1
        self._ran, self._finished, self._after, self._fresh = [], None, {}, False
        self._applied, self._seen = self._seen, None
        self.oracle.changed.clear()

    # -- how they are made ---------------------------------------------------------------------------------------------

    @property
    def _is_due(self) -> bool:
        """Whether there is a snapshot before the round."""
        return self._since >= self.every and (self._fresh or self._remembered is not None)

    def _events(self, seen: Seen, facts: Mapping[str, Any], seconds: float | None) -> list[Noted]:
        due, oracle = self._is_due, self.oracle
        known = _Known() if due else self._known
        said, self._next = self._prepared or _news(known, seen)
        self._prepared = None
        if due or oracle.changed:
            said["rates"] = oracle.known(None if due else oracle.changed)
        if due:
            # Small changes of rates are no reason to make the catalog anew.
            kinds = self._built.keys() | said["rates"].keys()
            before = {kind: self._built.get(kind, []) for kind in sorted(kinds)}
            said["built_rates"] = {k: known for k, known in before.items() if known != said["rates"].get(k, [])}
        said = {key: value for key, value in said.items() if value}
        now = seen.ledger.num_finished
        finished = [now if self._finished is None else self._finished, now]
        self._next.finished = now
        about = {
            "after": self._after,
            "ran": self._ran,
            "finished": finished if finished != [known.finished, known.finished] else None,
            "fresh": self._fresh,
            "active": [seen.jobs[row].job_id for row in seen.ledger.active[: self._active].tolist()]
            if self._fresh
            else None,
            "rebuilt": seen.rebuilt,
            "nodes_changed": seen.state.nodes_changed,
            "submitted": [seen.jobs[row].job_id for row in seen.state.submitted.tolist()],
            **facts,
        }
        about = {key: value for key, value in about.items() if value or key == "while_deciding"}
        if not due and not said and not about and not seen.jobs:
            return []
        number = self.number + 1
        about = {"number": number, "now": seen.state.now, "rates_version": oracle.version, **about}
        if seconds is not None:
            about["seconds"] = seconds
        if not due:
            return [Noted(ROUND, {**about, **said})]
        remembered = {} if self._remembered is None else {"memory": self._remembered}
        return [Noted(SNAPSHOT, {"number": number, **self.header, **said, **remembered}), Noted(ROUND, about)]


def _news(known: _Known, seen: Seen) -> tuple[dict[str, Any], _Known]:
    """What the events do not say yet of jobs, nodes and who is where, and what they say with it."""
    jobs, ledger, layout = seen.jobs, seen.ledger, seen.layout
    ids = ledger.table.job_id
    if ledger.table is known.table:
        row, at = known.row, np.arange(len(ids))
    else:
        row = {job_id: position for position, job_id in enumerate(ids.tolist())}
        at = np.array([known.row.get(job_id, -1) for job_id in row], dtype=np.int64)
    values = np.column_stack(
        [
            ledger.remaining_steps,
            ledger.attained_seconds,
            ledger.attained_service,
            ledger.start,
            ledger.preemptions,
            ledger.restarts,
        ]
    )
    before = np.vstack([known.values, np.zeros((1, 6))])[at]
    new = at < 0
    before[new] = first_values(ledger.table.total_steps[new])
    same = (before == values) | (np.isnan(before) & np.isnan(values))
    grants = {jobs[position].job_id: grant for position, grant in seen.state.assignment.grants.items()}
    moved = _moved(known, grants, layout)
    running = known.running | moved
    left = [job_id for job_id in known.running if job_id not in grants]
    for job_id in left:
        del running[job_id]
    if layout is known.layout:
        slots = known.slots
    else:
        slots = [
            [node.name, *slot[:2], list(slot.gpus), slot.up, node.cpus, node.memory_gib]
            for node, slot in zip(layout.cluster.nodes, layout.slots, strict=True)
        ]
    said = {
        "jobs": {jobs[position].job_id: job_data(jobs[position]) for position in np.flatnonzero(new).tolist()},
        "gone": [] if row is known.row else [job_id for job_id in known.row if job_id not in row],
        "progress": _progress(jobs, values, same),
        "running": moved | dict.fromkeys(left),
        "nodes": [
            [place, *slot]
            for place, slot in enumerate(slots)
            if place >= len(known.slots) or known.slots[place] != slot
        ],
    }
    return said, _Known(ledger.table, row, values, running, grants, layout, slots, known.finished)


def _moved(known: _Known, grants: Mapping[str, Grant], layout: Layout) -> dict[str, Placement]:
    """Where the jobs are that are not where they were. Of most it is known without looking: their grants are the same
    objects, in the same layout."""
    before = known.grants if layout is known.layout else {}
    moved = {}
    for job_id, grant in grants.items():
        if before.get(job_id) is not grant and known.running.get(job_id) != (place := placement(grant, layout)):
            moved[job_id] = place
    return moved


def _progress(jobs: Sequence[JobRecord], values: FloatArray, same: BoolArray) -> dict[str, list[float | None]]:
    """The values of the jobs of which some are not the ``same``, (jobs, 6); only the first three if the others are."""
    changed = np.flatnonzero(~same.all(axis=1))
    listed: list[list[float | None]] = values[changed].tolist()
    for position, column in np.argwhere(~np.isfinite(values[changed])).tolist():
        listed[position][column] = None
    many = ~same[changed, 3:].all(axis=1)
    lengths = np.where(many, 6, 3).tolist()
    return {jobs[row].job_id: listed[k][: lengths[k]] for k, row in enumerate(changed.tolist())}


def placement(grant: Grant, layout: Layout) -> Placement:
    """A grant in terms of GPU type, nodes and the indices of GPUs on them."""
    gpus: dict[str, list[int]] = {}
    at = 0
    for node, count in zip(grant.nodes, grant.counts, strict=True):
        slot, offset = layout.slots[node], int(layout.cluster.gpu_offset[node])
        gpus[slot.node] = sorted(slot.gpus[gpu - offset] for gpu in grant.gpus[at : at + count])
        at += count
    return [layout.cluster.gpu_types[grant.gpu_type], gpus]


def job_data(job: JobRecord) -> dict[str, Any]:
    """What rounds depend on of a job that was just submitted."""
    spec = {name: value for name in SCHEDULED_BY if (value := getattr(job.spec, name)) != _DEFAULTS[name]}
    return {"user": job.user, "submitted_at": job.submitted_at, **({"spec": spec} if spec else {})}


def first_values(total_steps: FloatArray) -> FloatArray:
    """The values of jobs that have not run yet, (jobs, 6): steps left, seconds, GPU-seconds, start, stops, restarts."""
    values = np.zeros((len(total_steps), 6))
    values[:, 0], values[:, 3] = total_steps, np.nan
    return values


def plan_data(allocation: Allocation) -> dict[str, Any]:
    """How an allocation came about; all of it where that depends on how fast the machine was."""
    said: dict[str, Any] = {
        "rung": allocation.rung,
        "termination": str(allocation.termination),
        "solver": allocation.solver,
        "objective": _plain([allocation.objective])[0],
    }
    if allocation.rung != Rung.SOLVED:
        space, ids = allocation.space, allocation.space.job_ids
        columns = np.flatnonzero(allocation.x).tolist()
        said["shares"] = [
            [
                str(ids[space.job[column]]),
                space.gpu_types[space.gpu_type[column]],
                int(space.num_gpus[column]),
                float(allocation.x[column]),
            ]
            for column in columns
        ]
        if allocation.ranking is not None:
            said["ranking"] = [str(ids[job]) for job in allocation.ranking.tolist()]
    return said


def _rejected(ledger: JobLedger) -> frozenset[int]:
    return frozenset(np.flatnonzero(ledger.status == JobStatus.REJECTED).tolist())


def _plain(values: Iterable[float]) -> list[float | None]:
    """Numbers for JSON, None for what is no finite number."""
    return [float(value) if math.isfinite(value) else None for value in values]


def last_round(store: Store) -> int:
    """Number of the last round that is in the log, 0 for none."""
    events = schema.events
    query = sa.select(events.c.data).where(events.c.kind == ROUND).order_by(events.c.number.desc()).limit(1)
    with store.reading("the history cannot be read") as connection:
        data = connection.scalar(query)
    return int(data["number"]) if isinstance(data, dict) and "number" in data else 0
