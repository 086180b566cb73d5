"""One allocation of Sia's integer program: ours beside models of the same program as one would write them.

    python benchmarks/sia.py [--jobs 512 2048] [--baseline 512] [--gap 1e-3]

Jobs arrive on a third as many GPUs of each of three types, eight to a node; every job may have 1, 2, 4 or 8 GPUs of a
type, or up to eight whole nodes, and half of them run already. Seconds, by the clock and of the processor, are for
everything from the space to the checked allocation, for the baselines from the arrays to the solution. Gaps are those
of the program's own cost; the power mean that the allocation reports is a power of it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from bloxopt.cluster import load_cluster
from bloxopt.formulations import AllocationSpace, ConfigurationCatalog
from bloxopt.formulations.policies import get_policy
from bloxopt.jobs import JobTable
from bloxopt.state import JobLedger

LIMITS = {512: 0.25, 2048: 2.5}
"""Seconds that an allocation of so many jobs is held to."""

MOST_GPUS = 64


class Rates:
    """Steps/s that grow with a power of the GPUs, a different one for each job, times a speed of job and type."""

    def __init__(self, jobs: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.speed = np.sort(rng.uniform(0.5, 4.0, (jobs, 3)), axis=1)
        self.power = rng.uniform(0.4, 0.95, jobs)

    def rates(self, jobs: JobTable, gpu_types: object, num_gpus: np.ndarray) -> np.ndarray:
        number = np.array([int(name) for name in jobs.job_id])
        return self.speed[number] * num_gpus[:, None] ** self.power[number, None]


def instance(jobs: int, seed: int = 0) -> Callable[[], AllocationSpace]:
    """A function that makes a fresh space (nothing cached) of the same jobs."""
    rng = np.random.default_rng(seed)
    nodes = max(jobs // 24, 1)
    cluster = load_cluster(f"{nodes}x8xv100+{nodes}x8xp100+{nodes}x8xk80")
    table = JobTable.from_columns(
        job_id=[str(number) for number in range(jobs)],
        arrival=np.zeros(jobs),
        num_gpus=np.ones(jobs, dtype=np.int64),
        max_gpus=np.full(jobs, MOST_GPUS),
        total_steps=np.full(jobs, 1e6),
    )
    catalog = ConfigurationCatalog(table, cluster, Rates(jobs, seed), every_count_up_to=MOST_GPUS)
    ledger = JobLedger(table)
    running = rng.permutation(jobs)[: jobs // 2]
    ledger.gpu_type[running] = rng.integers(0, 3, len(running))
    ledger.gpus[running] = 1
    ledger.restarts[:] = rng.integers(0, 20, jobs)
    return lambda: AllocationSpace(catalog, ledger, np.arange(jobs), now=3600.0, round_seconds=60.0)


def arrays(space: AllocationSpace, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Job, GPU type, GPUs and cost of every column that the program leaves open."""
    from bloxopt.formulations import NodeShapes

    open_columns = ~NodeShapes().closed(space)
    return space.job[open_columns], space.gpu_type[open_columns], space.num_gpus[open_columns], costs[open_columns]


def published_costs(space: AllocationSpace) -> np.ndarray:
    """``(r G)^p − λ`` of every column, written out once more from the paper."""
    cost = np.empty(space.num_columns)
    for job in range(space.num_jobs):
        mine = np.flatnonzero(space.job == job)
        goodput = space.rate[mine] / space.rate[mine].min() * space.num_gpus[mine][space.rate[mine].argmin()]
        if space.running[job]:
            age, restarts = space.elapsed[job], space.ledger.restarts[space.index[job]]
            factor = max(age - 30 * restarts, 0) / (age + 30)
            goodput = np.where(space.is_current[mine], goodput, factor * goodput)
        cost[mine] = np.minimum(np.maximum(goodput, 1e-12) ** -0.5, 3000.0) - 1.1
    return cost


def with_cvxpy(space: AllocationSpace, costs: np.ndarray, gap: float) -> float:
    """The program as in Sia's code: matrices of jobs by configurations, solved by HiGHS."""
    import cvxpy as cp

    job, kind, gpus, cost = arrays(space, costs)
    configuration, at = np.unique(np.column_stack([kind, gpus]), axis=0, return_inverse=True)
    matrix = np.full((space.num_jobs, len(configuration)), 1e3)
    matrix[job, at.ravel()] = cost
    x = cp.Variable(matrix.shape, boolean=True)
    use = np.zeros((len(configuration), len(space.gpu_types)))
    use[np.arange(len(configuration)), configuration[:, 0]] = configuration[:, 1]
    limits = [cp.sum(x, axis=1) <= 1, cp.sum(x @ use, axis=0) <= space.capacity]
    problem = cp.Problem(cp.Minimize(cp.sum(cp.multiply(matrix, x)) + 1.1 * space.num_jobs), limits)
    return float(problem.solve(solver=cp.HIGHS, mip_rel_gap=gap))


def with_pulp(space: AllocationSpace, costs: np.ndarray, gap: float) -> float:
    """One binary variable a column, solved by CBC."""
    import pulp

    job, kind, gpus, cost = arrays(space, costs)
    problem = pulp.LpProblem("sia", pulp.LpMinimize)
    x = [pulp.LpVariable(f"x{column}", cat="Binary") for column in range(len(job))]
    problem += pulp.lpDot(cost.tolist(), x) + 1.1 * space.num_jobs
    for owner in range(space.num_jobs):
        problem += pulp.lpSum(x[column] for column in np.flatnonzero(job == owner)) <= 1
    for number, capacity in enumerate(space.capacity.tolist()):
        columns = np.flatnonzero(kind == number)
        problem += pulp.lpSum(int(gpus[column]) * x[column] for column in columns) <= capacity
    problem.solve(pulp.PULP_CBC_CMD(msg=False, gapRel=gap))
    return float(pulp.value(problem.objective))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--baseline", type=int, default=512, help="most jobs for which the plain models run")
    parser.add_argument("--gap", type=float, default=1e-3)
    parser.add_argument("--repeats", type=int, default=3, help="the fastest of so many runs counts")
    arguments = parser.parse_args()
    for jobs in arguments.jobs:
        fresh = instance(jobs)
        for label, policy in (
            ("every configuration", get_policy("sia", scale_up=None)),
            ("at most twice the GPUs", get_policy("sia")),
        ):
            seconds, busy = [], []
            for _ in range(arguments.repeats):
                space = fresh()
                started, worked = time.perf_counter(), time.process_time()
                allocation = policy.allocate(space)
                seconds.append(time.perf_counter() - started)
                busy.append(time.process_time() - worked)
            cost, bound = (space.num_jobs * mean**-0.5 for mean in (allocation.objective, allocation.bound))
            limit = LIMITS.get(jobs)
            held = "" if limit is None else f"   limit {limit:g} s"
            print(
                f"{jobs:5d} jobs, {label:24s} {min(seconds):7.3f} s ({min(busy):.3f} s of processor)   "
                f"cost {cost:10.3f}   gap {1 - bound / cost:.1e}   {allocation.termination}{held}"
            )
        if jobs > arguments.baseline:
            continue
        space = fresh()
        costs = published_costs(space)
        for label, model in (("cvxpy with HiGHS", with_cvxpy), ("PuLP with CBC", with_pulp)):
            started = time.perf_counter()
            cost = model(space, costs, arguments.gap)
            print(f"{jobs:5d} jobs, {label:24s} {time.perf_counter() - started:7.3f} s   cost {cost:10.3f}")


if __name__ == "__main__":
    main()
