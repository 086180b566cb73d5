"""The recorded cluster: each round of a log as the scheduler saw it then."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from bloxopt.cluster import Cluster, Node
from bloxopt.errors import CheckError, InputError
from bloxopt.formulations.space import ConfigurationCatalog
from bloxopt.jobs import BoolArray, IntArray
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.backend import ClusterState, Ran
from bloxopt.runtime.live.nodes import Layout, Slot
from bloxopt.runtime.live.recording import Placement, first_values, placement
from bloxopt.runtime.live.table import in_order, job_table
from bloxopt.runtime.live.throughput import LearnedThroughput
from bloxopt.runtime.messages import JobSpec
from bloxopt.runtime.resources import Grant
from bloxopt.runtime.store import JobRecord
from bloxopt.state import JobLedger, JobStatus

_COMMAND = ("recorded",)
"""What recorded jobs run: rounds do not depend on it."""


class RecordedBackend:
    """A :class:`~bloxopt.runtime.backend.Backend` over a log.

    :meth:`begin` takes a round's inputs in; the scheduler then runs the round. ``made`` says what it decided, in the
    terms of the log. What really ran, whatever was decided here, is what the next round begins with.
    """

    def __init__(self, round_seconds: float, every_count_up_to: int) -> None:
        self.round_seconds = round_seconds
        self.every_count_up_to = every_count_up_to
        self.oracle = LearnedThroughput()
        self.catalog: ConfigurationCatalog
        self.ledger: JobLedger
        self.made: dict[str, Any] = {}
        self._records: dict[str, JobRecord] = {}
        self._values: dict[str, list[float]] = {}
        self._running: dict[str, Placement] = {}
        self._slots: list[list[Any]] = []
        self._layout: Layout
        self._round: Mapping[str, Any] = {}
        self._next: Mapping[str, Any] = {}
        self._state: ClusterState
        self._finished = 0
        self._rejected: set[int] = set()
        self._active = 0

    # -- from the log --------------------------------------------------------------------------------------------------

    def take_in(self, said: Mapping[str, Any], everything: bool) -> None:
        """What the log says of jobs, nodes, rates and who runs; ``everything``: nothing else is there."""
        if everything:
            self._records, self._values, self._running, self._slots, self._finished = {}, {}, {}, [], 0
            self.oracle.take_over({kind: [] for kind in self.oracle.known()})
        for job_id, facts in said.get("jobs", {}).items():
            spec = JobSpec(command=list(_COMMAND), **facts.get("spec", {}))
            self._records[job_id] = JobRecord(job_id, facts["user"], spec, facts["submitted_at"])
        for job_id in said.get("gone", ()):
            del self._records[job_id]
            self._values.pop(job_id, None)
        self._move(said)
        for place, *slot in said.get("nodes", ()):
            self._slots[place : place + 1] = [slot]
        self.oracle.take_over(
            {kind: [tuple(entry) for entry in known] for kind, known in said.get("rates", {}).items()}
        )

    def _move(self, said: Mapping[str, Any]) -> None:
        for job_id, values in said.get("progress", {}).items():
            known = [math.nan if value is None else float(value) for value in values]
            before = self._values.get(job_id)
            if len(known) < 6:
                known += [math.nan, 0.0, 0.0] if before is None else before[3:]
            self._values[job_id] = known
        for job_id, place in said.get("running", {}).items():
            if place is None:
                self._running.pop(job_id, None)
            else:
                self._running[job_id] = place

    def begin(
        self, data: Mapping[str, Any], following: Mapping[str, Any], anew: bool, built: Mapping[str, Any]
    ) -> None:
        """A round: ``data`` of its event, and that of the next one, {} if it is the last.

        ``anew``: for a scheduler that remembers nothing of the rounds before, here at least. ``built`` are rates that
        were others when the catalog was made that the round was decided with.
        """
        self._round, self._next, self.made = data, following, {}
        self._finished = data.get("finished", (0, self._finished))[1]
        now = self.oracle.known(built)
        self.oracle.take_over(_rates(built))
        rows = self._rebuild(anew) if anew or data.get("rebuilt") else None
        self.oracle.take_over(now)
        if data.get("active"):
            self.ledger.admit(self._rows(data["active"]))
        self._state = ClusterState(
            data["now"],
            self._rows(data.get("submitted", ())),
            self._assignment(),
            self._layout.node_up,
            bool(data.get("nodes_changed")),
            None if anew else rows,
        )

    @property
    def node_up(self) -> BoolArray:
        return self._layout.node_up

    # -- the protocol --------------------------------------------------------------------------------------------------

    def observe(self) -> ClusterState:
        """The recorded inputs of the round."""
        self._show(self._state.assignment)
        self._active, self._rejected = len(self.ledger.active), self._turned_away()
        return self._state

    def apply(self, assignment: Assignment) -> None:
        """Note the decision, and go on with what was decided then."""
        before, after = self._state.assignment.grants, assignment.grants
        ids, layout = self.catalog.table.job_id, self._layout
        self.made = {
            "admitted": ids[self.ledger.active[self._active :]].tolist(),
            "rejected": ids[sorted(self._turned_away() - self._rejected)].tolist(),
            "stopped": [ids[row] for row, grant in before.items() if after.get(row) != grant],
            "started": {ids[row]: placement(grant, layout) for row, grant in after.items() if before.get(row) != grant},
        }
        recorded, missed = self._round, set(self._round.get("not_started", ()))
        for job_id in recorded.get("stopped", ()):
            self._running.pop(job_id, None)
        for job_id, place in recorded.get("started", {}).items():
            if job_id not in missed:
                self._running[job_id] = place
        with suppress(KeyError, ValueError, CheckError):  # what does not fit is told with the next round
            self._move(self._next.get("after", {}))
            self._show(self._assignment())

    def wait(self, order_changes: float = math.inf) -> Ran:
        """What ran until the next round."""
        ran, code = self._next.get("ran", ()), {name: k for k, name in enumerate(self.catalog.cluster.gpu_types)}
        self.ledger.num_finished = self._next.get("finished", (self._finished,))[0]
        return Ran(
            self._rows([spell[0] for spell in ran]),
            np.array([code[spell[1]] for spell in ran], dtype=np.int64),
            np.array([spell[2] for spell in ran], dtype=np.int64),
            np.array([spell[3] for spell in ran], dtype=np.float64),
        )

    # -- how they work -------------------------------------------------------------------------------------------------

    def _rebuild(self, anew: bool) -> IntArray:
        """Table, cluster, catalog and ledger anew; the row that each job had."""
        jobs = in_order(list(self._records.values()))
        before = {} if anew else self.catalog.position
        self._layout = _layout(self._slots)
        self.oracle.allow({job.job_id: job.spec.gpu_types for job in jobs if job.spec.gpu_types})
        table = job_table(jobs)
        self.catalog = ConfigurationCatalog(
            table, self._layout.cluster, self.oracle, every_count_up_to=self.every_count_up_to
        )
        rows = np.array([before.get(job.job_id, -1) for job in jobs], dtype=np.int64)
        self.ledger = self.ledger.renumbered(rows, table) if before else JobLedger(table)
        return rows

    def _rows(self, ids: Sequence[str]) -> IntArray:
        position = self.catalog.position
        return np.array([position[job_id] for job_id in ids], dtype=np.int64)

    def _turned_away(self) -> set[int]:
        return set(np.flatnonzero(self.ledger.status == JobStatus.REJECTED).tolist())

    def _assignment(self) -> Assignment:
        position = self.catalog.position
        grants = {position[job_id]: self._grant(place) for job_id, place in self._running.items()}
        ordered = {row: grants[row] for row in sorted(grants)}
        return Assignment(self.catalog.cluster, self.catalog.table).change((), ordered)

    def _grant(self, place: Placement) -> Grant:
        layout, (gpu_type, on) = self._layout, place
        nodes, gpus = [], []
        for node, indices in on.items():
            at = layout.position[node, gpu_type]
            nodes.append(at)
            gpus += [int(layout.cluster.gpu_offset[at]) + layout.slots[at].gpus.index(index) for index in indices]
        kind = int(layout.cluster.node_gpu_type[nodes[0]])
        return Grant(kind, tuple(nodes), tuple(map(len, on.values())), tuple(gpus))

    def _show(self, assignment: Assignment) -> None:
        """Bring the ledger up to what the log says."""
        ledger, table = self.ledger, self.catalog.table
        values = first_values(table.total_steps)
        for job_id, known in self._values.items():
            values[self.catalog.position[job_id]] = known
        ledger.status[ledger.active] = JobStatus.WAITING
        ledger.gpu_type[:], ledger.gpus[:] = -1, 0
        for row, grant in assignment.grants.items():
            ledger.status[row] = JobStatus.RUNNING
            ledger.gpu_type[row], ledger.gpus[row] = grant.gpu_type, grant.num_gpus
            ledger.nodes[row] = len(grant.nodes)
        ledger.remaining_steps[:], ledger.attained_seconds[:], ledger.attained_service[:] = values[:, :3].T
        ledger.start[:], ledger.preemptions[:], ledger.restarts[:] = values[:, 3:].T
        ledger.num_finished = self._finished

    def inputs(self) -> dict[str, Any]:
        """What the round is decided on, as plain data, for people to look at."""
        ledger, table, running = self.ledger, self.catalog.table, self._state.assignment
        return {
            "now": self._state.now,
            "jobs": [
                {
                    "job_id": str(table.job_id[row]),
                    "status": JobStatus(int(ledger.status[row])).name.lower(),
                    "remaining_steps": float(ledger.remaining_steps[row]),
                    "attained_seconds": float(ledger.attained_seconds[row]),
                    "attained_service": float(ledger.attained_service[row]),
                    "on": placement(running[row], self._layout) if row in running else None,
                }
                for row in range(len(table))
            ],
            "nodes": [slot._asdict() for slot in self._layout.slots],
            "rates": [list(entry) for entry in self.oracle.measured()],
        }


def _rates(said: Mapping[str, Any]) -> dict[str, list[tuple[str, int, float]]]:
    return {kind: [(name, count, rate) for name, count, rate in known] for kind, known in said.items()}


def _layout(slots: Sequence[Sequence[Any]]) -> Layout:
    nodes, places = [], []
    for name, node, gpu_type, gpus, up, cpus, memory_gib in slots:
        nodes.append(Node(name=name, gpu_type=gpu_type, num_gpus=len(gpus), cpus=cpus, memory_gib=memory_gib))
        places.append(Slot(node, gpu_type, tuple(gpus), up))
    if not nodes:
        raise InputError("the log has a round without nodes")
    return Layout(
        Cluster(tuple(nodes)),
        tuple(places),
        np.array([slot.up for slot in places], dtype=bool),
        {(slot.node, slot.gpu_type): place for place, slot in enumerate(places)},
    )
