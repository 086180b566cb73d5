"""GPUs allocated as a production-like workload is inflated until nothing fits: one line per placement strategy.

    python benchmarks/inflation.py [--seeds 3] [--figure inflation.png]

Tasks drawn from the marginals of Alibaba's 2023 GPU-sharing trace arrive one after the other on its 1,213 nodes and
never leave; a task that does not fit is turned away. Reported are the GPUs allocated before the first such
task and at the end, when tasks for 130 % of all GPUs have come (Weng et al., ATC 2023, section 6).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bloxopt.cluster import Cluster  # noqa: E402
from bloxopt.experiments.style import figure, line_style, save_figure  # noqa: E402
from bloxopt.placement import Strategy, get_placement  # noqa: E402
from bloxopt.placement.fragmentation import TargetWorkload  # noqa: E402
from bloxopt.placement.fragmentation_gradient import FragmentationGradient  # noqa: E402
from bloxopt.placement.rules import Rules  # noqa: E402
from bloxopt.placement.workspace import Workspace  # noqa: E402
from bloxopt.runtime.assignment import Assignment  # noqa: E402
from bloxopt.workloads.production_like import production_like_cluster, production_like_trace  # noqa: E402

STRATEGIES = (
    "fragmentation_gradient",
    "gradient weighed by tasks",
    "best_fit",
    "dot_product",
    "consolidated",
    "first_fit",
)
MOST_DEMAND = 1.3
TASKS = 12_000


def inflate(name: str, cluster: Cluster, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """GPUs that have arrived and GPUs allocated after each task, and GPUs allocated before the first failure."""
    jobs = production_like_trace(TASKS, seed).jobs
    demand = np.asarray(jobs.gpu_demand)
    arrived = demand.cumsum()
    count = int(np.searchsorted(arrived, MOST_DEMAND * cluster.num_gpus))
    if name == "gradient weighed by tasks":
        strategy: Strategy = FragmentationGradient(TargetWorkload.of(jobs, cluster, weigh="tasks"))
    else:
        strategy = get_placement(name)
    up = np.ones(len(cluster.nodes), dtype=bool)
    workspace = Workspace(Assignment(cluster, jobs), cluster, jobs, up, strategy, Rules.of(cluster, jobs))
    taken = np.zeros(count)
    first_failure: float | None = None
    start = {}
    for row in range(count):
        grant = workspace.find(row, 0, int(jobs.num_gpus[row]))
        if grant is None:
            if first_failure is None:
                first_failure = float(taken[:row].sum())
            continue
        workspace.take(row, grant)
        taken[row] = demand[row]
        start[row] = grant
    # The checked assignment accepts exactly what the workspace booked.
    final = Assignment(cluster, jobs).change([], start)
    assert np.isclose(final.free.gpus_used, taken.sum())
    return arrived[:count], taken.cumsum(), float(taken.sum()) if first_failure is None else first_failure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    cluster = production_like_cluster(by_model=False)
    total = cluster.num_gpus
    first: dict[str, list[float]] = {}
    curves: dict[str, list[np.ndarray]] = {}
    grid = np.linspace(0.0, MOST_DEMAND, 261)
    print(f"{'strategy':26s} {'GPUs before the first failure':>42s} {'GPUs at the end':>30s}   ms/task")
    for name in STRATEGIES:
        begin = time.perf_counter()
        ends, tasks = [], 0
        for seed in range(arguments.seeds):
            arrived, allocated, before = inflate(name, cluster, seed)
            first.setdefault(name, []).append(before)
            curves.setdefault(name, []).append(np.interp(grid * total, arrived, allocated) / total)
            ends.append(float(allocated[-1]))
            tasks += len(arrived)
        milliseconds = (time.perf_counter() - begin) / tasks * 1e3
        print(
            f"{name:26s} {' '.join(f'{x:7.1f}' for x in first[name]):>33s} {np.mean(first[name]) / total:8.2%} "
            f"{' '.join(f'{x:7.1f}' for x in ends):>24s} {np.mean(ends) / total:7.2%}   {milliseconds:.2f}"
        )
    if arguments.figure is not None:
        draw(grid, curves, first, total, arguments.figure)
    rivals = ("best_fit", "dot_product")
    for seed in range(arguments.seeds):
        ours = first["fragmentation_gradient"][seed]
        assert all(ours >= first[rival][seed] for rival in rivals), f"seed {seed}: a rival packs more"


def draw(
    grid: np.ndarray, curves: dict[str, list[np.ndarray]], first: dict[str, list[float]], total: int, path: Path
) -> None:
    """Unallocated GPUs against GPUs asked for, mean over seeds; a dot marks the mean first failure."""
    with figure(8.0, 4.8) as (drawing, axes):
        shown = grid >= 0.86
        for index, (name, lines) in enumerate(curves.items()):
            style = line_style(index)
            mean = np.mean(lines, axis=0)
            axes.plot(100 * grid[shown], 100 * mean[shown], label=name, **style)
            failure = np.mean(first[name]) / total
            axes.plot([100 * np.interp(failure, mean, grid)], [100 * failure], "o", color=style["color"], markersize=5)
        axes.plot([86, 97], [86, 97], color="#999999", linewidth=0.8, linestyle=":", label="everything that came")
        axes.set_xlabel("GPUs asked for by the tasks that have come (% of all GPUs)")
        axes.set_ylabel("GPUs allocated (% of all GPUs)")
        axes.set_title("Inflation of a production-like workload on 6,212 GPUs (dots: first failure)")
        axes.set_xlim(86, 110)
        axes.set_ylim(86, 97)
        axes.legend(loc="lower right")
        save_figure(drawing, path)


if __name__ == "__main__":
    main()
