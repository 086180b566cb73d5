"""The state of the live cluster, and its transactions: jobs, runs and nodes in memory, as the store has them.

Every change is one transaction of the store, and is in force once that is committed. A change that could not be stored
did not happen: what the store has is read again.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bloxopt.runtime.live.clock import Clock
from bloxopt.runtime.live.faults import UnknownError
from bloxopt.runtime.live.nodes import Contact
from bloxopt.runtime.live.terms import LeaseTerms, Spell, Watch
from bloxopt.runtime.messages import NodeState
from bloxopt.runtime.store import Change, Event, JobRecord, NodeRecord, RunKey, RunRecord, Store


class LiveState(ABC):
    """Jobs, runs and nodes of a running scheduler. Methods may be called from many threads.

    ``on_change`` is called (with the lock held) when a job came or went, or a node changed: the next round has
    something new to decide. ``with_strays`` are the nodes that have any. ``moved`` are jobs whose records have changed
    since whoever shows them cleared it, and ``loads`` counts how often all of them were read from the store.
    """

    def __init__(self, store: Store, terms: LeaseTerms | None = None, clock: Clock | None = None) -> None:
        self.store = store
        self.terms = LeaseTerms() if terms is None else terms
        self.clock = Clock() if clock is None else clock
        self.lock = threading.RLock()
        self.on_change: Callable[[], None] = lambda: None
        self.jobs: dict[str, JobRecord] = {}
        self.nodes: dict[str, NodeRecord] = {}
        self.contacts: dict[str, Contact] = {}
        self.finished_jobs = 0
        self._runs: dict[RunKey, RunRecord] = {}
        self._of_job: dict[str, list[RunRecord]] = defaultdict(list)
        self._on_node: dict[str, dict[RunKey, RunRecord]] = defaultdict(dict)
        self.watches: dict[RunKey, Watch] = {}
        self._booked: dict[str, float] = {}
        self._spells: list[Spell] = []
        self._change: Change | None = None
        self.with_strays: set[str] = set()
        self.touched: set[str] = set()
        self.moved: set[str] = set()
        self.loads = 0
        self._num_unended: dict[str, int] = {}
        self._held: dict[str, dict[int, str]] = {}
        self._held_anew: set[str] = set()
        self._untold: set[RunKey] = set()
        self._stopping: set[RunKey] = set()
        self._broken = False
        self._started = self.clock.monotonic()
        self._load()
        self.clock.not_before(self._latest)

    def _load(self) -> None:
        facts = self.store.load()
        for job in facts.jobs:
            if (known := self.jobs.get(job.job_id)) is not None:
                # Time that has passed has passed, whether it was stored by then or not.
                job.attained_seconds = max(job.attained_seconds, known.attained_seconds)
                job.attained_service = max(job.attained_service, known.attained_service)
        self.jobs = {job.job_id: job for job in facts.jobs}
        self.loads += 1
        self.nodes = {node.name: node for node in facts.nodes}
        self._runs.clear()
        self._of_job.clear()
        self._on_node.clear()
        self._num_unended.clear()
        self._held.clear()
        self._untold.clear()
        self._stopping.clear()
        for run in facts.runs:
            self._keep(run)
        now = self.clock.monotonic()
        self.watches = {key: self.watches.get(key) or Watch(now) for key in self._runs}
        for key, run in self._runs.items():
            # A stop that could not be stored did not happen.
            watch = self.watches[key]
            watch.stopping = None if self.is_wanted(run) else watch.stopping or now
            if watch.stopping is not None:
                self._stopping.add(key)
        self._booked = {name: at for name, at in self._booked.items() if name in self.jobs}
        for name, node in self.nodes.items():
            if name not in self.contacts:
                self.contacts[name] = Contact(infos=node.gpus)
        self.finished_jobs, self._latest = facts.finished_jobs, facts.latest
        self._broken = False

    @contextmanager
    def change(self) -> Iterator[Change]:
        """Everything inside is stored together when it ends, or did not happen."""
        with self.lock:
            if self._broken:
                self._load()
            change, self._change = Change(), None
            self._change = change
            try:
                yield change
                self.settle()
                self.store.commit(change)
            except BaseException:
                if change:
                    self._broken = True
                raise
            finally:
                self._change = None
                self.touched.clear()
            for job in change.jobs.values():
                if job.final:
                    self._drop(job)

    def note(self, kind: str, subject: str, **data: Any) -> None:
        """Within a change: add an event."""
        assert self._change is not None
        self._change.events.append(Event(self.clock.now(), kind, subject, data))

    def save_job(self, job: JobRecord, new: bool = False) -> None:
        """Within a change: store the job as it is when the change ends; so with runs and nodes."""
        assert self._change is not None
        if not new and job.job_id not in self._change.jobs:
            self._change.known.add(job.job_id)
        self._change.jobs[job.job_id] = job
        self.moved.add(job.job_id)

    def save_run(self, run: RunRecord) -> None:
        assert self._change is not None
        self._change.runs[run.key] = run

    def save_node(self, node: NodeRecord) -> None:
        assert self._change is not None
        self._change.nodes[node.name] = node

    def _keep(self, run: RunRecord) -> None:
        self._runs[run.key] = run
        self._of_job[run.job_id].append(run)
        if not run.ended:
            self._on_node[run.node][run.key] = run
            self._held_anew.add(run.node)
            if not run.told:
                self._untold.add(run.key)
            self._num_unended[run.job_id] = self._num_unended.get(run.job_id, 0) + 1

    def _ends(self, run: RunRecord) -> None:
        """The run is not among those that go on any more."""
        self._on_node[run.node].pop(run.key, None)
        self._held_anew.add(run.node)
        left = self._num_unended.get(run.job_id, 0) - 1
        if left > 0:
            self._num_unended[run.job_id] = left
        else:
            self._num_unended.pop(run.job_id, None)
            self._booked.pop(run.job_id, None)

    def _drop(self, job: JobRecord) -> None:
        """Forget a job that is over."""
        if self.jobs.pop(job.job_id, None) is not None:
            self.finished_jobs += 1
        for run in self._of_job.pop(job.job_id, ()):
            self._runs.pop(run.key, None)
            self.watches.pop(run.key, None)
            self._on_node[run.node].pop(run.key, None)
            self._held_anew.add(run.node)
        self._num_unended.pop(job.job_id, None)
        self._booked.pop(job.job_id, None)

    def changed(self) -> None:
        """The next round has something new to decide."""
        self.on_change()

    @abstractmethod
    def settle(self) -> None:
        """Within a change: see what becomes of the jobs whose runs have changed."""

    def find(self, job_id: str) -> JobRecord:
        """The job of that id, finished or not; raises :class:`~bloxopt.runtime.live.faults.UnknownError`.

        Without the lock, so that nobody waits for the store: a change in progress may show.
        """
        job = None if self._broken else self.jobs.get(job_id)
        job = self.store.job(job_id) if job is None else job
        if job is None:
            raise UnknownError(f"there is no job {job_id!r}")
        return job

    def is_wanted(self, run: RunRecord) -> bool:
        """Whether the run belongs to the attempt that should run."""
        job = self.jobs[run.job_id]
        return job.wanted and run.attempt == job.attempt and not run.ended

    def runs_of(self, job: JobRecord) -> list[RunRecord]:
        """The runs of the job's last attempt."""
        return [run for run in self._of_job.get(job.job_id, ()) if run.attempt == job.attempt]

    def runs_on(self, name: str) -> list[RunRecord]:
        """The runs on a node that have not ended."""
        return list(self._on_node[name].values())

    def runs_by_key(self, name: str) -> dict[RunKey, RunRecord]:
        """The runs on a node that have not ended, by their keys."""
        return dict(self._on_node[name])

    def going(self) -> list[JobRecord]:
        """The jobs that have runs which have not ended."""
        return [self.jobs[job_id] for job_id in self._num_unended]

    def held_gpus(self) -> Mapping[str, Mapping[int, str]]:
        """GPUs of wanted attempts and their types, by node; as it is while the lock is held."""
        for name in self._held_anew:
            wanted = [run for run in self._on_node[name].values() if self.is_wanted(run)]
            held = {gpu: run.gpu_type for run in wanted for gpu in run.gpus}
            if held:
                self._held[name] = held
            else:
                self._held.pop(name, None)
        self._held_anew.clear()
        return self._held

    def untold_runs(self) -> list[RunRecord]:
        """The runs that have not ended and that no agent was told of yet."""
        runs = [run for key in self._untold if (run := self._runs.get(key)) and not run.told and not run.ended]
        self._untold = {run.key for run in runs}
        return runs

    def stopping_runs(self) -> list[RunRecord]:
        """The runs that are not wanted any more and have not ended."""
        runs = [run for key in self._stopping if (run := self._runs.get(key)) and not run.ended]
        self._stopping = {run.key for run in runs}
        return runs

    def unended(self, job: JobRecord) -> list[RunRecord]:
        """The runs of every attempt of the job that have not ended."""
        return [run for run in self._of_job.get(job.job_id, ()) if not run.ended]

    def state(self, name: str) -> NodeState:
        """The state of a node now."""
        return self.contacts[name].state_at(self.clock.monotonic(), self.terms.lost_seconds, self.nodes[name].drained)

    def awaits(self, name: str) -> bool:
        """Whether a node may yet be heard from for the first time since the scheduler started."""
        late = self.clock.monotonic() - self._started > self.terms.lost_seconds
        return self.contacts[name].heard is None and not self.nodes[name].drained and not late
