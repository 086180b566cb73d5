"""Joint allocation and placement against two stages, in effective throughput.

    python benchmarks/joint_placement.py [--simulate]

Two stages: an allocation that takes every gang at its consolidated rate, then the placement of what it chose. Joint:
the same objective with NodeCapacity and a column each for consolidated gangs and for others. Both choose
the jobs of one round from the same waiting jobs, on the same empty cluster; then the gangs are placed and run at
the rate of the nodes they got (slowdown by Gavel's unconsolidated rows). Effective throughput is the sum over jobs of
steps/s over the job's best consolidated rate. ``--simulate`` also runs whole traces.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import bloxopt as bx  # noqa: E402
from bloxopt.formulations import (  # noqa: E402
    AllocationSpace,
    Capacity,
    MaxSum,
    NodeCapacity,
    NormalizedThroughput,
    OneConfiguration,
    Policy,
    TimeShare,
)
from bloxopt.formulations.objectives.base import MaxMin  # noqa: E402
from bloxopt.placement import get_placement  # noqa: E402
from bloxopt.placement.workspace import Workspace  # noqa: E402
from bloxopt.runtime.assignment import Assignment  # noqa: E402
from bloxopt.selection.base import Decision  # noqa: E402
from bloxopt.solvers.base import SolverOptions  # noqa: E402

OBJECTIVE = MaxSum(NormalizedThroughput(reference="fastest", weighted=False))
OPTIONS = SolverOptions(mip_gap=1e-4, time_limit=20.0)
TWO_STAGE = Policy(objective=OBJECTIVE, constraints=[Capacity(), OneConfiguration()], options=OPTIONS)
JOINT = Policy(
    objective=OBJECTIVE, constraints=[Capacity(), OneConfiguration(), NodeCapacity(whole_nodes=True)], options=OPTIONS
)
"""GPUs asked for weigh in (scale_by_gpus), so that large gangs are not left out."""


def gavel(seed: int, count: int) -> bx.Trace:
    """Jobs drawn as Gavel's simulator draws them: its types, sizes and their proportions."""
    return bx.generate_trace(count, jobs_per_hour=60.0, job_types="gavel", seed=seed)


def philly(seed: int, count: int) -> bx.Trace:
    """Consecutive Philly jobs of up to 8 GPUs (Gavel's table ends there), of types drawn evenly from Gavel's table."""
    table = bx.load_trace("gavel-100").throughput
    mix = dict.fromkeys(sorted({name for name, kind, _ in table.table if kind == "v100"}), 1.0)
    jobs = bx.load_trace("philly").where(max_gpus=8)
    jobs = jobs.take(np.isin(jobs.jobs.num_gpus, [1, 2, 4, 8]))
    first = int(np.random.default_rng(seed).integers(0, len(jobs) - count))
    return jobs.take(np.arange(first, first + count)).with_job_types(mix, seed, throughput=table)


def gangs(make: Callable[[int, int], bx.Trace]) -> Callable[[int, int], bx.Trace]:
    """The same jobs less those of one GPU, which no placement slows down."""

    def only_gangs(seed: int, count: int) -> bx.Trace:
        trace = make(seed, 12 * count)
        return trace.take(np.flatnonzero(trace.jobs.num_gpus > 1)[:count])

    return only_gangs


def effective(trace: bx.Trace, cluster: bx.Cluster, policy: Policy, placement: str) -> tuple[float, float, int]:
    """Effective throughput of one round, what the program promised, and how many gangs were spread."""
    space = AllocationSpace.from_jobs(trace, cluster, slowdown="gavel" if policy.uses_spread else None)
    allocation = policy.allocate(space)
    chosen = (allocation.x > 0.5).nonzero()[0]
    row = space.index[space.job[chosen]]
    promised = space.has_twin[chosen] & (space.spread[chosen] == 0) if policy.uses_spread else None
    decision = Decision(row, space.gpu_type[chosen], space.num_gpus[chosen], promised)
    assignment = Assignment(cluster, trace.jobs)
    up = np.ones(len(cluster.nodes), dtype=bool)
    workspace = Workspace(assignment, cluster, trace.jobs, up, get_placement(placement))
    assignment = assignment.change(*decision.place(assignment, workspace))
    judge = AllocationSpace.from_jobs(trace, cluster, slowdown="gavel").catalog
    rows = np.array(list(assignment), dtype=np.int64)
    grants = list(assignment.values())
    kind = np.array([grant.gpu_type for grant in grants])
    gpus = np.array([grant.num_gpus for grant in grants])
    nodes = np.array([len(grant.nodes) for grant in grants])
    rate = judge.rate_on_nodes(rows, kind, gpus, nodes)
    weight = gpus / space.fastest_rate[rows]
    return float(rate @ weight), allocation.objective, int((nodes > judge.fewest_nodes(kind, gpus)).sum())


def main() -> None:
    seeds = range(10)
    print("GPUs at full speed (effective throughput weighted by gang size), mean over 10 draws of jobs\n")
    head = ("two-stage", "spread", "joint", "spread", "gain", "least", "most", "seconds")
    print(f"{'jobs':14s} {'cluster':28s} " + " ".join(f"{word:>9s}" for word in head))
    for name, make, count, cluster in (
        ("gavel", gavel, 60, "2x4xV100+4x4xP100+6x4xK80"),
        ("gavel", gavel, 60, "1x4xV100+2x2xV100+2x4xP100+4x2xP100+3x4xK80+6x2xK80"),
        ("gavel", gavel, 80, "3x8xV100+8x2xV100"),
        ("philly", philly, 120, "12x8xP100+17x2xP100"),
        ("philly", philly, 120, "6x8xP100+41x2xP100"),
        ("philly", philly, 120, "16x8xP100"),
        ("gavel, gangs", gangs(gavel), 30, "1x4xV100+2x2xV100+2x4xP100+4x2xP100+3x4xK80+6x2xK80"),
        ("philly, gangs", gangs(philly), 60, "12x8xP100+17x2xP100"),
        ("philly, gangs", gangs(philly), 60, "16x8xP100"),
    ):
        two, one, gains, spreads, began = [], [], [], [], time.perf_counter()
        for seed in seeds:
            trace, nodes = make(seed, count), bx.load_cluster(cluster)
            first = effective(trace, nodes, TWO_STAGE, "consolidated")
            second = effective(trace, nodes, JOINT, "exact")
            two.append(first[0])
            one.append(second[0])
            spreads.append((first[2], second[2]))
            gains.append(second[0] / first[0] - 1)
        spread = np.mean(spreads, axis=0)
        print(
            f"{name:14s} {cluster[:28]:28s} {np.mean(two):9.2f} {spread[0]:9.1f} {np.mean(one):9.2f} {spread[1]:9.1f} "
            f"{np.mean(gains):+9.1%} {min(gains):+9.1%} {max(gains):+9.1%} {time.perf_counter() - began:9.1f}",
            flush=True,
        )
    if "--simulate" in sys.argv:
        simulate()


def simulate() -> None:
    """Whole traces under max-min fairness: mean completion time and makespan of the two."""
    objective = MaxMin(NormalizedThroughput())
    policies = {
        "two-stage": Policy(objective=objective, constraints=[Capacity(), TimeShare()]),
        "joint": Policy(objective=objective, constraints=[Capacity(), TimeShare(), NodeCapacity()]),
    }
    print("\nWhole traces, max-min fairness\n")
    for name, trace, cluster in (
        ("gavel-96", bx.load_trace("gavel-96"), "1x4xV100+2x2xV100+2x4xP100+4x2xP100+3x4xK80+6x2xK80"),
        ("philly, gangs", gangs(philly)(0, 150).where(max_duration=36_000).scale_load(20.0), "6x8xP100+41x2xP100"),
    ):
        for label, policy in policies.items():
            for placement in ("consolidated", "exact"):
                begin = time.perf_counter()
                result = bx.simulate(
                    trace,
                    cluster,
                    policy,
                    slowdown="gavel",
                    placement=placement,
                    options=bx.SimulationOptions(placement_retries=3 if label == "joint" else 0),
                )
                table = result.summary()
                print(
                    f"{name:14s} {label:10s} {placement:13s} mean JCT {table['average_jct']:9.0f} s   makespan "
                    f"{table['makespan']:9.0f} s   {time.perf_counter() - begin:6.1f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
