"""How far each heuristic is from the exact placement on rounds of real workloads, and how fast exact is.

    python benchmarks/exact_placement.py [--rounds N]

A simulation of the workload is followed with consolidated placement; rounds in which gangs start are drawn evenly
from it and placed again by every heuristic and exactly, each from the same state. Costs are in the units of
PlacementWeights (default weights): a node too many is 1. ``bound`` is what is proven: no placement costs less.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import bloxopt as bx  # noqa: E402
from bloxopt.placement import get_placement  # noqa: E402
from bloxopt.placement.exact import ExactPlacement, RoundPlacement  # noqa: E402
from bloxopt.placement.strategy import Changes, Found, Offer, Requests, WholeRound  # noqa: E402
from bloxopt.placement.workspace import Workspace  # noqa: E402
from bloxopt.runtime.assignment import Assignment  # noqa: E402

HEURISTICS = ("first_fit", "spread", "consolidated", "best_fit", "rack_aware", "tiresias_skew")


class Recorder(WholeRound):
    """Places like ``consolidated`` and keeps every round in which gangs start, to be placed again."""

    def __init__(self) -> None:
        self.rounds: list[tuple[Requests, Assignment, Workspace]] = []
        self._follow = ExactPlacement(time_limit=0.0)

    def __call__(self, offer: Offer, need: int) -> Found | None:
        return self._follow(offer, need)

    def place_round(self, requests: Requests, assignment: Assignment, workspace: Workspace) -> Changes:
        stop, start = self._follow.place_round(requests, assignment, workspace)
        if start:
            self.rounds.append((requests, assignment, workspace))
        return stop, start


def again(recorded: tuple[Requests, Assignment, Workspace], placement: ExactPlacement) -> RoundPlacement:
    """A recorded round placed by another placement, from the state it started in."""
    requests, assignment, old = recorded
    up = np.ones(len(old.cluster.nodes), dtype=bool)
    return placement.solve_round(
        requests, assignment, Workspace(assignment, old.cluster, old.jobs, up, placement, old.rules)
    )


def with_racks(cluster: str, nodes_a_rack: int) -> bx.Cluster:
    """The cluster with its nodes in racks."""
    from dataclasses import replace

    nodes = bx.load_cluster(cluster).nodes
    return bx.Cluster(tuple(replace(node, rack=f"rack-{at // nodes_a_rack}") for at, node in enumerate(nodes)))


def philly(seed: int, count: int) -> bx.Trace:
    """Consecutive Philly jobs, closer together: as many at once as fill the cluster."""
    jobs = bx.load_trace("philly").where(max_gpus=64)
    first = int(np.random.default_rng(seed).integers(0, len(jobs) - count))
    return jobs.take(np.arange(first, first + count)).scale_load(8.0)


def workloads() -> list[tuple[str, bx.Trace, bx.Cluster, str]]:
    gavel = with_racks("2x4xV100+4x4xP100+6x4xK80", 4)
    return [
        ("gavel-100, max-min fairness", bx.load_trace("gavel-100"), gavel, "max_min_fairness"),
        ("gavel-96, max-min fairness", bx.load_trace("gavel-96"), gavel, "max_min_fairness"),
        ("philly sample, LAS", philly(1, 400), with_racks("12x8xP100+17x2xP100", 8), "las"),
        ("philly sample, max-min fairness", philly(2, 400), with_racks("16x8xP100", 4), "max_min_fairness"),
        ("pollux-1, max-min fairness", bx.load_trace("pollux-1"), with_racks("16x4xT4", 4), "max_min_fairness"),
    ]


def distances(rounds: int) -> None:
    known = [name for name in HEURISTICS if name in bx.placement.PLACEMENTS]
    print("Mean cost a round above the exact placement, and in how many rounds the heuristic is not optimal\n")
    print(f"{'workload':34s} {'rounds':>6s} {'exact':>7s} {'bound':>7s} " + " ".join(f"{n:>20s}" for n in known))
    for name, trace, cluster, policy in workloads():
        recorder = Recorder()
        bx.simulate(trace, cluster, policy, selector="priorities", placement=recorder)
        picked = np.unique(np.linspace(0, len(recorder.rounds) - 1, rounds).astype(int))
        cost: dict[str, list[float]] = defaultdict(list)
        for at in picked:
            recorded = recorder.rounds[at]
            exact = again(recorded, ExactPlacement(time_limit=5.0, mip_gap=0.001))
            cost["exact"].append(exact.cost)
            cost["bound"].append(exact.bound)
            for heuristic in known:
                tried = again(recorded, ExactPlacement(time_limit=0.0, heuristic=get_placement(heuristic)))
                cost[heuristic].append(tried.heuristic_cost)
        best = np.array(cost["exact"])
        cells = []
        for heuristic in known:
            above = np.array(cost[heuristic]) - best
            cells.append(f"{above.mean():+9.2f} ({int((above > 1e-6).sum()):3d}/{len(picked)})".rjust(20))
        print(
            f"{name:34s} {len(picked):6d} {best.mean():7.2f} {np.mean(cost['bound']):7.2f} " + " ".join(cells),
            flush=True,
        )


def speed() -> None:
    """Exact on 64 nodes of 8 GPUs with 100 jobs, from empty and with many of them running."""
    print(
        "\nExact placement, 64 nodes x 8 GPUs, 100 jobs, to a gap of 1 %, CPU seconds; limit 2 s, stopped after 10 s\n"
    )
    philly_sizes = bx.load_trace("philly").jobs.num_gpus
    philly_sizes = philly_sizes[(philly_sizes > 1) & (philly_sizes <= 32)]
    odd = np.repeat([1, 2, 3, 4, 5, 6, 8, 12, 16, 24], [30, 15, 5, 20, 5, 5, 10, 4, 4, 2])
    for label, sizes, racks in (
        ("philly's gangs", philly_sizes, 1),
        ("philly's gangs", philly_sizes, 4),
        ("odd sizes", odd, 1),
        ("odd sizes", odd, 4),
    ):
        cluster = with_racks("64x8xV100", 64 // racks)
        for running in (0, 60, 90):
            seconds, gaps, costs = [], [], []
            for seed in range(5):
                rng = np.random.default_rng(seed)
                drawn = rng.choice(sizes, 400)
                drawn = drawn[np.cumsum(drawn) <= 64 * 8 * 1.3][:160]
                jobs = bx.JobTable.from_jobs(
                    [bx.Job(job_id=str(i), duration=1.0, num_gpus=int(n)) for i, n in enumerate(drawn)]
                )
                assignment = Assignment(cluster, jobs)
                # Jobs come and go for a while, so that what runs is scattered as it is in practice.
                rows: list[int] = []
                waiting = list(rng.permutation(len(drawn)))
                for _ in range(6 if running else 0):
                    while len(rows) > running * 2 // 3:
                        waiting.append(rows.pop(int(rng.integers(len(rows)))))
                    while waiting and len(rows) < running:
                        rows.append(int(waiting.pop(0)))
                    rows = _fitting(rows, drawn, 64 * 8)
                    assignment = _place(assignment, cluster, jobs, rows, ExactPlacement(time_limit=0.0))
                more = [int(row) for row in rng.permutation(len(drawn)) if int(row) not in rows]
                wanted = _fitting(rows + more, drawn, 64 * 8)[:100]
                placement = ExactPlacement(time_limit=10.0, mip_gap=0.01)
                up = np.ones(64, dtype=bool)
                index = np.array(wanted)
                requests = Requests(index, np.zeros(len(wanted), dtype=np.int64), jobs.num_gpus[index])
                began = time.process_time()
                result = placement.solve_round(
                    requests, assignment, Workspace(assignment, cluster, jobs, up, placement)
                )
                seconds.append(time.process_time() - began)
                gaps.append(result.gap if result.cost > 1e-9 else 0.0)
                costs.append((result.heuristic_cost, result.cost))
            before, after = np.mean(costs, axis=0)
            print(
                f"{label:15s} {racks} racks, {running:3d} running: CPU s {' '.join(f'{s:5.2f}' for s in seconds)}   "
                f"worst gap {max(gaps):.2%}   cost {before:.2f} -> {after:.2f}   "
                f"limit 2.00 s   {max(seconds) / 2:5.2f} of it",
                flush=True,
            )


def _fitting(rows: list[int], sizes: np.ndarray, gpus: int) -> list[int]:
    """The first rows whose GPUs fit in all."""
    kept: list[int] = []
    for row in rows:
        if sizes[row] <= gpus:
            gpus -= int(sizes[row])
            kept.append(row)
    return kept


def _place(
    assignment: Assignment, cluster: bx.Cluster, jobs: bx.JobTable, rows: list[int], placement: ExactPlacement
) -> Assignment:
    index = np.array(rows, dtype=np.int64)
    requests = Requests(index, np.zeros(len(rows), dtype=np.int64), jobs.num_gpus[index])
    up = np.ones(len(cluster.nodes), dtype=bool)
    return assignment.change(
        *placement.place_round(requests, assignment, Workspace(assignment, cluster, jobs, up, placement))
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="rounds drawn from each workload")
    arguments = parser.parse_args()
    distances(arguments.rounds)
    speed()
