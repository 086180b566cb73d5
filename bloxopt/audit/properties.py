"""Properties that are read off an allocation as it stands: feasibility, sharing incentive, envy-freeness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bloxopt.formulations.allocation import CHECK_TOLERANCE, Allocation
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray


class Question(NamedTuple):
    """An allocation to judge, what its policy allocates in other spaces, and a source of random choices."""

    allocation: Allocation
    allocate: Callable[[AllocationSpace], Allocation]
    random: np.random.Generator


@dataclass(frozen=True)
class Property:
    """Something that an allocation may break.

    ``amounts(question)`` tells by how much, at each of the places where it can be (jobs, rows of blocks …): 0 where it
    is not, a part of what the job has or is due otherwise, NaN for places that were not looked at. ``solves`` is
    whether judging it takes programs of its own, which makes it slow. ``tolerance`` is what rounding may do.
    """

    name: str
    says: str
    amounts: Callable[[Question], FloatArray]
    solves: bool = False
    tolerance: float = 1e-4


def _feasibility(question: Question) -> FloatArray:
    rows = [np.asarray(amounts, dtype=np.float64) for amounts in question.allocation.violations.values()]
    return np.maximum(np.concatenate(rows), 0.0) if rows else np.zeros(0)


def entitled_rate(space: AllocationSpace) -> FloatArray:
    """Steps/s of each job on the part of every GPU type that its weight entitles it to, (num_jobs,).

    ``w_i / Σ_k w_k`` of each type's GPUs for gangs of the size that it asks for, at most all of the time.
    """
    part = space.weight / space.weight.sum() if space.num_jobs else np.zeros(0)
    share = np.outer(part / space.requested_demand, space.capacity)
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1.0)
    rate: FloatArray = np.multiply(share, space.requested_rate).sum(axis=1)
    return rate


def _sharing_incentive(question: Question) -> FloatArray:
    space = question.allocation.space
    due = entitled_rate(space)
    short = np.divide(due - question.allocation.throughput, due, out=np.zeros(len(due)), where=due > 0)
    return np.maximum(short, 0.0)


def _envy_freeness(question: Question) -> FloatArray:
    """How much more each job would do with what another has than with its own, as a part of the former, (num_jobs,).

    What another has is its GPU-time of each type, scaled by the ratio of their weights; a job uses the types on which
    it is fastest first, up to all of the time.
    """
    allocation = question.allocation
    space = allocation.space
    bundle = _gpu_time(allocation)
    own = allocation.throughput
    envy = np.zeros(space.num_jobs)
    for job in range(space.num_jobs):
        offered = bundle * (space.weight[job] / space.weight)[:, None]
        best = float(_rate_with(space, job, offered).max(initial=0.0))
        if best > own[job]:
            envy[job] = 1.0 - own[job] / best
    return envy


def _gpu_time(allocation: Allocation) -> FloatArray:
    """GPUs of each type that each job has, averaged over time, (num_jobs, types)."""
    space = allocation.space
    bundle = np.zeros((space.num_jobs, len(space.gpu_types)))
    np.add.at(bundle, (space.job, space.gpu_type), space.gpu_demand * allocation.x)
    return bundle


def _rate_with(space: AllocationSpace, job: int, gpus: FloatArray) -> FloatArray:
    """Steps/s of a job with each of several bundles of GPUs, (bundles, types) to (bundles,)."""
    rate = space.requested_rate[job]
    types: IntArray = np.argsort(-rate, kind="stable")
    left, steps = np.ones(len(gpus)), np.zeros(len(gpus))
    for kind in types[rate[types] > 0]:
        time = np.minimum(gpus[:, kind] / space.requested_demand[job], left)
        steps += time * rate[kind]
        left -= time
    return steps


FEASIBILITY = Property(
    "feasibility",
    "every constraint block holds: no GPU type over capacity, no job over all of the time",
    _feasibility,
    tolerance=CHECK_TOLERANCE,
)
SHARING_INCENTIVE = Property(
    "sharing_incentive",
    "no job is slower than on the part of the cluster that its weight entitles it to",
    _sharing_incentive,
)
ENVY_FREENESS = Property(
    "envy_freeness", "no job would be faster with the GPU time of another, scaled by their weights", _envy_freeness
)
