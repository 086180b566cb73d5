"""A cluster and tasks like those of a production GPU cluster whose tasks share GPUs (Alibaba, 2023).

The nodes are those of ``cluster-trace-gpu-v2023``, counted by kind: 1,213 nodes, 6,212 GPUs and 107,018 CPUs, as
in table 1 of Weng et al., "Beware of Fragmentation" (ATC 2023). The tasks are drawn from published marginals.
"""

from __future__ import annotations

import numpy as np

from bloxopt.cluster import Cluster, Node
from bloxopt.errors import TraceError
from bloxopt.jobs import FloatArray, JobTable
from bloxopt.needs import PlacementNeeds
from bloxopt.workloads.trace import Trace

NODE_KINDS: tuple[tuple[int, str, int, int, int], ...] = (
    (549, "G2", 8, 96, 384),
    (39, "G3", 8, 128, 768),
    (387, "T4", 2, 104, 512),
    (17, "T4", 4, 96, 384),
    (107, "P100", 2, 16, 120),
    (22, "P100", 2, 64, 256),
    (2, "P100", 2, 8, 60),
    (3, "P100", 1, 8, 60),
    (21, "V100M32", 8, 96, 768),
    (9, "V100M32", 4, 48, 368),
    (28, "V100M16", 4, 32, 128),
    (7, "V100M16", 8, 64, 256),
    (1, "V100M16", 8, 82, 336),
    (19, "V100M16", 1, 8, 32),
    (2, "A10", 1, 128, 1024),
)
"""Nodes of each kind: how many, GPU model (G2 and G3 are undisclosed), GPUs, CPUs, GiB of memory.
Source: ``openb_node_list_gpu_node.csv`` of the trace."""

GPU_CLASSES: dict[str, float] = {"share": 37.8, "1": 48.0, "2": 0.2, "4": 0.2, "8": 0.5}
"""Tasks by the GPUs they ask for, in percent of all tasks (Weng et al., table 1). The other 13.3 % ask for no GPU and
are left out."""

_Kind = tuple[int, float, float, float]

TASK_KINDS: dict[str, tuple[_Kind, ...]] = {
    "share": (
        (28, 0.47, 11.908, 46.0),
        (27, 0.47, 8.0, 29.8),
        (25, 0.81, 3.152, 5.47),
        (14, 0.65, 11.908, 46.0),
        (12, 0.46, 6.0, 12.0),
        (9, 0.32, 8.0, 29.8),
        (8, 0.32, 4.0, 14.9),
        (6, 0.22, 4.0, 14.9),
        (4, 0.23, 4.0, 29.8),
        (3, 0.22, 8.0, 29.8),
        (3, 0.16, 4.0, 14.9),
        (3, 0.55, 4.152, 10.35),
        (2, 0.65, 8.0, 29.8),
        (2, 0.81, 4.152, 10.35),
        (2, 0.11, 4.0, 14.9),
        (1, 0.05, 4.0, 14.9),
        (1, 0.48, 4.0, 22.35),
        (1, 0.27, 4.152, 10.35),
        (1, 0.32, 1.0, 2.0),
        (1, 0.59, 3.152, 5.47),
    ),
    "1": (
        (62, 1.0, 3.152, 5.47),
        (45, 1.0, 9.81, 40.6),
        (36, 1.0, 11.3, 48.0),
        (23, 1.0, 14.2, 57.0),
        (18, 1.0, 18.708, 63.0),
        (14, 1.0, 16.0, 32.0),
        (13, 1.0, 12.0, 16.0),
        (13, 1.0, 12.0, 24.0),
        (7, 1.0, 24.2, 91.0),
        (6, 1.0, 8.0, 16.0),
        (5, 1.0, 4.0, 24.0),
        (5, 1.0, 11.4, 76.0),
        (5, 1.0, 11.908, 46.0),
        (4, 1.0, 8.2, 33.0),
        (3, 1.0, 16.0, 48.0),
        (3, 1.0, 16.0, 64.0),
        (3, 1.0, 15.2, 79.0),
        (3, 1.0, 8.0, 32.0),
        (3, 1.0, 4.0, 30.5),
        (2, 1.0, 8.0, 64.0),
        (2, 1.0, 4.0, 16.0),
    ),
    "2": ((1, 2.0, 17.4, 42.0),),
    "4": ((1, 4.0, 34.8, 84.0),),
    "8": ((4, 8.0, 88.0, 320.0), (1, 8.0, 120.0, 720.0)),
}
"""Kinds of tasks by class: weight, GPUs, CPUs and GiB of memory of the whole task. The weights are counts over two
stretches of ``openb_pod_list_default.csv`` (tasks 0-225 and 5664-5892); kinds that occur once are merged with
their neighbours. The 4-GPU task, of which neither has one, is twice the 2-GPU task."""


def production_like_cluster(by_model: bool = True) -> Cluster:
    """The 1,213 nodes with 6,212 GPUs, kind after kind; racks are not known.

    ``by_model`` False makes all GPUs one type, named ``GPU``, for tasks that take any (as all do in the
    default trace); the model is then a label of the node.
    """
    nodes: list[Node] = []
    for count, model, gpus, cpus, memory in NODE_KINDS:
        for _ in range(count):
            nodes.append(
                Node(
                    name=f"node-{len(nodes):04d}",
                    gpu_type=model if by_model else "GPU",
                    num_gpus=gpus,
                    cpus=cpus,
                    memory_gib=memory,
                    labels={"model": model},
                )
            )
    return Cluster(tuple(nodes))


def production_like_trace(num_tasks: int, seed: int = 0, duration: float = 3600.0) -> Trace:
    """``num_tasks`` tasks in random order, one a second, that run for ``duration`` seconds each on one node.

    Kinds are drawn independently, first the class of GPUs, then the kind. Raises
    :class:`~bloxopt.errors.TraceError` for a number or a seed that is not a whole number in range.
    """
    for name, value, least in (("num_tasks", num_tasks, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise TraceError(f"{name} is {value!r}, must be a whole number >= {least}")
    kinds, weight = _weighted_kinds()
    drawn = np.random.default_rng(seed).choice(len(kinds), size=num_tasks, p=weight)
    demand, cpus, memory = kinds[drawn].T
    gpus = np.maximum(demand, 1.0)
    jobs = JobTable.from_columns(
        job_id=[f"task-{number:05d}" for number in range(num_tasks)],
        arrival=np.arange(num_tasks, dtype=np.float64),
        num_gpus=gpus.astype(np.int64),
        duration=np.full(num_tasks, float(duration)),
        gpu_share=np.minimum(demand, 1.0),
        cpus_per_gpu=cpus / gpus,
        memory_gib_per_gpu=memory / gpus,
        needs=[PlacementNeeds(max_nodes=1)] * num_tasks,
    )
    return Trace(
        "production-like",
        jobs,
        source="drawn from the marginals of cluster-trace-gpu-v2023 (Weng et al., ATC 2023)",
        notes=("tasks without GPUs are left out",),
    )


def _weighted_kinds() -> tuple[FloatArray, FloatArray]:
    """GPUs, CPUs and memory of every kind, (kinds, 3), and its probability."""
    rows, weight = [], []
    for name, percent in GPU_CLASSES.items():
        total = sum(kind[0] for kind in TASK_KINDS[name])
        for count, *needs in TASK_KINDS[name]:
            rows.append(needs)
            weight.append(percent * count / total)
    weights = np.array(weight)
    return np.array(rows), weights / weights.sum()
