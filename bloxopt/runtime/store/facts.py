"""What the store remembers, as plain records: jobs, runs and nodes, and what has happened to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bloxopt.runtime.messages import GpuInfo, JobSpec, JobStatus, RunState

FINAL = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.REJECTED})
"""Statuses that a job never leaves."""


class RunKey(NamedTuple):
    """Names one attempt of a job on one node."""

    job_id: str
    attempt: int
    node: str


@dataclass(slots=True)
class JobRecord:
    """A job and how far it is.

    ``attempt`` counts its starts, and ``wanted`` says whether the last of them should run. ``outcome`` is what it
    becomes when every run has ended, None if it then waits again. ``attained_seconds`` (s) and ``attained_service``
    (GPU-s) it has held GPUs. Times are seconds since the epoch.
    """

    job_id: str
    user: str
    spec: JobSpec
    submitted_at: float
    status: JobStatus = JobStatus.PENDING
    reason: str = ""
    submission_key: str | None = None
    admitted_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    attempt: int = 0
    wanted: bool = False
    outcome: JobStatus | None = None
    preemptions: int = 0
    retries: int = 0
    steps: float = 0.0
    steps_per_second: float | None = None
    attained_seconds: float = 0.0
    attained_service: float = 0.0
    exit_code: int | None = None

    @property
    def final(self) -> bool:
        return self.status in FINAL


@dataclass(slots=True)
class RunRecord:
    """One attempt of a job on one node: where its ranks are, whether its agent was told, and what it said of it.

    ``gpus`` are indices on the node. ``told_to`` is the agent (its instance) that was told of the run, set before it
    can hear of it: a run that nobody was told of is nowhere. ``state`` is the last one reported, None before the first
    report. ``lost``: its end was not reported but concluded, because its lease has ended.
    """

    job_id: str
    attempt: int
    node: str
    node_rank: int
    num_nodes: int
    gpu_type: str
    gpus: list[int]
    first_rank: int
    world_size: int
    master_address: str
    master_port: int
    created_at: float
    told_to: str | None = None
    state: RunState | None = None
    exit_code: int | None = None
    preempted: bool = False
    lost: bool = False
    message: str = ""
    ended_at: float | None = None
    key: RunKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.key = RunKey(self.job_id, self.attempt, self.node)

    @property
    def told(self) -> bool:
        return self.told_to is not None

    @property
    def ended(self) -> bool:
        return self.state is RunState.ENDED

    @property
    def done(self) -> bool:
        """It ended by itself, with success."""
        return self.ended and not self.preempted and not self.lost and self.exit_code == 0


@dataclass(slots=True)
class NodeRecord:
    """A node as it last was. ``slots``: its GPU types, each with the place that it has in the cluster for good."""

    name: str
    address: str
    registered_at: float
    drained: bool = False
    cpus: float | None = None
    memory_gib: float | None = None
    version: str = ""
    gpus: list[GpuInfo] = field(default_factory=list)
    slots: dict[str, int] = field(default_factory=dict)


class Event(NamedTuple):
    """Something observed or decided, at ``time`` (s). ``subject`` is a job or node, ``data`` plain values."""

    time: float
    kind: str
    subject: str
    data: dict[str, Any]


@dataclass(slots=True)
class Change:
    """Records to be stored together, or not at all. ``known`` are those of the jobs that the store has already."""

    jobs: dict[str, JobRecord] = field(default_factory=dict)
    runs: dict[RunKey, RunRecord] = field(default_factory=dict)
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    known: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.jobs or self.runs or self.nodes or self.events)


@dataclass(slots=True)
class Facts:
    """What a scheduler needs to go on: jobs that are not final, their runs, every node, and the latest time noted.

    ``finished_jobs`` counts those that are over, pruned ones too.
    """

    jobs: list[JobRecord]
    runs: list[RunRecord]
    nodes: list[NodeRecord]
    finished_jobs: int
    latest: float


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token without its secret. ``subject`` is the user or node it stands for. ``last_used_at`` (s) is stored from
    time to time only, so it may be behind after the scheduler was killed."""

    token_id: str
    role: str
    subject: str
    digest: str
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None
