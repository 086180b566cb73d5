"""What a heartbeat changes, and what is answered."""

from __future__ import annotations

from collections.abc import Sequence

from bloxopt.runtime.live.cluster import LiveCluster
from bloxopt.runtime.live.faults import ConflictError, StaleAgentError
from bloxopt.runtime.live.nodes import DEAF, Contact
from bloxopt.runtime.messages import DesiredRun, DesiredState, GpuInfo, Heartbeat, RunReport, RunState
from bloxopt.runtime.store import NodeRecord, RunKey, RunRecord

MOST_GPU_TYPES = 16
"""GPU types that one node may have had."""

_LARGEST_EXIT_CODE = 2**31 - 1


def answer(cluster: LiveCluster, heartbeat: Heartbeat) -> DesiredState:
    """Take note of what an agent sees, and tell it what should run; the store has it all before this returns.

    An agent sends one heartbeat at a time, and takes no notice of answers to those that it has given up on. One that
    came before or was overtaken is answered, but not read. Raises
    :class:`~bloxopt.runtime.live.faults.StaleAgentError` for an agent that another one has taken over from.
    """
    (answered,) = answer_together(cluster, [heartbeat])
    if isinstance(answered, ConflictError):
        raise answered
    return answered


def answer_together(cluster: LiveCluster, heartbeats: Sequence[Heartbeat]) -> list[DesiredState | ConflictError]:
    """Answers to heartbeats, in order, whose facts are stored in one transaction.

    One that is refused, as :func:`answer` would raise, changes nothing and is none of the others' business. Raises
    :class:`~bloxopt.errors.StoreError` if they could not be stored: then none of them has an answer.
    """
    with cluster.change():
        answers = [_answer_or_refuse(cluster, heartbeat) for heartbeat in heartbeats]
    with cluster.lock:
        # Not before: what could not be stored is not answered, and an agent cannot take it.
        now = cluster.clock.monotonic()
        for heartbeat, given in zip(heartbeats, answers, strict=True):
            if isinstance(given, DesiredState):
                cluster.contacts[heartbeat.node].answered(heartbeat, now)
    return answers


def _answer_or_refuse(cluster: LiveCluster, heartbeat: Heartbeat) -> DesiredState | ConflictError:
    try:
        return _answer(cluster, heartbeat)
    except ConflictError as error:
        return error


def _answer(cluster: LiveCluster, heartbeat: Heartbeat) -> DesiredState:
    """Within a change. Whatever it refuses, it refuses before anything to be stored has changed."""
    name = heartbeat.node
    indices = [gpu.index for gpu in heartbeat.gpus]
    if len(set(indices)) < len(indices):
        raise ConflictError(f"node {name!r} reports a GPU twice: {sorted(indices)}")
    contact = cluster.contacts.get(name) or Contact()
    now = cluster.clock.monotonic()
    if contact.is_stale(heartbeat, now, cluster.terms.lease_seconds):
        raise StaleAgentError(f"another agent has taken over node {name!r}: stop this one")
    late = contact.is_late(heartbeat)
    if not late:
        contact.take(heartbeat, now, cluster.terms.lost_seconds)
    _register(cluster, contact, heartbeat)
    cluster.contacts[name] = contact
    contact.heard, contact.heartbeat_at = now, cluster.clock.now()
    alive, forget = (set[RunKey](), list[tuple[str, int]]()) if late else _read(cluster, contact, heartbeat)
    cluster.observe_states([name])
    cluster.settle()
    desired = cluster.desired_on(name)
    for run in desired:
        _tell(cluster, run, contact.instance)
    for run in desired:
        cluster.watches[run.key].told = (contact.instance, contact.sequence)
    for key in alive.union(run.key for run in desired):
        cluster.watches[key].renewed = now
    return DesiredState(
        sequence=heartbeat.sequence,
        runs=[_desired(cluster, run) for run in desired],
        forget=forget,
        lease_seconds=cluster.terms.lease_seconds,
        heartbeat_seconds=cluster.pace.heartbeat_seconds(now),
        news_seconds=cluster.pace.news_seconds(now),
    )


def _register(cluster: LiveCluster, contact: Contact, heartbeat: Heartbeat) -> None:
    """Store what is new about a node: its address, its GPUs, their health."""
    name, known = heartbeat.node, cluster.nodes.get(heartbeat.node)
    node = known or NodeRecord(name, heartbeat.address, cluster.clock.now())
    facts = (heartbeat.address, heartbeat.cpus, heartbeat.memory_gib, heartbeat.version)
    before = (node.address, node.cpus, node.memory_gib, node.version)
    if known is not None and facts == before and _same_inventory(node.gpus, contact.infos):
        return
    types = {gpu.gpu_type for gpu in contact.infos} - node.slots.keys()
    if len(node.slots) + len(types) > MOST_GPU_TYPES:
        raise ConflictError(
            f"node {name!r} has had {MOST_GPU_TYPES} GPU types already: {', '.join(sorted(node.slots))}"
        )
    node.address, node.cpus, node.memory_gib, node.version = facts
    node.gpus = contact.infos
    place = 1 + max((place for other in cluster.nodes.values() for place in other.slots.values()), default=-1)
    for offset, gpu_type in enumerate(sorted(types)):
        node.slots = {**node.slots, gpu_type: place + offset}
    # The contact first: whoever looks at a node finds both.
    cluster.contacts[name] = contact
    cluster.nodes[name] = node
    cluster.save_node(node)
    cluster.note(
        "node.registered" if known is None else "node.changed",
        name,
        address=node.address,
        cpus=node.cpus,
        memory_gib=node.memory_gib,
        gpus=[[gpu.index, gpu.gpu_type, gpu.health.value] for gpu in node.gpus],
    )
    cluster.changed()


def _same_inventory(one: list[GpuInfo], other: list[GpuInfo]) -> bool:
    """Whether GPUs are the same in what matters for what may run on them, in whatever order they are."""
    # Nearly always they are, and in the same order.
    return [_inventory(gpu) for gpu in one] == [_inventory(gpu) for gpu in other] or sorted(
        map(_inventory, one)
    ) == sorted(map(_inventory, other))


def _inventory(gpu: GpuInfo) -> tuple[object, ...]:
    return gpu.index, gpu.uuid, gpu.gpu_type, gpu.memory_gib or 0.0, gpu.health


def _read(cluster: LiveCluster, contact: Contact, heartbeat: Heartbeat) -> tuple[set[RunKey], list[tuple[str, int]]]:
    """Take over what is said of runs; returns those that are alive, and the ended ones that may be forgotten."""
    runs = cluster.runs_by_key(heartbeat.node)
    alive: set[RunKey] = set()
    forget: list[tuple[str, int]] = []
    strays: set[tuple[str, int]] = set()
    for report in heartbeat.runs:
        key = RunKey(report.job_id, report.attempt, heartbeat.node)
        run = runs.get(key)
        if report.state is RunState.ENDED:
            forget.append((report.job_id, report.attempt))
            if run is not None and not run.ended:
                _ended(cluster, run, report, heartbeat.instance)
        elif run is None:
            strays.add((report.job_id, report.attempt))
        elif not run.ended:
            alive.add(key)
            _goes_on(cluster, run, report, heartbeat.instance)
    contact.strays = frozenset(strays)
    (cluster.with_strays.add if strays else cluster.with_strays.discard)(heartbeat.node)
    for key, run in runs.items():
        if key not in alive and not run.ended:
            _missing(cluster, contact, run, heartbeat)
    return alive, forget


def _goes_on(cluster: LiveCluster, run: RunRecord, report: RunReport, instance: str) -> None:
    _steps(cluster, run, report)
    if run.state is not report.state or not run.told:
        run.state, run.told_to = report.state, run.told_to or instance
        cluster.save_run(run)
        cluster.touched.add(run.job_id)


def _ended(cluster: LiveCluster, run: RunRecord, report: RunReport, instance: str) -> None:
    _steps(cluster, run, report)
    code = report.exit_code
    run.told_to = run.told_to or instance
    cluster.close(
        run,
        exit_code=None if code is None else max(-_LARGEST_EXIT_CODE, min(code, _LARGEST_EXIT_CODE)),
        preempted=report.preempted,
        message=report.message.replace("\0", ""),
    )


def _steps(cluster: LiveCluster, run: RunRecord, report: RunReport) -> None:
    watch = cluster.watches[run.key]
    watch.steps = report.steps if report.steps is not None else watch.steps
    watch.steps_per_second = report.steps_per_second if report.steps_per_second is not None else watch.steps_per_second


def _missing(cluster: LiveCluster, contact: Contact, run: RunRecord, heartbeat: Heartbeat) -> None:
    """An agent says nothing of a run that has not ended."""
    if run.state is not None or (run.told and run.told_to != heartbeat.instance):
        # It knew the run and has lost it, or the agent before it may have begun it. Whatever there may be of the run
        # ends with its lease, which is not renewed.
        if cluster.is_wanted(run):
            cluster.stop(cluster.jobs[run.job_id], f"the agent of node {run.node} has lost track of it")
        return
    told = cluster.watches[run.key].told
    never_taken_up = told is not None and told[0] == heartbeat.instance and told[1] < heartbeat.sequence
    if never_taken_up and contact.deaf and cluster.is_wanted(run):
        # Where answers arrive, it may be waiting for its GPUs. Here nobody will ever start it.
        cluster.stop(cluster.jobs[run.job_id], f"node {run.node} cannot be told to start it: {DEAF}")
    if never_taken_up and not cluster.is_wanted(run):
        cluster.close(run, preempted=True, message="stopped before it had started")


def _tell(cluster: LiveCluster, run: RunRecord, instance: str) -> None:
    """The agent is about to hear of the run."""
    if run.told:
        return
    run.told_to = instance
    cluster.save_run(run)
    cluster.book(cluster.jobs[run.job_id])


def _desired(cluster: LiveCluster, run: RunRecord) -> DesiredRun:
    job = cluster.jobs[run.job_id]
    return DesiredRun(
        job_id=run.job_id,
        attempt=run.attempt,
        user=job.user,
        spec=job.spec,
        gpus=run.gpus,
        first_rank=run.first_rank,
        world_size=run.world_size,
        node_rank=run.node_rank,
        num_nodes=run.num_nodes,
        master_address=run.master_address,
        master_port=run.master_port,
        resume_steps=job.steps,
    )
