"""Heartbeats that come together are stored together, and none is answered before its facts are stored."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bloxopt.errors import StoreError
from bloxopt.runtime.live import LiveCluster
from bloxopt.runtime.live.faults import StaleAgentError
from bloxopt.runtime.live.heartbeats import answer_together
from bloxopt.runtime.live.pace import MOST_A_SECOND, Pace
from bloxopt.runtime.live.reception import Reception
from bloxopt.runtime.messages import SOONEST_NEWS, DesiredState, JobStatus
from bloxopt.runtime.store import Change, Store
from tests.runtime.live_world import MovedClock, PlayedAgent, gpus, spec

NODES = tuple(f"n{number}" for number in range(8))
PATIENCE = 20.0


class HeldStore(Store):
    """A store whose commits can be held up, counted and made to fail."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.arrived = threading.Event()
        self.commits = 0
        self.fails = False

    def commit(self, change: Change) -> None:
        if change:
            self.arrived.set()
            assert self.may_go_on.wait(PATIENCE)
            self.commits += 1
            if self.fails:
                raise StoreError("the disk is full")
        super().commit(change)


class World:
    """Eight nodes, with a job started on each of which no agent has heard yet."""

    def __init__(self, folder: Path) -> None:
        self.url = str(folder / "live.db")
        self.store = HeldStore(self.url)
        self.clock = MovedClock()
        self.live = LiveCluster(self.store, clock=self.clock)
        self.reception = Reception(self.live)
        self.agents = {name: PlayedAgent(self.clock, name, gpus(1)) for name in NODES}
        for agent in self.agents.values():
            agent.beat(self.live)
        self.jobs = self.live.submit("ada", [spec(name=f"on-{name}") for name in NODES])
        with self.live.change():
            for job, name in zip(self.jobs, NODES, strict=True):
                assert self.live.start(job, "A100", {name: [0]})
        self.store.commits = 0

    def stored_as_told(self) -> list[bool]:
        """Whether each job's run is told, by what somebody else reads in the database."""
        reader = Store(self.url, owned=False)
        try:
            return [all(run.told for run in reader.runs(job.job_id)) for job in self.jobs]
        finally:
            reader.close()

    def hold_the_store_with_a_heartbeat_of(self, name: str) -> None:
        self.store.arrived.clear()
        self.store.may_go_on.clear()
        self.first = self.reception.receive(self.agents[name].heartbeat())
        assert self.store.arrived.wait(PATIENCE)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.store.may_go_on.set()
    world.reception.close()
    world.store.close()


def test_what_comes_while_the_store_is_busy_is_stored_in_one_transaction(world: World) -> None:
    world.hold_the_store_with_a_heartbeat_of(NODES[0])
    answers = [world.reception.receive(world.agents[name].heartbeat()) for name in NODES[1:]]
    world.store.may_go_on.set()
    for name, answered in zip(NODES, [world.first, *answers], strict=True):
        state = answered.result(PATIENCE)
        assert [run.job_id.rpartition("-")[0] for run in state.runs] == [f"on-{name}"]
    assert world.store.commits == 2
    assert all(world.stored_as_told())


def test_no_answer_leaves_before_its_facts_are_stored(world: World) -> None:
    world.hold_the_store_with_a_heartbeat_of(NODES[0])
    answers = [world.first, *(world.reception.receive(world.agents[name].heartbeat()) for name in NODES[1:])]
    assert not any(world.stored_as_told())
    assert not any(answered.done() for answered in answers)
    world.store.may_go_on.set()
    assert all(answered.result(PATIENCE).runs for answered in answers)


def test_if_they_cannot_be_stored_none_of_them_is_answered_and_nothing_has_happened(world: World) -> None:
    world.hold_the_store_with_a_heartbeat_of(NODES[0])
    answers = [world.first, *(world.reception.receive(world.agents[name].heartbeat()) for name in NODES[1:])]
    world.store.fails = True
    world.store.may_go_on.set()
    for answered in answers:
        with pytest.raises(StoreError, match="the disk is full"):
            answered.result(PATIENCE)
    assert not any(world.stored_as_told())

    world.store.fails = False
    for agent in world.agents.values():
        agent.converge(world.reception.receive(agent.heartbeat()).result(PATIENCE))
        assert len(agent.runs) == 1
    assert all(world.stored_as_told())
    assert [world.live.jobs[job.job_id].status for job in world.jobs] == [JobStatus.STARTING] * len(NODES)


def test_one_that_is_refused_is_none_of_the_others_business(world: World) -> None:
    stale = world.agents[NODES[1]].heartbeat()
    world.agents[NODES[1]].instance = "second"
    world.agents[NODES[1]].beat(world.live)
    twice = world.agents[NODES[2]].heartbeat().model_copy(update={"gpus": gpus(1) + gpus(1)})
    world.hold_the_store_with_a_heartbeat_of(NODES[0])
    refused = [world.reception.receive(stale), world.reception.receive(twice)]
    accepted = [world.reception.receive(world.agents[name].heartbeat()) for name in NODES[3:]]
    world.store.may_go_on.set()
    with pytest.raises(StaleAgentError):
        refused[0].result(PATIENCE)
    with pytest.raises(Exception, match="reports a GPU twice"):
        refused[1].result(PATIENCE)
    assert all(answered.result(PATIENCE).runs for answered in accepted)


def test_two_heartbeats_of_one_node_are_read_in_their_order(world: World) -> None:
    """The agent gave up on the answer to the first: it has not taken up what that would have told it."""
    name = NODES[1]
    world.hold_the_store_with_a_heartbeat_of(NODES[0])
    given_up, next_one = (world.reception.receive(world.agents[name].heartbeat()) for _ in range(2))
    world.store.may_go_on.set()
    assert given_up.result(PATIENCE).sequence + 1 == next_one.result(PATIENCE).sequence
    (run,) = next_one.result(PATIENCE).runs
    assert run.attempt == 1


def test_nodes_keep_their_news_longer_while_jobs_have_moved_on_very_many(tmp_path: Path) -> None:
    clock = MovedClock()
    live = LiveCluster(Store(str(tmp_path / "live.db")), clock=clock)
    agents = [PlayedAgent(clock, f"n{number}", gpus(1)) for number in range(2 * MOST_A_SECOND)]

    def start(nodes: list[str]) -> None:
        jobs = live.submit("ada", [spec() for _ in nodes])
        with live.change():
            for job, node in zip(jobs, nodes, strict=True):
                assert live.start(job, "A100", {node: [0]})

    assert set(_pauses(live, agents)) == {SOONEST_NEWS}
    start(["n0"])
    clock.move(1.0)
    assert _pauses(live, agents[:2]) == [SOONEST_NEWS] * 2
    start([agent.node for agent in agents[1:]])
    clock.move(1.0)
    assert _pauses(live, agents[:2]) == [2.0] * 2
    clock.move(2 * live.terms.heartbeat_seconds + 1.0)
    assert _pauses(live, agents[:2]) == [SOONEST_NEWS] * 2, "by now all have told what became of it"
    live.store.close()


def _pauses(live: LiveCluster, agents: list[PlayedAgent]) -> list[float]:
    """How soon each may send news, one after the other."""
    answers = answer_together(live, [agent.heartbeat() for agent in agents])
    return [answered.news_seconds for answered in answers if isinstance(answered, DesiredState)]


@pytest.mark.parametrize("interval", [0.3, 5.0])
def test_heartbeats_that_come_all_at_once_come_one_by_one_soon(interval: float) -> None:
    pace, nodes = Pace(interval), 1000
    due, most = [0.0] * nodes, []
    for turn in range(1, 11):
        due = [at + pace.heartbeat_seconds(at) for at in sorted(due)]
        assert all(abs(at - turn * interval) <= 0.11 * turn * interval for at in due)
        most.append(np.histogram(np.mod(due, interval), bins=10, range=(0, interval))[0].max())
    assert most[0] > 3 * nodes / 10
    assert most[-1] < 1.5 * nodes / 10


def test_a_few_nodes_send_heartbeats_as_they_are_told_to() -> None:
    pace = Pace(5.0)
    due = {node: 0.37 * node for node in range(10)}
    for _ in range(20):
        for node in sorted(due, key=due.__getitem__):
            told = pace.heartbeat_seconds(due[node])
            assert told == 5.0
            due[node] += told
