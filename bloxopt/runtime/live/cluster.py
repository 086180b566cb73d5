"""The live cluster: which job is where in its life, and which runs may exist, whatever messages come or do not.

Every change is one transaction of the store, and is in force once that is committed. A change that could not be stored
did not happen: what the store has is read again.

Fencing. A run is *told* to its agent in the reply to a heartbeat, after the store has it as told; one that was never
told is nowhere. A told run is over when its agent reports its end; or when the agent, told of it by this scheduler,
shows in a later heartbeat that it has not taken it up although it is no longer wanted; or when its lease must have
ended: ``lease_seconds`` after the last heartbeat that was answered with it or spoke of it, and its grace and a margin.
These are counted on the monotonic clock, and from anew when the scheduler starts. An attempt is told only when every
run of the former ones is over, and so is every other run on its GPUs.
"""

from __future__ import annotations

import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from bloxopt.errors import BloxoptError
from bloxopt.runtime.live.clock import Clock
from bloxopt.runtime.live.faults import ConflictError, UnknownError
from bloxopt.runtime.live.nodes import Contact, Layout, layout_of, usable_gpus
from bloxopt.runtime.messages import GpuHealth, JobSpec, JobStatus, NodeState, RunState
from bloxopt.runtime.store import Change, Event, JobRecord, NodeRecord, RunKey, RunRecord, Store

MASTER_PORTS = range(20_000, 28_000)
"""Ports at which the first rank of a job listens: below those that systems hand out by themselves."""

LOST = "its node was not heard from for longer than its lease"


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """Lengths of time, all in seconds.

    A run may go on ``lease_seconds`` after the last answer to its node; it has ended for sure ``margin_seconds`` and
    its own grace after that. A node not heard from for ``lost_seconds`` gets no new runs.
    """

    lease_seconds: float = 600.0
    heartbeat_seconds: float = 5.0
    margin_seconds: float = 10.0
    lost_seconds: float = 20.0


@dataclass(slots=True)
class Watch:
    """What is known of a run since the scheduler started, and is not stored.

    ``renewed`` (monotonic s) when its lease was renewed at the latest. ``told`` the agent and its last heartbeat that
    was answered with the run. ``stopping`` (monotonic s) since when it is not wanted.
    """

    renewed: float
    told: tuple[str, int] | None = None
    steps: float | None = None
    steps_per_second: float | None = None
    stopping: float | None = None


@dataclass(slots=True)
class Submission:
    """Jobs to be stored, and what became of that."""

    user: str
    specs: Sequence[JobSpec]
    key: str | None
    jobs: list[JobRecord] | None = None
    error: BloxoptError | None = None

    def name_of(self, number: int) -> str:
        """What a job of it is known by, for the submission to be known when it comes again."""
        return f"{self.user}/{self.key}/{number}"


class Spell(NamedTuple):
    """Time that a job had GPUs: ``seconds`` on ``num_gpus`` of one type."""

    job_id: str
    gpu_type: str
    num_gpus: int
    seconds: float


class LiveCluster:
    """Jobs, runs and nodes of a running scheduler. Methods may be called from many threads.

    ``on_change`` is called (with the lock held) when a job came or went, or a node changed: the next round has
    something new to decide.
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
        self._submissions: list[Submission] = []
        self._submissions_lock = threading.Lock()
        self._change: Change | None = None
        self.touched: set[str] = set()
        self._broken = False
        self._load()
        self.clock.not_before(self._latest)

    # -- transactions ------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        facts = self.store.load()
        self.jobs = {job.job_id: job for job in facts.jobs}
        self.nodes = {node.name: node for node in facts.nodes}
        self._runs.clear()
        self._of_job.clear()
        self._on_node.clear()
        for run in facts.runs:
            self._keep(run)
        now = self.clock.monotonic()
        self.watches = {
            key: self.watches.get(key) or Watch(now, stopping=None if self.is_wanted(run) else now)
            for key, run in self._runs.items()
        }
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

    def save_job(self, job: JobRecord) -> None:
        """Within a change: store the job as it is when the change ends; so with runs and nodes."""
        assert self._change is not None
        self._change.jobs[job.job_id] = job

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

    def _drop(self, job: JobRecord) -> None:
        """Forget a job that is over."""
        if self.jobs.pop(job.job_id, None) is not None:
            self.finished_jobs += 1
        for run in self._of_job.pop(job.job_id, ()):
            self._runs.pop(run.key, None)
            self.watches.pop(run.key, None)
            self._on_node[run.node].pop(run.key, None)
        self._booked.pop(job.job_id, None)

    def changed(self) -> None:
        """The next round has something new to decide."""
        self.on_change()

    def settle(self) -> None:
        """Within a change: see what becomes of the jobs whose runs have changed."""
        for job_id in list(self.touched):
            self._judge(self.jobs[job_id])
        self.touched.clear()

    # -- what people ask for -----------------------------------------------------------------------------------------

    def submit(self, user: str, specs: Sequence[JobSpec], key: str | None = None) -> list[JobRecord]:
        """New jobs of a user, all or none. Under a ``key`` that was used before, the jobs of that time.

        What many threads submit at once is stored together. Raises
        :class:`~bloxopt.runtime.live.faults.ConflictError` for a key under which other jobs were submitted, and
        :class:`~bloxopt.errors.StoreError` if the jobs could not be stored: then they may be submitted again.
        """
        mine = Submission(user, specs, key)
        with self._submissions_lock:
            self._submissions.append(mine)
        with self.lock:
            # Whoever had the lock before may have stored these with its own.
            if mine.jobs is None and mine.error is None:
                with self._submissions_lock:
                    together, self._submissions = self._submissions, []
                self._submit(together)
        if mine.error is not None:
            raise mine.error
        assert mine.jobs is not None
        return mine.jobs

    def _submit(self, together: list[Submission]) -> None:
        made: list[tuple[Submission, list[JobRecord]]] = []
        try:
            with self.change():
                stored = self._submitted_before(together)
                for submission in together:
                    try:
                        jobs = self._repeated(submission, stored)
                        if jobs is None:
                            jobs = self._enter(submission)
                            for number, job in enumerate(jobs):
                                if job.submission_key is not None:
                                    stored[submission.name_of(number)] = job.job_id
                        made.append((submission, jobs))
                    except ConflictError as error:
                        submission.error = error
                self.changed()
        except BloxoptError as error:
            for submission in together:
                submission.error = submission.error or error
            return
        for submission, jobs in made:
            submission.jobs = jobs

    def _submitted_before(self, together: list[Submission]) -> dict[str, str]:
        # One more for each than it has jobs: jobs beyond these would be another submission.
        names = [
            submission.name_of(number)
            for submission in together
            if submission.key is not None
            for number in range(len(submission.specs) + 1)
        ]
        return self.store.submitted(names) if names else {}

    def _repeated(self, submission: Submission, stored: Mapping[str, str]) -> list[JobRecord] | None:
        """The jobs of a submission that was made before; None for a new one."""
        specs = submission.specs
        found = [stored.get(submission.name_of(number)) for number in range(len(specs) + 1)]
        if submission.key is None or not any(found):
            return None
        jobs = [self.find(job_id) for job_id in found if job_id is not None]
        if [job.spec for job in jobs] != list(specs):
            raise ConflictError(
                f"other jobs were submitted with the idempotency key {submission.key!r}: use a new key for other jobs"
            )
        return jobs

    def _enter(self, submission: Submission) -> list[JobRecord]:
        now = self.clock.now()
        jobs: list[JobRecord] = []
        for number, spec in enumerate(submission.specs):
            job_id = f"{spec.name[:48]}-{secrets.token_hex(5)}"
            key = None if submission.key is None else submission.name_of(number)
            # Jobs that come together keep their order.
            job = JobRecord(job_id, submission.user, spec, now + number * 1e-6, submission_key=key)
            self.jobs[job_id] = job
            self.save_job(job)
            plain = spec.model_dump(mode="json", exclude_defaults=True)
            self.note("job.submitted", job_id, user=job.user, submitted_at=job.submitted_at, spec=plain)
            jobs.append(job)
        return jobs

    def find(self, job_id: str) -> JobRecord:
        """The job of that id, finished or not; raises :class:`~bloxopt.runtime.live.faults.UnknownError`."""
        with self.lock:
            job = None if self._broken else self.jobs.get(job_id)
        job = self.store.job(job_id) if job is None else job
        if job is None:
            raise UnknownError(f"there is no job {job_id!r}")
        return job

    def cancel(self, job_id: str, by: str) -> JobRecord:
        """Stop a job for good; one that is over already stays as it is."""
        with self.change():
            job = self.jobs.get(job_id)
            if job is None:
                return self.find(job_id)
            if job.outcome is not JobStatus.CANCELLED:
                self.note("job.cancelled", job_id, by=by)
                self.stop(job, f"cancelled by {by}", JobStatus.CANCELLED)
            return job

    def drain(self, name: str, drained: bool, by: str) -> NodeRecord:
        """Have a node take no new jobs, and move those on it; or put it back into service."""
        with self.change():
            node = self.nodes.get(name)
            if node is None:
                raise UnknownError(f"there is no node {name!r}")
            if node.drained != drained:
                node.drained = drained
                self.save_node(node)
                self.note("node.drained" if drained else "node.undrained", name, by=by)
                if drained:
                    for run in list(self._on_node[name].values()):
                        job = self.jobs[run.job_id]
                        if self.is_wanted(run):
                            job.preemptions += 1
                            self.stop(job, f"node {name} is drained")
                self.observe_states()
                self.changed()
            return node

    # -- what rounds decide ------------------------------------------------------------------------------------------

    def admit(self, job: JobRecord) -> None:
        """Within a change: the admission let the job in."""
        job.admitted_at = self.clock.now()
        self.save_job(job)
        self.note("job.admitted", job.job_id)

    def reject(self, job: JobRecord, reason: str) -> None:
        """Within a change: the admission turned the job away for good."""
        job.outcome = JobStatus.REJECTED
        job.reason = reason
        self.save_job(job)
        self.touched.add(job.job_id)

    def preempt(self, job: JobRecord) -> None:
        """Within a change: the job gives up its GPUs, and waits."""
        job.preemptions += 1
        self.stop(job, "preempted: others come first for now", news=False)

    def start(self, job: JobRecord, gpu_type: str, places: Mapping[str, Sequence[int]]) -> bool:
        """Within a change: a new attempt on GPUs ``places`` (indices by node) of one type; False if it cannot be.

        It cannot where a node or GPU is not usable any more, or another wanted attempt has it.
        """
        if job.final or job.outcome is not None or job.wanted:
            return False
        for name, gpus in places.items():
            if not set(gpus) <= usable_gpus(self.nodes[name], self.state(name)):
                return False
            if any(self.is_wanted(run) and set(run.gpus) & set(gpus) for run in self._on_node[name].values()):
                return False
        now = self.clock.now()
        job.attempt += 1
        job.wanted = True
        job.reason = ""
        job.started_at = now if job.started_at is None else job.started_at
        self._prune(job)
        per_gpu = job.spec.processes == "per_gpu"
        world = sum(map(len, places.values())) if per_gpu else len(places)
        first_node = next(iter(places))
        port = self._free_port(first_node)
        rank = 0
        for node_rank, (name, gpus) in enumerate(places.items()):
            run = RunRecord(
                job.job_id,
                job.attempt,
                name,
                node_rank,
                len(places),
                gpu_type,
                sorted(gpus),
                rank,
                world,
                self.nodes[first_node].address,
                port,
                now,
            )
            self._keep(run)
            self.watches[run.key] = Watch(self.clock.monotonic())
            self.save_run(run)
            rank += len(gpus) if per_gpu else 1
        self.save_job(job)
        self.touched.add(job.job_id)
        self.note(
            "attempt.started",
            job.job_id,
            attempt=job.attempt,
            gpu_type=gpu_type,
            gpus={name: sorted(gpus) for name, gpus in places.items()},
        )
        return True

    def _free_port(self, node: str) -> int:
        used = {run.master_port for run in self._on_node[node].values()}
        offset = secrets.randbelow(len(MASTER_PORTS))
        return next(
            port
            for k in range(len(MASTER_PORTS))
            if (port := MASTER_PORTS[(offset + k) % len(MASTER_PORTS)]) not in used
        )

    def _prune(self, job: JobRecord) -> None:
        """Forget former attempts that are over."""
        runs = self._of_job[job.job_id]
        going = {run.attempt for run in runs if not run.ended}
        self._of_job[job.job_id] = [run for run in runs if run.attempt in going]
        for run in runs:
            if run.attempt not in going:
                self._runs.pop(run.key, None)
                self.watches.pop(run.key, None)

    # -- the life of attempts ----------------------------------------------------------------------------------------

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

    def desired_on(self, name: str) -> list[RunRecord]:
        """The runs that the agent of a node may be told of now."""
        return [run for run in self.runs_on(name) if self.is_wanted(run) and self._may_be_told(self.jobs[run.job_id])]

    def unended(self, job: JobRecord) -> list[RunRecord]:
        """The runs of every attempt of the job that have not ended."""
        return [run for run in self._of_job.get(job.job_id, ()) if not run.ended]

    def _may_be_told(self, job: JobRecord) -> bool:
        """Whether nothing is in the way of the job's last attempt: its former attempts, or other runs on its GPUs."""
        runs = self.runs_of(job)
        if any(run.told for run in runs):
            return True
        if any(run.attempt < job.attempt and not run.ended for run in self._of_job[job.job_id]):
            return False
        for run in runs:
            if self.contacts[run.node].strays:
                return False
            for other in self._on_node[run.node].values():
                if other.told and other.job_id != job.job_id and set(other.gpus) & set(run.gpus):
                    return False
        return not any(job_id == job.job_id for contact in self.contacts.values() for job_id, _ in contact.strays)

    def stop(self, job: JobRecord, reason: str, outcome: JobStatus | None = None, news: bool = True) -> None:
        """Within a change: the job's attempt is not wanted any more. When it has ended the job waits again, or has that
        outcome. ``news``: the next round does not know of it yet."""
        self.book(job)
        if job.wanted and outcome is not JobStatus.SUCCEEDED:
            self.note("attempt.stopped", job.job_id, attempt=job.attempt, reason=reason)
        job.wanted = False
        job.outcome = outcome or job.outcome
        job.reason = reason
        now = self.clock.monotonic()
        for run in self.unended(job):
            if not run.told:
                self.close(run, message="not started")
            elif self.watches[run.key].stopping is None:
                self.watches[run.key].stopping = now
        self.save_job(job)
        self.touched.add(job.job_id)
        if news:
            self.changed()

    def close(self, run: RunRecord, **facts: Any) -> None:
        """Within a change: the run is over, with these ``facts``."""
        self.book(self.jobs[run.job_id])
        run.state = RunState.ENDED
        run.ended_at = self.clock.now()
        for name, value in facts.items():
            setattr(run, name, value)
        self._on_node[run.node].pop(run.key, None)
        self.save_run(run)
        self.touched.add(run.job_id)
        if run.told:
            self.note(
                "run.ended",
                run.job_id,
                attempt=run.attempt,
                node=run.node,
                exit_code=run.exit_code,
                preempted=run.preempted,
                lost=run.lost,
                message=run.message,
            )

    def _judge(self, job: JobRecord) -> None:
        """What becomes of the job by what its runs did."""
        if job.final:
            return
        if self._succeeded(job):
            self.stop(job, "", JobStatus.SUCCEEDED)
            job.exit_code = 0
        elif job.wanted:
            broken = [run for run in self.runs_of(job) if run.ended and not run.done]
            if broken:
                self._broke(job, broken)
        running = self.unended(job)
        before = job.status
        if job.wanted:
            current = self.runs_of(job)
            up = all(run.ended or run.state is RunState.RUNNING for run in current)
            job.status = JobStatus.RUNNING if up else JobStatus.STARTING
        elif running:
            job.status = JobStatus.STOPPING
        elif job.outcome is not None:
            job.status = job.outcome
            job.finished_at = self.clock.now()
            self.note("job.ended", job.job_id, status=job.status.value, reason=job.reason, steps=job.steps)
        else:
            job.status = JobStatus.PENDING
        if job.status is not before:
            self.save_job(job)

    def _succeeded(self, job: JobRecord) -> bool:
        """Whether some attempt has ended by itself, with success everywhere, even if it was to stop by then."""
        attempts: dict[int, list[RunRecord]] = defaultdict(list)
        for run in self._of_job.get(job.job_id, ()):
            attempts[run.attempt].append(run)
        return any(len(runs) == runs[0].num_nodes and all(run.done for run in runs) for runs in attempts.values())

    def _broke(self, job: JobRecord, broken: list[RunRecord]) -> None:
        """A wanted attempt has a run that ended without success."""
        failed = [run for run in broken if not run.preempted and not run.lost]
        failed.sort(key=lambda run: (run.ended_at or 0.0, run.node_rank))
        if not failed:
            self.stop(job, LOST if broken[0].lost else f"stopped on node {broken[0].node}: {broken[0].message}")
            return
        run = failed[0]
        if any(gpu.health is GpuHealth.FAILED and gpu.index in run.gpus for gpu in self.nodes[run.node].gpus):
            # Not the job's own fault, so none of its retries is spent.
            self.stop(job, f"a GPU of node {run.node} has failed")
            return
        job.exit_code = run.exit_code
        how = "could not be started" if run.exit_code is None else f"ended with exit code {run.exit_code}"
        reason = f"{how} on node {run.node}" + (f": {run.message}" if run.message else "")
        if job.retries < job.spec.max_retries:
            job.retries += 1
            self.stop(job, f"{reason}; starts again (retry {job.retries} of {job.spec.max_retries})")
        else:
            self.stop(job, reason, JobStatus.FAILED)

    # -- time ----------------------------------------------------------------------------------------------------------

    def lease_over(self, run: RunRecord, now: float) -> bool:
        """Whether the lease of a told run has ended for sure at ``now`` (monotonic s), wherever it may be."""
        length = self.terms.lease_seconds + self.jobs[run.job_id].spec.grace_seconds + self.terms.margin_seconds
        return now - self.watches[run.key].renewed > length

    def tick(self) -> None:
        """What follows from time alone: leases end, nodes are lost, and what waits for them is let go."""
        with self.change():
            now = self.clock.monotonic()
            for run in [run for runs in self._on_node.values() for run in runs.values()]:
                if run.told and not run.ended and self.lease_over(run, now):
                    self.close(run, lost=True, message=LOST)
            self.observe_states()
            stuck = self.stuck_gpus()
            for job in [job for job in self.jobs.values() if job.wanted]:
                untold = [run for run in self.runs_of(job) if not run.told]
                if not untold:
                    continue
                gone = [run.node for run in untold if self.state(run.node) is NodeState.LOST]
                if gone:
                    self.stop(job, f"node {gone[0]} is lost")
                elif any(set(run.gpus) & stuck.get(run.node, set()) for run in untold):
                    self.stop(job, "the GPUs it was to have are not given up")

    def state(self, name: str) -> NodeState:
        """The state of a node now."""
        return self.contacts[name].state_at(self.clock.monotonic(), self.terms.lost_seconds, self.nodes[name].drained)

    def observe_states(self, names: Iterable[str] | None = None) -> None:
        """Within a change: note which of the nodes (None: of all) have come to another state."""
        for name in self.nodes if names is None else names:
            contact, state = self.contacts[name], self.state(name)
            if state is not contact.state:
                contact.state = state
                self.note("node.state", name, state=state.value, message=contact.message)
                self.changed()

    def book(self, job: JobRecord) -> None:
        """Within a change: add the time since the last booking to what the job has had.

        A job has its GPUs from when an agent was told of it until its runs have ended. Steps are those that it reports.
        """
        runs = [run for run in self.unended(job) if run.told]
        if not runs:
            self._booked.pop(job.job_id, None)
            return
        now = self.clock.monotonic()
        seconds = now - self._booked.get(job.job_id, now)
        self._booked[job.job_id] = now
        gpus = sum(len(run.gpus) for run in runs)
        job.attained_seconds += seconds
        job.attained_service += seconds * gpus
        if seconds > 0:
            self._spells.append(Spell(job.job_id, runs[0].gpu_type, gpus, seconds))
        self.book_steps(job, runs[0].attempt)
        self.save_job(job)

    def book_steps(self, job: JobRecord, attempt: int) -> None:
        """Within a change: the job is as far as its ``attempt`` has reported.

        Only the last attempt that was told reports anything: others wait until it is over.
        """
        watches = [self.watches[run.key] for run in self._of_job[job.job_id] if run.attempt == attempt]
        steps = [watch.steps for watch in watches if watch.steps is not None]
        if steps:
            job.steps = max(steps)
        rates = [watch.steps_per_second for watch in watches if watch.steps_per_second is not None]
        if rates:
            job.steps_per_second = max(rates)

    def take_spells(self) -> list[Spell]:
        """What ran and was booked since this was last asked for."""
        spells, self._spells = self._spells, []
        return spells

    # -- what rounds see -----------------------------------------------------------------------------------------------

    def held_gpus(self) -> dict[str, dict[int, str]]:
        """GPUs of wanted attempts and their types, by node."""
        held: dict[str, dict[int, str]] = defaultdict(dict)
        for name, runs in self._on_node.items():
            for run in runs.values():
                if self.is_wanted(run):
                    held[name].update(dict.fromkeys(run.gpus, run.gpu_type))
        return held

    def stuck_gpus(self) -> dict[str, set[int]]:
        """GPUs that runs keep although their grace and a margin have passed, by node."""
        now = self.clock.monotonic()
        stuck: dict[str, set[int]] = defaultdict(set)
        for name, runs in self._on_node.items():
            for run in runs.values():
                since = self.watches[run.key].stopping
                patience = self.jobs[run.job_id].spec.grace_seconds + self.terms.margin_seconds
                if since is not None and now - since > patience + 2 * self.terms.heartbeat_seconds:
                    stuck[name].update(run.gpus)
        return stuck

    def layout(self) -> Layout | None:
        """The cluster that policies see now; None while no node has registered."""
        records = list(self.nodes.values())
        states = {record.name: self.state(record.name) for record in records}
        return layout_of(records, states, self.held_gpus(), self.stuck_gpus())
