"""Allocation time with space sharing at 512 jobs on three GPU types, and beside a program with a column for each pair.

    python benchmarks/packing.py [--jobs 512] [--pairs 96] [--limit 2.0] [--repeats 3]

The limit is per allocation, everything included (columns, program, solver, check). The ratio is against the model that
one would write in cvxpy, vectorised, with a column for each pair of jobs (as Gavel's), at ``--pairs`` jobs in the same
process; at 512 jobs that model has some 290,000 columns. All jobs have one GPU: only these have measured pairs, so
these are the instances with the most columns.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from scipy.sparse import csr_array

from bloxopt.formulations import AllocationSpace
from bloxopt.formulations.policies import get_policy
from bloxopt.jobs import JobTable
from bloxopt.workloads import load_trace

POLICIES = (
    "max_min_fairness_packed",
    "water_filling_max_min_fairness_packed",
    "finish_time_fairness_packed",
    "min_makespan_packed",
    "max_sum_throughput_packed",
    "gandiva",
)


def instance(count: int, seed: int = 0) -> AllocationSpace:
    """``count`` jobs of Gavel's models of one GPU, and a quarter as many GPUs of each type."""
    oracle = load_trace("gavel-100").throughput
    rng = np.random.default_rng(seed)
    models = rng.choice(sorted({key[0] for key in oracle.table if key[2] == 1}), count)
    alone = np.array([oracle.table[model, "v100", 1] for model in models])
    table = JobTable.from_columns(
        job_id=[f"job-{i}" for i in range(count)],
        arrival=np.sort(rng.uniform(0, 5000, count)),
        job_type=models,
        num_gpus=np.ones(count, dtype=np.int64),
        total_steps=alone * 3600 * 10 ** rng.uniform(0, 2, count),
    )
    gpus = max(1, count // 4)
    return AllocationSpace.from_jobs(table, f"{gpus}xV100+{gpus}xP100+{gpus}xK80", oracle, pair_threshold=1.0)


def fresh(space: AllocationSpace) -> AllocationSpace:
    """The same jobs with nothing worked out."""
    return AllocationSpace(space.catalog, space.ledger, space.index, now=space.now)


def column_per_pair(space: AllocationSpace) -> tuple[float, int]:
    """Max-min fairness with a column for each job and each pair that pays, and how many columns that takes."""
    import cvxpy as cp

    n, types = space.requested_rate.shape
    pairing = space.catalog.pairing
    assert pairing is not None
    kind = pairing.kind[space.index]
    first, second = np.triu_indices(n, 1)
    pays = pairing.factor[kind[first], kind[second]] > 0
    pair, pair_type = pays.nonzero()
    a, b = first[pair], second[pair]
    job, lone_type = (space.requested_rate > 0).nonzero()
    columns = len(job) + len(pair)
    gpu_type = np.concatenate([lone_type, pair_type])
    at = len(job) + np.arange(len(pair))
    owner = np.concatenate([job, a, b])
    column = np.concatenate([np.arange(len(job)), at, at])
    lone = space.requested_rate[job, lone_type]
    of_a = space.requested_rate[a, pair_type] * pairing.factor[kind[a], kind[b], pair_type]
    of_b = space.requested_rate[b, pair_type] * pairing.factor[kind[b], kind[a], pair_type]
    rate = np.concatenate([lone, of_a, of_b]) / space.proportional_rate[owner]
    x = cp.Variable(columns, nonneg=True)
    throughput = csr_array((rate, (owner, column)), shape=(n, columns))
    time_share = csr_array((np.ones(len(owner)), (owner, column)), shape=(n, columns))
    capacity = csr_array((np.ones(columns), (gpu_type, np.arange(columns))), shape=(types, columns))
    problem = cp.Problem(
        cp.Maximize(cp.min(throughput @ x)), [time_share @ x <= 1, capacity @ x <= space.capacity.astype(float)]
    )
    problem.solve(solver=cp.CLARABEL)
    return float(problem.value), columns


def best_of(repeats: int, call) -> tuple[float, object]:
    """Shortest wall time in seconds, and what came back."""
    seconds, answer = np.inf, None
    for _ in range(repeats):
        started = time.perf_counter()
        answer = call()
        seconds = min(seconds, time.perf_counter() - started)
    return seconds, answer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=96)
    parser.add_argument("--limit", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    failed = False
    space = instance(options.jobs)
    for name in POLICIES:
        policy = get_policy(name)
        seconds, found = best_of(options.repeats, lambda policy=policy: policy.allocate(fresh(space)))
        failed |= seconds > options.limit
        print(
            f"{name:40s} {options.jobs} jobs, {found.space.num_columns} columns, {found.num_solves} solves: "
            f"{seconds:.2f} s (limit {options.limit:g} s){'  TOO SLOW' if seconds > options.limit else ''}"
        )
    small = instance(options.pairs)
    ours, found = best_of(options.repeats, lambda: get_policy("max_min_fairness_packed").allocate(fresh(small)))
    theirs, (value, columns) = best_of(1, lambda: column_per_pair(small))
    apart = abs(found.objective - value) / value
    print(
        f"{options.pairs} jobs: ours {ours:.3f} s with {found.space.num_columns} columns, a column for each pair in "
        f"cvxpy {theirs:.2f} s with {columns}: ratio {theirs / ours:.1f}, objectives apart by {apart:.1e}"
    )
    return int(failed or apart > 1e-5)


if __name__ == "__main__":
    sys.exit(main())
