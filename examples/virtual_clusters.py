"""Two teams share 64 GPUs: with a quota a team waits for whole nodes, with guaranteed cells it never does.

python examples/virtual_clusters.py
"""

import numpy as np

import bloxopt as bx
from bloxopt.needs import PlacementNeeds
from bloxopt.placement.cells import GuaranteedCells

CLUSTER = "8x8xV100"
HOUR = 3600.0


def jobs():
    """Vision trains on whole nodes, language runs many small jobs; neither asks for more than half for long."""
    draw = np.random.default_rng(0)
    whole_node = PlacementNeeds(max_nodes=1)
    vision = [
        bx.Job(job_id=f"vision-{i}", tenant="vision", arrival=i * HOUR / 2, duration=1.9 * HOUR, num_gpus=8,
               needs=whole_node, restart_cost=60.0)
        for i in range(24)
    ]  # fmt: skip
    arrivals = np.sort(draw.uniform(0, 12 * HOUR, 400))
    language = [
        bx.Job(job_id=f"language-{i}", tenant="language", arrival=arrival, duration=draw.exponential(HOUR),
               num_gpus=int(draw.choice([1, 2])), restart_cost=60.0)
        for i, arrival in enumerate(arrivals.tolist())
    ]  # fmt: skip
    return bx.Trace.from_jobs(vision + language)


def main():
    trace = jobs()
    placements = {
        "spread, no guarantee": "spread",
        "first fit, no guarantee": "first_fit",
        "guaranteed cells": GuaranteedCells(
            {"vision": {"node:V100": 4}, "language": {"node:V100": 2, "gpu:V100": 16}}, strategy="spread"
        ),
    }
    for name, placement in placements.items():
        result = bx.simulate(trace, CLUSTER, "fifo", placement=placement, preset="blox", round_seconds=60)
        frame = result.jobs
        waits = (frame["start"] - frame["arrival"]).groupby(frame["tenant"]).agg(["mean", "max"]) / 60
        print(f"{name}: {result.summary()['preemptions']} preemptions; minutes until a job starts")
        print(waits.round(1).to_string(), "\n")


if __name__ == "__main__":
    main()
