"""Space sharing: which jobs may run on the same GPUs at the same time, and how fast each of them is then.

Jobs are alike if they have the same job type and ask for the same number of GPUs (and state the same needs): a *kind*.
How fast a job is beside another depends on their kinds and the GPU type alone, so configurations name the
partner's kind, not the partner: as many columns as job types, not as jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bloxopt.cluster import MIG_LABEL, Cluster
from bloxopt.errors import InputError, ThroughputError, guarded
from bloxopt.jobs import BoolArray, FloatArray, IntArray, JobTable
from bloxopt.placement.rules import states_needs

PAIR_SHARE = 0.5
"""Part of each of its GPUs that one job of a pair holds."""

ALONE = -1
"""Partner of a configuration or job that has its GPUs for itself."""


class PairedThroughput(Protocol):
    """A :class:`~bloxopt.throughput.ThroughputOracle` that also knows how fast jobs run beside each other."""

    def paired_rates(self, job_types: Sequence[str], num_gpus: IntArray, gpu_types: Sequence[str]) -> FloatArray | None:
        """Steps/s of a job of kind a while one of kind b shares its GPUs of type j, 0 where it is not known.

        Kinds are given by ``job_types`` and ``num_gpus`` (kinds,); the answer has the shape (kinds, kinds, types), of
        which only kinds with the same number of GPUs are read. None for an oracle that knows no pairs after all.
        """
        ...


@dataclass(frozen=True, eq=False)
class PairColumns:
    """Configurations beside a partner: ``job`` (0 …), ``gpu_type``, ``num_gpus``, kind of the ``partner``, ``rate``."""

    job: IntArray
    gpu_type: IntArray
    num_gpus: IntArray
    partner: IntArray
    rate: FloatArray


class Pairing:
    """Which kinds of jobs may share GPUs.

    ``kind`` (jobs,) of each job of the table, -1 for jobs that take part of a GPU already: these have no partner.
    ``factor`` (kinds, kinds, types) is what kind a keeps of its rate beside kind b on GPU
    type j, 0 where that is not possible: of different gang sizes, without a profile, or not worth it. ``names`` of the
    kinds are their job types.

    A pair is worth it if the parts that both keep of their rates add up to more than ``threshold``. At 1 (as much as
    they get in turns) nothing is lost: a pair that keeps less is replaced by turns in which both get as much, with
    less time and fewer GPUs. Jobs that state needs share with those of the same needs and tenant; such as want nodes
    for themselves, or keep apart from others, do not share.
    """

    def __init__(self, kind: IntArray, factor: FloatArray, names: Sequence[str], num_gpus: IntArray) -> None:
        self.kind = kind
        self.factor = factor
        self.names = names
        self.num_gpus = num_gpus

    @classmethod
    def of(
        cls, oracle: Any, table: JobTable, cluster: Cluster, requested_rate: FloatArray, threshold: float
    ) -> Pairing:
        """The pairs that ``oracle`` knows of; ``requested_rate`` (jobs, types) are the rates alone.

        Raises :class:`~bloxopt.errors.ThroughputError` for an oracle that knows of none or says what cannot be, and
        :class:`~bloxopt.errors.InputError` for clusters on which GPUs are partitioned.
        """
        for node in cluster.nodes:
            if MIG_LABEL in dict(node.labels):
                raise InputError(
                    f"node {node.name!r}: GPUs that are partitioned cannot be shared by pairs of jobs: use a policy "
                    f"that does not pack, or drop the node's label {MIG_LABEL!r}"
                )
        described = states_needs(table, cluster)
        columns = [table.job_type, table.num_gpus]
        columns += [table.needs, table.tenant] if described else []
        hosts = bool(table.cpus_per_gpu.any() or table.memory_gib_per_gpu.any())
        if hosts:
            columns.append(np.unique(np.column_stack(_host_needs(table)), axis=0, return_inverse=True)[1].ravel())
        kinds, first, kind = np.unique(np.column_stack(columns), axis=0, return_index=True, return_inverse=True)
        names = [table.job_types[code] for code in kinds[:, 0].tolist()]
        gpus = kinds[:, 1]
        rates = _checked_pairs(oracle, names, gpus, cluster.gpu_types)
        alone = requested_rate[first]
        factor = np.divide(rates, alone[:, None, :], out=np.zeros_like(rates), where=alone[:, None, :] > 0)
        possible = (gpus[:, None] == gpus[None, :])[:, :, None] & (factor > 0) & (factor > 0).transpose(1, 0, 2)
        possible &= factor + factor.transpose(1, 0, 2) > threshold
        if described:
            # What one may use the other may use too, and no two of an anti-affinity group meet.
            possible &= (kinds[:, None, 2:4] == kinds[None, :, 2:4]).all(axis=2)[:, :, None]
            apart = np.array([need.anti_affinity is not None or need.exclusive_node for need in table.need_kinds])
            possible &= ~apart[kinds[:, 2]][:, None, None]
        if hosts:
            possible &= _fits_beside(cluster, gpus, *(need[first] for need in _host_needs(table)))
        kind = np.where(table.gpu_share < 1.0, -1, kind.ravel()).astype(np.int64)
        return cls(kind, np.where(possible, factor, 0.0), names, gpus)

    def factors(self, row: IntArray, partner: IntArray, gpu_type: IntArray) -> FloatArray:
        """What jobs ``row`` keep of their rates beside the jobs ``partner`` (-1: none) on GPUs of a type."""
        kept: FloatArray = np.ones(len(row))
        shared = partner >= 0
        kept[shared] = self.factor[self.kind[row[shared]], self.kind[partner[shared]], gpu_type[shared]]
        return kept

    def columns(self, row: IntArray, rate: FloatArray) -> PairColumns:
        """The configurations of jobs ``row`` beside each other, job by job.

        ``rate`` (jobs, types) are their rates alone, 0 where a job cannot run just now.
        """
        kind = self.kind[row]
        present, count = np.unique(kind[kind >= 0], return_counts=True)
        own, partner, gpu_type = self.possible(present, count).nonzero()
        start = np.searchsorted(own, np.arange(len(present) + 1))
        shares = (kind >= 0).nonzero()[0]
        at = np.searchsorted(present, kind[shares])
        each = (start[1:] - start[:-1])[at]
        job = np.repeat(shares, each)
        column = np.arange(len(job)) - np.repeat(np.cumsum(each) - each, each) + np.repeat(start[at], each)
        own, partner, gpu_type = present[own[column]], present[partner[column]], gpu_type[column]
        paired = rate[job, gpu_type] * self.factor[own, partner, gpu_type]
        runs = paired > 0
        return PairColumns(job[runs], gpu_type[runs], self.num_gpus[own[runs]], partner[runs], paired[runs])

    def possible(self, present: IntArray, count: IntArray) -> BoolArray:
        """Which of the kinds ``present`` may share, ``count`` jobs being there of each: (present, present, types)."""
        possible: BoolArray = self.factor[np.ix_(present, present)] > 0
        single = (count < 2).nonzero()[0]
        possible[single, single] = False
        return possible


def _host_needs(table: JobTable) -> tuple[FloatArray, FloatArray]:
    return table.cpus_per_gpu, table.memory_gib_per_gpu


def _fits_beside(cluster: Cluster, num_gpus: IntArray, *needs: FloatArray) -> BoolArray:
    """Whether the empty cluster has CPUs and memory for gangs of two kinds on the same GPUs: (kinds, kinds, types)."""
    fits = np.zeros((len(num_gpus), len(num_gpus), len(cluster.gpu_types)))
    shapes = np.column_stack([cluster.node_gpu_type, cluster.node_gpus, cluster.node_cpus, cluster.node_memory_gib])
    for (kind, gpus, *stocks), count in zip(*np.unique(shapes, axis=0, return_counts=True), strict=True):
        room = np.full(fits.shape[:2], gpus)
        for stock, need in zip(stocks, needs, strict=True):
            both = need[:, None] + need[None, :]
            most = np.divide(stock, both, out=np.full(both.shape, np.inf), where=both > 0)
            room = np.minimum(room, np.floor(most + 1e-9))
        fits[:, :, int(kind)] += count * room
    return np.asarray(fits >= num_gpus[:, None, None])


def _checked_pairs(oracle: Any, names: Sequence[str], num_gpus: IntArray, gpu_types: Sequence[str]) -> FloatArray:
    """The oracle's rates of pairs after checking that there are some, their shape and sign."""
    who = f"the throughput oracle {type(oracle).__name__}"
    method = getattr(oracle, "paired_rates", None)
    raw: Any = None
    if method is not None:
        with guarded(f"{who}: paired_rates(job_types, num_gpus, gpu_types)", ThroughputError):
            raw = method(names, num_gpus, gpu_types)
    if raw is None:
        raise ThroughputError(
            f"{who} does not say how fast jobs run beside each other, which a policy that packs jobs needs: give "
            "TableThroughput(table, pairs=...), a table in Gavel's JSON with partners or an oracle with "
            "paired_rates(), or use a policy that does not pack"
        )
    try:
        rates = np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ThroughputError(f"{who}: paired_rates() gave no numbers: {error}") from error
    wanted = (len(names), len(names), len(gpu_types))
    if rates.shape != wanted:
        raise ThroughputError(
            f"{who}: paired_rates() gave shape {rates.shape}, expected (kinds, kinds, types) = {wanted}"
        )
    bad = ~(np.isfinite(rates) & (rates >= 0))
    if bad.any():
        a, b, j = (int(axis[0]) for axis in np.nonzero(bad))
        raise ThroughputError(
            f"throughput of {names[a]!r} beside {names[b]!r} on {num_gpus[a]} x {gpu_types[j]} is {rates[a, b, j]}: "
            "it must be a finite number of steps/s >= 0"
        )
    return rates
