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

from collections import defaultdict
from collections.abc import Iterable, Sequence

from bloxopt.runtime.live.attempts import Attempts
from bloxopt.runtime.live.clock import Clock
from bloxopt.runtime.live.faults import UnknownError
from bloxopt.runtime.live.nodes import Layout, LayoutMaker
from bloxopt.runtime.live.submissions import Submissions
from bloxopt.runtime.live.terms import LOST, LeaseTerms
from bloxopt.runtime.messages import JobSpec, JobStatus, NodeState
from bloxopt.runtime.store import JobRecord, NodeRecord, RunRecord, Store


class LiveCluster(Attempts):
    """A running scheduler's jobs, runs and nodes: what people ask for, rounds decide and time brings."""

    def __init__(self, store: Store, terms: LeaseTerms | None = None, clock: Clock | None = None) -> None:
        super().__init__(store, terms, clock)
        self._submissions = Submissions(self)
        self._layouts = LayoutMaker()

    # -- what people ask for -----------------------------------------------------------------------------------------

    def submit(self, user: str, specs: Sequence[JobSpec], key: str | None = None) -> list[JobRecord]:
        """New jobs of a user; see :meth:`~bloxopt.runtime.live.submissions.Submissions.submit`."""
        return self._submissions.submit(user, specs, key)

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
                            self.preempt(job, f"node {name} is drained", news=True)
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

    def preempt(self, job: JobRecord, reason: str = "preempted: others come first for now", news: bool = False) -> None:
        """Within a change: the job gives up its GPUs, and waits. No preemption is counted where no agent was told of
        the attempt: nothing has run."""
        job.preemptions += any(run.told for run in self.runs_of(job))
        self.stop(job, reason, news=news)

    # -- time ----------------------------------------------------------------------------------------------------------

    def lease_over(self, run: RunRecord, now: float) -> bool:
        """Whether the lease of a told run has ended for sure at ``now`` (monotonic s), wherever it may be."""
        length = self.terms.lease_seconds + self.jobs[run.job_id].spec.grace_seconds + self.terms.margin_seconds
        return now - self.watches[run.key].renewed > length

    def tick(self) -> None:
        """What follows from time alone: leases end, nodes are lost, and what waits for them is let go."""
        with self.change():
            now = self.clock.monotonic()
            shortest = self.terms.lease_seconds + self.terms.margin_seconds
            for run in [self._runs[key] for key, watch in self.watches.items() if now - watch.renewed > shortest]:
                if run.told and not run.ended and self.lease_over(run, now):
                    self.close(run, lost=True, message=LOST)
            self.observe_states()
            stuck = self.stuck_gpus()
            waiting: dict[str, list[RunRecord]] = defaultdict(list)
            for run in self.untold_runs():
                if self.is_wanted(run):
                    waiting[run.job_id].append(run)
            for job_id, untold in waiting.items():
                job = self.jobs[job_id]
                nodes = [run.node for run in untold if not self.awaits(run.node)]
                gone = [name for name in nodes if self.state(name) is NodeState.LOST]
                if gone:
                    self.stop(job, f"node {gone[0]} is lost")
                elif any(set(run.gpus) & stuck.get(run.node, set()) for run in untold):
                    self.stop(job, "the GPUs it was to have are not given up")

    def observe_states(self, names: Iterable[str] | None = None) -> None:
        """Within a change: note which of the nodes (None: of all) have come to another state."""
        for name in self.nodes if names is None else names:
            contact, state = self.contacts[name], self.state(name)
            if state is not contact.state:
                contact.state = state
                self.note("node.state", name, state=state.value, message=contact.message)
                self.changed()

    # -- what rounds see -----------------------------------------------------------------------------------------------

    def stuck_gpus(self) -> dict[str, set[int]]:
        """GPUs that runs keep although their grace and a margin have passed, by node."""
        now = self.clock.monotonic()
        stuck: dict[str, set[int]] = defaultdict(set)
        for run in self.stopping_runs():
            since = self.watches[run.key].stopping
            patience = self.jobs[run.job_id].spec.grace_seconds + self.terms.margin_seconds
            if since is not None and now - since > patience + 2 * self.terms.heartbeat_seconds:
                stuck[run.node].update(run.gpus)
        return stuck

    def layout(self) -> Layout | None:
        """The cluster that policies see now; None while no node has registered."""
        states = {name: self.state(name) for name in self.nodes}
        return self._layouts.layout_of(self.nodes.values(), states, self.held_gpus(), self.stuck_gpus())
