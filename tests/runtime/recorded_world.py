"""A scheduler on a moved clock that lives through everything that a log has to hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bloxopt.runtime.live import answer
from bloxopt.runtime.messages import DesiredState
from bloxopt.runtime.service.config import make_config
from bloxopt.runtime.service.service import Service
from tests.runtime.live_world import MovedClock, PlayedAgent, gpus, spec


class RecordedWorld:
    """A service whose rounds are taken one by one, and its agents."""

    def __init__(self, folder: Path, every: int = 1000, **settings: Any) -> None:
        self.folder, self.every = folder, every
        self.document = {
            "policy": "max_min_fairness",
            "database": "live.db",
            "rounds": {"seconds": 10.0, "shortest": 1.0, "budget": 0.0},
            "leases": {"lease_seconds": 60.0, "heartbeat_seconds": 5.0, "margin_seconds": 5.0, "lost_seconds": 15.0},
            **settings,
        }
        self.clock = MovedClock(2.0)
        self.agents: dict[str, PlayedAgent] = {}
        self.silent: set[str] = set()
        self.clock.each_step = self.beat
        self.start()

    def start(self) -> None:
        """A scheduler process begins, with nothing but the store."""
        self.service = Service(make_config(self.document, self.folder), self.clock)
        self.service.backend.recording.every = self.every
        self.live = self.service.live

    def kill(self) -> None:
        """The scheduler is gone from one moment to the next."""
        if self.service.loop._ladder is not None:
            self.service.loop._ladder.close()
        self.service.store.close()

    def add(self, name: str, count: int, gpu_type: str = "A100") -> None:
        self.agents[name] = PlayedAgent(self.clock, name, gpus(count, gpu_type))

    def beat(self) -> None:
        for name, agent in self.agents.items():
            if name not in self.silent:
                heartbeat = agent.heartbeat()
                agent.converge(DesiredState.model_validate(answer(self.live, heartbeat)))

    def submit(self, user: str, *sizes: int, **more: Any) -> list[str]:
        jobs = [spec(80.0 * size, size, **more) for size in sizes]
        return [job.job_id for job in self.live.submit(user, jobs)]

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.service.loop.turn()

    def fail(self, error: Exception) -> None:
        """What the loop's thread does when a round fails."""
        self.service.loop._scheduler = None
        self.service.backend.fail(str(error))

    def live_through_everything(self) -> None:
        """Learned rates, preemptions, a cancelled job, a lost node, a drained one, a new GPU type, two restarts."""
        self.add("a", 4)
        self.add("b", 2)
        self.beat()
        self.submit("ada", 1, 2, 4, 1)
        # Their user is wrong about how long they take, which shows when they run.
        wrong = self.submit("bob", 1, 2, job_type="resnet", duration=20.0)
        self.rounds(4)
        elastic = self.submit("bob", 2, min_gpus=1, max_gpus=4)
        self.rounds(3)
        self.live.cancel(elastic[0], "bob")
        self.silent.add("b")
        self.rounds(6)
        self.kill()
        self.start()
        self.silent.clear()
        self.submit("eve", 3, gpu_types=["H100"], weight=2.0)
        self.add("c", 3, "H100")
        self.rounds(4)
        self.live.drain("a", True, "root")
        self.rounds(2)
        self.live.drain("a", False, "root")
        self.submit("ada", 1, 1, 1, 2, deadline_seconds=500.0)
        self.rounds(5)
        self.live.cancel(wrong[1], "bob")
        self.kill()
        self.start()
        self.rounds(8)
        self.kill()
