"""What another policy, solver or placement would do with the present round, and with the hours after it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from bloxopt.admission import Admission
from bloxopt.decisions import Decided
from bloxopt.errors import BloxoptError, InfeasibleError
from bloxopt.formulations.policy import Policy
from bloxopt.jobs import BoolArray
from bloxopt.placement.strategy import Strategy
from bloxopt.rounds import Scheduler
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.backend import ClusterState
from bloxopt.selection import RoundSelector
from bloxopt.simulation.backend import SimulatedBackend
from bloxopt.simulation.fork import fork
from bloxopt.simulation.forward import expected_finishes
from bloxopt.simulation.recorder import isolated_durations
from bloxopt.state import JobStatus

IDLE_ROUNDS = 100
"""Rounds in a row in which no job makes progress after which none will."""

_PATIENCE = 3.0
"""Seconds that may pass for each second of processor time."""

_DECIDING = 0.4
"""Part of the time for one side that its solver may take for the present round."""


@dataclass(frozen=True)
class Alternative:
    """What decides instead of the scheduler's own parts; None: those."""

    policy: Policy | None = None
    solver: str | None = None
    placement: Strategy | None = None
    selector: RoundSelector | None = None
    admission: Admission | None = None


@dataclass(frozen=True)
class Decision:
    """The present round as one side decides it.

    ``objective`` with its ``bound``, ``gap``, ``termination`` and whether duals ``verified`` it, None where nothing was
    to be planned; the plan was made ``planned_before`` seconds ago. ``solve_seconds`` of the ``decide_seconds`` went to
    the solver.
    """

    admitted: int
    running: int
    started: int
    stopped: int
    gpus_used: float
    gpus_up: int
    policy: str
    objective: float | None = None
    bound: float | None = None
    gap: float | None = None
    termination: str | None = None
    verified: bool | None = None
    solver: str | None = None
    planned_before: float = 0.0
    solve_seconds: float = 0.0
    decide_seconds: float = 0.0


@dataclass(frozen=True)
class Future:
    """What is expected of the jobs at hand, if no others come; times in seconds.

    ``finished`` of ``jobs`` are within the horizon. Completion times count from submission, ``makespan`` from now; of
    jobs that are not done after the ``seconds`` that were simulated in ``rounds`` rounds they are what is left of them
    on the GPUs they ask for. ``worst_finish_time_ratio``: completion time over that on an equal share of the cluster.
    ``cut``: the time was up, or nothing moved on, before the horizon. ``error`` why a later round cannot be decided.
    """

    jobs: int
    finished: int
    average_completion: float | None
    longest_completion: float | None
    makespan: float | None
    worst_finish_time_ratio: float | None
    preemptions: int
    rounds: int
    seconds: float
    cut: bool = False
    error: str = ""


@dataclass(frozen=True)
class Side:
    """How the round is decided, and what is expected after it."""

    decision: Decision
    future: Future | None


@dataclass(frozen=True)
class JobChange:
    """A job with which the two sides do different things: where it is ``now``, and in the round of each, None: nowhere.

    Places are texts such as ``"2 A100 on gpu-01"``.
    """

    job_id: str
    tenant: str
    num_gpus: int
    now: str | None
    present: str | None
    alternative: str | None


@dataclass(frozen=True)
class Comparison:
    """The scheduler as it is beside the alternative. ``comparable``: both have the same objective."""

    time: float
    horizon: float
    present: Side
    alternative: Side
    comparable: bool
    jobs: tuple[JobChange, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def what_if(
    scheduler: Scheduler, state: ClusterState, alternative: Alternative, *, horizon: float, budget: float
) -> Comparison:
    """Decide the round that ``scheduler`` is about to decide for ``state`` as it would, and as the alternative would.

    Then look ahead with both for ``horizon`` seconds (0: not at all). Everything happens on forks. There are ``budget``
    seconds of processor time for all of it: looking ahead ends earlier rather than later. Raises a
    :class:`~bloxopt.errors.BloxoptError` where the alternative cannot decide the round.
    """
    clock = _Clock(budget)

    def present() -> tuple[Scheduler, ClusterState]:
        return fork(scheduler, state)

    def other() -> tuple[Scheduler, ClusterState]:
        twin, before = fork(scheduler, state, policy=alternative.policy, replan=True)
        for name in ("solver", "placement", "selector", "admission"):
            chosen = getattr(alternative, name)
            if chosen is not None:
                # Some remember what they did: each fork has its own.
                setattr(twin, name, copy.deepcopy(chosen))
        if alternative.policy is not None and alternative.solver is None:
            # A solver was chosen for the policy that there was.
            twin.solver = None
        return twin, before

    mine = _decided(present, budget / 2)
    others = _decided(other, budget / 2)
    futures: list[Future | None] = [None, None]
    if horizon > 0:
        half = clock.left / 2
        futures = [_future(present, horizon, clock, half), _future(other, horizon, clock, 0.0)]
    policy = scheduler.policy if alternative.policy is None else alternative.policy
    return Comparison(
        state.now,
        horizon,
        Side(mine[0], futures[0]),
        Side(others[0], futures[1]),
        repr(policy.objective) == repr(scheduler.policy.objective),
        _changes(scheduler, state, mine[1], others[1]),
    )


class _Clock:
    """Counts processor time down, and the time that passes as a part of it: others use the machine too."""

    def __init__(self, seconds: float) -> None:
        self._end, self._late = time.process_time() + seconds, time.monotonic() + _PATIENCE * seconds

    @property
    def left(self) -> float:
        """Seconds of processor time."""
        return min(self._end - time.process_time(), (self._late - time.monotonic()) / _PATIENCE)


Make = Callable[[], tuple[Scheduler, ClusterState]]


def _decided(make: Make, seconds: float) -> tuple[Decision, Assignment]:
    twin, before = make()
    options = twin.policy.options if twin.solver_options is None else twin.solver_options
    limit = _DECIDING * seconds
    twin.solver_options = replace(
        options, time_limit=limit if options.time_limit is None else min(limit, options.time_limit)
    )
    began = time.perf_counter()
    try:
        made = twin.decide(before)
    except InfeasibleError as error:
        raise InfeasibleError(f"policy {twin.policy.name!r}: {error.diagnosis or error}") from None
    return _decision(twin, before, made, time.perf_counter() - began), made.assignment


def _decision(twin: Scheduler, before: ClusterState, made: Decided, seconds: float) -> Decision:
    cluster = twin.backend.catalog.cluster
    facts: dict[str, Any] = {}
    plan = twin.plan
    allocation = made.allocation if plan is None else plan.allocation
    if allocation is not None:
        proof = allocation.certificate.verification
        facts = {
            "objective": _finite(allocation.objective),
            "bound": None if allocation.bound is None else _finite(allocation.bound),
            "gap": None if allocation.gap is None else _finite(allocation.gap),
            "termination": str(allocation.termination),
            "verified": None if proof is None else proof.verified,
            "solver": allocation.solver,
            "planned_before": 0.0 if plan is None else before.now - plan.made_at,
            "solve_seconds": allocation.solve_seconds if made.allocation is not None else 0.0,
        }
    return Decision(
        admitted=made.admitted,
        running=len(made.assignment),
        started=made.started,
        stopped=made.stopped,
        gpus_used=made.assignment.free.gpus_used,
        gpus_up=int(cluster.capacity_of(before.node_up & ~cluster.node_drained).sum()),
        policy=twin.policy.name,
        decide_seconds=seconds,
        **facts,
    )


def _future(make: Make, horizon: float, clock: _Clock, reserve: float) -> Future:
    """Rounds from now on, for ``horizon`` seconds or until only ``reserve`` seconds of time are left."""
    twin, before = make()
    backend = twin.backend
    assert isinstance(backend, SimulatedBackend)
    ledger, end, rounds, error = backend.ledger, before.now + horizon, 0, ""
    at_hand: BoolArray = ~np.isin(ledger.status, (JobStatus.FINISHED, JobStatus.REJECTED))
    preempted = int(ledger.preemptions.sum())
    cut = False
    while not backend.finished and backend.now < end:
        cut = clock.left < reserve or backend.rounds_without_progress >= IDLE_ROUNDS
        if cut:
            break
        try:
            twin.run_round()
        except BloxoptError as failure:
            error = str(failure)
            break
        rounds += 1
    if not at_hand.any():
        return Future(0, 0, None, None, None, None, 0, rounds, backend.now - before.now, cut, error)
    finish = expected_finishes(backend)
    known = at_hand & np.isfinite(finish)
    completion = (finish - backend.catalog.table.arrival)[known]
    isolated = isolated_durations(backend.catalog, np.where(np.isfinite(finish), finish, backend.now))[known]
    ratio = np.divide(completion, isolated, out=np.zeros(len(completion)), where=isolated > 0)
    return Future(
        jobs=int(at_hand.sum()),
        finished=int((at_hand & (ledger.finish <= end)).sum()),
        average_completion=float(completion.mean()) if len(completion) else None,
        longest_completion=float(completion.max()) if len(completion) else None,
        makespan=float(finish[known].max() - before.now) if len(completion) else None,
        worst_finish_time_ratio=float(ratio.max()) if len(completion) else None,
        preemptions=int(ledger.preemptions.sum()) - preempted,
        rounds=rounds,
        seconds=backend.now - before.now,
        cut=cut,
        error=error,
    )


def _changes(
    scheduler: Scheduler, state: ClusterState, present: Assignment, alternative: Assignment
) -> tuple[JobChange, ...]:
    """Jobs that the two sides place differently, in the order of the table."""
    catalog = scheduler.backend.catalog
    table = catalog.table
    rows = sorted(present.grants.keys() | alternative.grants.keys())

    def place(assignment: Assignment, row: int) -> str | None:
        grant = assignment.grants.get(row)
        if grant is None:
            return None
        nodes = catalog.cluster.nodes
        kind = catalog.cluster.gpu_types[grant.gpu_type]
        if len(grant.nodes) == 1:
            return f"{grant.num_gpus} {kind} on {nodes[grant.nodes[0]].name}"
        on = ", ".join(f"{nodes[k].name} ({count})" for k, count in zip(grant.nodes, grant.counts, strict=True))
        return f"{grant.num_gpus} {kind} on {on}"

    return tuple(
        JobChange(
            str(table.job_id[row]),
            str(table.tenant_names[row]),
            int(table.num_gpus[row]),
            place(state.assignment, row),
            place(present, row),
            place(alternative, row),
        )
        for row in rows
        if place(present, row) != place(alternative, row)
    )


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
