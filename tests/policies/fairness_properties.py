"""What papers prove of policies, as numbers: by how much an allocation breaks each property (0: it does not)."""

from __future__ import annotations

import numpy as np
from instances import PlainModel, make_space

from bloxopt.formulations.policies import get_policy

TENANTS = ("a", "b", "c")


def instance(seed: int, scale: int = 1, order=None, one_type: bool = False, single: bool = False):
    """A small random space: jobs that all arrived at once, of 1 to 4 GPUs, three tenants, up to three GPU types.

    ``scale`` multiplies the GPUs of every type and ``order`` puts the jobs in another order; all else stays the same.
    """
    rng = np.random.default_rng(seed)
    count, types = int(rng.integers(2, 7)), 1 if one_type else int(rng.integers(1, 4))
    gpus = np.ones(count, int) if single else rng.choice([1, 1, 2, 4], size=count)
    capacity = [scale * (int(gpus.max()) + int(rng.integers(0, 3))) for _ in range(types)]
    rates = rng.uniform(0.5, 10.0, (count, types))
    steps = rng.uniform(100.0, 900.0, count)
    tenants = rng.choice(TENANTS, size=count)
    isolated = rng.uniform(0.0, 100.0, count)
    order = np.arange(count) if order is None else np.argsort(rng.random(count))
    return make_space(
        rates[order],
        gpus[order],
        capacity,
        steps=steps[order],
        tenants=[str(name) for name in tenants[order]],
        now=100.0,
        isolated_seconds=isolated[order],
    )


OPTIONS = {
    "min_cost": {"prices": {"fast": 2.0, "mid": 0.5, "slow": 0.1}},
    "min_cost_slos": {"prices": {"fast": 2.0, "mid": 0.5, "slow": 0.1}},
}
"""Options other than the defaults with which a policy is looked at."""


def policy_of(name: str):
    return get_policy(name, **OPTIONS.get(name, {}))


def allocate(name: str, space):
    return policy_of(name).allocate(space, solver="highs")


def capacity_and_time(policy: str, seed: int, **kind) -> float:
    """More GPUs of a type than there are, or more than all the time of a job."""
    space = instance(seed, **kind)
    share = allocate(policy, space).time_share
    over = share.T @ space.requested_gpus / space.capacity - 1.0
    return max(0.0, float(over.max()), float(share.sum(axis=1).max()) - 1.0)


def pareto_efficiency(policy: str, seed: int, **kind) -> float:
    """Throughput that one job could have more of without any other having less, relative to all."""
    space = instance(seed, **kind)
    value = allocate(policy, space).throughput / space.fastest_rate
    model = PlainModel(space)
    coefficients = space.requested_rate / space.fastest_rate[:, None]
    rows = [model.row(i, coefficients[i]) for i in range(space.num_jobs)]
    best = -model.maximise(coefficients.ravel(), rows, list(value * (1 - 1e-9) - 1e-9)).fun
    return max(0.0, best - float(value.sum()))


def sharing_incentive(policy: str, seed: int, **kind) -> float:
    """What some job gets less than on an equal part of the cluster, relative to that."""
    space = instance(seed, **kind)
    return max(0.0, float((1.0 - allocate(policy, space).throughput / space.isolated_rate).max()))


def envy_freeness(policy: str, seed: int, **kind) -> float:
    """How much more some job would make of another's GPU time than of its own, relative to the most it can make."""
    space = instance(seed, **kind)
    allocation = allocate(policy, space)
    gpu_time = allocation.time_share * space.requested_gpus[:, None]
    worst = 0.0
    for i in range(space.num_jobs):
        theirs = gpu_time / space.requested_gpus[i]
        theirs /= np.maximum(theirs.sum(axis=1, keepdims=True), 1.0)
        would = theirs @ space.requested_rate[i]
        worst = max(worst, float(would.max() - allocation.throughput[i]) / space.fastest_rate[i])
    return worst


def monotonicity(policy: str, seed: int, **kind) -> float:
    """What the policy's own value loses, relative to it, when there are twice as many GPUs of every type."""
    small, large = (allocate(policy, instance(seed, scale=scale, **kind)) for scale in (1, 2))
    sign = -1.0 if policy_of(policy).objective.minimised else 1.0
    return max(0.0, sign * (small.objective - large.objective) / max(1e-9, abs(small.objective)))


def permutation_invariance(policy: str, seed: int, **kind) -> float:
    """Change of the policy's value when the jobs are listed in another order, relative to it."""
    one, other = (allocate(policy, instance(seed, order=order, **kind)).objective for order in (None, True))
    return abs(one - other) / max(1e-9, abs(one))


PROPERTIES = {
    function.__name__: function
    for function in (
        capacity_and_time,
        pareto_efficiency,
        sharing_incentive,
        envy_freeness,
        monotonicity,
        permutation_invariance,
    )
}
