"""What modelling costs beside solving, and how long the exact policies take, on contended and plentiful clusters.

    python benchmarks/formulations.py [--jobs 4096] [--repeats 5]

Overhead is everything but the solver's own call: space columns, blocks, compile, check, lift back. Ratios are
against the raw solver on the same matrix in the same process, so that they carry over between machines.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from bloxopt.formulations import AllocationSpace, MaxMin, NormalizedThroughput, Policy
from bloxopt.formulations.policies import get_policy
from bloxopt.jobs import JobTable

TYPES = ("v100", "p100", "k80")


class Rates:
    """Steps/s drawn once per job and GPU type: V100 fastest for most models, K80 slowest."""

    def __init__(self, jobs: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        base = np.exp(rng.normal(1.0, 1.2, jobs))
        self.table = base[:, None] * np.sort(rng.uniform(0.2, 4.0, (jobs, 3)), axis=1)[:, ::-1]

    def rates(self, jobs: JobTable, gpu_types: object, num_gpus: object) -> np.ndarray:
        return self.table


def instance(jobs: int, gpus_per_type: int, seed: int = 0) -> Callable[[], AllocationSpace]:
    """A function that makes a fresh space (nothing cached) of the same jobs."""
    rng = np.random.default_rng(seed)
    table = JobTable.from_columns(
        job_id=[f"job-{i}" for i in range(jobs)],
        arrival=np.sort(rng.uniform(0, 5000, jobs)),
        num_gpus=rng.choice([1, 1, 1, 2, 4, 8], jobs),
        total_steps=rng.uniform(1e4, 1e6, jobs),
        tenant=[f"tenant-{i % 8}" for i in range(jobs)],
    )
    cluster = "+".join(f"{max(8, gpus_per_type)}x{name}" for name in TYPES)
    first = AllocationSpace.from_jobs(table, cluster, Rates(jobs, seed))
    first.ledger.isolated_seconds[:] = first.elapsed * rng.uniform(0.5, 2.0, jobs)
    return lambda: AllocationSpace(first.catalog, first.ledger, first.index, now=first.now)


def plain_cvxpy_max_min(space: AllocationSpace) -> float:
    """The max-min model as one would write it: one expression per job, no vectorisation."""
    import cvxpy as cp

    jobs, types = space.requested_rate.shape
    x = cp.Variable((jobs, types))
    value = [
        space.requested_gpus[i] / space.proportional_rate[i] * cp.sum(cp.multiply(space.requested_rate[i], x[i]))
        for i in range(jobs)
    ]
    limits = [x >= 0]
    limits += [cp.sum(x[i]) <= 1 for i in range(jobs)]
    limits += [
        cp.sum([space.requested_gpus[i] * x[i, j] for i in range(jobs)]) <= space.capacity[j] for j in range(types)
    ]
    problem = cp.Problem(cp.Maximize(cp.minimum(*value)), limits)
    return float(problem.solve(solver=cp.CLARABEL))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=4096, help="jobs of the overhead measurement")
    parser.add_argument("--repeats", type=int, default=5, help="the fastest of so many runs counts")
    parser.add_argument("--skip-baseline", action="store_true", help="leave out the slow per-job cvxpy model")
    arguments = parser.parse_args()
    n = arguments.jobs

    print(f"Overhead of modelling, max-min fairness, {n} jobs x 3 types")
    for label, gpus in (("contended, n/48 a type", n // 48), ("n/4 a type", n // 4), ("plentiful, n a type", n)):
        make = instance(n, gpus)
        policy = Policy(objective=MaxMin(NormalizedThroughput()))
        runs = [policy.allocate(make()) for _ in range(arguments.repeats)]
        build = min(run.build_seconds for run in runs)
        solve = min(run.solve_seconds for run in runs)
        print(
            f"  {label:24s} solver {1e3 * solve:7.1f} ms  overhead {1e3 * build:5.1f} ms  ratio {build / solve:6.1%}"
            f"  ({runs[0].solver})"
        )

    print("Exact policies, 2048 jobs x 3 types, everything included")
    for label, gpus in (("contended, n/4 a type", 512), ("plentiful, n a type", 2048)):
        make = instance(2048, gpus)
        for name in ("finish_time_fairness", "water_filling_max_min_fairness", "min_makespan", "fifo", "srtf"):
            best, solves = np.inf, 0
            for _ in range(arguments.repeats):
                space = make()
                started = time.perf_counter()
                solves = get_policy(name).allocate(space).num_solves
                best = min(best, time.perf_counter() - started)
            print(f"  {label:24s} {name:32s} {best:6.3f} s  {solves} solves")

    print("Ranking 100 jobs (no program)")
    small = instance(100, 8)()
    policy = get_policy("las")
    policy.rank(small)
    started = time.perf_counter()
    for _ in range(1000):
        policy.rank(small)
    print(f"  las.rank {1e3 * (time.perf_counter() - started):.1f} us")

    if not arguments.skip_baseline:
        make = instance(1024, 256)
        started = time.perf_counter()
        ours = get_policy("max_min_fairness").allocate(make()).objective
        own = time.perf_counter() - started
        started = time.perf_counter()
        plain = plain_cvxpy_max_min(make())
        baseline = time.perf_counter() - started
        print("Baseline: the same model in cvxpy with one expression a job, 1024 jobs")
        print(f"  cvxpy {baseline:.2f} s, ours {own:.3f} s: {baseline / own:.0f} x; objectives {plain:.6f} {ours:.6f}")


if __name__ == "__main__":
    main()
