"""What the jobs of one simulation gain from CPUs and memory on the nodes of its cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from bloxopt.errors import InputError, ThroughputError
from bloxopt.formulations.space import ConfigurationCatalog
from bloxopt.hosts.profiles import SensitivityProfile, SensitivityProfiles
from bloxopt.jobs import FloatArray, IntArray

_ROUNDING = 1e-9
_RateOf = Callable[[int, int, int], float]
"""Relative rate of a job (row) on so many GPUs of a type."""


class HostRates:
    """Relative rates of the jobs of a catalog by CPUs and GiB for each GPU; 1 is the rate that the catalog has.

    ``node_cpus``, ``node_memory_gib`` (nodes,) what a node has, ``fair_cpus``, ``fair_memory_gib`` (nodes,) its
    *proportional share* for each GPU. Raises :class:`~bloxopt.errors.InputError` for a node whose CPUs or memory are
    unknown and jobs that share GPUs, and :class:`~bloxopt.errors.ThroughputError` for a configuration without a
    profile, or with one that does not reach down to the proportional share of a node it may run on.
    """

    def __init__(self, profiles: SensitivityProfiles, catalog: ConfigurationCatalog) -> None:
        cluster, self.table = catalog.cluster, catalog.table
        self.catalog = catalog
        self.cluster = cluster
        for what, amounts in (("cpus", cluster.node_cpus), ("memory_gib", cluster.node_memory_gib)):
            unknown = np.flatnonzero(~np.isfinite(amounts))
            if unknown.size:
                raise InputError(
                    f"node {cluster.nodes[unknown[0]].name!r} does not say how many {what} it has: a host allocation "
                    "divides CPUs and memory, so give every node both, such as 4x8xV100:24cpus:500gib"
                )
        if self.table.has_shares:
            row = int(np.argmax(self.table.gpu_share < 1.0))
            raise InputError(
                f"job {self.table.job_id[row]!r} asks for part of a GPU: a host allocation divides CPUs and memory "
                "between jobs with whole GPUs; run without one"
            )
        self.node_cpus: FloatArray = cluster.node_cpus
        self.node_memory_gib: FloatArray = cluster.node_memory_gib
        self.fair_cpus: FloatArray = cluster.node_cpus / cluster.node_gpus
        self.fair_memory_gib: FloatArray = cluster.node_memory_gib / cluster.node_gpus
        self._profile: dict[tuple[int, int], SensitivityProfile] = {}
        self._load(profiles)

    def _load(self, profiles: SensitivityProfiles) -> None:
        catalog, table = self.catalog, self.table
        job = np.repeat(np.arange(len(table)), np.diff(catalog.offsets))
        kinds = np.column_stack([table.job_type[job], catalog.num_gpus, catalog.gpu_type])
        distinct, first = np.unique(kinds, axis=0, return_index=True)
        for (code, gpus, gpu_type), column in zip(distinct.tolist(), first.tolist(), strict=True):
            name = table.job_types[code]
            try:
                profile = self._profile[code, gpus] = profiles.profile(name, gpus)
            except ThroughputError as error:
                raise ThroughputError(f"job {table.job_id[job[column]]!r}: {error}") from None
            nodes = np.flatnonzero(self.cluster.node_gpu_type == gpu_type)
            uncovered = nodes[profile.rate(self.fair_cpus[nodes], self.fair_memory_gib[nodes]) <= 0]
            if uncovered.size:
                node = int(uncovered[0])
                raise ThroughputError(
                    f"{profiles.source}: the profile of {name!r} on {gpus} GPUs does not cover the proportional share "
                    f"of node {self.cluster.nodes[node].name!r}, {self.fair_cpus[node]:g} CPUs and "
                    f"{self.fair_memory_gib[node]:g} GiB for each GPU: it starts at {profile.points[0, 0]:g} CPUs and "
                    f"{profile.points[0, 1]:g} GiB"
                )

    def profile(self, row: int, gpus: int) -> SensitivityProfile:
        """The profile of a job on so many GPUs."""
        return self._profile[int(self.table.job_type[row]), gpus]

    def factors(self, row: IntArray, gpus: IntArray, cpus: FloatArray, memory_gib: FloatArray) -> FloatArray:
        """Relative rates of jobs ``row`` on ``gpus`` GPUs with so many CPUs and GiB for each GPU, (len(row),)."""
        factors = np.empty(len(row))
        kinds, inverse = np.unique(np.column_stack([self.table.job_type[row], gpus]), axis=0, return_inverse=True)
        for kind, (code, count) in enumerate(kinds.tolist()):
            mine = inverse.ravel() == kind
            factors[mine] = self._profile[code, count].rate(cpus[mine], memory_gib[mine])
        return factors

    def demand(self, row: int, gpus: int, gpu_type: int) -> tuple[float, float]:
        """The fewest CPUs, and then GiB, for each GPU with which a job runs as fast as it can on nodes of a type.

        Only what an empty node could give to the part of the gang that is on it counts.
        """
        key = int(self.table.job_type[row]), gpus, gpu_type
        found = self._demands.get(key)
        if found is None:
            found = self._demands[key] = self._demand(*key)
        return found

    @cached_property
    def _demands(self) -> dict[tuple[int, int, int], tuple[float, float]]:
        return {}

    def _demand(self, job_type: int, gpus: int, gpu_type: int) -> tuple[float, float]:
        nodes = np.flatnonzero(self.cluster.node_gpu_type == gpu_type)
        sizes = self.cluster.node_gpus[nodes]
        part = np.minimum(gpus, sizes)
        able = nodes[part == part.max()]
        together = int(part.max())
        points = self._profile[job_type, gpus].points
        fits = (points[:, None, 0] * together <= self.node_cpus[able] + _ROUNDING) & (
            points[:, None, 1] * together <= self.node_memory_gib[able] + _ROUNDING
        )
        possible = points[fits.any(axis=1)]
        best = possible[possible[:, 2] >= possible[:, 2].max() - _ROUNDING]
        first = best[np.lexsort((best[:, 1], best[:, 0]))[0]]
        return float(first[0]), float(first[1])

    @cached_property
    def proportional(self) -> FloatArray:
        """Relative rate of each job with the proportional share at the GPUs it asks for, (jobs,): of its best type."""
        return self._of_each_job(lambda row, gpus, kind: self._fair_rate(row, gpus, kind))

    @cached_property
    def best(self) -> FloatArray:
        """Relative rate of each job with its demand, (jobs,): of its best GPU type."""
        return self._of_each_job(
            lambda row, gpus, kind: float(self.profile(row, gpus).rate(*self.demand(row, gpus, kind)))
        )

    def _fair_rate(self, row: int, gpus: int, kind: int) -> float:
        nodes = self.cluster.node_gpu_type == kind
        return float(self.profile(row, gpus).rate(self.fair_cpus[nodes], self.fair_memory_gib[nodes]).max())

    def _of_each_job(self, rate: _RateOf) -> FloatArray:
        catalog, table = self.catalog, self.table
        known: dict[tuple[int, int, int], float] = {}
        values = np.ones(len(table))
        for row in range(len(table)):
            columns = slice(catalog.offsets[row], catalog.offsets[row + 1])
            counts, kinds = catalog.num_gpus[columns], catalog.gpu_type[columns]
            size = int(table.num_gpus[row]) if (counts == table.num_gpus[row]).any() else int(counts.max())
            rates = []
            for kind in set(kinds[counts == size].tolist()):
                key = int(table.job_type[row]), size, kind
                if key not in known:
                    known[key] = rate(row, size, kind)
                rates.append(known[key])
            values[row] = max(rates)
        return values
