"""How fast a window of Shockwave's policy is planned, and how good: against the binary program of all its rounds.

    python benchmarks/shockwave.py [--copies N ...] [--rounds T] [--seeds N] [--time-limit S] [--no-binary]

All 120 jobs of its trace (times the copies) are active at once on 32 GPUs (times the copies), each with part of its
work done, an hour after the last arrival. ``ours`` is one allocation: predictions, targets, the program in counts of
rounds and who runs in which. ``binary`` is the published program, a binary per job and round, solved by HiGHS to the
same gap of 1e-4 or the time limit (the published runs stop at 15 s). ``gap`` is how far each is from the better bound,
in units of the welfare, which is the same for both.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, eye_array, hstack, kron, vstack

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bloxopt.formulations import AllocationSpace  # noqa: E402
from bloxopt.formulations.policies import get_policy  # noqa: E402
from bloxopt.formulations.systems.window_program import WindowWelfare  # noqa: E402
from bloxopt.workloads import Trace, load_trace  # noqa: E402


def busy_space(copies: int, seed: int) -> AllocationSpace:
    """So many copies of the trace's jobs, all active, with a random part of their work done."""
    trace = load_trace("shockwave-120-regimes")
    row = np.tile(np.arange(len(trace)), copies)
    jobs = trace.jobs.take(np.sort(row))
    ids = np.array([f"{job_id}-{k}" for k, job_id in enumerate(jobs.job_id)], dtype=object)
    jobs = replace(jobs, job_id=ids)
    left = np.random.default_rng(seed).uniform(0.02, 1.0, len(jobs)) * jobs.total_steps
    busy = Trace("busy", jobs, trace.throughput)
    return AllocationSpace.from_jobs(
        busy, f"{32 * copies}x1xV100", remaining_steps=left, now=float(jobs.arrival.max()) + 3600.0, round_seconds=120.0
    )


def record_welfare() -> list[WindowWelfare]:
    """The list to which every welfare that is maximised from now on is added."""
    recorded: list[WindowWelfare] = []
    original = WindowWelfare.add_to

    def add_to(self: WindowWelfare, *arguments: object) -> object:
        recorded.append(self)
        return original(self, *arguments)  # type: ignore[arg-type]

    WindowWelfare.add_to = add_to  # type: ignore[assignment, method-assign]
    return recorded


def binary_program(
    welfare: WindowWelfare, sizes: np.ndarray, gpus: int, limit: float
) -> tuple[float, np.ndarray | None, float, str]:
    """Seconds, rounds of each job (None: nothing found), proven bound and ending of the published program."""
    jobs, rounds, points = len(sizes), welfare.rounds, welfare.points
    logs = np.log(np.maximum(points, welfare.origin))
    one, count = eye_array(jobs), len(points)
    # Columns: x (job-major), seconds of work, a share of each point, whether a point is used, the longest time left.
    zero = lambda rows, columns: csr_array((rows, columns))  # noqa: E731
    per_round = kron(np.ones((1, jobs)) * sizes, eye_array(rounds))
    pairs = [(a, b) for a in range(count) for b in range(a + 2, count)]
    apart = np.zeros((len(pairs), count))
    for at, (a, b) in enumerate(pairs):
        apart[at, [a, b]] = 1.0
    x, p = jobs * rounds, jobs * count
    rows = [
        (hstack([per_round, zero(rounds, jobs), zero(rounds, 2 * p + 1)]), -np.inf, float(gpus)),
        (hstack([-welfare.round_seconds * kron(one, np.ones((1, rounds))), one, zero(jobs, 2 * p + 1)]), -np.inf, 0.0),
        (
            hstack(
                [zero(jobs, x), -one.multiply(1 / welfare.whole[:, None]), kron(one, points[None]), zero(jobs, p + 1)]
            ),
            welfare.done,
            welfare.done,
        ),
        (hstack([zero(jobs, x + jobs), kron(one, np.ones((1, count))), zero(jobs, p + 1)]), 1.0, 1.0),
        (hstack([zero(jobs, x + jobs + p), kron(one, np.ones((1, count))), zero(jobs, 1)]), -np.inf, 2.0),
        (hstack([zero(p, x + jobs), eye_array(p), -eye_array(p), zero(p, 1)]), -np.inf, 0.0),
        (hstack([zero(jobs * len(pairs), x + jobs + p), kron(one, apart), zero(jobs * len(pairs), 1)]), -np.inf, 1.0),
        (hstack([zero(jobs, x), one, zero(jobs, 2 * p), np.ones((jobs, 1))]), welfare.remaining, np.inf),
    ]
    matrix = vstack([row for row, _, _ in rows]).tocsr()
    low = np.concatenate([np.broadcast_to(np.asarray(low, float), row.shape[0]) for row, low, _ in rows])
    high = np.concatenate([np.broadcast_to(np.asarray(high, float), row.shape[0]) for row, _, high in rows])
    cost = np.concatenate(
        [
            np.zeros(x + jobs),
            -(welfare.weight[:, None] * logs).ravel() / (jobs * rounds),
            np.zeros(p),
            [welfare.makespan_weight],
        ]
    )
    integral = np.concatenate([np.ones(x), np.zeros(jobs + p), np.ones(p), [0.0]])
    started = time.perf_counter()
    solved = milp(
        cost,
        constraints=LinearConstraint(matrix, low, high),
        bounds=Bounds(0, np.where(integral > 0, 1.0, np.inf)),
        integrality=integral,
        options={"mip_rel_gap": 1e-4, "time_limit": limit},
    )
    seconds = time.perf_counter() - started
    bound = np.inf if solved.mip_dual_bound is None else -float(solved.mip_dual_bound)
    ending = {0: "optimal", 1: "limit"}.get(solved.status, solved.message)
    if solved.x is None:
        return seconds, None, bound, ending
    chosen = np.rint(solved.x[:x]).reshape(jobs, rounds).sum(axis=1)
    return seconds, chosen, bound, ending


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--no-binary", action="store_true")
    chosen = parser.parse_args()
    recorded = record_welfare()
    policy = get_policy("shockwave", rounds=chosen.rounds)
    policy.allocate(busy_space(1, 99))
    print("jobs  GPUs  rounds  seed | ours s (solver)   welfare     gap | binary s    welfare     gap  ending")
    for copies in chosen.copies:
        for seed in range(chosen.seeds):
            space = busy_space(copies, seed)
            # A third of the jobs was there before the others: their targets are from less contended times.
            early = AllocationSpace(space.catalog, space.ledger, space.index[::3], now=space.now - 3600.0)
            policy.allocate(early)
            started = time.perf_counter()
            allocation = policy.allocate(space)
            seconds = time.perf_counter() - started
            welfare, bound = recorded[-1], float(allocation.bound or np.inf)
            line = f"{space.num_jobs:4d}  {32 * copies:4d}  {chosen.rounds:6d}  {seed:4d} | "
            line += f"{seconds:6.2f} ({allocation.solve_seconds:5.2f})"
            other = ""
            if not chosen.no_binary:
                took, counts, proven, ending = binary_program(
                    welfare, space.requested_gpus.astype(float), 32 * copies, chosen.time_limit
                )
                bound = min(bound, proven)
                found = -np.inf if counts is None else welfare.value(space, np.asarray(counts))
                other = f" | {took:8.2f}  {found:9.5f}  {bound - found:6.4f}  {ending}"
            print(f"{line}  {allocation.objective:9.5f}  {bound - allocation.objective:6.4f}{other}", flush=True)


if __name__ == "__main__":
    main()
