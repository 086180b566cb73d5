"""AlloX: which job waits for which GPU, and in which order, so that the average completion time is least.

A GPU that runs jobs of p_1, p_2, …, p_n seconds one after another delays the k-th from the end k times: the sum of
their completion times is ``Σ_k k p_k``. So the best plan is a matching of jobs to (GPU type, position from the end) of
cost ``k p_ij``, each position being there once for every free GPU of the type: a transportation problem, whose
vertices are integral. The first job of each GPU starts; the others wait for the next plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bloxopt.errors import FormulationError, SolverError
from bloxopt.formulations.checks import checked_amount, checked_flag
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.packing import Packing
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import Outcome, Session
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray
from bloxopt.solvers.base import Termination

_LARGEST_COST = 10**9
"""Network flows have whole costs: seconds are scaled so that the dearest arc costs this."""


@dataclass(frozen=True, eq=False)
class CompletionMatching(Objective):
    """Start the jobs that come first in a plan of least average completion time (AlloX).

    Running jobs keep what they have (``preemptive=False``) or are matched anew like the others. Of those to be
    matched only the ``fraction`` that arrived first take part, but at least one for each free GPU: the fairness
    knob α of AlloX. ``method`` ``"matching"`` is a network flow (OR-tools, exact to a billionth of the largest cost),
    ``"program"`` the same as a linear program for the policy's solver.

    A gang of s GPUs is matched as if it ran on one GPU for s times as long, which keeps its GPU-seconds; gangs
    then start in the order of the plan where they fit, and later ones may go ahead on what is left. For jobs of
    one GPU the plan is exact. Jobs of elastic size run at the size they ask for. The value is the number of jobs
    that run. Source: Le et al., EuroSys 2020; in Gavel for jobs of one GPU.
    """

    fraction: float = 1.0
    preemptive: bool = False
    method: Literal["matching", "program"] = "matching"
    curvature = "staged"
    work_conserving = False

    def __post_init__(self) -> None:
        checked_amount("CompletionMatching", "fraction", self.fraction, 0.0, 1.0)
        checked_flag("CompletionMatching", "preemptive", self.preemptive)
        if self.method not in ("matching", "program"):
            raise FormulationError(f"CompletionMatching: method is {self.method!r}, must be 'matching' or 'program'")

    @property
    def progress_dependent(self) -> bool:  # type: ignore[override]
        return self.preemptive

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        return float(np.round(x).sum())

    def solve(self, session: Session) -> Outcome:
        space = session.space
        program = session.program()
        program.make_integer()
        packing = Packing.of(program)
        if packing is None or not packing.forced_fit:
            raise FormulationError(
                "CompletionMatching takes upper limits on GPUs only: drop lower bounds such as MinimumShare"
            )
        column = asked_columns(space)
        stays = np.full(space.num_jobs, -1, dtype=np.int64)
        if not self.preemptive:
            current = np.flatnonzero(space.is_current)
            stays[space.job[current]] = current
        held = np.flatnonzero(stays >= 0)
        demand = space.gpu_demand[stays[held]].astype(np.float64)
        free = space.capacity - sum_by(space.gpu_type[stays[held]], demand, len(space.gpu_types))
        waiting = self._taking_part(space, np.flatnonzero((stays < 0) & (column >= 0).any(axis=1)), free)
        kind, ahead, ending = self._match(session, column, waiting, np.floor(free + 1e-9).astype(np.int64))
        matched = kind >= 0
        work = _gpu_seconds(space, column)[waiting, np.maximum(kind, 0)]
        order = np.lexsort((waiting, work, ahead))
        order = order[matched[order]]
        queue = np.concatenate([held, waiting[order]])
        chosen = np.concatenate([stays[held], column[waiting[order], kind[order]]])
        # The packing wants the columns of each job of the space: here exactly one for those in the queue.
        count = np.zeros(space.num_jobs, dtype=np.int64)
        count[queue] = 1
        first = np.concatenate([[0], np.cumsum(count)])
        x = packing.fill(queue, chosen[np.argsort(queue, kind="stable")], first, backfill=True)
        return Outcome(x, self.utility(space, x), None, ending)

    def _taking_part(self, space: AllocationSpace, waiting: IntArray, free: FloatArray) -> IntArray:
        """The jobs to be matched: the first to arrive, at least as many as GPUs are free."""
        most = max(int(self.fraction * len(waiting)), int(free.sum()))
        if most >= len(waiting):
            return waiting
        return np.sort(waiting[np.argsort(space.arrival[waiting], kind="stable")[:most]])

    def _match(
        self, session: Session, column: IntArray, waiting: IntArray, free: IntArray
    ) -> tuple[IntArray, IntArray, Termination]:
        """GPU type of each waiting job (-1: none) and how many are ahead of it on its GPU."""
        work = _gpu_seconds(session.space, column)[waiting]
        kind = np.full(len(waiting), -1, dtype=np.int64)
        ahead = np.zeros(len(waiting), dtype=np.int64)
        able = np.flatnonzero((np.isfinite(work) & (free > 0)).any(axis=1))
        if not len(able):
            return kind, ahead, Termination.OPTIMAL
        # No GPU type needs more positions than it takes to hold all jobs.
        depth = [-(-len(able) // int(count)) if count > 0 else 0 for count in free]
        types = np.repeat(np.arange(len(free)), depth)
        position = np.concatenate([np.arange(1, deep + 1) for deep in depth])
        cost = work[able][:, types] * position
        if self.method == "matching":
            slot, ending = _by_flow(cost, free[types]), Termination.OPTIMAL
        else:
            slot, ending = _by_program(session, cost, free[types])
        kind[able] = types[slot]
        ahead[able] = _jobs_ahead(types[slot], position[slot], work[able, types[slot]])
        return kind, ahead, ending


def asked_columns(space: AllocationSpace) -> IntArray:
    """Column of each job on each GPU type at the size it asks for, or its fastest there; -1 for none, (jobs, types)."""
    column = np.full((space.num_jobs, len(space.gpu_types)), -1, dtype=np.int64)
    asked = space.num_gpus == space.requested_gpus[space.job]
    order = np.lexsort((space.rate, asked))
    column[space.job[order], space.gpu_type[order]] = order  # the last one written is the best
    return column


def _gpu_seconds(space: AllocationSpace, column: IntArray) -> FloatArray:
    """Remaining GPU-seconds of each job on each type, inf where it cannot run, (jobs, types)."""
    with np.errstate(divide="ignore"):
        each = space.remaining_steps[space.job] / space.rate * space.gpu_demand
    return np.where(column >= 0, each[column] if len(each) else np.inf, np.inf)


def _jobs_ahead(kind: IntArray, position: IntArray, work: FloatArray) -> IntArray:
    """Jobs that run before each one on its GPU.

    Whoever has position k on a type may follow any that has k + 1 there: GPUs are numbered by how many jobs they get,
    and at each position the longest goes to the GPU with the most.
    """
    ahead = np.zeros(len(kind), dtype=np.int64)
    for one in np.unique(kind):
        mine = np.flatnonzero(kind == one)
        count = np.bincount(position[mine])
        order = mine[np.lexsort((-work[mine], position[mine]))]
        start = np.cumsum(count) - count
        gpu = np.arange(len(order)) - start[position[order]]
        length = (count[1:][:, None] > np.arange(count[1:].max())[None, :]).sum(axis=0)
        ahead[order] = length[gpu] - position[order]
    return ahead


def _by_flow(cost: FloatArray, supply: IntArray) -> IntArray:
    """The slot (column of ``cost``) of each job at least total cost, ``supply`` (slots,) jobs at most in each."""
    from ortools.graph.python import min_cost_flow

    jobs, slots = cost.shape
    possible = np.isfinite(cost)
    scale = _LARGEST_COST / max(float(cost[possible].max()), 1e-300)
    job, slot = np.nonzero(possible)
    flow = min_cost_flow.SimpleMinCostFlow()
    price = np.round(cost[possible] * scale).astype(np.int64)
    arcs = flow.add_arcs_with_capacity_and_unit_cost(job, jobs + slot, np.ones(len(job), np.int64), price)
    every = np.arange(slots)
    flow.add_arcs_with_capacity_and_unit_cost(
        jobs + every, np.full(slots, jobs + slots), supply.astype(np.int64), np.zeros(slots, np.int64)
    )
    flow.set_nodes_supplies(np.arange(jobs), np.ones(jobs, np.int64))
    flow.set_node_supply(jobs + slots, -jobs)
    status = flow.solve()
    if status != flow.OPTIMAL:
        raise SolverError(f"CompletionMatching: the network flow of {jobs} jobs ended with {status.name.lower()}")
    used = flow.flows(arcs) > 0
    chosen = np.empty(jobs, dtype=np.int64)
    chosen[job[used]] = slot[used]
    return chosen


def _by_program(session: Session, cost: FloatArray, supply: IntArray) -> tuple[IntArray, Termination]:
    """The same as a linear program: its vertices are integral, other points are rounded to the nearest matching."""
    possible = np.isfinite(cost)
    job, slot = np.nonzero(possible)
    program = Program(session.space)
    program.block = "CompletionMatching"
    columns = program.add_columns(len(job), 0.0, 1.0)
    jobs, slots = cost.shape
    one = np.ones(len(job))
    program.add_rows(Affine(job, columns, one, np.zeros(jobs)), lower=1.0, upper=1.0)
    program.add_rows(Affine(slot, columns, one, np.zeros(slots)), upper=supply.astype(np.float64))
    largest = float(cost[possible].max()) or 1.0
    utility = Affine(np.zeros(len(job), np.int64), columns, -cost[possible] / largest, np.zeros(1))
    solved = session.solve(program, utility)
    assert solved.result.x is not None
    part = np.zeros_like(cost)
    part[possible] = solved.result.x[columns]
    if np.abs(part - np.round(part)).max() > 1e-6:
        # An interior point of several best matchings: any that uses only what it uses is one of them.
        return _by_flow(np.where(possible & (part > 1e-7), cost, np.inf), supply), solved.result.termination
    return np.asarray(part.argmax(axis=1), dtype=np.int64), solved.result.termination
