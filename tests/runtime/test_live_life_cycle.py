"""The life of jobs and nodes, one case at a time: leases, preemption, retries, failed GPUs, draining, late messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bloxopt.errors import StoreError
from bloxopt.runtime.live import LeaseTerms, LiveCluster, answer
from bloxopt.runtime.live.faults import ConflictError, StaleAgentError, UnknownError
from bloxopt.runtime.live.nodes import DEAF
from bloxopt.runtime.live.views import node_view
from bloxopt.runtime.messages import JobStatus, NodeState, RunState
from bloxopt.runtime.store import Change, JobRecord, Store
from tests.runtime.live_world import MovedClock, PlayedAgent, gpus, spec

TERMS = LeaseTerms(lease_seconds=30.0, heartbeat_seconds=5.0, margin_seconds=5.0, lost_seconds=12.0)


class Small:
    """Two nodes of two GPUs each, and their agents."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = MovedClock()
        self.store = Store(str(path / "live.db"))
        self.live = LiveCluster(self.store, TERMS, self.clock)
        self.a, self.b = (PlayedAgent(self.clock, name, gpus(2)) for name in "ab")
        self.beat()

    def beat(self, *names: str) -> None:
        for agent in (self.a, self.b):
            if not names or agent.node in names:
                agent.beat(self.live)

    def pass_by(self, seconds: int, *names: str) -> None:
        for _ in range(seconds):
            self.clock.move(1.0)
            for agent in (self.a, self.b):
                agent.advance()
            self.beat(*(names or ("a", "b")))
            self.live.tick()

    def submit(self, steps: float = 100.0, num_gpus: int = 1, **more: object) -> JobRecord:
        (job,) = self.live.submit("ada", [spec(steps, num_gpus, **more)])
        return job

    def start(self, job: JobRecord, **places: list[int]) -> bool:
        with self.live.change():
            return self.live.start(self.job(job), "A100", places)

    def job(self, job: JobRecord) -> JobRecord:
        return self.live.find(job.job_id)

    def restart(self) -> None:
        self.store.close()
        self.store = Store(str(self.path / "live.db"))
        self.live = LiveCluster(self.store, TERMS, self.clock)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    world = Small(tmp_path)
    yield world
    world.store.close()


def test_a_job_runs_from_submission_to_success(small: Small) -> None:
    job = small.submit(20.0)
    assert small.job(job).status is JobStatus.PENDING
    assert small.start(job, a=[0])
    assert small.job(job).status is JobStatus.STARTING
    small.pass_by(2)
    assert small.job(job).status is JobStatus.RUNNING
    small.pass_by(22)
    over = small.store.job(job.job_id)
    assert over is not None
    assert (over.status, over.exit_code, over.steps) == (JobStatus.SUCCEEDED, 0, 20.0)
    assert over.attained_seconds == pytest.approx(20.0, abs=3.0)
    assert not small.a.runs, "the agent may forget what the store knows"


def test_the_job_of_a_silent_node_starts_elsewhere_only_when_its_lease_has_ended_for_sure(small: Small) -> None:
    job = small.submit(1000.0, grace_seconds=7.0)
    small.start(job, a=[0])
    small.pass_by(5)
    sure = TERMS.lease_seconds + 7.0 + TERMS.margin_seconds
    small.pass_by(int(sure), "b")
    assert small.job(job).status is JobStatus.RUNNING, "it counts as running while it may be"
    assert small.live.state("a") is NodeState.LOST
    small.pass_by(1, "b")
    assert small.job(job).status is JobStatus.PENDING
    assert small.job(job).retries == 0
    assert small.start(job, b=[0])
    small.beat("b")
    assert len(small.b.busy()) == 1


def test_a_partition_shorter_than_the_lease_changes_nothing(small: Small) -> None:
    job = small.submit(1000.0)
    small.start(job, a=[0])
    small.pass_by(5)
    small.pass_by(25, "b")
    small.pass_by(5)
    assert small.job(job).status is JobStatus.RUNNING
    assert small.job(job).attempt == 1
    assert small.live.state("a") is NodeState.UP


def test_after_a_restart_of_the_scheduler_leases_count_from_then(small: Small) -> None:
    job = small.submit(1000.0, grace_seconds=0.0)
    small.start(job, a=[0])
    small.pass_by(5)
    small.pass_by(30, "b")
    small.restart()
    small.pass_by(35, "b")
    assert small.job(job).status is JobStatus.RUNNING
    small.pass_by(2, "b")
    assert small.job(job).status is JobStatus.PENDING


def test_a_preempted_job_is_told_again_only_when_its_former_attempt_has_ended(small: Small) -> None:
    job = small.submit(1000.0)
    small.a.stopping = 6.0
    small.start(job, a=[0])
    small.pass_by(3)
    with small.live.change():
        small.live.preempt(small.job(job))
    assert small.job(job).status is JobStatus.STOPPING
    assert small.start(job, b=[1])
    small.pass_by(4)
    assert small.a.busy()
    assert not small.b.busy()
    small.pass_by(5)
    assert not small.a.busy()
    assert small.b.busy() == {1: (job.job_id, 2)}


def test_gpus_are_held_until_the_run_on_them_has_ended(small: Small) -> None:
    first, second = small.submit(1000.0), small.submit(1000.0)
    small.a.stopping = 6.0
    small.start(first, a=[0])
    small.pass_by(3)
    with small.live.change():
        small.live.preempt(small.job(first))
        assert small.live.start(small.job(second), "A100", {"a": [0]})
    small.pass_by(4)
    assert small.a.busy() == {0: (first.job_id, 1)}
    small.pass_by(5)
    assert small.a.busy() == {0: (second.job_id, 1)}


def test_a_wanted_gpu_is_not_given_twice(small: Small) -> None:
    first, second = small.submit(), small.submit()
    assert small.start(first, a=[0])
    assert not small.start(second, a=[0, 1])


def test_a_job_that_was_preempted_as_it_finished_has_finished(small: Small) -> None:
    job = small.submit(10.0)
    small.start(job, a=[0])
    small.pass_by(3)
    small.clock.move(20.0)
    small.a.advance()
    with small.live.change():
        small.live.preempt(small.job(job))
    small.beat()
    assert small.job(job).status is JobStatus.SUCCEEDED
    assert small.job(job).steps == 10.0


def test_a_failed_job_starts_again_as_often_as_it_may(small: Small) -> None:
    job = small.submit(1000.0, max_retries=1)
    for expected in (JobStatus.PENDING, JobStatus.FAILED):
        small.start(job, a=[0])
        small.pass_by(2)
        run = next(iter(small.a.runs.values()))
        run.state, run.exit_code = RunState.ENDED, 3
        small.beat()
        assert small.job(job).status is expected
    assert small.job(job).exit_code == 3
    assert "exit code 3" in small.job(job).reason


def test_when_one_node_of_a_gang_fails_the_others_stop(small: Small) -> None:
    job = small.submit(1000.0, 4)
    small.start(job, a=[0, 1], b=[0, 1])
    small.pass_by(3)
    run = next(iter(small.a.runs.values()))
    run.state, run.exit_code = RunState.ENDED, 1
    small.beat("a")
    assert small.job(job).status is JobStatus.STOPPING
    small.pass_by(5)
    assert not small.b.busy()
    assert small.job(job).status is JobStatus.FAILED


def test_the_ranks_of_a_gang_follow_its_nodes(small: Small) -> None:
    job = small.submit(1000.0, 3)
    small.start(job, a=[0, 1], b=[1])
    small.beat()
    first, second = (next(iter(agent.runs.values())).desired for agent in (small.a, small.b))
    assert (first.first_rank, first.world_size, first.node_rank, first.num_nodes) == (0, 3, 0, 2)
    assert (second.first_rank, second.world_size, second.node_rank, second.gpus) == (2, 3, 1, [1])
    assert (first.master_address, first.master_port) == (second.master_address, second.master_port)


def test_a_gpu_that_failed_takes_no_run_and_is_not_held_against_its_job(small: Small) -> None:
    job = small.submit(1000.0)
    small.start(job, a=[1])
    small.pass_by(3)
    small.a.gpus = gpus(2, failed=(1,))
    small.beat("a")
    assert small.job(job).status is JobStatus.RUNNING
    run = next(iter(small.a.runs.values()))
    run.state, run.exit_code = RunState.ENDED, 1
    small.beat("a")
    assert small.job(job).status is JobStatus.PENDING
    assert not small.start(job, a=[1])
    layout = small.live.layout()
    assert layout is not None
    assert layout.slots[0].gpus == (0,)
    assert small.start(job, a=[0])


def test_a_degraded_node_keeps_its_jobs_and_gets_none(small: Small) -> None:
    job, other = small.submit(1000.0), small.submit()
    small.start(job, a=[0])
    small.pass_by(3)
    small.a.healthy = False
    small.pass_by(3)
    assert small.live.state("a") is NodeState.DEGRADED
    assert small.job(job).status is JobStatus.RUNNING
    layout = small.live.layout()
    assert layout is not None
    assert layout.slots[0].gpus == (0,)
    assert not small.start(other, a=[1])


def test_draining_moves_the_jobs_of_a_node(small: Small) -> None:
    job = small.submit(1000.0)
    small.start(job, a=[0])
    small.pass_by(3)
    small.live.drain("a", True, "root")
    small.pass_by(5)
    assert small.job(job).status is JobStatus.PENDING
    assert not small.start(job, a=[0])
    small.live.drain("a", False, "root")
    assert small.start(job, a=[0])


def test_only_what_an_agent_was_told_of_can_be_preempted(small: Small) -> None:
    job = small.submit(1000.0)
    small.start(job, a=[0])
    small.pass_by(3)
    small.live.drain("a", True, "root")
    # It starts elsewhere when it has left, but that is drained by then.
    assert small.start(job, b=[0])
    small.live.drain("b", True, "root")
    small.pass_by(5)
    assert (small.job(job).status, small.job(job).attempt, small.job(job).preemptions) == (JobStatus.PENDING, 2, 1)


def test_a_cancelled_job_ends_cancelled_and_stays_so(small: Small) -> None:
    waiting, running = small.submit(), small.submit(1000.0)
    small.start(running, a=[0])
    small.pass_by(2)
    for job in (waiting, running):
        small.live.cancel(job.job_id, "ada")
    assert small.job(waiting).status is JobStatus.CANCELLED
    assert small.job(running).status is JobStatus.STOPPING
    assert not small.start(running, b=[0])
    small.pass_by(5)
    assert small.job(running).status is JobStatus.CANCELLED
    assert small.live.cancel(running.job_id, "ada").status is JobStatus.CANCELLED
    with pytest.raises(UnknownError, match="no job"):
        small.live.cancel("nothing", "ada")


def test_repeated_and_overtaken_heartbeats_are_answered_and_not_read(small: Small) -> None:
    job = small.submit(1000.0)
    before = small.a.heartbeat()
    small.start(job, a=[0])
    small.pass_by(2)
    assert [run.job_id for run in answer(small.live, before).runs] == [job.job_id]
    assert small.job(job).status is JobStatus.RUNNING
    small.pass_by(1)
    assert small.a.busy() == {0: (job.job_id, 1)}


def test_an_agent_that_was_replaced_is_refused(small: Small) -> None:
    old = small.a.heartbeat()
    small.a.instance, small.a.sequence = "second", 0
    small.beat("a")
    with pytest.raises(StaleAgentError, match="taken over"):
        answer(small.live, old)


def test_of_two_agents_that_a_new_scheduler_hears_of_the_later_one_stays_whichever_it_reads_first(small: Small) -> None:
    small.a.start_again("early", 7)
    early = small.a.heartbeat()
    small.a.start_again("later", 8)
    for order in ((early, small.a.heartbeat()), (small.a.heartbeat(), early)):
        small.restart()
        for heartbeat in order:
            with suppress(StaleAgentError):
                answer(small.live, heartbeat)
        small.a.beat(small.live)
        assert small.live.contacts["a"].instance == "later"
    with pytest.raises(StaleAgentError, match="another agent has taken over"):
        answer(small.live, early)


def test_an_agent_whose_number_is_too_small_by_mistake_is_taken_when_the_other_was_silent_for_a_lease(
    small: Small,
) -> None:
    small.a.start_again("clock was wrong", 1000)
    small.a.beat(small.live)
    small.a.start_again("folder was lost", 10)
    with pytest.raises(StaleAgentError):
        small.a.beat(small.live)
    small.pass_by(31, "b")
    small.a.beat(small.live)
    assert small.live.state("a") is NodeState.UP


def test_agents_that_do_not_tell_which_started_later_take_over_as_they_come(small: Small) -> None:
    small.a.start_again("newer version", 10)
    small.a.beat(small.live)
    small.a.start_again("older version")
    small.a.beat(small.live)
    small.a.start_again("newer version again", 11)
    small.a.beat(small.live)
    assert small.live.contacts["a"].instance == "newer version again"


def test_a_node_that_takes_no_answers_is_not_usable_and_its_job_starts_elsewhere(small: Small) -> None:
    """Its heartbeats come: no lease ends, so that the job would start there for ever."""
    job = small.submit(num_gpus=2)
    small.start(job, a=[0, 1])
    for _ in range(13):
        small.clock.move(1.0)
        answer(small.live, small.a.heartbeat())
        small.beat("b")
        small.live.tick()
        assert small.live.state("a") is NodeState.UP
        assert small.job(job).status is JobStatus.STARTING
    small.clock.move(1.0)
    given_up = answer(small.live, small.a.heartbeat())
    assert given_up.runs == []
    view = node_view(small.live, small.live.nodes["a"], processes=True)
    assert (view.state, view.message) == (NodeState.DEGRADED, DEAF)
    assert small.job(job).status is JobStatus.PENDING
    assert "do not reach it" in small.job(job).reason
    assert not small.start(job, a=[0, 1])
    assert small.start(job, b=[0, 1])
    small.beat("b")
    small.pass_by(3, "b")
    assert (small.job(job).status, small.job(job).retries) == (JobStatus.RUNNING, 0)
    # One answer that was taken, and all is well.
    small.a.beat(small.live)
    small.a.beat(small.live)
    assert small.live.state("a") is NodeState.UP
    assert node_view(small.live, small.live.nodes["a"], processes=True).message == ""


def test_a_run_on_a_node_that_takes_no_answers_goes_on_until_its_agent_has_stopped_it(small: Small) -> None:
    """What the agent has taken up is over only when it says so, or its lease has ended from the last answer on."""
    job = small.submit(1000.0, num_gpus=2)
    small.start(job, a=[0, 1])
    small.pass_by(3)
    deaf_from = small.clock.monotonic()
    while small.job(job).status is JobStatus.RUNNING:
        small.clock.move(1.0)
        answer(small.live, small.a.heartbeat())
        small.beat("b")
        small.live.tick()
    assert small.clock.monotonic() == deaf_from + TERMS.lease_seconds
    assert (small.job(job).status, small.job(job).retries) == (JobStatus.PENDING, 0)
    assert small.live.state("a") is NodeState.DEGRADED


def test_answers_that_could_not_be_given_are_not_held_against_a_node(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small.submit()
    small.start(job, a=[0])

    def fail(change: Change) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as during:
        during.setattr(small.store, "commit", fail)
        for _ in range(20):
            small.clock.move(1.0)
            with pytest.raises(StoreError):
                answer(small.live, small.a.heartbeat())
    small.a.beat(small.live)
    assert small.live.state("a") is NodeState.UP
    assert list(small.a.runs) == [(job.job_id, 1)]


def test_an_agent_that_does_not_say_what_it_has_taken_is_believed_to_hear(small: Small) -> None:
    small.a.taken = None
    for _ in range(30):
        small.clock.move(1.0)
        answer(small.live, small.a.heartbeat())
    assert small.live.state("a") is NodeState.UP


def test_an_agent_that_lost_its_records_gets_nothing_new_on_those_gpus_before_the_lease_ends(small: Small) -> None:
    job = small.submit(1000.0, grace_seconds=1.0)
    small.start(job, a=[0])
    small.pass_by(3)
    small.a.lose_records()
    small.a.instance, small.a.sequence = "second", 0
    small.beat("a")
    assert small.job(job).status is JobStatus.STOPPING
    small.start(job, a=[0])
    small.pass_by(30)
    assert not small.a.runs
    small.pass_by(10)
    small.start(job, a=[0])
    small.pass_by(1)
    assert small.a.busy()[0][0] == job.job_id


def test_runs_that_nobody_knows_keep_their_node_free_of_new_ones(small: Small) -> None:
    (small.path / "other").mkdir()
    other = Small(small.path / "other")
    job = other.submit(1000.0)
    other.start(job, a=[0])
    other.beat()
    small.a.runs = other.a.runs
    other.store.close()
    small.clock.at = other.clock.at
    mine = small.submit(1000.0)
    small.start(mine, a=[1])
    small.a.stopping = 4.0
    small.beat("a")
    assert (mine.job_id, 1) not in small.a.runs
    assert next(iter(small.a.runs.values())).state is RunState.STOPPING
    small.pass_by(7)
    assert small.a.busy() == {1: (mine.job_id, 1)}


def test_a_gang_that_waits_for_a_node_that_is_lost_is_given_up(small: Small) -> None:
    job = small.submit(1000.0, 4)
    small.start(job, a=[0, 1], b=[0, 1])
    small.pass_by(2, "a")
    small.pass_by(12, "a")
    small.pass_by(5, "a")
    assert not small.a.busy()
    assert small.job(job).status is JobStatus.PENDING


def test_a_change_that_cannot_be_stored_did_not_happen(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    job = small.submit(1000.0)
    real = Store.commit

    def fails(store: Store, change: Change) -> None:
        if change:
            raise StoreError("the disk is full")
        real(store, change)

    monkeypatch.setattr(Store, "commit", fails)
    with pytest.raises(StoreError):
        small.start(job, a=[0])
    with pytest.raises(StoreError):
        small.submit()
    monkeypatch.undo()
    small.beat()
    assert not small.a.runs
    assert list(small.live.jobs) == [job.job_id]
    assert small.job(job).attempt == 0


def test_the_same_submission_twice_is_one(small: Small) -> None:
    specs = [spec(10.0), spec(20.0)]
    first = small.live.submit("ada", specs, "key-1")
    again = small.live.submit("ada", specs, "key-1")
    assert [job.job_id for job in first] == [job.job_id for job in again]
    assert small.live.submit("bob", specs, "key-1")[0].job_id != first[0].job_id, "keys are a user's own"
    for others in ([spec(30.0), spec(20.0)], specs[:1], [*specs, spec(1.0)]):
        with pytest.raises(ConflictError, match="key-1"):
            small.live.submit("ada", others, "key-1")


def test_the_clock_never_goes_back_even_when_the_computers_does(small: Small) -> None:
    job = small.submit()
    small.clock.move(7200.0)
    late = small.submit()
    small.restart()
    small.live.clock = clock = MovedClock()
    clock.not_before(late.submitted_at)
    assert clock.now() >= late.submitted_at > job.submitted_at


def test_what_an_agent_was_told_is_known_after_a_restart_even_before_it_was_reported(small: Small) -> None:
    job = small.submit(1000.0)
    small.start(job, a=[0])
    small.beat("a")
    small.restart()
    with small.live.change():
        small.live.preempt(small.job(job))
    assert small.job(job).status is JobStatus.STOPPING, "its agent has begun it"


def test_a_run_that_was_told_to_a_former_agent_may_be_there_until_its_lease_ends(small: Small) -> None:
    job = small.submit(1000.0, grace_seconds=0.0)
    small.start(job, a=[0])
    small.beat("a")
    small.a.lose_records()
    small.a.instance, small.a.sequence = "second", 0
    with small.live.change():
        small.live.preempt(small.job(job))
    small.pass_by(30)
    assert small.job(job).status is JobStatus.STOPPING
    small.pass_by(10)
    assert small.job(job).status is JobStatus.PENDING


def test_a_run_that_its_agent_has_not_taken_up_is_over_when_it_says_so(small: Small) -> None:
    job = small.submit(1000.0)
    small.start(job, a=[0])
    answer(small.live, small.a.heartbeat())
    with small.live.change():
        small.live.preempt(small.job(job))
    assert small.job(job).status is JobStatus.STOPPING
    small.beat("a")
    assert small.job(job).status is JobStatus.PENDING


def test_an_attempt_that_a_former_agent_may_have_begun_is_not_told_to_the_next(small: Small) -> None:
    job = small.submit(1000.0)
    small.start(job, a=[0])
    small.beat("a")
    small.a.lose_records()
    small.a.instance, small.a.sequence = "second", 0
    small.pass_by(3)
    assert small.job(job).status is JobStatus.STOPPING
    assert small.a.busy() == {0: (job.job_id, 1)}, "the one that the guard keeps until its lease ends"
    assert not small.a.runs
