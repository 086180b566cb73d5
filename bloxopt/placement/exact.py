"""Exact placement of a whole round: an integer program per GPU type, with a proven bound."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bloxopt.arguments import checked_arguments
from bloxopt.errors import InputError, guarded
from bloxopt.jobs import IntArray
from bloxopt.placement.consolidated import consolidated
from bloxopt.placement.exact_instance import Gang, Instance, PlacementWeights, Profile, Where
from bloxopt.placement.exact_program import ExactAnswer, solve_instance
from bloxopt.placement.strategy import Changes, Found, Offer, Requests, Strategy, WholeRound
from bloxopt.placement.user_strategy import trusted
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.resources import WHOLE_GPU, Grant
from bloxopt.solvers.base import Solver, SolverOptions

if TYPE_CHECKING:
    from bloxopt.anytime import Ladder


@dataclass(frozen=True, slots=True)
class RoundPlacement:
    """A round placed exactly: the changes, the cost, what is proven, and who got nothing.

    ``cost`` and ``bound`` add up the GPU types (see :class:`PlacementWeights`); ``heuristic_cost`` is that of the
    heuristic answer it started from. ``unplaced`` are the ids of jobs that found no place. ``answers`` has each GPU
    type's own (those without a program are missing), ``seconds`` the time all took.
    """

    changes: Changes
    cost: float
    bound: float
    heuristic_cost: float
    unplaced: tuple[str, ...]
    answers: dict[str, ExactAnswer]
    seconds: float

    @property
    def gap(self) -> float:
        """Relative distance between cost and bound."""
        return (self.cost - self.bound) / max(1e-10, abs(self.cost))


class ExactPlacement(WholeRound):
    """Exact: spans, migrations and fragments of a whole round at their least, by an integer program per GPU type.

    Starts from the answer of ``heuristic`` and improves on it for at most ``time_limit`` seconds a round (None: no
    limit) or to a relative ``mip_gap``; without anything better the heuristic answer stands. Running gangs move
    only where that pays (see :class:`PlacementWeights`). Types on which no gang starts are left alone unless
    ``defragment``. Jobs that share a GPU are placed by the heuristic, after the whole gangs. Searches for one
    gang at a time (selectors that make a queue) get the heuristic answer. ``on_round`` is told about every round.

    ``heuristic`` may be the name of a placement; what a function of your own answers is checked.

    Raises :class:`InputError` for options of another kind or out of range and, when used, :class:`SolverError` for a
    ``solver`` that takes no integer programs.
    """

    @checked_arguments()
    def __init__(
        self,
        weights: PlacementWeights | None = None,
        solver: str | Solver = "auto",
        time_limit: float | None = 2.0,
        mip_gap: float = 0.01,
        defragment: bool = False,
        heuristic: str | Strategy = consolidated,
        on_round: Callable[[RoundPlacement], None] | None = None,
    ) -> None:
        from bloxopt.placement import get_placement
        from bloxopt.solvers.registry import check_solver

        try:
            SolverOptions(time_limit=time_limit, mip_gap=mip_gap)
            check_solver(solver)
            heuristic = get_placement(heuristic, "heuristic")
        except InputError as error:
            raise InputError(f"exact placement: {str(error).removeprefix('solver option ')}") from None
        if on_round is not None and not callable(on_round):
            raise InputError(f"exact placement: on_round is {on_round!r}, must be a function of a RoundPlacement")
        self.weights = PlacementWeights() if weights is None else weights
        self.solver = solver
        self.time_limit = time_limit
        self.mip_gap = mip_gap
        self.defragment = defragment
        self.heuristic = trusted(heuristic)
        self.on_round = on_round
        self.deadline = math.inf
        """Moment (monotonic s) at which the round must be decided, if it has one."""
        self.ladder: Ladder | None = None
        """Whose processes the solver of such a round runs in."""

    def __call__(self, offer: Offer, need: int) -> Found | None:
        return self.heuristic(offer, need)

    def place_round(self, requests: Requests, assignment: Assignment, workspace: Workspace) -> Changes:
        return self.solve_round(requests, assignment, workspace).changes

    def solve_round(self, requests: Requests, assignment: Assignment, workspace: Workspace) -> RoundPlacement:
        """The same with its cost, bound and the jobs left out; books the grants in ``workspace``."""
        started = time.perf_counter()
        grants = assignment.grants
        wanted = {
            int(r): (int(t), int(n)) for r, t, n in zip(requests.row, requests.gpu_type, requests.num_gpus, strict=True)
        }
        stop = [row for row, grant in grants.items() if wanted.get(row) != (grant.gpu_type, grant.num_gpus)]
        for row in stop:
            workspace.give_back(row, grants[row])
        stopped = set(stop)
        promised = set() if requests.promised is None else set(requests.row[requests.promised].tolist())
        whole = [row for row in wanted if workspace.jobs.gpu_milli[row] == WHOLE_GPU]
        start: dict[int, Grant] = {}
        answers: dict[str, ExactAnswer] = {}
        heuristic_cost = 0.0
        for kind, name in enumerate(workspace.cluster.gpu_types):
            rows = [row for row in whole if wanted[row][0] == kind]
            held = {row: grants[row] for row in rows if row in grants and row not in stopped}
            if len(held) == len(rows) and not (self.defragment and rows):
                continue
            sizes = {row: wanted[row][1] for row in rows}
            left = None if self.time_limit is None else max(0.0, self.time_limit - (time.perf_counter() - started))
            if self.deadline < math.inf:
                rest = max(0.0, 0.5 * (self.deadline - time.monotonic()))
                left = rest if left is None else min(left, rest)
            answer, before, placed = self._place_type(kind, sizes, held, promised, workspace, left)
            answers[name] = answer
            heuristic_cost += before
            for row, grant in placed.items():
                start[row] = grant
                if row in held:
                    stop.append(row)
            stop += [row for number, row in enumerate(rows) if row in held and number not in answer.placement]
        for row, (kind, need) in wanted.items():
            fresh = row not in grants or row in stopped
            if fresh and workspace.jobs.gpu_milli[row] != WHOLE_GPU:
                share = workspace.find(row, kind, need)
                if share is not None:
                    start[row] = share
                    workspace.take(row, share)
        ended = set(stop)
        missing = [row for row in wanted if row not in start and (row not in grants or row in ended)]
        placement = RoundPlacement(
            (stop, start),
            sum(answer.objective for answer in answers.values()),
            sum(answer.bound for answer in answers.values()),
            heuristic_cost,
            tuple(str(workspace.jobs.job_id[row]) for row in missing),
            answers,
            time.perf_counter() - started,
        )
        if self.on_round is not None:
            with guarded("exact placement: on_round"):
                self.on_round(placement)
        return placement

    def _place_type(
        self,
        kind: int,
        sizes: dict[int, int],
        held: dict[int, Grant],
        promised: set[int],
        workspace: Workspace,
        time_limit: float | None,
    ) -> tuple[ExactAnswer, float, dict[int, Grant]]:
        """The answer for the gangs (row → GPUs) of one type, the heuristic's cost, and the new grants, booked."""
        rows = list(sizes)
        nodes = workspace.usable(kind).nonzero()[0]
        local = {int(node): position for position, node in enumerate(nodes)}
        found = _by_heuristic(kind, sizes, held, promised, workspace)
        for row, grant in {**held, **found}.items():
            workspace.give_back(row, grant)
        instance = self._instance(rows, sizes, held, promised, nodes, local, workspace)
        start = {
            number: _where({**held, **found}[row], local)
            for number, row in enumerate(rows)
            if row in held or row in found
        }
        answer = self._solve(instance, start, time_limit)
        new: dict[int, Where] = {}
        for number, where in answer.placement.items():
            row = rows[number]
            if where == instance.gangs[number].held:
                workspace.take(row, held[row])
            else:
                new[row] = where
        placed: dict[int, Grant] = {}
        for row, where in new.items():
            order = sorted(where)
            spot = Found(tuple(int(nodes[node]) for node in order), tuple(where[node] for node in order))
            placed[row] = workspace.grant(row, kind, spot)
            workspace.take(row, placed[row])
        return answer, instance.cost(start), placed

    def _solve(self, instance: Instance, start: dict[int, Where], time_limit: float | None) -> ExactAnswer:
        from bloxopt.solvers.registry import get_solver

        if self.ladder is not None and time_limit is not None and self.deadline < math.inf:
            solver = self.ladder.solver(self.solver, time_limit)
        else:
            solver = get_solver(self.solver)
        return solve_instance(instance, solver, SolverOptions(time_limit=time_limit, mip_gap=self.mip_gap), start)

    def _instance(
        self,
        rows: list[int],
        sizes: dict[int, int],
        held: dict[int, Grant],
        promised: set[int],
        nodes: IntArray,
        local: dict[int, int],
        workspace: Workspace,
    ) -> Instance:
        """The nodes of a type as they are without these gangs, and the gangs."""
        free, jobs, cluster, rules = workspace.free, workspace.jobs, workspace.cluster, workspace.rules
        everywhere = np.ones(len(nodes), dtype=bool)
        unlimited = np.full(len(nodes), np.inf)
        rack = np.unique([node.rack for node in cluster.nodes], return_inverse=True)[1][nodes].astype(np.int64)
        profiles: dict[tuple[float, float, bytes, bool, str | None], int] = {}
        listed: list[Profile] = []
        gangs = []
        for row in rows:
            needs = jobs.need_kinds[jobs.needs[row]]
            allowed = everywhere if rules is None else rules.allowed(row)[nodes]
            cpus, memory = float(jobs.cpus_per_gpu[row]), float(jobs.memory_gib_per_gpu[row])
            key = (cpus, memory, allowed.tobytes(), needs.exclusive_node, needs.anti_affinity)
            if key not in profiles:
                profiles[key] = len(listed)
                listed.append(Profile(cpus, memory, allowed, needs.exclusive_node, needs.anti_affinity))
            preferred = self.weights.preferred_rack if needs.same_rack == "preferred" else 0.0
            moving = self.weights.migration + self.weights.restart_second * float(jobs.restart_cost[row])
            gangs.append(
                Gang(
                    size=sizes[row],
                    profile=profiles[key],
                    max_nodes=needs.max_nodes,
                    one_rack=needs.same_rack == "required",
                    rack_weight=self.weights.rack + preferred if len(np.unique(rack)) > 1 else 0.0,
                    # Without running gangs all of a size are equal, whatever a move of one would cost.
                    move_cost=moving if held else 0.0,
                    span_factor=self.weights.promised if row in promised else 1.0,
                    held=_where(held[row], local) if row in held else None,
                )
            )
        groups = [frozenset[str]() for _ in nodes]
        if free.group_jobs is not None:
            names = sorted({need.anti_affinity for need in jobs.need_kinds if need.anti_affinity is not None})
            groups = [frozenset(names[g] for g in free.group_jobs[:, node].nonzero()[0]) for node in nodes]
        return Instance(
            total=cluster.node_gpus[nodes],
            free=free.gpus[nodes],
            cpus=unlimited if free.cpus is None else free.cpus[nodes],
            memory_gib=unlimited if free.memory_gib is None else free.memory_gib[nodes],
            rack=rack,
            guests=free.jobs[nodes],
            claimed=everywhere & False if free.exclusive is None else free.exclusive[nodes] > 0,
            groups=groups,
            profiles=listed,
            gangs=gangs,
            weights=self.weights,
        )


def _by_heuristic(
    kind: int, sizes: dict[int, int], held: dict[int, Grant], promised: set[int], workspace: Workspace
) -> dict[int, Grant]:
    """Grants for the gangs that do not run yet, promised ones and then largest first, booked in the workspace."""
    found: dict[int, Grant] = {}
    fresh = (row for row in sizes if row not in held)
    for row in sorted(fresh, key=lambda row: (row not in promised, -sizes[row])):
        grant = workspace.find(row, kind, sizes[row])
        if grant is not None:
            found[row] = grant
            workspace.take(row, grant)
    return found


def _where(grant: Grant, local: dict[int, int]) -> Where:
    return {local[node]: count for node, count in zip(grant.nodes, grant.counts, strict=True)}
