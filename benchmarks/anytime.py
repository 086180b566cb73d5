"""Rounds with a deadline: random programs, every solver, limits of 1 ms to 1 s. How late, by which rung, how valid?

    python benchmarks/anytime.py [programs per solver] [solver ...] [--output FOLDER]

A round here is what a scheduler does with an allocation: make it by the deadline, check it. Late is what passes after
the deadline; at most 50 ms are allowed. The baseline beside it is the same round without the ladder, for every 50th
program: the solver called in this process with its own time limit, which may fail or overrun.

With ``--output`` every round is written to a file per solver in that folder; what is there already is not run again,
so that a run can be interrupted and continued. Program 17 is the same for all solvers and in every run.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path

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
from bloxopt.solvers import SOLVERS
from bloxopt.solvers.base import SolverOptions

ALLOWED_LATE_MS = 50.0
BASELINE_EVERY = 50
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


@dataclass(frozen=True)
class Row:
    """What became of one program; ``alone`` is ms after the deadline without the ladder, nan if not tried."""

    number: int
    columns: int
    objective: str
    integer: bool
    limit_ms: float
    late_ms: float
    rung: str
    valid: bool
    alone_failed: bool
    alone_ms: float
    message: str


def rounds(solver: str, numbers: range) -> Iterator[Row]:
    """Each of the numbered programs, decided by the ladder."""
    ladder = Ladder(1.0)
    ladder.start(solver, wait=60.0)
    for number in numbers:
        random = np.random.default_rng([2026, number])
        policy, space = random_round(random)
        _ = space.job, space.rate, space.requested_rate  # what a scheduler has at hand before its round begins
        limit = float(10 ** random.uniform(-3, 0))
        deadline = time.monotonic() + limit
        allocation = ladder.allocate(policy, space, deadline=deadline, solver=solver)
        late = max(time.monotonic() - deadline, 0.0)
        failed, alone = False, float("nan")
        if number % BASELINE_EVERY == 0:
            deadline = time.monotonic() + limit
            try:
                policy.allocate(space, solver, SolverOptions(time_limit=limit))
            except BloxoptError:
                failed = True
            alone = 1000 * max(time.monotonic() - deadline, 0.0)
        objective, integer = (
            type(policy.objective).__name__,
            any(isinstance(b, OneConfiguration) for b in policy.blocks),
        )
        known = (number, space.num_columns, objective, integer, round(1000 * limit, 3), round(1000 * late, 3))
        message = allocation.message[:400].replace("\n", " ")
        yield Row(*known, allocation.rung, is_valid(allocation), failed, round(alone, 3), message)
    ladder.close()


def decided(solver: str, programs: int, folder: Path | None) -> list[Row]:
    """The first so many programs, those that a file in the folder has from there."""
    if folder is None:
        return list(rounds(solver, range(programs)))
    folder.mkdir(parents=True, exist_ok=True)
    return continued(solver, programs, folder / f"{solver.replace(':', '-')}.csv")


def read(path: Path) -> list[Row]:
    """The rounds that a file has, whole lines only."""
    with path.open(newline="") as file:
        found = [entry for entry in csv.DictReader(file) if entry["message"] is not None]
    return [
        Row(
            int(entry["number"]),
            int(entry["columns"]),
            entry["objective"],
            entry["integer"] == "True",
            float(entry["limit_ms"]),
            float(entry["late_ms"]),
            entry["rung"],
            entry["valid"] == "True",
            entry["alone_failed"] == "True",
            float(entry["alone_ms"]),
            entry["message"],
        )
        for entry in found
    ]


def continued(solver: str, programs: int, path: Path) -> list[Row]:
    """The rounds of a file with those that it lacks appended."""
    done = read(path)[:programs] if path.exists() else []
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in done)
        for row in rounds(solver, range(len(done), programs)):
            writer.writerow(asdict(row))
            done.append(row)
            if len(done) % 100 == 0:
                file.flush()
                late = sum(row.late_ms > ALLOWED_LATE_MS for row in done)
                print(f"{solver}: {len(done)} of {programs}, {late} late", end="\r", file=sys.stderr, flush=True)
    return done


def report(solver: str, rows: list[Row]) -> str:
    """One line of the table."""
    late = np.array([row.late_ms for row in rows])
    alone = np.array([row.alone_ms for row in rows if not np.isnan(row.alone_ms)])
    failed = sum(row.alone_failed for row in rows)
    rungs = Counter(row.rung for row in rows)
    shares = ", ".join(f"{rung} {100 * count / len(rows):.0f} %" for rung, count in rungs.most_common())
    return (
        f"{solver:16} {len(rows):8} {sum(not row.valid for row in rows):7} {np.percentile(late, 50):9.1f} "
        f"{np.percentile(late, 99):7.1f} {late.max():7.1f} {int((late > ALLOWED_LATE_MS).sum()):7}  "
        f"{failed:6} of {len(alone):<4} {alone.max(initial=0.0):8.0f}  {shares}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="?", type=int, default=40, help="programs per solver (default: 40)")
    parser.add_argument("solvers", nargs="*", metavar="solver", help="names of solvers (default: all)")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="folder for the rounds, to continue from")
    options = parser.parse_intermixed_args()
    programs, solvers = options.programs, options.solvers or list(SOLVERS)
    print(f"{programs} programs a solver, limits of 1 ms to 1 s; late: ms after the deadline")
    heads = f"{'late p50':>9} {'p99':>7} {'max':>7} {'> 50 ms':>7}  {'alone: failed':>14} {'late max':>8}"
    print(f"{'solver':16} {'programs':>8} {'invalid':>7} {heads}  rungs")
    # A process per solver: the baseline loads it into its own, and not all of them get on with each other.
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned, max_tasks_per_child=1) as processes:
        for name in solvers:
            rows = processes.submit(decided, name, programs, options.output).result()
            print(report(name, rows), flush=True)


if __name__ == "__main__":
    main()
