"""A clock that the tests move, and agents that play runs on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from bloxopt.runtime.live import Clock, LiveCluster, answer
from bloxopt.runtime.messages import (
    DesiredRun,
    DesiredState,
    GpuHealth,
    GpuInfo,
    Heartbeat,
    JobSpec,
    RunReport,
    RunState,
)


class MovedClock(Clock):
    """Stands still until it is moved; waiting moves it, in small steps, and calls ``each_step``."""

    def __init__(self, step: float = 1.0) -> None:
        self.at = 1000.0
        self.step = step
        self.each_step: Callable[[], None] = lambda: None
        super().__init__()

    def read(self) -> float:
        return 1.7e9

    def monotonic(self) -> float:
        return self.at

    def move(self, seconds: float) -> None:
        self.at += seconds

    def wait(self, event: threading.Event, seconds: float) -> bool:
        end = self.at + seconds
        while self.at < end - 1e-9 and not event.is_set():
            self.at = min(self.at + self.step, end)
            self.each_step()
        return event.is_set()


@dataclass
class PlayedRun:
    """A run as an agent plays it: it does ``rate`` steps/s from when it was taken up, and saves them when it stops."""

    desired: DesiredRun
    begun: float
    state: RunState = RunState.RUNNING
    steps: float = 0.0
    exit_code: int | None = None
    preempted: bool = False
    stop_at: float | None = None


@dataclass
class PlayedAgent:
    """An agent on a moved clock: the protocol without processes.

    Jobs do one step a second and GPU; those of several nodes count those of all. A run that is to stop takes
    ``stopping`` seconds for that. ``lease_end`` is when it stops everything unless it is answered before.
    """

    clock: MovedClock
    node: str
    gpus: list[GpuInfo]
    instance: str = "first"
    generation: int | None = None
    sequence: int = 0
    taken: int | None = -1
    stopping: float = 2.0
    healthy: bool = True
    runs: dict[tuple[str, int], PlayedRun] = field(default_factory=dict)
    lease_end: float = 0.0
    orphans: list[tuple[float, PlayedRun]] = field(default_factory=list)
    """Runs that the agent has lost track of, and when their guards stop them."""

    def start_again(self, instance: str, generation: int | None = None) -> None:
        """Be the next agent of the node, which has the runs of the former one."""
        self.instance, self.generation, self.sequence = instance, generation, 0
        self.taken = None if self.taken is None else -1

    def lose_records(self) -> None:
        """Forget every run; those that are alive go on until their lease ends."""
        self.advance()
        self.orphans += [(self.lease_end, run) for run in self.runs.values() if run.state is not RunState.ENDED]
        self.runs.clear()

    def advance(self) -> None:
        """Let runs make progress up to now."""
        now = self.clock.monotonic()
        for run in self.runs.values():
            if run.state is RunState.RUNNING:
                end = now if run.stop_at is None else min(now, run.stop_at)
                run.steps = run.desired.resume_steps + (end - run.begun) * run.desired.world_size
                total = run.desired.spec.total_steps
                if total is not None and run.steps >= total:
                    run.steps, run.state, run.exit_code = total, RunState.ENDED, 0
                elif now >= self.lease_end:
                    run.state, run.exit_code, run.preempted = RunState.ENDED, -15, True
            if run.state is RunState.STOPPING and run.stop_at is not None and now >= run.stop_at:
                run.state, run.exit_code, run.preempted = RunState.ENDED, -15, True

    def heartbeat(self) -> Heartbeat:
        """What it sees, as a new heartbeat."""
        self.advance()
        self.sequence += 1
        reports = [
            RunReport(
                job_id=run.desired.job_id,
                attempt=run.desired.attempt,
                state=run.state,
                exit_code=run.exit_code,
                preempted=run.preempted,
                steps=run.steps,
                steps_per_second=float(run.desired.world_size),
            )
            for run in self.runs.values()
        ]
        return Heartbeat(
            node=self.node,
            instance=self.instance,
            sequence=self.sequence,
            address="127.0.0.1",
            gpus=self.gpus if self.healthy else [],
            healthy=self.healthy,
            runs=reports,
            generation=self.generation,
            taken=self.taken,
        )

    def converge(self, state: DesiredState) -> None:
        """Start and stop runs as the answer to the last heartbeat says."""
        if state.sequence != self.sequence:
            return
        now = self.clock.monotonic()
        self.taken = None if self.taken is None else state.sequence
        self.lease_end = now + state.lease_seconds
        for key in map(tuple, state.forget):
            self.runs.pop(key, None)
        wanted = {(run.job_id, run.attempt): run for run in state.runs}
        for key, run in self.runs.items():
            if key not in wanted and run.state is RunState.RUNNING:
                run.state, run.stop_at = RunState.STOPPING, now + self.stopping
        for key, desired in wanted.items():
            if key not in self.runs:
                self.runs[key] = PlayedRun(desired, now)

    def beat(self, live: LiveCluster) -> None:
        """One heartbeat, answered."""
        self.converge(answer(live, self.heartbeat()))

    def busy(self) -> dict[int, tuple[str, int]]:
        """Who is on each GPU; fails if two are."""
        on: dict[int, tuple[str, int]] = {}
        now = self.clock.monotonic()
        kept = [run for end, run in self.orphans if now < end]
        for run in [*self.runs.values(), *kept]:
            if run.state is not RunState.ENDED:
                key = (run.desired.job_id, run.desired.attempt)
                for gpu in run.desired.gpus:
                    assert gpu not in on, f"{key} and {on[gpu]} are both on GPU {gpu} of {self.node}"
                    on[gpu] = key
        return on


def gpus(count: int, gpu_type: str = "A100", failed: tuple[int, ...] = ()) -> list[GpuInfo]:
    return [
        GpuInfo(
            index=index,
            uuid=f"GPU-{gpu_type}-{index}",
            gpu_type=gpu_type,
            health=GpuHealth.FAILED if index in failed else GpuHealth.HEALTHY,
        )
        for index in range(count)
    ]


def spec(steps: float = 100.0, num_gpus: int = 1, **more: object) -> JobSpec:
    return JobSpec.model_validate(
        {"command": ["train"], "total_steps": steps, "duration": steps / num_gpus, "num_gpus": num_gpus, **more}
    )
