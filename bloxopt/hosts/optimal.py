"""Synergy's optimum: the division of CPUs and memory with the highest total throughput, by an integer program."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bloxopt.errors import ConfigError, SolverError
from bloxopt.hosts.base import per_gpu, share_of
from bloxopt.hosts.moves import moved
from bloxopt.hosts.program import Group, HostProgram, Stock
from bloxopt.hosts.rates import HostRates
from bloxopt.hosts.servers import Places
from bloxopt.hosts.tuned import Tuned
from bloxopt.jobs import BoolArray, FloatArray
from bloxopt.runtime.assignment import Assignment
from bloxopt.solvers.base import Solver, SolverOptions, SolverResult
from bloxopt.solvers.registry import check_solver, get_solver


class Optimal:
    """The highest total relative throughput with every job at its proportional one or above (Synergy-OPT).

    ``repack`` lets jobs move to other nodes; without, only CPUs and memory are decided, on the GPUs that the placement
    gave. A gang that is on one node stays on one unless ``split``, which costs it nothing in Synergy's profiles. Solved
    by ``solver`` to ``mip_gap`` (relative). The answer is never worse than that of ``tuned`` with the same freedom,
    which is used where the solver finds no better one within ``time_limit`` seconds. Source: Mohan et al., OSDI 2022,
    section 3.2.
    """

    gives_more = True

    def __init__(
        self,
        repack: bool = False,
        split: bool = False,
        solver: str = "auto",
        mip_gap: float = 1e-3,
        time_limit: float | None = 10.0,
    ) -> None:
        check_solver(solver)
        if split and not repack:
            raise ConfigError("split lets gangs that move go to several nodes, but none moves: set repack=True as well")
        self.repack = repack
        self.split = split
        self.solver = solver
        self.options = SolverOptions(mip_gap=mip_gap, time_limit=time_limit)

    def allocate(
        self, assignment: Assignment, order: Sequence[int], rates: HostRates, node_up: BoolArray
    ) -> Assignment:
        """The assignment with the best CPUs and memory for all its jobs together."""
        greedy = Tuned(repack=self.repack).allocate(assignment, order, rates, node_up)
        if not self.split and any(
            len(grant.nodes) > len(assignment.grants[r].nodes) for r, grant in greedy.grants.items()
        ):
            greedy = Tuned().allocate(assignment, order, rates, node_up)
        stock = stock_of(rates, node_up)
        program = HostProgram(groups_of(assignment, order, rates, self.repack, self.split), stock)
        x = self._answer(program)
        if x is None:
            return greedy
        best = _divided(program, np.round(x).astype(np.int64), assignment, rates)
        return best if total_throughput(best, rates) > total_throughput(greedy, rates) else greedy

    def _answer(self, program: HostProgram) -> FloatArray | None:
        """The program's optimum to the gap, or what the time limit leaves, None for nothing.

        Where jobs may move, servers hardly ever cost anything: one machine's optimum is nearly always within reach, so
        that a division that comes as close to it as the gap allows is looked for first. Finding one is far easier
        than proving an optimum among servers that are all alike.
        """
        left = self.options.time_limit
        if self.repack:
            started = time.perf_counter()
            bound = _solve(program.pooled(), self.solver, self.options).bound
            if bound is not None:
                target = -bound * (1.0 - (self.options.mip_gap or 0.0)) - 1e-9
                half = None if left is None else left / 2
                close = _solve(program, self.solver, replace(self.options, time_limit=half), at_least=target)
                if close.x is not None:
                    return close.x
            left = None if left is None else max(0.0, left - (time.perf_counter() - started))
        return _solve(program, self.solver, replace(self.options, time_limit=left)).x


def total_throughput(assignment: Assignment, rates: HostRates) -> float:
    """Sum of the relative throughputs of all jobs with the CPUs and memory that they have."""
    if not assignment.hosts:
        return 0.0
    grants, hosts = assignment.grants, assignment.hosts
    gpus, cpus, memory = (
        np.array(part) for part in zip(*(per_gpu(grants[r], share) for r, share in hosts.items()), strict=True)
    )
    return float(rates.factors(np.array(list(hosts)), gpus, cpus, memory).sum())


def throughput_bound(assignment: Assignment, rates: HostRates, *, relaxed: bool = False, solver: str = "auto") -> float:
    """The highest total throughput of the jobs of an assignment if all nodes were one machine.

    That is the idealised optimum that no division over real servers can exceed. ``relaxed`` also lets a job mix
    configurations: the linear program. Raises :class:`~bloxopt.errors.SolverError` if the solver gives no answer.
    """
    if not len(assignment):
        return 0.0
    stock = stock_of(rates, np.ones(len(rates.node_cpus), dtype=bool))
    program = HostProgram(groups_of(assignment, list(assignment.grants), rates, repack=False), stock).pooled()
    result = _solve(program, solver, SolverOptions(mip_gap=0.0), relaxed)
    if result.objective is None:
        raise SolverError(f"the bound on total throughput: {result.solver} ended with {result.termination}")
    return -result.objective


def stock_of(rates: HostRates, node_up: BoolArray) -> Stock:
    """GPUs, CPUs and memory of the nodes that are up."""
    return Stock(np.where(node_up, rates.cluster.node_gpus, 0), rates.node_cpus, rates.node_memory_gib)


def groups_of(
    assignment: Assignment, order: Sequence[int], rates: HostRates, repack: bool, split: bool = False
) -> list[Group]:
    """The jobs of an assignment by model, GPUs and places, or with ``repack`` by whether they may span nodes.

    They may if they do already, or with ``split`` all.
    """
    members: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in order:
        grant = assignment.grants[row]
        places = tuple(sorted(zip(grant.nodes, grant.counts, strict=True)))
        kind = int(rates.table.job_type[row]), grant.num_gpus, grant.gpu_type
        members[(*kind, split or len(places) > 1) if repack else (*kind, places)].append(row)
    groups = []
    for (_, gpus, gpu_type, where), rows in members.items():
        nodes = np.flatnonzero(rates.cluster.node_gpu_type == gpu_type) if repack else [node for node, _ in where]
        least = rates.profile(rows[0], gpus).rate(rates.fair_cpus[nodes], rates.fair_memory_gib[nodes]).tolist()
        points = efficient_points(rates, rows[0], gpus, min(least))
        if repack:
            able = tuple(int(node) for node in nodes)
            groups.append(Group(tuple(rows), gpus, points, None, able, tuple(least), split=where and gpus > 1))
        else:
            groups.append(Group(tuple(rows), gpus, points, where))
    return groups


def efficient_points(rates: HostRates, row: int, gpus: int, floor: float) -> FloatArray:
    """Configurations of a job's profile with at least the throughput ``floor``, (configurations, 3), the best last."""
    points = rates.profile(row, gpus).points
    return points[points[:, 2] >= floor - 1e-9]


def _solve(
    program: HostProgram,
    solver: str | Solver,
    options: SolverOptions,
    relaxed: bool = False,
    at_least: float | None = None,
) -> SolverResult:
    back_end = get_solver(solver)
    if not relaxed and not back_end.capabilities.mip:
        raise SolverError(
            f"the optimal host allocation is an integer program, which {back_end.name} does not solve: use 'highs', "
            "'ortools:scip' or 'auto'"
        )
    return back_end.solve(program.form(relaxed, at_least), options)


def _divided(program: HostProgram, x: Any, assignment: Assignment, rates: HostRates) -> Assignment:
    """The assignment that an answer stands for: first places, then CPUs and memory."""
    where: dict[int, Places] = {}
    point_of: dict[int, FloatArray] = {}
    for group, jobs_at, pieces_at in zip(program.groups, program.jobs_at, program.pieces_at, strict=True):
        slots: list[tuple[Places, FloatArray]] = []
        # The best configurations go to the jobs with the best claims.
        for k in reversed(range(len(jobs_at))):
            if group.places is not None:
                slots.extend([(group.places, group.points[k])] * int(x[jobs_at[k]]))
            else:
                gpus = {node: int(x[column]) for node, column in pieces_at[k].items() if x[column]}
                slots.extend((places, group.points[k]) for places in _gangs(gpus, group))
        waiting = list(group.rows)
        for places, point in slots:
            row = _closest(waiting, places, assignment)
            waiting.remove(row)
            where[row], point_of[row] = places, point
    after = moved(assignment, where, rates) if any(group.places is None for group in program.groups) else assignment
    return after.with_hosts(
        {row: share_of(after.grants[row], float(point[0]), float(point[1])) for row, point in point_of.items()}
    )


def _gangs(pieces: dict[int, int], group: Group) -> list[Places]:
    """Gangs made of the pieces at one configuration: one a piece, or of single GPUs, node after node."""
    if not group.split:
        return [((node, group.gpus),) for node, count in pieces.items() for _ in range(count)]
    gangs: list[Places] = []
    open_gang: list[tuple[int, int]] = []
    need = group.gpus
    for node, count in pieces.items():
        while count:
            taken = min(count, need)
            open_gang.append((node, taken))
            count, need = count - taken, need - taken
            if not need:
                gangs.append(tuple(open_gang))
                open_gang, need = [], group.gpus
    return gangs


def _closest(rows: list[int], places: Places, assignment: Assignment) -> int:
    """The first job that is at these places already, else the first."""
    nodes = {node for node, _ in places}
    return next((row for row in rows if set(assignment.grants[row].nodes) == nodes), rows[0])
