"""Re-solves after 2 % of the jobs have gone and as many have come, beside solves from nothing.

    python benchmarks/incremental.py [--jobs 4096] [--rounds 8] [--policies max_min_fairness,sia] [--solvers auto,highs]

Every round is allocated twice on fresh spaces, once from nothing and once from the answers of the round before, all
that ``Policy.allocate`` does included, in processor time of all threads; medians count, from the fourth round on (the
first has no answer to begin from, and the second may have one without a basis). ``off`` is the largest relative
difference of the objectives. Ratios above the limit are marked. Jobs that are given whole configurations run on them in
the next round.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads that wait for each other count as work

import argparse
import time

import numpy as np

from bloxopt.cluster import load_cluster
from bloxopt.formulations import Allocation, AllocationSpace
from bloxopt.formulations.policies import get_policy
from bloxopt.formulations.solving.resuming import Resolver
from bloxopt.formulations.space import ConfigurationCatalog
from bloxopt.jobs import JobTable
from bloxopt.state import JobLedger

LIMIT = 0.4
"""Part of a solve from nothing that a re-solve may take."""

TYPES = ("v100", "p100", "k80")
POLICIES = (
    "max_min_fairness",
    "max_sum_throughput",
    "finish_time_fairness",
    "water_filling_max_min_fairness",
    "sia",
)
WARM_UP = 3


class Rates:
    """Steps/s drawn once per job and GPU type: V100 fastest for most models; more GPUs help less and less."""

    def __init__(self, jobs: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        base = np.exp(random.normal(1.0, 1.2, jobs))
        self.table = base[:, None] * np.sort(random.uniform(0.2, 4.0, (jobs, 3)), axis=1)[:, ::-1]
        self.efficiency = random.uniform(0.4, 0.95, jobs)

    def rates(self, jobs: JobTable, gpu_types: object, num_gpus: object) -> np.ndarray:
        row = np.array([int(name[4:]) for name in jobs.job_id])
        return self.table[row] * (np.asarray(num_gpus) ** self.efficiency[row])[:, None]


class Churn:
    """A cluster in which a part of the jobs is replaced between two rounds and the others progress."""

    def __init__(self, jobs: int, gpus_per_type: int, rounds: int, part: float, elastic: bool, seed: int = 0) -> None:
        self.random = random = np.random.default_rng(seed)
        self.elastic = elastic
        self.moving = round(part * jobs)
        total = jobs + self.moving * rounds
        arrival = np.concatenate(
            [np.sort(random.uniform(0, 5000, jobs)), 5000 + 360.0 * np.repeat(np.arange(rounds), self.moving)]
        )
        sizes = {"min_gpus": np.ones(total, int), "max_gpus": np.full(total, 8)} if elastic else {}
        table = JobTable.from_columns(
            job_id=[f"job-{i}" for i in range(total)],
            arrival=arrival,
            num_gpus=random.choice([1, 1, 1, 2, 4, 8], total),
            total_steps=random.uniform(1e4, 1e6, total),
            **sizes,
        )
        cluster = load_cluster("+".join(f"{max(8, gpus_per_type)}x{name}" for name in TYPES))
        self.catalog = ConfigurationCatalog(table, cluster, Rates(total, seed))
        self.ledger = JobLedger(table)
        self.ledger.isolated_seconds[:] = arrival * random.uniform(0.5, 2.0, total)
        self.index, self.next, self.now = np.arange(jobs), jobs, 5000.0

    @property
    def space(self) -> AllocationSpace:
        """The active jobs, with nothing worked out yet."""
        return AllocationSpace(self.catalog, self.ledger, self.index, now=self.now)

    def run(self, allocation: Allocation) -> None:
        """Jobs run on the whole configurations that they were given."""
        space, chosen = allocation.space, np.flatnonzero(np.round(allocation.x))
        self.ledger.gpu_type[self.index], self.ledger.gpus[self.index] = -1, 0
        rows = self.index[space.job[chosen]]
        self.ledger.gpu_type[rows], self.ledger.gpus[rows] = space.gpu_type[chosen], space.num_gpus[chosen]

    def step(self) -> None:
        """One round later."""
        gone = self.random.choice(len(self.index), self.moving, replace=False)
        self.index = np.concatenate([np.delete(self.index, gone), np.arange(self.next, self.next + self.moving)])
        self.next += self.moving
        self.ledger.remaining_steps[self.index] *= self.random.uniform(0.98, 1.0, len(self.index))
        self.ledger.isolated_seconds[self.index] += self.random.uniform(0.0, 360.0, len(self.index))
        self.now += 360.0


def measure(name: str, solver: str | None, churn: Churn, rounds: int) -> str:
    """One line of the table."""
    policy, resolver = get_policy(name), Resolver()
    cold, warm, reasons, off = [], [], set(), 0.0
    allocation = None
    for number in range(rounds + WARM_UP):
        spaces = churn.space, churn.space
        begin = time.process_time()
        reference = policy.allocate(spaces[0], solver=solver)
        middle = time.process_time()
        allocation = policy.allocate(spaces[1], solver=solver, resume=resolver)
        end = time.process_time()
        off = max(off, abs(allocation.objective - reference.objective) / abs(reference.objective))
        if number >= WARM_UP:
            cold.append(middle - begin)
            warm.append(end - middle)
            reasons.add(allocation.rebuild)
        if churn.elastic:
            churn.run(allocation)
        churn.step()
    assert allocation is not None
    ratio = float(np.median(warm) / np.median(cold))
    note = "" if reasons == {""} else "; ".join(sorted(filter(None, reasons)))
    mark = " " if ratio <= LIMIT else "*"
    return (
        f"{name:31s} {solver or policy.solver!s:9s} {1e3 * np.median(cold):8.1f} {1e3 * np.median(warm):8.1f}"
        f" {ratio:6.1%}{mark} {allocation.resumed:3d} of {allocation.num_solves:2d}   {off:.0e}   {note}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=8, help="rounds measured")
    parser.add_argument("--churn", type=float, default=0.02, help="part of the jobs replaced in each round")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--solvers", default="auto,highs", help="for all policies that do not bring their own")
    arguments = parser.parse_args()
    # Until it has freed an array of this size, glibc hands memory back to the system, and fetches it, every few arrays.
    large = np.empty(4_000_000)
    del large
    jobs, rounds = arguments.jobs, arguments.rounds
    for label, gpus in (("contended, n/48 GPUs a type", jobs // 48), ("plentiful, n GPUs a type", jobs)):
        print(f"{jobs} jobs x 3 types, {label}, {arguments.churn:.0%} churn a round; limit {LIMIT:.0%} of a cold solve")
        print(f"{'policy':31s} {'solver':9s} {'cold ms':>8s} {'warm ms':>8s} {'ratio':>6s}  resumed     off")
        for name in arguments.policies.split(","):
            own = get_policy(name).solver != "auto"
            for solver in [None] if own else arguments.solvers.split(","):
                churn = Churn(jobs, gpus, rounds + WARM_UP, arguments.churn, elastic=own)
                print(measure(name, solver, churn, rounds), flush=True)


if __name__ == "__main__":
    main()
