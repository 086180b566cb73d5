"""What policies see of the live cluster: its jobs as a table and a ledger, its nodes as a cluster, and who is where."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

import numpy as np

from bloxopt.errors import CheckError
from bloxopt.formulations.space import ConfigurationCatalog
from bloxopt.jobs import IntArray
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.backend import ClusterState
from bloxopt.runtime.live.cluster import LiveCluster
from bloxopt.runtime.live.nodes import Layout
from bloxopt.runtime.live.table import in_order, job_table, next_table, show_progress
from bloxopt.runtime.live.terms import Rounds
from bloxopt.runtime.live.throughput import LearnedThroughput
from bloxopt.runtime.resources import Grant
from bloxopt.runtime.store import JobRecord
from bloxopt.state import JobLedger, JobStatus


class Observing:
    """Keeps table, ledger, catalog and assignment as the live cluster is; only what has changed is made anew.

    ``turn`` is held by whoever wants these and the cluster to fit each other. ``layout_version`` counts changes of the
    cluster.
    """

    def __init__(
        self, live: LiveCluster, rounds: Rounds | None = None, oracle: LearnedThroughput | None = None
    ) -> None:
        self.live = live
        self.rounds = Rounds() if rounds is None else rounds
        self.oracle = LearnedThroughput() if oracle is None else oracle
        self.round_seconds = self.rounds.seconds
        self.turn = threading.Lock()
        self.layout_version = 0
        self.catalog: ConfigurationCatalog
        self.ledger: JobLedger
        self._layout: Layout | None = None
        self._jobs: list[JobRecord] = []
        self._position: dict[str, int] = {}
        self._asked: set[str] = set()
        self._loads = -1
        self._grants: dict[str, tuple[int, Grant]] = {}
        self._rates_version = -1
        self._fresh = True

    def start_over(self) -> bool:
        """Get ready for a new scheduler, which remembers nothing.

        False while no node has registered, or, after a start, one that is known has not been heard from yet: jobs
        would be preempted for want of GPUs that are about to be there.
        """
        with self.live.lock:
            self.live.tick()
            if self.live.layout() is None or any(map(self.live.awaits, self.live.nodes)):
                return False
            # The ledger too is made anew, whatever policies may have left in it.
            self._jobs, self._position, self._layout = [], {}, None
            self._grants.clear()
            self._loads = -1
            self._asked.clear()
            self._fresh = True
            self._rebuild(*self._look())
            return True

    def snapshot(self) -> ClusterState:
        """The present state in the rows of the present table; only while ``turn`` is held."""
        assert self._layout is not None
        none, now = np.zeros(0, dtype=np.int64), self.live.clock.now()
        return ClusterState(now, none, self._assignment(self._wanted()), self._layout.node_up, False)

    # -- how they work -------------------------------------------------------------------------------------------------

    def _look(self) -> tuple[list[JobRecord], Layout]:
        """The jobs that may run, and the cluster."""
        with self.live.lock:
            jobs = [job for job in self.live.jobs.values() if job.outcome is None]
            layout = self.live.layout()
        assert layout is not None
        return in_order(jobs), layout

    def _rebuild(self, jobs: list[JobRecord], layout: Layout) -> tuple[IntArray | None, bool]:
        """Make table, catalog and ledger anew if jobs, nodes or rates have changed.

        Returns which row each job had, None if it is as before, and whether nodes have changed.
        """
        live = self.live
        same_nodes = self._layout is not None and _same(layout, self._layout)
        if (
            same_nodes
            and self._rates_version == self.oracle.version
            and [job.job_id for job in jobs] == [job.job_id for job in self._jobs]
        ):
            self._jobs = jobs
            return None, False
        if not same_nodes:
            self._grants.clear()
            self._layout = layout
            self.layout_version += 1
        assert self._layout is not None
        rows = np.array([self._position.get(job.job_id, -1) for job in jobs], dtype=np.int64)
        table = next_table(self.ledger.table, rows, jobs) if self._position else job_table(jobs)
        self._rates_version = self.oracle.version
        self.oracle.allow({job.job_id: job.spec.gpu_types for job in jobs if job.spec.gpu_types})
        for job in self._jobs:
            if job.job_id not in live.jobs:
                self.oracle.forget(job.job_id, job.spec.job_type)
        self.catalog = ConfigurationCatalog(
            table, self._layout.cluster, self.oracle, every_count_up_to=self.rounds.every_gpu_count_up_to
        )
        self.ledger = self.ledger.renumbered(rows, table) if self._position else JobLedger(table)
        self._jobs, self._position = jobs, {job.job_id: row for row, job in enumerate(jobs)}
        kept = set(self._position)
        self._asked &= kept
        admitted = np.isin(self.ledger.status, (JobStatus.WAITING, JobStatus.RUNNING))
        back = [row for row in np.flatnonzero(~admitted).tolist() if jobs[row].admitted_at is not None]
        if back:
            # Let in before this scheduler started.
            back.sort(key=lambda row: jobs[row].admitted_at or 0.0)
            self.ledger.admit(np.array(back, dtype=np.int64))
        return rows, not same_nodes

    def _wanted(self) -> dict[int, Grant]:
        """What should run by now, in the rows and GPU numbers of the present table and cluster."""
        position = self._position
        with self.live.lock:
            wanted = {position[job.job_id]: job for job in self.live.going() if job.wanted and job.job_id in position}
            grants = {row: self._grant(wanted[row]) for row in sorted(wanted)}
            self._grants = {wanted[row].job_id: (wanted[row].attempt, grant) for row, grant in grants.items()}
        return grants

    def _assignment(self, grants: Mapping[int, Grant], near: Assignment | None = None) -> Assignment:
        """The assignment with these grants; ``near`` is one over the same table that may have most of them."""
        empty = Assignment(self.catalog.cluster, self.catalog.table)
        try:
            if near is None:
                return empty.change((), grants)
            stop = [row for row, grant in near.grants.items() if grants.get(row) != grant]
            return near.change(stop, {row: grant for row, grant in grants.items() if near.grants.get(row) != grant})
        except CheckError:
            return self._what_fits(empty, grants)

    def _what_fits(self, assignment: Assignment, grants: Mapping[int, Grant]) -> Assignment:
        """The grants that a node can still hold that has fewer CPUs or less memory by now; the others are stopped."""
        with self.live.change():
            for row, grant in grants.items():
                try:
                    assignment = assignment.change((), {row: grant})
                except CheckError as error:
                    if (job := self._current(row)) is not None and job.wanted:
                        self.live.stop(job, f"its node has less than it needs: {error}")
        return assignment

    def _grant(self, job: JobRecord) -> Grant:
        attempt, known = self._grants.get(job.job_id, (0, None))
        if attempt == job.attempt and known is not None:
            return known
        layout = self._layout
        assert layout is not None
        runs = self.live.runs_of(job)
        nodes, gpus = [], []
        for run in runs:
            place = layout.position[run.node, run.gpu_type]
            slot, offset = layout.slots[place], int(layout.cluster.gpu_offset[place])
            nodes.append(place)
            gpus += [offset + slot.gpus.index(index) for index in run.gpus]
        kind = int(layout.cluster.node_gpu_type[nodes[0]])
        return Grant(kind, tuple(nodes), tuple(len(run.gpus) for run in runs), tuple(gpus))

    def _moved(self) -> Iterable[int]:
        """Rows of the jobs that have changed since this was last asked for; their records are those of now.

        The records of jobs that are over are as they were last.
        """
        live = self.live
        with live.lock:
            moved, live.moved = live.moved, set()
            if self._loads != live.loads:
                self._jobs = [live.jobs.get(job.job_id, job) for job in self._jobs]
                self._loads = live.loads
                return range(len(self._jobs))
        return [row for job_id in moved if (row := self._position.get(job_id)) is not None]

    def _current(self, row: int) -> JobRecord | None:
        """The job of a row as it is now; None if it is over."""
        return self.live.jobs.get(self._jobs[row].job_id)

    def _show(self, assignment: Assignment) -> None:
        """Bring the ledger up to what the records say."""
        ledger, grants = self.ledger, assignment.grants
        running = np.fromiter(grants, dtype=np.int64, count=len(grants))
        ledger.status[ledger.active] = JobStatus.WAITING
        ledger.status[running] = JobStatus.RUNNING
        ledger.gpu_type[:], ledger.gpus[:] = -1, 0
        ledger.gpu_type[running] = [grant.gpu_type for grant in grants.values()]
        ledger.gpus[running] = [len(grant.gpus) for grant in grants.values()]
        ledger.nodes[running] = [len(grant.nodes) for grant in grants.values()]
        self._show_progress()

    def _show_progress(self) -> None:
        moved = self._moved()  # before self._jobs: that may put other records there
        show_progress(self.ledger, self._jobs, moved, self.round_seconds)
        self.ledger.num_finished = self.live.finished_jobs

    def _has_idle_gpus(self) -> bool:
        """Whether GPUs that may be used are free, or other nodes are there than the round was decided for."""
        with self.live.lock:
            held = sum(map(len, self.live.held_gpus().values()))
            layout = self.live.layout()
        if layout is None or self._layout is None or not _same(layout, self._layout):
            return True
        return sum(len(slot.gpus) for slot in layout.slots if slot.up) > held


def _same(one: Layout, other: Layout) -> bool:
    return one is other or (one.slots == other.slots and one.cluster.nodes == other.cluster.nodes)
