"""What is free on every node and what a job takes, as fractions of the largest node."""

from __future__ import annotations

import numpy as np

from bloxopt.jobs import FloatArray
from bloxopt.placement.strategy import Offer
from bloxopt.runtime.resources import WHOLE_GPU


def free_vectors(offer: Offer, need: int) -> tuple[FloatArray, FloatArray]:
    """Free GPUs, CPUs and memory of every node, (resources, nodes), and what the job takes, (resources,).

    Both as fractions of the largest node, GPUs with the free parts of shared ones. CPUs and memory count only where
    jobs state needs; a node on which they are unknown counts as one with the most.
    """
    workspace = offer.workspace
    cluster, jobs, left, row = workspace.cluster, workspace.jobs, workspace.free, offer.row
    gpus: FloatArray = left.gpus.astype(np.float64)
    if jobs.has_shares:
        gpus = np.add.reduceat(left.milli, cluster.gpu_offset[:-1]) / WHOLE_GPU
    free, taken = [gpus], [need * jobs.gpu_milli[row] / WHOLE_GPU]
    largest = [float(cluster.node_gpus.max())]
    for stock, size, per_gpu in (
        (left.cpus, cluster.node_cpus, jobs.cpus_per_gpu),
        (left.memory_gib, cluster.node_memory_gib, jobs.memory_gib_per_gpu),
    ):
        if stock is None:
            continue
        known = size[np.isfinite(size)]
        if len(known) and known.max() > 0:
            most = float(known.max())
            free.append(np.minimum(stock, most))
            taken.append(float(need * per_gpu[row]))
            largest.append(most)
    scale = np.array(largest)
    return np.stack(free) / scale[:, None], np.array(taken) / scale
