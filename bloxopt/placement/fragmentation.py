"""How many free GPUs a typical job could not use: the fragmentation measure of Weng et al. (ATC 2023).

The fragmentation of node n for a task m is what is free on its GPUs and of no use to m: all of it if n cannot run m at
all (too few CPUs, too little memory, the wrong GPU type, not enough GPUs with room), else what is free on the GPUs
that have less free than m takes of each. ``F_n = Σ_m p_m F_n(m)`` weighs the tasks by how often they come,
or by how many of the GPUs asked for are theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from bloxopt.arguments import checked_arguments
from bloxopt.cluster import Cluster
from bloxopt.errors import InputError
from bloxopt.jobs import BoolArray, FloatArray, IntArray, JobTable
from bloxopt.runtime.resources import WHOLE_GPU, Resources

_MOST_KINDS = 256
"""Kinds of tasks kept of a workload, the most frequent ones."""
_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class TargetWorkload:
    """The kinds of tasks that are expected, one row each, and how much they count.

    ``weight`` (kinds,) sum 1 · ``milli`` thousandths of each GPU · ``count`` GPUs · ``cpus`` and
    ``memory_gib`` of the whole task · ``runs_on`` (kinds, GPU types) · ``gpu_types`` their names, in the order of
    the cluster (None: not said).
    """

    weight: FloatArray
    milli: IntArray
    count: IntArray
    cpus: FloatArray
    memory_gib: FloatArray
    runs_on: BoolArray
    gpu_types: tuple[str, ...] | None = None

    @classmethod
    @checked_arguments()
    def of(
        cls,
        jobs: JobTable,
        cluster: Cluster,
        runs_on: BoolArray | None = None,
        weigh: Literal["gpus", "tasks"] = "gpus",
    ) -> TargetWorkload:
        """The job mix of a trace, its 256 most frequent kinds if there are more.

        ``weigh`` a kind by its part of the GPUs asked for, or of the tasks as in the paper's formula. By tasks, rare
        gangs count for almost nothing and are soon left without a node; the authors' scheduler has such a
        weight too. ``runs_on`` (jobs, GPU types): default all. A gang larger than the largest node stands for
        its part of one.
        """
        types = len(cluster.gpu_types)
        allowed = np.ones((len(jobs), types), dtype=bool) if runs_on is None else np.asarray(runs_on, dtype=bool)
        count = np.minimum(jobs.num_gpus, cluster.node_gpus.max())
        shape = np.column_stack(
            [np.array(jobs.gpu_milli), count, count * jobs.cpus_per_gpu, count * jobs.memory_gib_per_gpu, allowed]
        )
        kinds, times = np.unique(shape, axis=0, return_counts=True)
        kept = np.argsort(-times, kind="stable")[:_MOST_KINDS]
        kinds, times = kinds[kept], times[kept]
        amount = times * kinds[:, 0] * kinds[:, 1] if weigh == "gpus" else times
        return cls(
            weight=amount / amount.sum(),
            milli=kinds[:, 0].astype(np.int64),
            count=kinds[:, 1].astype(np.int64),
            cpus=kinds[:, 2],
            memory_gib=kinds[:, 3],
            runs_on=kinds[:, 4:] > 0,
            gpu_types=cluster.gpu_types,
        )

    def check_cluster(self, cluster: Cluster) -> None:
        """Raise :class:`~bloxopt.errors.InputError` unless the GPU types are those of the cluster, in its order."""
        types = cluster.gpu_types
        if self.gpu_types not in (None, types) or self.runs_on.shape[1:] != (len(types),):
            mine = self.runs_on.shape[1:] if self.gpu_types is None else ", ".join(self.gpu_types)
            raise InputError(
                f"the target workload was made for a cluster with GPU types {mine}, this one has {', '.join(types)}: "
                "make it with TargetWorkload.of(jobs, cluster)"
            )

    @property
    def least(self) -> FloatArray:
        """Thousandths that each class of kinds takes of every GPU, (classes,)."""
        return self._gpu_classes[0]

    @cached_property
    def _gpu_classes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Kinds that ask the same of GPUs: ``milli``, thousandths in all, (classes,), and weights (kinds, classes)."""
        shapes, member = np.unique(np.column_stack([self.milli, self.count]), axis=0, return_inverse=True)
        weight = np.zeros((len(self.weight), len(shapes)))
        weight[np.arange(len(member)), member.ravel()] = self.weight
        least, count = shapes.T.astype(np.float64)
        return least, least * count, weight

    def usable(self, milli: FloatArray) -> FloatArray:
        """Thousandths free on every GPU if they are enough for the class of kinds, else 0: (…, classes).

        ``milli`` (…) thousandths free.
        """
        free = milli[..., None]
        usable: FloatArray = free * (free >= self.least)
        return usable

    def class_weights(self, cpus: FloatArray, memory_gib: FloatArray, gpu_type: IntArray) -> FloatArray:
        """Weight of the kinds of each class for which a node's CPUs, memory and GPU type do, (nodes, classes)."""
        cpus_needed, memory_needed, weight, every_type = self._host_needs
        fits = (cpus[:, None] >= cpus_needed) & (memory_gib[:, None] >= memory_needed)
        if not every_type:
            fits &= self.runs_on.T[gpu_type]
        return fits @ weight

    @cached_property
    def _host_needs(self) -> tuple[FloatArray, FloatArray, FloatArray, bool]:
        """CPUs and memory that are enough, weights by class, and whether all kinds run on all GPU types."""
        weight = self._gpu_classes[2]
        return self.cpus - _ROUNDING, self.memory_gib - _ROUNDING, weight, bool(self.runs_on.all())

    def value(self, usable: FloatArray, weights: FloatArray) -> FloatArray:
        """Expected thousandths that a task can use, ``Σ_m p_m (free − F_n(m))``; (…, classes) to (…).

        ``usable``: the sum of :meth:`usable` over the GPUs of a node.

        A node has the GPUs for a class exactly if what is usable on them is at least what the class takes: a share
        takes less than what any of these GPUs has, and whole GPUs are used whole.
        """
        found: FloatArray = (usable * weights * (usable >= self._gpu_classes[1])).sum(axis=-1)
        return found


def fragmentation(free: Resources, cluster: Cluster, workload: TargetWorkload) -> FloatArray:
    """GPUs free on each node that a task of the workload cannot use, in expectation: ``F_n``, shape (nodes,)."""
    workload.check_cluster(cluster)
    milli = _padded(free.milli, cluster)
    unlimited = np.full(len(cluster.nodes), np.inf)
    cpus = unlimited if free.cpus is None else free.cpus
    memory = unlimited if free.memory_gib is None else free.memory_gib
    weights = workload.class_weights(cpus, memory, cluster.node_gpu_type)
    lost: FloatArray = (milli.sum(axis=1) - workload.value(workload.usable(milli).sum(axis=1), weights)) / WHOLE_GPU
    return lost


def _padded(milli: IntArray, cluster: Cluster) -> FloatArray:
    """Thousandths free by node and GPU of the node, (nodes, most GPUs of a node), 0 where a node has fewer."""
    table = np.zeros((len(cluster.nodes), int(cluster.node_gpus.max())))
    local = np.arange(len(milli)) - cluster.gpu_offset[cluster.gpu_node]
    table[cluster.gpu_node, local] = milli
    return table
