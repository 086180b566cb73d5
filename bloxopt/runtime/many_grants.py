"""Thousands of grants at once, as arrays: whether they fit together, and what they take."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np

from bloxopt.cluster import Cluster
from bloxopt.jobs import IntArray, JobTable
from bloxopt.runtime.resources import WHOLE_GPU, Grant, Resources

MANY = 64
"""Grants from which on arrays are faster than one after the other."""


class ManyGrants(NamedTuple):
    """Grants one after the other: ``row``, ``size``, ``gpu_type`` and ``milli`` of each; of every part on a node, whose
    it is (``gang``), the ``node`` and the ``gpus_on_node``; and every ``gpu``."""

    row: IntArray
    size: IntArray
    gpu_type: IntArray
    milli: IntArray
    gang: IntArray
    node: IntArray
    gpus_on_node: IntArray
    gpu: IntArray

    @classmethod
    def of(cls, grants: Mapping[int, Grant]) -> ManyGrants | None:
        """The grants as arrays; None where some have slices or partners, or are malformed."""
        all_of = list(grants.values())
        if any(grant.slices or grant.partner >= 0 or len(grant.nodes) != len(grant.counts) for grant in all_of):
            return None
        parts = _integers([len(grant.nodes) for grant in all_of])
        return cls(
            _integers(list(grants)),
            _integers([len(grant.gpus) for grant in all_of]),
            _integers([grant.gpu_type for grant in all_of]),
            _integers([grant.milli for grant in all_of]),
            np.repeat(np.arange(len(all_of)), parts),
            _integers(list(chain.from_iterable(grant.nodes for grant in all_of))),
            _integers(list(chain.from_iterable(grant.counts for grant in all_of))),
            _integers(list(chain.from_iterable(grant.gpus for grant in all_of))),
        )

    def are_gangs(self, cluster: Cluster, jobs: JobTable) -> bool:
        """Whether each is one gang of its job's size and share, on GPUs of one type, each on the node it is said to be.

        Where they are not, whoever looks at them one after the other can say why.
        """
        row, node, gpu = self.row, self.node, self.gpu
        if not len(gpu) or min(node.min(), gpu.min()) < 0:
            return False
        if node.max() >= len(cluster.nodes) or gpu.max() >= len(cluster.gpu_node) or self.gpus_on_node.min() < 1:
            return False
        sizes = np.bincount(self.gang, self.gpus_on_node, len(row))
        owner = np.repeat(np.arange(len(row)), self.size)
        return bool(
            (sizes == self.size).all()
            and ((jobs.min_gpus[row] <= self.size) & (self.size <= jobs.max_gpus[row])).all()
            and (self.milli == np.round(jobs.gpu_share[row] * WHOLE_GPU).astype(np.int64)).all()
            and (cluster.gpu_node[gpu] == np.repeat(node, self.gpus_on_node)).all()
            and (cluster.node_gpu_type[node] == self.gpu_type[self.gang]).all()
            and _are_different(owner * len(cluster.gpu_node) + gpu)
            and _are_different(self.gang * len(cluster.nodes) + node)
        )

    def take_from(self, free: Resources) -> None:
        """Book all of them, as :meth:`~bloxopt.runtime.resources.Resources.take` does one."""
        np.subtract.at(free.milli, self.gpu, np.repeat(self.milli, self.size))
        nodes = len(free.gpus)
        free.gpus[:] = np.bincount(free.node_of[free.milli == WHOLE_GPU], minlength=nodes)
        np.add.at(free.jobs, self.node, 1)
        free.touched += self.node.tolist()
        row, table = self.row[self.gang], free.table
        if free.cpus is not None and free.memory_gib is not None:
            np.subtract.at(free.cpus, self.node, self.gpus_on_node * table.cpus_per_gpu[row])
            np.subtract.at(free.memory_gib, self.node, self.gpus_on_node * table.memory_gib_per_gpu[row])
        if free.exclusive is not None:
            alone = np.array([kind.exclusive_node for kind in table.need_kinds])
            np.add.at(free.exclusive, self.node[alone[table.needs[row]]], 1)
        if free.group_jobs is not None:
            group = np.array(free.groups)[table.needs[row]]
            np.add.at(free.group_jobs, (group[group >= 0], self.node[group >= 0]), 1)

    def fit(self, free: Resources) -> bool:
        """Whether ``free``, of which they were taken, has nowhere less than nothing left, and no company to look at."""
        if free.exclusive is not None or free.group_jobs is not None or (free.milli[self.gpu] < 0).any():
            return False
        return all(left is None or not (left[self.node] < -1e-6).any() for left in (free.cpus, free.memory_gib))


def _integers(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64)


def _are_different(codes: IntArray) -> bool:
    ordered = np.sort(codes)
    return not (ordered[1:] == ordered[:-1]).any()
