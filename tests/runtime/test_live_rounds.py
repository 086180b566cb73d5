"""The live backend under real policies: agents that play runs finish every job, and steps add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bloxopt as bx
from bloxopt.formulations.policies import get_policy
from bloxopt.jobs import Job
from bloxopt.placement import get_placement
from bloxopt.rounds import Scheduler
from bloxopt.runtime.live import LeaseTerms, LiveBackend, LiveCluster, Rounds
from bloxopt.runtime.messages import JobStatus
from bloxopt.runtime.replay.log import read_log
from bloxopt.runtime.replay.rounds import replay
from bloxopt.runtime.store import Store
from bloxopt.selection import get_selector
from bloxopt.workloads.trace import Trace
from tests.runtime.live_world import MovedClock, PlayedAgent, gpus, spec
from tests.runtime.recorded_world import RecordedWorld


class World:
    """A live cluster with played agents, and rounds of a policy over it; in place of a ``former`` one if that is given,
    with its agents."""

    def __init__(
        self,
        path: Path,
        policy: str,
        agents: dict[str, int],
        rounds: Rounds | None = None,
        former: World | None = None,
    ) -> None:
        self.clock = MovedClock() if former is None else former.clock
        self.store = Store(str(path / "bloxopt.db"))
        self.live = LiveCluster(self.store, LeaseTerms(60.0, 5.0, 5.0, 20.0), self.clock)
        self.agents = [] if former is None else former.agents
        self.agents += [PlayedAgent(self.clock, name, gpus(count)) for name, count in agents.items()]
        self.clock.each_step = self.beat
        for agent in self.agents:
            agent.beat(self.live)
        self.backend = LiveBackend(self.live, Rounds(10.0) if rounds is None else rounds)
        assert self.backend.start_over()
        self.scheduler = Scheduler(
            self.backend, get_policy(policy), get_selector("priorities"), get_placement("consolidated")
        )

    def beat(self) -> None:
        for agent in self.agents:
            agent.beat(self.live)
            agent.busy()
        alive: dict[str, set[int]] = {}
        for agent in self.agents:
            for job_id, attempt in agent.busy().values():
                alive.setdefault(job_id, set()).add(attempt)
        assert all(len(attempts) == 1 for attempts in alive.values()), "two attempts of a job at once"

    def run(self, most: int = 1000) -> None:
        for _ in range(most):
            if not self.live.jobs:
                return
            self.scheduler.run_round()
        raise AssertionError(f"{len(self.live.jobs)} jobs are not over: {list(self.live.jobs.values())[:3]}")


@pytest.mark.parametrize("policy", ["max_min_fairness", "las"])
def test_twenty_jobs_all_finish_and_their_steps_add_up(tmp_path: Path, policy: str) -> None:
    world = World(tmp_path, policy, {"a": 4, "b": 4})
    sizes = [1, 2, 4, 8, 1, 2, 1, 4, 1, 1, 2, 2, 8, 1, 1, 4, 2, 1, 1, 2]
    jobs = world.live.submit("ada", [spec(60.0 * size, size, name=f"job-{n}") for n, size in enumerate(sizes)])
    world.run()
    over = [world.store.job(job.job_id) for job in jobs]
    assert [job.status for job in over if job] == [JobStatus.SUCCEEDED] * 20
    for job, size in zip(over, sizes, strict=True):
        assert job is not None
        assert job.steps == 60.0 * size
        # Steps that a job makes while it stops after the last heartbeat are made again.
        assert job.attained_seconds >= 60.0
        assert job.attained_seconds <= 60.0 + 6.0 * job.attempt
    assert sum(job.preemptions for job in over if job) > 0


def test_nodes_and_gpu_types_that_join_are_used_and_those_that_go_are_not(tmp_path: Path) -> None:
    world = World(tmp_path, "max_min_fairness", {"a": 2})
    world.live.submit("ada", [spec(150.0 * size, size, name=f"job-{n}") for n, size in enumerate([1, 2, 1, 2, 1])])
    for count, gpu_type in ((3, "H100"), (1, "T4")):
        for _ in range(2):
            world.scheduler.run_round()
        world.agents.append(PlayedAgent(world.clock, gpu_type.lower(), gpus(count, gpu_type)))
    used: set[str] = set()
    for _ in range(8):
        world.scheduler.run_round()
        used |= {agent.node for agent in world.agents if agent.busy()}
    assert used == {"a", "h100", "t4"}
    world.agents[1].gpus = gpus(3, "H100", failed=(0, 2))
    world.live.drain("a", True, "root")
    for _ in range(2):
        world.scheduler.run_round()
    assert not world.agents[0].busy()
    assert set(world.agents[1].busy()) <= {0, 1, 2}
    world.live.drain("a", False, "root")
    world.run()


def test_a_new_scheduler_goes_on_where_the_former_one_was_killed(tmp_path: Path) -> None:
    world = World(tmp_path, "las", {"a": 2, "b": 2})
    jobs = world.live.submit("ada", [spec(40.0 * size, size, name=f"job-{n}") for n, size in enumerate([1, 2, 4, 1])])
    for _ in range(2):
        world.scheduler.run_round()
    running = {job_id: run for agent in world.agents for run in agent.busy().values() for job_id in [run[0]]}
    world.store.close()
    again = World(tmp_path, "las", {}, former=world)
    again.scheduler.run_round()
    for agent in again.agents:
        for job_id, attempt in agent.busy().values():
            assert running.get(job_id, (job_id, 1))[1] <= attempt
    again.run()
    assert all((found := again.store.job(job.job_id)) and found.status is JobStatus.SUCCEEDED for job in jobs)


def test_a_new_scheduler_decides_nothing_before_the_nodes_that_it_knows_had_time_to_come_back(tmp_path: Path) -> None:
    world = World(tmp_path, "las", {"a": 2, "b": 2})
    first, second = world.live.submit("ada", [spec(400.0, 2, name=name) for name in ("first", "second")])
    world.scheduler.run_round()
    with world.live.change():
        world.live.preempt(world.live.jobs[second.job_id])
    for _ in range(3):
        world.clock.move(5.0)
        world.beat()
    with world.live.change():
        # Nobody has been told of this when the scheduler is killed.
        assert world.live.start(world.live.jobs[second.job_id], "A100", {"b": [0, 1]})
    world.store.close()
    live = LiveCluster(Store(str(tmp_path / "bloxopt.db")), world.live.terms, world.clock)
    backend = LiveBackend(live)
    assert not backend.start_over()
    world.agents[0].beat(live)
    # Jobs would have to share the node that is there.
    assert not backend.start_over()
    world.agents[1].beat(live)
    assert backend.start_over()
    assert [live.jobs[job.job_id].wanted for job in (first, second)] == [True, True]
    live.store.close()
    live = LiveCluster(Store(str(tmp_path / "bloxopt.db")), world.live.terms, world.clock)
    backend = LiveBackend(live)
    for _ in range(5):
        world.agents[0].beat(live)
        assert not backend.start_over()
        world.clock.move(live.terms.lost_seconds / 5 + 0.01)
    # A node that does not come back is not waited for any longer.
    assert backend.start_over()
    live.store.close()


@pytest.mark.parametrize("policy", ["fifo", "las", "max_min_fairness"])
def test_completion_times_are_those_of_the_simulator(tmp_path: Path, policy: str) -> None:
    sizes = [1, 2, 4, 8, 1, 2, 1, 4, 1, 1, 2, 2]
    world = World(tmp_path, policy, {"a": 4, "b": 4}, Rounds(20.0, end="fixed"))
    seconds = [100.0 + 20 * n for n in range(len(sizes))]
    jobs = world.live.submit(
        "ada",
        [
            spec(time * size, size, name=f"job-{n:02}")
            for n, (size, time) in enumerate(zip(sizes, seconds, strict=True))
        ],
    )
    world.run()
    over = [world.store.job(job.job_id) for job in jobs]
    live = [job.finished_at - job.submitted_at for job in over if job and job.finished_at]
    trace = Trace.from_jobs(
        [
            Job(job_id=f"job-{n:02}", duration=time, num_gpus=size)
            for n, (size, time) in enumerate(zip(sizes, seconds, strict=True))
        ]
    )
    # What a start costs a job here is seen from the time that jobs had GPUs beyond that of their work.
    lost = sum(job.attained_seconds - job.spec.duration for job in over if job and job.spec.duration)
    cost = lost / sum(job.attempt for job in over if job)
    assert 0.0 <= cost <= 5.0
    options = bx.SimulationOptions(round_seconds=20.0, restart_cost=cost, start_cost=cost)
    expected = bx.simulate(trace, "2x4xA100", policy, options=options)
    simulated = (expected.jobs["finish"] - expected.jobs["arrival"]).to_numpy()
    assert np.mean(live) == pytest.approx(np.mean(simulated), rel=0.1)


_CELLS = {"virtual_clusters": {"alice": {"node:A100": 1}}}


@pytest.mark.parametrize(
    "settings",
    [
        {"admission": {"name": "quota", "options": {"gpus": {"alice": 2}}}},
        {"policy": {"name": "gandiva_fair", "options": {"tickets": {"alice": 2.0}}}},
        {"policy": "fifo", "placement": {"name": "guaranteed_cells", "options": _CELLS}},
        {"policy": {"name": "hived", "options": _CELLS}, "placement": {"name": "guaranteed_cells", "options": _CELLS}},
    ],
    ids=["quota", "tickets", "cells", "hived"],
)
def test_a_tenant_that_is_named_need_not_have_jobs(tmp_path: Path, settings: dict[str, Any]) -> None:
    pytest.importorskip("fastapi")
    world = RecordedWorld(tmp_path, **settings)
    world.add("a", 2)
    world.add("b", 2)
    world.beat()
    # Before the tenant has come, while it has jobs, and when those are over.
    (bob,) = world.submit("bob", 2)
    world.rounds(2)
    assert world.live.jobs[bob].wanted
    (alice,) = world.submit("alice", 2)
    world.rounds(2)
    assert {world.live.jobs[job_id].wanted for job_id in (alice, bob)} == {True}
    world.live.cancel(alice, "alice")
    world.rounds(4)
    assert alice not in world.live.jobs
    (bob,) = world.submit("bob", 2)
    world.rounds(2)
    assert world.live.jobs[bob].wanted
    world.kill()
    report = replay(read_log(tmp_path / "live.db"))
    assert (report.rounds, report.identical, report.failed) == (10, 10, 0)


def test_a_gpu_type_that_has_a_price_need_not_be_there(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    prices = {"K80": 0.2, "A100": 3.0, "H100": 4.0}
    world = RecordedWorld(tmp_path, policy={"name": "min_cost", "options": {"prices": prices}})
    world.add("old", 2, "V100")
    world.beat()
    first = world.submit("ada", 2)
    world.rounds(2)
    world.add("new", 2, "A100")
    world.beat()
    second = world.submit("ada", 2)
    world.rounds(2)
    assert all(world.live.jobs[job_id].wanted for job_id in first + second)
    world.kill()
