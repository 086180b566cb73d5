"""Placing a round: milliseconds for 1,000 jobs on 1,250 nodes × 8 GPUs by every heuristic, and memory at 10,000 nodes.

    python benchmarks/placement.py [--memory]

CPU time of one thread, so that other processes count little. Cold: nothing runs and all jobs are placed. Warm: all run
and 1 % finished and were replaced. A round is the workspace, the placement of its jobs and the checked assignment.
``whole``: gangs of 1 to 32 GPUs without further needs. ``shared``: the production-like mix of 45 kinds of tasks with
shares of GPUs, CPUs and memory.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bloxopt.cluster import Cluster, Node  # noqa: E402
from bloxopt.jobs import JobTable  # noqa: E402
from bloxopt.placement import PLACEMENTS, get_placement  # noqa: E402
from bloxopt.placement.passes import place_decision  # noqa: E402
from bloxopt.placement.workspace import Workspace  # noqa: E402
from bloxopt.runtime.assignment import Assignment  # noqa: E402
from bloxopt.workloads.production_like import production_like_trace  # noqa: E402

COLD_LIMIT, WARM_LIMIT, MEMORY_LIMIT = 100.0, 10.0, 300.0
"""Milliseconds and MB."""
JOBS = 1_000
ROUNDS = 20
HEURISTICS = (
    "first_fit",
    "consolidated",
    "spread",
    "rack_aware",
    "best_fit",
    "dot_product",
    "tiresias_skew",
    "bandwidth_aware",
    "fragmentation_gradient",
)


def nodes(count: int) -> Cluster:
    """Nodes of 8 GPUs, 96 CPUs and 768 GiB, 40 in a rack."""
    return Cluster(
        tuple(
            Node(name=f"n{i}", gpu_type="A100", num_gpus=8, cpus=96, memory_gib=768, rack=f"rack-{i // 40}")
            for i in range(count)
        )
    )


def gangs(count: int) -> JobTable:
    sizes = np.random.default_rng(0).choice([1, 2, 4, 8, 16, 32], size=count, p=[0.3, 0.2, 0.25, 0.15, 0.07, 0.03])
    return JobTable.from_columns(
        job_id=[str(i) for i in range(count)],
        arrival=np.zeros(count),
        num_gpus=sizes,
        duration=np.ones(count),
        job_type=np.where(np.arange(count) % 2, "vgg16", "resnet50"),
    )


def shared(count: int) -> JobTable:
    return production_like_trace(count, seed=0).jobs


def measure(name: str, cluster: Cluster, jobs: JobTable) -> tuple[float, float]:
    """Milliseconds of the cold round and the median of warm ones."""
    up = np.ones(len(cluster.nodes), dtype=bool)
    kind = np.zeros(JOBS, dtype=np.int64)
    strategy = get_placement(name)

    def round_of(rows: np.ndarray, assignment: Assignment) -> tuple[Assignment, float]:
        begin = time.process_time()
        workspace = Workspace(assignment, cluster, jobs, up, strategy)
        stop, start = place_decision(rows, kind, jobs.num_gpus[rows], assignment, workspace)
        after = assignment.change(stop, start)
        seconds = time.process_time() - begin
        assert len(after) == len(rows), f"{name} placed {len(after)} of {len(rows)} jobs"
        return after, seconds * 1e3

    rows = np.arange(JOBS)
    cold = np.inf
    for _ in range(3):
        strategy = get_placement(name)
        assignment, took = round_of(rows, Assignment(cluster, jobs))
        cold = min(cold, took)
    warm = []
    for step in range(ROUNDS):
        fresh = JOBS + 10 * step + np.arange(10)
        finished, rows = rows[:10], np.concatenate([rows[10:], fresh])
        assignment, took = round_of(rows, assignment.change(finished.tolist(), {}))
        warm.append(took)
    return cold, float(np.median(warm))


def peak_memory(name: str) -> float:
    """MB at most in a process of its own that places 8,000 jobs on 10,000 nodes × 8 GPUs."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        cluster, jobs = nodes(10_000), shared(8_000)
        up = np.ones(10_000, dtype=bool)
        assignment = Assignment(cluster, jobs)
        workspace = Workspace(assignment, cluster, jobs, up, get_placement(name))
        row = np.arange(len(jobs))
        assignment.change(*place_decision(row, np.zeros_like(row), jobs.num_gpus, assignment, workspace))
        peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        os.write(write, peak.split()[1].encode())
        os._exit(0)
    os.waitpid(child, 0)
    return int(os.read(read, 64)) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", action="store_true", help="also peak memory at 10,000 nodes")
    arguments = parser.parse_args()
    assert threading.active_count() == 1
    cluster = nodes(1_250)
    print(f"{'ms a round (limits: cold ' + f'{COLD_LIMIT:g}, warm {WARM_LIMIT:g})':42s} {'whole':>15s} {'shared':>17s}")
    print(f"{'strategy':42s} {'cold':>7s} {'warm':>7s} {'cold':>9s} {'warm':>7s}")
    workloads = (gangs(JOBS + 10 * ROUNDS), shared(JOBS + 10 * ROUNDS))
    for name in HEURISTICS:
        assert name in PLACEMENTS
        figures = [value for jobs in workloads for value in measure(name, cluster, jobs)]
        late = [v for v, limit in zip(figures, (COLD_LIMIT, WARM_LIMIT) * 2, strict=True) if v > limit]
        note = "  OVER THE LIMIT" if late else ""
        memory = f"   {peak_memory(name):5.0f} MB at 10,000 nodes (limit {MEMORY_LIMIT:g})" if arguments.memory else ""
        print(f"{name:42s} {figures[0]:7.1f} {figures[1]:7.2f} {figures[2]:9.1f} {figures[3]:7.2f}{memory}{note}")


if __name__ == "__main__":
    main()
