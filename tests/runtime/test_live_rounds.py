"""The live backend under real policies: agents that play runs finish every job, and steps add up."""

from __future__ import annotations

from pathlib import Path

import pytest

from bloxopt.formulations.policies import get_policy
from bloxopt.placement import get_placement
from bloxopt.rounds import Scheduler
from bloxopt.runtime.live import LeaseTerms, LiveBackend, LiveCluster, Rounds
from bloxopt.runtime.messages import JobStatus
from bloxopt.runtime.store import Store
from bloxopt.selection import get_selector
from tests.runtime.live_world import MovedClock, PlayedAgent, gpus, spec


class World:
    """A live cluster with played agents, and rounds of a policy over it."""

    def __init__(self, path: Path, policy: str, agents: dict[str, int], rounds: Rounds | None = None) -> None:
        self.clock = MovedClock()
        self.store = Store(str(path / "bloxopt.db"))
        self.live = LiveCluster(self.store, LeaseTerms(60.0, 5.0, 5.0, 20.0), self.clock)
        self.agents = [PlayedAgent(self.clock, name, gpus(count)) for name, count in agents.items()]
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
