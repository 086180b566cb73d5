"""How good and how fast the divisions of CPUs and memory are: one round of Synergy's jobs on 128 GPUs, all in use.

    python benchmarks/synergy.py [--servers N] [--rounds N] [--gangs] [--time-limit S]

Jobs are drawn from Synergy's models (with --gangs: of 1, 2 and 4 GPUs) until every GPU is taken, largest gangs first.
Total throughput is relative to that of proportional shares; ``bound`` is that of one machine with all CPUs and memory,
which no division over servers can exceed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bloxopt.cluster import Cluster, Node  # noqa: E402
from bloxopt.formulations.space import ConfigurationCatalog  # noqa: E402
from bloxopt.hosts import HostRates, as_profiles  # noqa: E402
from bloxopt.hosts.optimal import Optimal, throughput_bound, total_throughput  # noqa: E402
from bloxopt.hosts.proportional import Proportional  # noqa: E402
from bloxopt.hosts.tuned import Tuned  # noqa: E402
from bloxopt.jobs import Job, JobTable  # noqa: E402
from bloxopt.runtime.assignment import Assignment  # noqa: E402
from bloxopt.runtime.resources import Grant  # noqa: E402
from bloxopt.throughput import DurationThroughput  # noqa: E402

MODELS = ("alexnet", "res18", "res50", "mobilenet", "shufflenet", "gnmt", "deepspeech", "transformer", "lstm")


def full_cluster(servers: int, gangs: bool, seed: int) -> tuple[Assignment, HostRates]:
    """Jobs on every GPU of so many of Synergy's servers, and their rates."""
    random = np.random.default_rng(seed)
    cluster = Cluster(
        tuple(Node(name=f"server-{i}", gpu_type="V100", num_gpus=8, cpus=24, memory_gib=500) for i in range(servers))
    )
    sizes: list[int] = []
    while (left := cluster.num_gpus - sum(sizes)) > 0:
        sizes.append(min(left, int(random.choice([1, 2, 4], p=[0.7, 0.15, 0.15])) if gangs else 1))
    sizes = [size for size in sizes if size != 3] + [1, 2] * sizes.count(3)
    sizes.sort(reverse=True)
    table = JobTable.from_jobs(
        [
            Job(job_id=f"job-{i}", job_type=str(random.choice(MODELS)), duration=3600.0, num_gpus=size)
            for i, size in enumerate(sizes)
        ]
    )
    grants: dict[int, Grant] = {}
    first = 0
    for row, size in enumerate(sizes):
        grants[row] = Grant(0, (first // 8,), (size,), tuple(range(first, first + size)))
        first += size
    rates = HostRates(as_profiles("synergy"), ConfigurationCatalog(table, cluster, DurationThroughput()))
    return Assignment(cluster, table).change([], grants), rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gangs", action="store_true")
    parser.add_argument("--time-limit", type=float, default=10.0)
    chosen = parser.parse_args()
    allocations = {
        "proportional": Proportional(),
        "tuned": Tuned(),
        "tuned, repacked": Tuned(repack=True),
        "optimal": Optimal(time_limit=chosen.time_limit),
        "optimal, repacked": Optimal(repack=True, time_limit=chosen.time_limit),
    }
    total = {name: [] for name in (*allocations, "bound")}
    seconds = {name: [] for name in total}
    for seed in range(chosen.rounds):
        assignment, rates = full_cluster(chosen.servers, chosen.gangs, seed)
        order = list(assignment.grants)
        up = np.ones(chosen.servers, dtype=bool)
        base = float(rates.proportional.sum())
        for name, allocation in allocations.items():
            started = time.perf_counter()
            after = allocation.allocate(assignment, order, rates, up)
            seconds[name].append(time.perf_counter() - started)
            total[name].append(total_throughput(after, rates) / base)
        started = time.perf_counter()
        total["bound"].append(throughput_bound(assignment, rates) / base)
        seconds["bound"].append(time.perf_counter() - started)
    print(
        f"{chosen.servers * 8} GPUs, {chosen.rounds} rounds, {'gangs of 1, 2 and 4' if chosen.gangs else 'single GPUs'}"
    )
    print(f"{'allocation':20} {'throughput':>10} {'median s':>9} {'worst s':>9}")
    for name, values in total.items():
        print(f"{name:20} {np.mean(values):10.4f} {np.median(seconds[name]):9.4f} {max(seconds[name]):9.4f}")


if __name__ == "__main__":
    main()
