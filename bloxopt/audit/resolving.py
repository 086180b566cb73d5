"""Properties that compare an allocation with others: the policy, or another program, is solved again."""

from __future__ import annotations

import copy

import numpy as np

from bloxopt.audit.properties import Property, Question
from bloxopt.formulations import EffectiveThroughput, MaxSum, Policy
from bloxopt.formulations.allocation import Allocation
from bloxopt.formulations.constraints import Constraint
from bloxopt.formulations.constraints.base import Limit
from bloxopt.formulations.expressions import Expression, per_job
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray
from bloxopt.solvers.base import SolverOptions

MISREPORTING_JOBS = 3
"""Jobs that misreport, one after the other, at each plan."""

_PROGRAM = SolverOptions(time_limit=30.0, mip_gap=1e-4)


class _AtLeast(Constraint):
    """Every job at least as fast as in an allocation, up to rounding."""

    progress_dependent = False

    def __init__(self, rate: FloatArray) -> None:
        self.rate = rate

    def limits(self, space: AllocationSpace) -> list[Limit]:
        return [Limit(EffectiveThroughput(), lower=self.rate * (1.0 - 1e-9))]


class _Gain(Expression):
    """Steps/s of each job over the most it could do."""

    progress_dependent = False

    def build(self, space: AllocationSpace) -> Affine:
        most = np.where(space.fastest_rate > 0, space.fastest_rate, 1.0)
        return per_job(space, space.rate / most[space.job])


def _pareto_efficiency(question: Question) -> FloatArray:
    """How much more all jobs together could do, in parts of the most each could, without one being slower, (1,)."""
    allocation = question.allocation
    space = allocation.space
    if not space.num_columns:
        return np.zeros(1)
    better = Policy(
        objective=MaxSum(_Gain()),
        constraints=[*allocation.constraints.values(), _AtLeast(allocation.throughput)],
        options=_PROGRAM,
    ).allocate(space)
    gain = _Gain().build(space)
    now, then = float(gain.at(allocation.x).sum()), float(gain.at(better.x).sum())
    return np.array([max(then - now, 0.0) / max(then, 1e-12)])


def _resource_monotonicity(question: Question) -> FloatArray:
    """What each job loses when the cluster has a GPU more of a type, the worst over the types, (num_jobs,)."""
    before = question.allocation
    space = before.space
    loss = np.zeros(space.num_jobs)
    for kind in range(len(space.gpu_types)):
        capacity = space.capacity.copy()
        capacity[kind] += 1
        loss = np.maximum(loss, _loss(before, question.allocate(_with_capacity(space, capacity))))
    return loss


def _permutation_invariance(question: Question) -> FloatArray:
    """How much each job's throughput changes when the jobs are listed the other way round, (num_jobs,)."""
    before = question.allocation
    space = before.space
    turned = _copy(space)
    turned.index = space.index[::-1].copy()
    after = question.allocate(turned).throughput[::-1]
    most = np.maximum(np.maximum(before.throughput, after), 1e-12)
    difference: FloatArray = np.abs(before.throughput - after) / most
    return difference


def _strategy_proofness(question: Question) -> FloatArray:
    """What a few random jobs gain, of what they have, by misreporting their rates; NaN for the others, (num_jobs,)."""
    before = question.allocation
    space = before.space
    gain = np.full(space.num_jobs, np.nan)
    able = np.flatnonzero(space.runnable)
    liars = question.random.choice(able, size=min(MISREPORTING_JOBS, len(able)), replace=False)
    for liar in liars:
        lied = _copy(space)
        lied.catalog = catalog = copy.copy(space.catalog)
        factor = question.random.uniform(0.5, 2.0, len(space.gpu_types))
        row = space.index[liar]
        columns = slice(catalog.offsets[row], catalog.offsets[row + 1])
        catalog.rate, catalog.requested_rate = catalog.rate.copy(), catalog.requested_rate.copy()
        catalog.rate[columns] *= factor[catalog.gpu_type[columns]]
        catalog.requested_rate[row] *= factor
        catalog.__dict__.pop("best_requested_rate", None)
        x = question.allocate(lied).x
        mine = space.job == liar
        now, then = before.throughput[liar], float(space.rate[mine] @ x[mine])
        gain[liar] = max(then - now, 0.0) / max(then, 1e-12)
    return gain


def _loss(before: Allocation, after: Allocation) -> FloatArray:
    now = before.throughput
    lost = np.divide(now - after.throughput, now, out=np.zeros(len(now)), where=now > 0)
    return np.maximum(lost, 0.0)


def _copy(space: AllocationSpace) -> AllocationSpace:
    """The same space with nothing worked out yet, and a ledger apart, so that asking again changes nothing."""
    twin = space.without(space.index[:0])
    twin.ledger = copy.copy(space.ledger)
    twin.ledger.notes = dict(space.ledger.notes)
    twin.ledger._memories = {name: column.copy() for name, column in space.ledger._memories.items()}
    return twin


def _with_capacity(space: AllocationSpace, capacity: object) -> AllocationSpace:
    twin = _copy(space)
    twin.capacity = np.asarray(capacity)
    return twin


PARETO_EFFICIENCY = Property(
    "pareto_efficiency",
    "no job could be faster without another being slower",
    _pareto_efficiency,
    solves=True,
)
RESOURCE_MONOTONICITY = Property(
    "resource_monotonicity", "no job is slower when the cluster has a GPU more", _resource_monotonicity, solves=True
)
PERMUTATION_INVARIANCE = Property(
    "permutation_invariance",
    "jobs get the same in whatever order they are listed",
    _permutation_invariance,
    solves=True,
)
STRATEGY_PROOFNESS = Property(
    "strategy_proofness",
    "no job is faster for reporting other rates than its own (random misreports of a few jobs)",
    _strategy_proofness,
    solves=True,
)
