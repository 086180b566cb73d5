"""Whatever messages come, are lost or come twice: no two attempts of a job at once, no GPU given twice, no job lost."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bloxopt.errors import StoreError
from bloxopt.runtime.live import LeaseTerms, LiveCluster, answer
from bloxopt.runtime.live.faults import StaleAgentError
from bloxopt.runtime.messages import DesiredState, Heartbeat, JobStatus, RunState
from bloxopt.runtime.store import Change, Store
from tests.runtime.live_world import MovedClock, PlayedAgent, gpus, spec

TERMS = LeaseTerms(lease_seconds=30.0, heartbeat_seconds=5.0, margin_seconds=5.0, lost_seconds=12.0)
GRACE = 4.0
NODES = ("a", "b")


class FailingStore(Store):
    """A store that can be told to fail: before it has stored a change, or after."""

    fail = ""

    def commit(self, change: Change) -> None:
        fail, self.fail = self.fail, ""
        if fail == "before" and change:
            raise StoreError("the disk is full")
        super().commit(change)
        if fail == "after" and change:
            raise StoreError("the connection was lost")


class Fencing(RuleBasedStateMachine):
    """Two nodes of two GPUs, jobs of one or two nodes, and everything that can go wrong between them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.clock = MovedClock()
        self.agents = {
            name: PlayedAgent(self.clock, name, gpus(2), instance="i0", generation=0, stopping=GRACE / 2)
            for name in NODES
        }
        self.instances = self.submitted = 0
        self.delayed: list[Heartbeat] = []
        self.ids: list[str] = []
        self.cancelled: set[str] = set()
        self.unreachable: set[str] = set()
        self.store = FailingStore(str(self.folder / "live.db"))
        self.live = LiveCluster(self.store, TERMS, self.clock)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @initialize()
    def register(self) -> None:
        for agent in self.agents.values():
            agent.beat(self.live)
        for size in (1, 4, 2):
            self.submit(60.0, size, 1)
        self.work_goes_on(10)

    @rule(seconds=st.sampled_from([5, 10, 20, 45]))
    def work_goes_on(self, seconds: int) -> None:
        """Agents that can be reached send heartbeats, and jobs that wait start where GPUs are free."""
        for second in range(seconds):
            self.clock.move(1.0)
            self.advance()
            self.no_gpu_has_two_runs()
            self.no_job_has_two_attempts_at_once()
            if second % 3 == 0:
                for name, agent in self.agents.items():
                    state = None if name in self.unreachable else self.deliver(agent.heartbeat())
                    if state is not None:
                        agent.converge(state)
            if second % 5 == 0:
                with suppress(StoreError):
                    self.live.tick()
                    self.fill()

    def fill(self) -> None:
        """Start what fits, the first that waits first."""
        with self.live.change():
            for job in sorted(self.live.jobs.values(), key=lambda job: job.spec.name):
                size = job.spec.num_gpus
                whole = [{name: [0, 1] for name in NODES}]
                some = [{name: list(range(size))} for name in NODES]
                for places in whole if size == 4 else some:
                    if not job.wanted:
                        self.live.start(job, "A100", places)
                if not job.wanted and job.outcome is None:
                    break

    @rule(node=st.sampled_from(NODES), seconds=st.sampled_from([5, 20, 45]))
    def a_node_is_cut_off_or_back(self, node: str, seconds: int) -> None:
        self.unreachable ^= {node}
        self.work_goes_on(seconds)

    def advance(self) -> None:
        for agent in self.agents.values():
            agent.advance()

    def deliver(self, heartbeat: Heartbeat) -> DesiredState | None:
        try:
            return answer(self.live, heartbeat)
        except (StoreError, StaleAgentError):
            return None

    @rule(steps=st.sampled_from([20.0, 60.0]), size=st.sampled_from([1, 2, 4]), retries=st.integers(0, 1))
    def submit(self, steps: float, size: int, retries: int) -> None:
        self.submitted += 1
        # Ids are random: what is drawn goes by the names.
        name = f"job-{self.submitted:04}"
        job = spec(steps * size, size, name=name, grace_seconds=GRACE, max_retries=retries)
        try:
            (made,) = self.live.submit("ada", [job])
        except StoreError:
            return
        self.ids.append(made.job_id)

    @rule(node=st.sampled_from(NODES), fate=st.sampled_from(["answered", "answered", "lost", "unanswered", "delayed"]))
    def heartbeat(self, node: str, fate: str) -> None:
        agent = self.agents[node]
        heartbeat = agent.heartbeat()
        if fate == "delayed":
            self.delayed.append(heartbeat)
        elif fate != "lost":
            state = self.deliver(heartbeat)
            if fate == "answered" and state is not None:
                agent.converge(state)

    @rule(data=st.data())
    def a_late_heartbeat_comes(self, data: st.DataObject) -> None:
        if self.delayed:
            late = data.draw(st.sampled_from(self.delayed))
            state = self.deliver(late)
            agent = self.agents[late.node]
            # The agent takes no notice unless it still waits for this very answer.
            if state is not None and late.instance == agent.instance and late.sequence == agent.sequence:
                agent.converge(state)

    def the_next_agent(self, node: str) -> None:
        self.instances += 1
        self.agents[node].start_again(f"i{self.instances}", self.instances)

    @rule(node=st.sampled_from(NODES))
    def the_agent_starts_again_and_remembers(self, node: str) -> None:
        self.work_goes_on(6)
        self.the_next_agent(node)

    @rule(node=st.sampled_from(NODES))
    def the_node_is_switched_off_and_on(self, node: str) -> None:
        self.agents[node].runs.clear()
        self.the_next_agent(node)

    @rule(node=st.sampled_from(NODES))
    def the_agent_starts_again_and_knows_nothing(self, node: str) -> None:
        self.agents[node].lose_records()
        self.the_next_agent(node)
        self.work_goes_on(10)

    @rule(node=st.sampled_from(NODES))
    def a_run_crashes(self, node: str) -> None:
        self.advance()
        for run in self.agents[node].runs.values():
            if run.state is RunState.RUNNING:
                run.state, run.exit_code = RunState.ENDED, 1
                return

    @rule(seconds=st.sampled_from([1.0, 5.0, 20.0, 50.0]))
    def time_passes(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.clock.move(1.0)
            self.advance()
        with suppress(StoreError):
            self.live.tick()

    @rule()
    def the_scheduler_starts_again(self) -> None:
        self.store.close()
        self.store = FailingStore(str(self.folder / "live.db"))
        self.live = LiveCluster(self.store, TERMS, self.clock)

    @rule(when=st.sampled_from(["before", "after"]))
    def the_store_fails_next_time(self, when: str) -> None:
        self.store.fail = when

    @rule(data=st.data())
    def a_round_decides(self, data: st.DataObject) -> None:
        """Any decision at all: stop some, start some on whatever GPUs."""
        with suppress(StoreError), self.live.change():
            for job in sorted(self.live.jobs.values(), key=lambda job: job.spec.name):
                if job.wanted and data.draw(st.booleans()):
                    self.live.preempt(job)
            self.live.settle()
            for job in sorted(self.live.jobs.values(), key=lambda job: job.spec.name):
                if not job.wanted and data.draw(st.booleans()):
                    size = job.spec.num_gpus
                    where = data.draw(st.sampled_from(NODES))
                    places = {name: [0, 1] for name in NODES} if size == 4 else {where: list(range(size))}
                    self.live.start(job, "A100", places)

    @rule(data=st.data())
    def someone_cancels(self, data: st.DataObject) -> None:
        if self.ids:
            job_id = data.draw(st.sampled_from(self.ids))
            self.cancelled.add(job_id)
            with suppress(StoreError):
                self.live.cancel(job_id, "ada")

    @rule(node=st.sampled_from(NODES), drained=st.booleans())
    def someone_drains(self, node: str, drained: bool) -> None:
        with suppress(StoreError):
            self.live.drain(node, drained, "root")

    @invariant()
    def no_gpu_has_two_runs(self) -> None:
        for agent in self.agents.values():
            agent.busy()

    @invariant()
    def no_job_has_two_attempts_at_once(self) -> None:
        alive: dict[str, set[int]] = {}
        for agent in self.agents.values():
            for job_id, attempt in agent.busy().values():
                alive.setdefault(job_id, set()).add(attempt)
        assert all(len(attempts) == 1 for attempts in alive.values()), alive

    @invariant()
    def no_job_is_lost(self) -> None:
        for job_id in self.ids:
            job = self.store.job(job_id)
            assert job is not None
            assert job.final or job_id in self.live.jobs or self.live._broken

    @invariant()
    def what_is_wanted_is_given_once(self) -> None:
        if self.live._broken:
            return
        for node in self.live.nodes:
            given = [gpu for run in self.live.runs_on(node) if self.live.is_wanted(run) for gpu in run.gpus]
            assert len(given) == len(set(given))

    def drain_out(self) -> None:
        """When everything works again, every job comes to an end."""
        self.store.fail = ""
        for node in NODES:
            self.live.drain(node, False, "root")
        for _ in range(1500):
            for agent in self.agents.values():
                self.clock.move(1.0)
                self.advance()
                agent.beat(self.live)
                self.no_gpu_has_two_runs()
                self.no_job_has_two_attempts_at_once()
            self.live.tick()
            if not self.live.jobs:
                break
            self.fill()
        assert not self.live.jobs, list(self.live.jobs.values())
        for job_id in self.ids:
            job = self.store.job(job_id)
            assert job is not None
            if job.status is JobStatus.SUCCEEDED:
                assert job.steps == job.spec.total_steps
            else:
                assert job.status is JobStatus.FAILED or job_id in self.cancelled
            for run in self.store.runs(job_id):
                assert run.ended


class FencingToTheEnd(Fencing):
    def teardown(self) -> None:
        try:
            self.drain_out()
        finally:
            super().teardown()


FencingToTheEnd.TestCase.settings = settings(
    max_examples=25,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestFencing = FencingToTheEnd.TestCase
