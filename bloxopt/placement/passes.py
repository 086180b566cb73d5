"""One pass over the jobs of a round: keep, stop and start, with a strategy finding the nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bloxopt.jobs import BoolArray, IntArray
from bloxopt.placement.pairs import place_pairs
from bloxopt.placement.strategy import Changes as Changes
from bloxopt.placement.strategy import Requests, WholeQueue, WholeRound
from bloxopt.placement.user_strategy import whole_round
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.resources import Grant


def place_decision(
    row: IntArray,
    gpu_type: IntArray,
    num_gpus: IntArray,
    assignment: Assignment,
    workspace: Workspace,
    promised: BoolArray | None = None,
    partner: IntArray | None = None,
    rank: IntArray | None = None,
) -> Changes:
    """Run exactly the listed jobs: those that keep their configuration keep their GPUs, the others stop first.

    The new ones are placed largest gang first (of equal ones that with the most CPUs and memory), to limit
    fragmentation, ``promised`` ones (gangs,) before all others, and then those with the fewest nodes to choose from;
    one that the strategy cannot place waits for the next round. A strategy for whole rounds decides all of this itself.
    ``partner`` (gangs,) is the row of the job that a gang shares its GPUs with, -1 for none: see
    :func:`~bloxopt.placement.pairs.place_pairs`.
    """
    requests = Requests(row, gpu_type, num_gpus, promised, rank)
    if partner is not None:
        return place_pairs(requests, partner, assignment, workspace)
    if isinstance(workspace.strategy, WholeRound):
        return whole_round(workspace.strategy, "place_round", requests, assignment, workspace)
    part, host, rules = workspace.jobs.gpu_milli, workspace.jobs.host_size, workspace.rules
    need = dict(zip(row.tolist(), num_gpus.tolist(), strict=True))
    first = set() if promised is None else set(row[promised].tolist())

    def turn(row: int) -> tuple[bool, int, int, float]:
        return row not in first, 0 if rules is None else rules.choice(row), -need[row] * part[row], -host[row]

    return keep_and_start(requests, turn, assignment, workspace)


def keep_and_start(
    requests: Requests, turn: Callable[[int], tuple[Any, ...]], assignment: Assignment, workspace: Workspace
) -> Changes:
    """Jobs that keep their configuration keep their GPUs, the others stop, and new ones are placed in ``turn``.

    ``turn`` gives what to sort a row by.
    """
    columns = (requests.row.tolist(), requests.gpu_type.tolist(), requests.num_gpus.tolist())
    wanted = {row: (kind, need) for row, kind, need in zip(*columns, strict=True)}
    grants = assignment.grants
    stop = [row for row, grant in grants.items() if wanted.get(row) != (grant.gpu_type, grant.num_gpus)]
    for row in stop:
        workspace.give_back(row, grants[row])
    stopped = set(stop)
    start: dict[int, Grant] = {}
    for row in sorted([row for row in wanted if row not in grants or row in stopped], key=turn):
        grant = workspace.find(row, *wanted[row])
        if grant is not None:
            start[row] = grant
            workspace.take(row, grant)
    return stop, start


def place_queue(
    order: IntArray,
    num_gpus: Sequence[int],
    preference: Sequence[Sequence[int]],
    assignment: Assignment,
    workspace: Workspace,
) -> Changes:
    """Serve waiting jobs in order; each may evict running jobs from the end of the order back to its own place.

    Running jobs keep their GPUs unless evicted. The first job that cannot be placed ends the pass, and the jobs it
    evicted stay evicted; an evicted job met later in the pass may start again at
    once. Where there are placement constraints, a job that no eviction could help is passed over instead.
    ``num_gpus`` and ``preference`` (GPU types, best first) are indexed by job row. Source: Blox.
    """
    if isinstance(workspace.strategy, WholeQueue):
        queue = (order, num_gpus, preference, assignment, workspace)
        return whole_round(workspace.strategy, "place_queue", *queue)
    rows: list[int] = order.tolist()
    grants = assignment.grants
    running = [row in grants for row in rows]
    stop: list[int] = []
    start: dict[int, Grant] = {}
    last = len(rows) - 1
    for position, row in enumerate(rows):
        if running[position]:
            continue
        need, kinds = num_gpus[row], preference[row]
        grant = _find(row, kinds, need, workspace)
        if grant is None and workspace.rules is not None:
            behind = [rows[p] for p in range(position + 1, last + 1) if running[p]]
            if not _eviction_helps(row, kinds, need, {r: grants[r] for r in behind}, workspace):
                continue
        while grant is None:
            while last > position and not running[last]:
                last -= 1
            if last <= position:
                return stop, start
            evicted = rows[last]
            running[last] = False
            workspace.give_back(evicted, grants[evicted])
            stop.append(evicted)
            grant = _find(row, kinds, need, workspace)
        start[row] = grant
        workspace.take(row, grant)
    return stop, start


def _find(row: int, kinds: Sequence[int], need: int, workspace: Workspace) -> Grant | None:
    """GPUs of the first type on which the gang fits now."""
    for kind in kinds:
        grant = workspace.find(row, kind, need)
        if grant is not None:
            return grant
    return None


def _eviction_helps(
    row: int, kinds: Sequence[int], need: int, victims: Mapping[int, Grant], workspace: Workspace
) -> bool:
    """Whether the job could start if all ``victims`` gave up their GPUs."""
    for victim, grant in victims.items():
        workspace.give_back(victim, grant)
    helps = _find(row, kinds, need, workspace) is not None
    for victim, grant in victims.items():
        workspace.take(victim, grant)
    return helps


def preferred_types(rate: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> list[list[int]]:
    """GPU types that each job can run on, fastest first, from its rates (jobs, types)."""
    ranked = np.argsort(-rate, axis=1, kind="stable")
    return [
        [kind for kind in kinds if row[kind] > 0] for kinds, row in zip(ranked.tolist(), rate.tolist(), strict=True)
    ]
