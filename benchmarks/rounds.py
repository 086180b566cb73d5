"""The round loop: seconds, memory, and ratios against a baseline run beside it.

    python benchmarks/rounds.py [--philly]

``mx_Las_8`` runs beside the plain-Python replica of Blox' semantics that the tests use as their oracle; the other rows
state the limit they are held to.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import bloxopt as bx  # noqa: E402
from tests.simulation.blox_replica import run  # noqa: E402


def best_of(repeats: int, function: Callable[[], object]) -> float:
    """Least seconds of several runs: the one least disturbed by whatever else the machine does."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def report(what: str, seconds: float, limit: float, note: str = "") -> None:
    print(f"{what:58s} {seconds:8.3f} s   limit {limit:6.2f} s   {seconds / limit:5.2f} of it   {note}")


def import_seconds() -> float:
    """A fresh interpreter's time for the import, less that of an empty one."""

    def start(code: str) -> float:
        return best_of(5, lambda: subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT))

    return start("import bloxopt") - start("pass")


def main() -> None:
    report("import bloxopt", import_seconds(), 0.5)

    trace = bx.load_trace("blox-mx-las-8")
    jobs = trace.jobs
    workload = list(
        zip(jobs.arrival.astype(int).tolist(), jobs.total_steps.tolist(), jobs.num_gpus.tolist(), strict=True)
    )
    replica = best_of(3, lambda: run(workload, 32, 4, "las"))
    ours = best_of(3, lambda: bx.simulate(trace, "32x4xV100", "las", preset="blox"))
    report("Blox mx_Las_8, 2,584 rounds", ours, 0.6, f"{ours / replica:.2f} x the plain replica's {replica:.3f} s")

    gavel = bx.load_trace("gavel-100")
    cluster = "8xV100+16xP100+24xK80"
    for policy, limit in (("max_min_fairness", 0.7), ("finish_time_fairness", 4.9), ("fifo", 0.54)):
        seconds = best_of(3, lambda policy=policy: bx.simulate(gavel, cluster, policy, preset="gavel"))  # type: ignore[misc]
        report(f"Gavel's 100 jobs, {policy}", seconds, limit)

    if "--philly" in sys.argv:
        philly = bx.load_trace("philly")
        for cluster, name in (("231x8xP100+321x2xP100", "2,490 GPUs"), ("50x8xP100", "400 GPUs, overloaded")):
            begin = time.perf_counter()
            result = bx.simulate(philly, cluster, "las")
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            note = f"{len(result.rounds):,} rounds, peak {peak:.2f} GiB (limit 1.5 GB)"
            report(f"Philly, {len(philly):,} jobs, LAS, {name}", time.perf_counter() - begin, 90.0, note)


if __name__ == "__main__":
    main()
