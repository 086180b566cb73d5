"""What scheduler, agents, jobs and people say to each other: the one vocabulary of the live system.

Agents pull. Every few seconds an agent sends a :class:`Heartbeat`, which says what it sees; the :class:`DesiredState`
in the reply says what should run on its node. The agent converges to it: it starts runs that are desired and not
there, and stops those that are there and not desired. Messages may be lost, repeated or late: each says all there is
to say.

A job that starts does so as a numbered *attempt*; one attempt of a job on one node is a *run*. A new attempt is never
desired before every run of the one before has been reported as ended, or its lease has ended. A run lives under the
*lease* of its node, which every answered heartbeat renews: when it ends, whatever guards the run stops it, agent or
no agent. Times are seconds since the epoch by the scheduler's clock unless they are lengths; an agent's own clock is
never compared."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MAX_NAME = 63
MAX_COMMAND = 65_536
MAX_ENVIRONMENT = 256
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
SUBMISSION_KEY_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"
SOONEST_NEWS = 0.5
"""Seconds at least between two heartbeats of a node."""

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=NAME_PATTERN)]
"""A node, tenant, user or job type: letters, digits, dot, underscore and dash; never a path."""
JobId = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=NAME_PATTERN)]
VariableName = Annotated[str, Field(min_length=1, max_length=256, pattern=VARIABLE_PATTERN)]
Text = Annotated[str, Field(max_length=4096)]
Line = Annotated[str, Field(max_length=128)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Index = Annotated[int, Field(ge=0, le=65_535)]
Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]


class Message(BaseModel):
    """Unknown keys are errors: a newer client is told, not half understood."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(Message):
    """What the scheduler answers. Unknown keys are passed over: older agents and clients go on with a newer one."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class JobSpec(Message):
    """A job as its user submits it: a command, what it needs, and what is known of its work.

    ``command`` is executed as it stands, without a shell, as the configured user, once per GPU (``processes``
    ``per_gpu``) or once per node, in ``workdir``, an absolute path on the node below one of the agent's allowed
    folders. The work is ``total_steps`` as the job reports them, or about ``duration`` seconds; with neither, an hour
    is assumed. Elastic jobs run on ``min_gpus`` to ``max_gpus``. ``grace_seconds`` pass between SIGTERM and SIGKILL
    when it is preempted. A job that exits with a code other than 0 is started again ``max_retries`` times."""

    name: Name = "job"
    job_type: Name = "generic"
    command: Annotated[list[Annotated[str, Field(max_length=MAX_COMMAND)]], Field(min_length=1, max_length=1024)]
    environment: Annotated[
        dict[VariableName, Annotated[str, Field(max_length=32_768)]], Field(max_length=MAX_ENVIRONMENT)
    ] = {}
    workdir: Annotated[str, Field(max_length=4096)] | None = None
    processes: Literal["per_gpu", "per_node"] = "per_gpu"
    num_gpus: Annotated[int, Field(ge=1, le=100_000)] = 1
    min_gpus: Annotated[int, Field(ge=1, le=100_000)] | None = None
    max_gpus: Annotated[int, Field(ge=1, le=100_000)] | None = None
    gpu_types: Annotated[list[Name], Field(max_length=64)] = []
    cpus_per_gpu: Amount = 0.0
    memory_gib_per_gpu: Amount = 0.0
    # Rates and weights far from all others would make the programs of everybody's rounds unsolvable.
    total_steps: Annotated[float, Field(ge=1e-3, le=1e18, allow_inf_nan=False)] | None = None
    duration: Annotated[float, Field(ge=1e-3, le=1e12, allow_inf_nan=False)] | None = None
    deadline_seconds: Seconds | None = None
    weight: Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)] = 1.0
    grace_seconds: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 30.0
    restart_cost: Seconds = 0.0
    max_retries: Annotated[int, Field(ge=0, le=1000)] = 0


def _known(spec: Any) -> Any:
    return {key: spec[key] for key in spec if key in JobSpec.model_fields} if isinstance(spec, dict) else spec


KnownSpec = Annotated[JobSpec, BeforeValidator(_known)]
"""A specification in an answer: what a newer version has invented of it is passed over."""


class JobStatus(StrEnum):
    """Where a live job is in its life. The last four are final."""

    PENDING = "pending"
    """Submitted; waits for admission or for GPUs."""
    STARTING = "starting"
    """An attempt is desired; not all of its runs are up."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Preempted or cancelled; some run has not ended yet."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


class JobView(Answer):
    """A job as its user sees it. ``gpus`` by node: what it holds now; ``reason`` why it waits or how it ended."""

    job_id: JobId
    user: Name
    spec: KnownSpec
    status: JobStatus
    reason: str = ""
    submitted_at: float
    started_at: float | None = None
    finished_at: float | None = None
    attempt: int = 0
    preemptions: int = 0
    retries: int = 0
    steps: float = 0.0
    steps_per_second: float | None = None
    attained_seconds: float = 0.0
    gpus: dict[str, list[int]] = {}
    exit_code: int | None = None


class GpuHealth(StrEnum):
    """What an agent makes of one of its GPUs."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """Works, and something is wrong with it: throttling, correctable errors, or it cannot be asked."""
    FAILED = "failed"
    """Lost, or with errors that make results wrong: no new run may use it."""


class GpuInfo(Message):
    """One GPU as NVML shows it; what is not known is None, never 0.

    ``index`` on its node · ``gpu_type`` such as ``A100`` · memory in GiB · ``utilisation`` 0 to 1 · temperature in °C ·
    power in watts · ``ecc_errors`` uncorrected since boot · ``xid_errors`` seen since the agent started ·
    ``throttled`` why its clocks are low · ``processes`` ids on it · ``links`` NVLink lanes to other GPUs by index ·
    ``pcie`` what lies between it and another one, by index: from ``internal``, ``single``, ``multiple`` (switches),
    ``hostbridge``, ``node`` to ``system`` · ``mig_profiles`` its MIG instances.
    """

    index: Annotated[int, Field(ge=0, le=1023)]
    uuid: Annotated[str, Field(max_length=96)]
    gpu_type: Name
    memory_gib: Amount | None = None
    memory_used_gib: Amount | None = None
    utilisation: Annotated[float, Field(ge=0, le=1)] | None = None
    temperature: Annotated[float, Field(ge=-100, le=300)] | None = None
    power: Amount | None = None
    ecc_errors: Count | None = None
    xid_errors: Annotated[list[Count], Field(max_length=4096)] = []
    throttled: Annotated[list[Line], Field(max_length=64)] = []
    processes: Annotated[list[Count], Field(max_length=65_536)] = []
    links: Annotated[dict[Index, Index], Field(max_length=1024)] = {}
    pcie: Annotated[dict[Index, Line], Field(max_length=1024)] = {}
    mig_profiles: Annotated[list[Line], Field(max_length=64)] = []
    health: GpuHealth = GpuHealth.HEALTHY
    message: Text = ""


class RunState(StrEnum):
    """Where one attempt of a job on one node is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class RunReport(Message):
    """What an agent says of one run. ``exit_code`` of the first rank that failed, else 0; negative for a signal.

    ``preempted``: it was stopped because it was no longer desired, or its lease had ended. A run that was lost with
    its guard or its node, so that nobody knows how it ended, is ``preempted`` too and has no exit code. ``steps`` and
    ``steps_per_second`` as the job reports them, None if it does not. ``message`` why it could not start, for people.
    """

    job_id: JobId
    attempt: Annotated[int, Field(ge=1, le=2**31 - 1)]
    state: RunState
    exit_code: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    preempted: bool = False
    steps: Amount | None = None
    steps_per_second: Amount | None = None
    message: Text = ""


class Heartbeat(Message):
    """What an agent sees. ``instance`` is new with every start of the agent, ``sequence`` counts its heartbeats.

    ``generation`` is larger with every start of an agent of the node. ``taken`` is the sequence of the last answer that
    the agent has taken, -1 for none yet. Both are None from agents that do not know of them.
    """

    node: Name
    instance: Annotated[str, Field(min_length=1, max_length=64)]
    sequence: Count
    address: Annotated[str, Field(max_length=255)]
    gpus: Annotated[list[GpuInfo], Field(max_length=1024)]
    cpus: Amount | None = None
    memory_gib: Amount | None = None
    healthy: bool = True
    message: Text = ""
    runs: Annotated[list[RunReport], Field(max_length=4096)] = []
    version: Annotated[str, Field(max_length=64)] = ""
    generation: Count | None = None
    taken: Annotated[int, Field(ge=-1, lt=2**63)] | None = None


class DesiredRun(Answer):
    """A run that should be there: everything the agent needs to start it.

    ``gpus`` indices on this node. Ranks ``first_rank`` … of ``world_size`` are this node's; ``node_rank`` of
    ``num_nodes``. ``resume_steps`` is what the scheduler knows to have been done before.
    """

    job_id: JobId
    attempt: Annotated[int, Field(ge=1)]
    user: Name
    spec: KnownSpec
    gpus: list[int]
    first_rank: int
    world_size: int
    node_rank: int
    num_nodes: int
    master_address: str
    master_port: Annotated[int, Field(ge=1, le=65_535)]
    resume_steps: float = 0.0


class DesiredState(Answer):
    """What should run on a node, complete, and for how long it may go on unanswered.

    ``forget``: ended runs whose report has been stored, so that the agent may drop its records of them. The next
    heartbeat is due in about ``heartbeat_seconds``; with news of runs it comes sooner, though not before
    ``news_seconds`` have passed since the last one.
    """

    sequence: int
    runs: list[DesiredRun]
    forget: list[tuple[JobId, int]] = []
    lease_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    heartbeat_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    news_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = SOONEST_NEWS


class NodeState(StrEnum):
    """What the scheduler makes of a node."""

    UP = "up"
    DEGRADED = "degraded"
    """Its NVML fails, or the scheduler's answers do not reach it: it keeps its jobs and gets no new ones."""
    DRAINED = "drained"
    """Told to take no new jobs; those on it are moved."""
    LOST = "lost"
    """No heartbeat for too long; its runs count as running until their lease has ended."""


class NodeView(Answer):
    """A node as people see it."""

    name: Name
    state: NodeState
    message: str = ""
    gpus: list[GpuInfo]
    gpus_in_use: int = 0
    last_heartbeat: float | None = None
    version: str = ""


class Problem(Answer):
    """What every error of the API carries: one sentence that says what to do."""

    detail: str
