"""Why is my job waiting? Answered from the state of a scheduler before a round is decided."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from bloxopt.decisions import Decided
from bloxopt.errors import InputError
from bloxopt.explanations.reasons import Explanation, Reason, Remedy
from bloxopt.explanations.remedies import decided_with, more_gpus, new_plan, runs_with, without_block
from bloxopt.formulations.constraints.base import name_blocks
from bloxopt.jobs import BoolArray, IntArray
from bloxopt.placement import feasibility
from bloxopt.placement.rules import Rules, allowed_nodes
from bloxopt.placement.workspace import Workspace
from bloxopt.rounds import Scheduler
from bloxopt.runtime.backend import ClusterState
from bloxopt.simulation.fork import fork
from bloxopt.state import JobStatus

_ROUNDING = 1e-6
_MOST_ROUNDS, _IDLE_ROUNDS = 5_000, 100
"""Rounds that are looked ahead at most, and those in a row in which no job makes progress."""


@dataclass(frozen=True)
class _Case:
    """One question: the job's ``row``, the scheduler and what it sees, and how it would decide the round."""

    scheduler: Scheduler
    state: ClusterState
    row: int
    twin: Scheduler
    made: Decided

    @property
    def job(self) -> int:
        """Position of the job in the space of the round."""
        return int(np.flatnonzero(self.made.space.index == self.row)[0])


def explain(
    scheduler: Scheduler,
    state: ClusterState,
    job_id: str,
    *,
    remedies: bool = True,
    horizon: float = 30 * 86_400.0,
    patience: float = math.inf,
) -> Explanation:
    """Why ``job_id`` does not run in the round that ``scheduler`` is about to decide for ``state``.

    Everything is worked out on forks, so nothing changes. ``remedies`` False leaves out what would make it run now,
    which takes a round for every try; ``horizon`` (s) is how far ahead its start is looked for, 0 for not at all.
    That comes last, and is given up, which is said, when ``patience`` seconds have passed since the call. Raises
    :class:`~bloxopt.errors.InputError` for a job that does not exist.
    """
    until = time.monotonic() + patience
    catalog, ledger = scheduler.backend.catalog, scheduler.backend.ledger
    row = catalog.position.get(job_id)
    if row is None:
        raise InputError(f"no job {job_id!r}: jobs have ids such as {', '.join(map(str, catalog.table.job_id[:3]))}")
    answer = Explanation(job_id, state.now, Reason.NOT_SUBMITTED, "it has not been submitted yet")
    status = JobStatus(int(ledger.status[row]))
    if status is JobStatus.FINISHED:
        return replace(answer, reason=Reason.FINISHED, detail=f"it finished at {ledger.finish[row]:g} s")
    if status is JobStatus.REJECTED:
        why = ledger.refusals.get(row, "the admission turned it away")
        return replace(answer, reason=Reason.REJECTED, detail=f"it was turned away: {why}")
    if status is JobStatus.NOT_ADMITTED and row not in state.submitted and row not in scheduler.pending:
        arrival = float(catalog.table.arrival[row])
        return replace(answer, detail=f"it arrives at {arrival:g} s", expected_start=None)
    twin, before = fork(scheduler, state)
    case = _Case(scheduler, state, row, twin, twin.decide(before))
    if row in case.made.assignment:
        return _running(case, answer)
    found = _refused(case, answer) or _waiting(case, answer)
    found = replace(found, prices=_prices(case), remedies=(*found.remedies, *(_tried(case) if remedies else ())))
    start = _expected_start(case, horizon, until) if horizon > 0 else None
    if start is None and time.monotonic() > until:
        return replace(found, detail=f"{found.detail}; when it starts takes too long to work out")
    return replace(found, expected_start=start)


def _tried(case: _Case) -> Iterable[Remedy]:
    """What would make the job run now, from tries: GPUs only where a new plan alone is not enough."""
    planned = new_plan(case.scheduler, case.state, case.row)
    return [planned] if planned else more_gpus(case.scheduler, case.state, case.row, case.made.space.index)


def _running(case: _Case, answer: Explanation) -> Explanation:
    grant = case.made.assignment[case.row]
    cluster = case.made.space.cluster
    hosts = ", ".join(cluster.nodes[node].name for node in grant.nodes)
    verb = "runs" if case.row in case.state.assignment else "starts now"
    detail = f"it {verb} on {grant.num_gpus} x {cluster.gpu_types[grant.gpu_type]} of {hosts}"
    return replace(answer, reason=Reason.RUNNING, detail=detail, expected_start=case.state.now)


def _refused(case: _Case, answer: Explanation) -> Explanation | None:
    """The admission still keeps it out."""
    ledger = case.twin.backend.ledger
    status = JobStatus(int(ledger.status[case.row]))
    if status not in (JobStatus.NOT_ADMITTED, JobStatus.REJECTED):
        return None
    why = ledger.refusals.get(case.row, "the admission did not say why")
    reason = Reason.REJECTED if status is JobStatus.REJECTED else Reason.NOT_ADMITTED
    return replace(answer, reason=reason, detail=f"it is not admitted: {why}")


def _waiting(case: _Case, answer: Explanation) -> Explanation:
    """The first of the reasons that holds, from those that nothing gets around to those that are a matter of order."""
    for ask in (_fits_nowhere, _nodes_down, _no_plan, _limit, _restart, _deadline, _no_place, _limit_of_plan, _order):
        found = ask(case, answer)
        if found is not None:
            break
    assert found is not None
    lost = _lost_deadline(case)
    if not lost or found.reason is Reason.DEADLINE_IMPOSSIBLE:
        return found
    return replace(found, detail=f"{found.detail}; {lost}")


def _fits_nowhere(case: _Case, answer: Explanation) -> Explanation | None:
    """All nodes together, were they up and empty, have no place for it."""
    space, table = case.made.space, case.made.space.catalog.table
    kinds, gpus = _kinds(case), int(table.min_gpus[case.row])
    names = [space.gpu_types[kind] for kind in kinds]
    if not kinds:
        detail = f"no node of the cluster has GPUs that it can use: there are {', '.join(space.gpu_types)}"
        return replace(answer, reason=Reason.FITS_NOWHERE, detail=detail)
    largest = _largest_gang(case, np.ones_like(space.node_up))
    if (largest[kinds] >= gpus).any():
        return None
    why = feasibility.explain(table, space.cluster, case.row, space.catalog.runs_on[case.row])
    if why is None:
        most = ", ".join(f"{largest[kind]} x {space.gpu_types[kind]}" for kind in kinds)
        why = f"needs {gpus} GPUs of one type, and the largest gang that fits is {most}"
    detail = f"no nodes of the cluster have what it asks for: it {why}"
    return replace(answer, reason=Reason.FITS_NOWHERE, detail=detail, blocks=tuple(names))


def _largest_gang(case: _Case, nodes: BoolArray) -> IntArray:
    """Most GPUs of each type (types,) that its needs let it have on ``nodes`` (nodes,) were these empty."""
    space, table = case.made.space, case.made.space.catalog.table
    needs = table.need_kinds[table.needs[case.row]]
    allowed = allowed_nodes(space.cluster, needs, table.tenants[int(table.tenant[case.row])]) & nodes
    usable = feasibility.usable_gpus(table, space.cluster, case.row, allowed)
    return feasibility.gang_by_type(space.cluster, usable, needs.max_nodes, needs.same_rack == "required")


def _nodes_down(case: _Case, answer: Explanation) -> Explanation | None:
    space = case.made.space
    gpus = int(space.catalog.table.min_gpus[case.row])
    if space.runnable[case.job] and (_largest_gang(case, space.node_up)[_kinds(case)] >= gpus).any():
        return None
    up = ", ".join(f"{count} x {name}" for count, name in zip(space.capacity, space.gpu_types, strict=True))
    return replace(
        answer,
        reason=Reason.NODES_DOWN,
        detail=f"its gang of {gpus} GPUs fits on no GPUs that are up ({up}): nodes that it needs are down or drained",
    )


def _limit(case: _Case, answer: Explanation) -> Explanation | None:
    """An upper limit of the round without which it would run."""
    for name in _limits(case):
        if runs_with(case.scheduler, case.state, case.row, policy=without_block(case.twin.policy, name)):
            remedy = Remedy("limit", name, 1.0, f"without {name} it would run now")
            return replace(
                answer,
                reason=Reason.LIMIT,
                detail=f"{name} has no room for it now",
                blocks=(name,),
                remedies=(remedy,),
            )
    return None


def _limit_of_plan(case: _Case, answer: Explanation) -> Explanation | None:
    """An upper limit without which the plan would have it run, though it would still find no place."""
    plan = case.twin.plan
    if plan is None or plan.share[plan.row == case.row].any():
        return None
    for name in _limits(case):
        made = decided_with(case.scheduler, case.state, policy=without_block(case.twin.policy, name))
        if made is None or made.allocation is None:
            continue
        mine = made.space.index[made.space.job] == case.row
        if made.allocation.x[mine].sum() > _ROUNDING:
            detail = f"{name} has no room for it now, and without {name} it would find no place among the others"
            return replace(answer, reason=Reason.LIMIT, detail=detail, blocks=(name,))
    return None


def _limits(case: _Case) -> list[str]:
    """Names of the blocks with upper limits that hold in every round."""
    blocks = name_blocks(case.twin.policy.blocks)
    return [name for name, block in blocks.items() if block.limits_rounds and list(block.round_limits(case.made.space))]


def _restart(case: _Case, answer: Explanation) -> Explanation | None:
    """It would run if nobody lost time by starting again."""
    table = case.scheduler.backend.catalog.table
    if not table.restart_cost[case.made.space.index].any():
        return None
    free = replace(table, restart_cost=np.zeros(len(table)))
    if not runs_with(case.scheduler, case.state, case.row, table=free):
        return None
    return replace(
        answer,
        reason=Reason.RESTART_NOT_WORTH,
        detail="making room for it would cost more in restarts than it gains",
    )


def _no_plan(case: _Case, answer: Explanation) -> Explanation | None:
    plan = case.twin.plan
    if plan is None or case.made.allocation is not None or not case.twin.stale:
        return None
    known = case.row in plan.row
    if known and not runs_with(case.scheduler, case.state, case.row, replan=True):
        return None
    due = plan.made_at + case.twin.solve_interval
    came = "a plan made now would run it" if known else f"it came after the plan of {plan.made_at:g} s"
    detail = f"{came}, and the next one is due at {due:g} s"
    return replace(answer, reason=Reason.WAITING_FOR_PLAN, detail=detail)


def _deadline(case: _Case, answer: Explanation) -> Explanation | None:
    """It would run if its deadline could still be met."""
    lost = _lost_deadline(case)
    if not lost:
        return None
    table, space = case.scheduler.backend.catalog.table, case.made.space
    deadline = table.deadline.copy()
    deadline[case.row] = _earliest_end(case) + table.restart_cost[case.row] + 2.0 * space.round_seconds
    if not runs_with(case.scheduler, case.state, case.row, table=replace(table, deadline=deadline)):
        return None
    return replace(answer, reason=Reason.DEADLINE_IMPOSSIBLE, detail=lost)


def _lost_deadline(case: _Case) -> str:
    """A sentence about a deadline that can no longer be met; nothing for others."""
    earliest, deadline = _earliest_end(case), float(case.made.space.deadline[case.job])
    if earliest <= deadline + _ROUNDING or not np.isfinite(earliest):
        return ""
    return f"it cannot be done before {earliest:g} s even on the fastest GPUs, and its deadline is at {deadline:g} s"


def _earliest_end(case: _Case) -> float:
    space, job = case.made.space, case.job
    rate = float(space.fastest_rate[job])
    return space.now + float(space.remaining_steps[job]) / rate if rate > 0 else np.inf


def _no_place(case: _Case, answer: Explanation) -> Explanation | None:
    """GPUs enough are free on a type that the policy would let it use, and nobody before it waits for them."""
    space, free = case.made.space, _free(case)
    need = float(space.requested_demand[case.job])
    kinds = [kind for kind in _kinds(case) if free[kind] >= need - _ROUNDING]
    plan = case.twin.plan
    if plan is not None and not plan.allocation.work_conserving:
        own = (plan.row == case.row) & (plan.share > 0)
        kinds = [kind for kind in kinds if kind in plan.gpu_type[own]]
    if not kinds or _ahead(case) or any(_has_place(case, kind) for kind in kinds):
        return None
    where = " and ".join(f"{free[kind]:g} x {space.gpu_types[kind]}" for kind in kinds)
    return replace(
        answer,
        reason=Reason.NO_PLACE,
        detail=f"{where} are free, but not where its gang of {need:g} and its needs would fit",
        blocks=tuple(space.gpu_types[kind] for kind in kinds),
    )


def _has_place(case: _Case, kind: int) -> bool:
    """Whether the placement finds GPUs of a type for the job's gang beside those that the decided round runs."""
    space, twin = case.made.space, case.twin
    catalog = space.catalog
    rules = Rules.of(catalog.cluster, catalog.table)
    left = Workspace(
        case.made.assignment,
        catalog.cluster,
        catalog.table,
        space.node_up,
        twin.placement,
        rules,
        catalog.runs_on,
    )
    return left.find(case.row, kind, int(space.requested_gpus[case.job])) is not None


def _order(case: _Case, answer: Explanation) -> Explanation:
    """It is a matter of who comes first."""
    space, free, need = case.made.space, _free(case), case.made.space.requested_demand[case.job]
    ahead = _ahead(case)
    plan = case.twin.plan
    share = 0.0 if plan is None else float(plan.share[plan.row == case.row].sum())
    kinds = _kinds(case)
    room = ", ".join(f"{free[kind]:g} of {space.capacity[kind]} {space.gpu_types[kind]} free" for kind in kinds)
    names = tuple(space.gpu_types[kind] for kind in kinds)
    if ahead:
        detail = (
            f"{ahead} waiting job{'s are' if ahead > 1 else ' is'} before it in the order of {case.twin.policy.name}"
        )
        return replace(answer, reason=Reason.LOWER_PRIORITY, detail=detail, ahead=ahead)
    if ahead == 0 and all(free[kind] < need - _ROUNDING for kind in kinds):
        detail = f"it is the first that waits and needs {need:g} GPUs: {room}"
        return replace(answer, reason=Reason.CAPACITY, detail=detail, ahead=0, blocks=names)
    if share > _ROUNDING:
        detail = f"the plan gives it {share:.0%} of the time, and others are further behind their shares: {room}"
        return replace(answer, reason=Reason.ITS_TURN_LATER, detail=detail, blocks=names)
    if ahead == 0:
        detail = f"the plan of {case.twin.policy.name} has nothing for it now: {room}"
        return replace(answer, reason=Reason.LOWER_PRIORITY, detail=detail, ahead=0, blocks=names)
    detail = f"{case.twin.policy.name} gives the GPUs that it could use to jobs that are worth more to it: {room}"
    return replace(answer, reason=Reason.LOWER_PRIORITY, detail=detail, blocks=names)


def _kinds(case: _Case) -> list[int]:
    """GPU types on which the job makes progress."""
    kinds: list[int] = np.flatnonzero(case.made.space.catalog.runs_on[case.row]).tolist()
    return kinds


def _ahead(case: _Case) -> int | None:
    """Waiting jobs that the policy's order puts before it; None for a policy without an order."""
    space = case.made.space
    ranking = case.twin.policy.rank(space)
    if ranking is None:
        return None
    before = ranking[: int(np.flatnonzero(ranking == case.job)[0])]
    return sum(int(row) not in case.made.assignment for row in space.index[before])


def _free(case: _Case) -> np.ndarray:
    """GPUs of each type that the decided round leaves free on nodes that are up."""
    space, assignment = case.made.space, case.made.assignment
    left = assignment.free.milli.astype(np.float64) / 1000.0
    up = space.node_up[space.cluster.gpu_node]
    kind = space.cluster.node_gpu_type[space.cluster.gpu_node]
    return np.bincount(kind[up], weights=left[up], minlength=len(space.gpu_types))


def _prices(case: _Case) -> dict[str, float]:
    """What a GPU more of each type is worth to the objective, by the plan in force."""
    plan = case.twin.plan
    duals = None if plan is None else plan.allocation.duals
    if not duals or "Capacity" not in duals:
        return {}
    return {str(name): float(price) for name, price in duals["Capacity"].items()}


def _expected_start(case: _Case, horizon: float, until: float) -> float | None:
    twin, _ = fork(case.scheduler, case.state)
    backend = twin.backend
    ledger = backend.ledger
    end = case.state.now + horizon
    for _ in range(_MOST_ROUNDS):
        # Where nothing moves on for long, nothing will: nobody else comes.
        if getattr(backend, "finished", False) or getattr(backend, "rounds_without_progress", 0) >= _IDLE_ROUNDS:
            return None
        begin: float = backend.now  # type: ignore[attr-defined]
        if begin > end or time.monotonic() > until:
            return None
        served = float(ledger.attained_seconds[case.row])
        twin.run_round()
        if ledger.attained_seconds[case.row] > served or ledger.gpu_type[case.row] >= 0:
            return begin
        if ledger.status[case.row] == JobStatus.REJECTED:
            return None
    return None
