"""Rounds with a deadline: random programs, every solver, limits of 1 ms to 1 s. How late, by which rung, how valid?

    python benchmarks/anytime.py [programs per solver] [solver ...]

A round here is what a scheduler does with an allocation: make it by the deadline, check it. Late is what passes after
the deadline; at most 50 ms are allowed. The baseline beside it is the same round without the ladder: the solver called
in this process with its own time limit, which may fail or overrun.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

import numpy as np

from bloxopt.anytime import Ladder
from bloxopt.errors import BloxoptError
from bloxopt.formulations import (
    Budget,
    Capacity,
    EffectiveThroughput,
    MaxMin,
    MaxSum,
    MinimumShare,
    MinMax,
    NormalizedThroughput,
    OneConfiguration,
    Policy,
    RemainingTime,
    TenantQuota,
    TimeShare,
    WaterFilling,
)
from bloxopt.formulations.allocation import Allocation
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import Job
from bloxopt.solvers import SOLVERS, get_solver
from bloxopt.solvers.base import SolverOptions

ALLOWED_LATE = 0.050
TYPES = ("V100", "P100", "K80")


def random_round(random: np.random.Generator) -> tuple[Policy, AllocationSpace]:
    """A cluster, jobs and a policy."""
    count = int(2 ** random.uniform(0, 8))
    jobs = [
        Job(
            job_id=f"j{k}",
            job_type=f"t{k % 20}",
            total_steps=float(10 ** random.uniform(2, 6)),
            num_gpus=int(random.choice([1, 1, 2, 4, 8])),
            tenant=str(random.choice(["a", "b", "c"])),
            weight=float(random.choice([1.0, 2.0, 4.0])),
        )
        for k in range(count)
    ]
    speeds = {kind: float(random.uniform(0.5, 4.0)) for kind in TYPES}
    table = {
        (f"t{k}", kind, gpus): speed * gpus * float(random.uniform(0.5, 1.5))
        for k in range(20)
        for kind, speed in speeds.items()
        for gpus in (1, 2, 4, 8)
    }
    nodes = random.integers(1, 12, 3)
    space = AllocationSpace.from_jobs(jobs, "+".join(f"{n}x8x{t}" for n, t in zip(nodes, TYPES, strict=True)), table)
    integer = random.random() < 0.3
    blocks = [Capacity(), OneConfiguration() if integer else TimeShare()]
    tenants = space.catalog.table.tenants
    if random.random() < 0.3:
        blocks.append(TenantQuota({str(random.choice(tenants)): float(random.integers(8, 40))}))
    if random.random() < 0.2:
        blocks.append(Budget(float(random.uniform(50, 200)), dict(zip(TYPES, (3.0, 2.0, 1.0), strict=True))))
    if random.random() < 0.2:
        shares = {tenant: float(random.uniform(0.05, 0.6)) for tenant in tenants}
        blocks.append(MinimumShare(shares, of="gpus"))
    objectives = [MaxSum(EffectiveThroughput()), MaxMin(NormalizedThroughput())]
    if not integer:
        objectives += [WaterFilling(NormalizedThroughput()), MinMax(RemainingTime())]
    return Policy(objective=objectives[int(random.integers(len(objectives)))], constraints=blocks), space


def is_valid(allocation: Allocation) -> bool:
    """Capacity, time and upper limits, worked out from the shares alone."""
    space, x = allocation.space, allocation.x
    used = np.bincount(space.gpu_type, weights=x * space.num_gpus, minlength=len(space.gpu_types))
    spent = np.bincount(space.job, weights=x, minlength=space.num_jobs)
    if not (np.isfinite(x).all() and (x >= -1e-9).all()):
        return False
    if not ((used <= space.capacity * (1 + 1e-5) + 1e-5).all() and (spent <= 1 + 1e-5).all()):
        return False
    for block in allocation.constraints.values():
        if isinstance(block, (TenantQuota, Budget)) and block.violations(space, x).max(initial=0.0) > 1e-5:
            return False
    return True


def main() -> None:
    programs = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    solvers = sys.argv[2:] or [name for name in SOLVERS if get_solver(name).capabilities.lp]
    print(f"{programs} programs a solver, limits of 1 ms to 1 s; late: ms after the deadline")
    heads = f"{'late p50':>9} {'p99':>7} {'max':>7} {'> 50 ms':>7}  {'alone: failed':>13} {'late max':>9}"
    print(f"{'solver':16} {'invalid':>7} {heads}  rungs")
    for name in solvers:
        random = np.random.default_rng(2026)
        invalid, late, rungs = 0, [], Counter()
        alone_failed, alone_late = 0, 0.0
        ladder = Ladder(1.0)
        ladder.start(name, wait=60.0)
        for number in range(programs):
            policy, space = random_round(random)
            _ = space.job, space.rate, space.requested_rate  # what a scheduler has at hand before its round begins
            limit = float(10 ** random.uniform(-3, 0))
            deadline = time.monotonic() + limit
            allocation = ladder.allocate(policy, space, deadline=deadline, solver=name)
            late.append(max(time.monotonic() - deadline, 0.0))
            invalid += not is_valid(allocation)
            rungs[allocation.rung] += 1
            if number < programs // 10:
                deadline = time.monotonic() + limit
                try:
                    policy.allocate(space, name, SolverOptions(time_limit=limit))
                except BloxoptError:
                    alone_failed += 1
                alone_late = max(alone_late, time.monotonic() - deadline)
        ladder.close()
        ms = 1000 * np.array(late)
        shares = ", ".join(f"{rung} {100 * count / programs:.0f} %" for rung, count in rungs.most_common())
        tried = max(programs // 10, 1)
        times = f"{np.percentile(ms, 50):9.1f} {np.percentile(ms, 99):7.1f} {ms.max():7.1f}"
        over = int((ms > 1000 * ALLOWED_LATE).sum())
        alone = f"{alone_failed:6} of {tried:<4} {1000 * max(alone_late, 0):8.0f}"
        print(f"{name:16} {invalid:7} {times} {over:7}  {alone}  {shares}", flush=True)


if __name__ == "__main__":
    main()
