"""How long one allocation takes by policy, and beside it the same model written plainly, where there is one.

    python benchmarks/policies.py [--jobs 2048] [--repeats 3] [NAME ...]

Contended: a quarter as many GPUs of each of three types as there are jobs (gangs of 1 to 8). Plentiful: as many as
jobs, so that bounds of single jobs bind and policies in stages have the most of them. The plain models are cvxpy with
exponential cones (proportional fairness, which proves nothing) and SciPy's Hungarian method over one column a GPU
(AlloX), as published code has them; ratios carry over between machines. ``LIMIT`` seconds is what one allocation may
take at 2,048 jobs, by the clock or, on a machine that others use as well, of the processor.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import product

import numpy as np
from formulations import instance

from bloxopt.formulations import AllocationSpace, NormalizedThroughput, Policy, ProportionalFairness
from bloxopt.formulations.policies import get_policy
from bloxopt.solvers import SolverOptions

LIMIT = 2.0
PLAIN_JOBS = 256
"""Jobs at which the plain models are timed: they do not get to 2,048 in reasonable time."""


def tree(fifo: bool) -> dict[str, object]:
    """Four of the instance's eight tenants under one entity of weight 2, the others beside it."""
    inner = {f"tenant-{i}": {"weight": 1 + i, "policy": "fifo" if fifo and i % 2 else "fairness"} for i in range(4)}
    return {"research": {"weight": 2, "children": inner}, **{f"tenant-{i}": 1.0 for i in range(4, 8)}}


def with_deadlines(make: Callable[[], AllocationSpace], slack: float) -> Callable[[], AllocationSpace]:
    """The same jobs, each second one with a deadline at up to ``slack`` times what it takes alone."""
    rng = np.random.default_rng(1)
    space = make()
    due = space.now + space.remaining_steps / space.fastest_rate * rng.uniform(1.0, slack, space.num_jobs)
    space.catalog.table.deadline[:] = np.where(np.arange(space.num_jobs) % 2, due, np.inf)
    return make


def policies() -> dict[str, Policy]:
    """The policies to be timed, by what is printed."""
    return {
        "proportional fairness": Policy(objective=ProportionalFairness(NormalizedThroughput())),
        "hierarchical": get_policy("hierarchical", entities=tree(False)),
        "hierarchical, FIFO leaves": get_policy("hierarchical", entities=tree(True)),
        "min_cost": get_policy("min_cost"),
        "min_cost_slos": get_policy("min_cost_slos"),
        "min_cost_slos, clashing": get_policy("min_cost_slos", options=SolverOptions(mip_gap=1e-3)),
        "min_cost_slos, clash, least": get_policy("min_cost_slos", unmet="least"),
        "strategy_proof": get_policy("strategy_proof"),
        "allox": get_policy("allox"),
        "themis": get_policy("themis"),
        "themis, all bid": get_policy("themis", fairness=0.0),
        "gandiva_fair": get_policy("gandiva_fair"),
        "gandiva_fair, program": get_policy("gandiva_fair", trade="program"),
    }


def plain_proportional_fairness(space: AllocationSpace) -> None:
    """Exponential cones, one expression for all jobs."""
    import cvxpy as cp

    worth = space.requested_rate * (space.requested_gpus / space.proportional_rate)[:, None]
    x = cp.Variable(worth.shape, nonneg=True)
    limits = [cp.sum(x, axis=1) <= 1, space.requested_gpus @ x <= space.capacity]
    cp.Problem(cp.Maximize(cp.sum(cp.log(cp.sum(cp.multiply(worth, x), axis=1)))), limits).solve(solver=cp.CLARABEL)


def plain_matching(space: AllocationSpace) -> None:
    """SciPy's Hungarian method over one column a GPU and position, as published code builds it."""
    from scipy.optimize import linear_sum_assignment

    seconds = space.remaining_steps[:, None] / space.requested_rate * space.requested_gpus[:, None]
    machines = np.repeat(np.arange(len(space.capacity)), space.capacity)
    deep = -(-space.num_jobs // len(machines)) + 2
    cost = np.concatenate([k * seconds[:, machines] for k in range(1, deep + 1)], axis=1)
    linear_sum_assignment(cost)


PLAIN = {"proportional fairness": plain_proportional_fairness, "allox": plain_matching}


def best_of(
    repeats: int, make: Callable[[], AllocationSpace], run: Callable[[AllocationSpace], object]
) -> tuple[float, float]:
    """The least wall-clock and the least processor time (s) of so many runs."""
    wall = busy = np.inf
    for _ in range(repeats):
        space = make()
        started, worked = time.perf_counter(), time.process_time()
        run(space)
        wall = min(wall, time.perf_counter() - started)
        busy = min(busy, time.process_time() - worked)
    return wall, busy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only those whose name contains one of these")
    parser.add_argument("--jobs", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3, help="the fastest of so many runs counts")
    arguments = parser.parse_args()
    n = arguments.jobs
    print(f"One allocation, {n} jobs x 3 types, everything included; limit {LIMIT:g} s")
    for (name, policy), gpus in product(policies().items(), (n // 4, n)):
        if arguments.names and not any(part in name for part in arguments.names):
            continue
        make = instance(n, gpus)
        if "slos" in name:
            make = with_deadlines(make, 1.2 if "clash" in name else 10.0)
        wall, busy = best_of(arguments.repeats, make, policy.allocate)
        allocation = policy.allocate(make())
        supply = "contended" if gpus < n else "plentiful"
        verdict = "" if min(wall, busy) <= LIMIT else "  OVER THE LIMIT"
        print(
            f"  {name:28s} {supply} {wall:7.3f} s ({busy:.3f} s of processor)  {allocation.num_solves:3d} solves  "
            f"{allocation.termination}{verdict}"
        )
        if name in PLAIN and gpus < n:
            small = instance(PLAIN_JOBS, PLAIN_JOBS // 4)
            _, own = best_of(arguments.repeats, small, policy.allocate)
            _, plain = best_of(arguments.repeats, small, PLAIN[name])
            print(f"  {'':38s} {own:7.3f} s at {PLAIN_JOBS} jobs, plain model {plain:.3f} s: {plain / own:.1f} times")


if __name__ == "__main__":
    main()
