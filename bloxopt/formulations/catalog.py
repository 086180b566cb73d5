"""Every configuration that jobs could be given: GPU type, number of GPUs and rate, once per trace and cluster."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from bloxopt.cluster import Cluster
from bloxopt.errors import FormulationError, ThroughputError, TraceError, guarded
from bloxopt.jobs import BoolArray, FloatArray, IntArray, JobTable
from bloxopt.pairing import Pairing
from bloxopt.phases import Phases
from bloxopt.placement.feasibility import check_placeable, largest_gangs, needs_limit
from bloxopt.placement.slowdown import Slowdown, fewest_nodes
from bloxopt.throughput import ThroughputOracle, checked_rates

EVERY_COUNT_UP_TO = 16
"""Elastic jobs get every GPU count up to here unless the catalog is told otherwise."""


class ConfigurationCatalog:
    """Every feasible (GPU type, GPU count) of every job, built once per trace and cluster.

    Feasible means that the job has a rate there and that its gang can be placed on the empty cluster within its needs.
    Flat arrays in job-major order, ``offsets`` (jobs + 1,) delimiting each job's part:
    ``gpu_type`` code, ``num_gpus`` GPUs, ``rate`` steps/s (> 0). ``requested_rate`` (jobs, types) is
    the rate at the GPU count the job asks for, 0 where it has none; types too small for the gang keep theirs, since
    Gavel's isolated shares count every type.

    ``slowdown`` tells what more nodes than necessary cost, None that they cost nothing. With ``spread_columns`` a
    configuration that they slow down has two columns: ``spread`` 0, on the fewest nodes, at the full rate, and
    ``spread`` 1, on any nodes, at the rate on one node more. One that they do not slow down has ``spread`` 1 alone.
    Without, ``spread`` is 0 throughout.

    Where rates change as jobs progress (:mod:`bloxopt.phases`), ``phases`` says when, and all rates are those of the
    ``phase`` that each job is in now, (jobs,): a backend moves jobs on by :meth:`enter_phase`, which counts ``version``
    up. Without, ``phases`` is None.

    With a ``pair_threshold`` jobs may also share GPUs with another (:mod:`bloxopt.pairing`): ``pairing`` says which, at
    the GPU counts that they ask for. Without, ``pairing`` is None.

    Elastic jobs get every GPU count up to ``every_count_up_to``, above it powers of two (with their own bounds and
    request).
    """

    def __init__(
        self,
        table: JobTable,
        cluster: Cluster,
        oracle: ThroughputOracle,
        slowdown: Slowdown | None = None,
        spread_columns: bool = False,
        pair_threshold: float | None = None,
        every_count_up_to: int = EVERY_COUNT_UP_TO,
    ) -> None:
        self.table = table
        self.cluster = cluster
        self.slowdown = slowdown
        self.every_count_up_to = every_count_up_to
        self._settings = (slowdown, spread_columns, pair_threshold, every_count_up_to)
        self.oracle = oracle
        self.phases = Phases.of(oracle, table)
        self.phase: IntArray = np.zeros(len(table), dtype=np.int64)
        self.version = 0
        types = cluster.gpu_types
        self.requested_rate = checked_rates(oracle, table, types, table.num_gpus)
        if self.phases is not None:
            self.requested_rate = self.requested_rate.copy()  # changes as jobs progress, the oracle's own must not
        job, counts = _gpu_counts(table, every_count_up_to)
        self.rigid = np.array_equal(counts, table.num_gpus) and len(job) == len(table)
        rates = self.requested_rate if self.rigid else checked_rates(oracle, table.take(job), types, counts)
        most = largest_gangs(table, cluster)[job] if needs_limit(table, cluster) else cluster.capacity[None, :]
        row, kind = np.nonzero((rates > 0) & (counts[:, None] <= most))
        self.gpu_type: IntArray = kind.astype(np.int64)
        self.num_gpus: IntArray = counts[row]
        self.rate: FloatArray = rates[row, kind]
        self.spread: IntArray = np.zeros(len(row), dtype=np.int64)
        self.has_twin: BoolArray | None = None
        if slowdown is not None and spread_columns:
            job, row = job[row], np.arange(len(row))
            row = self._add_spread_columns(job, slowdown)
        self.pair_threshold = pair_threshold
        self.pairing: Pairing | None = None
        if pair_threshold is not None:
            if self.has_twin is not None:
                raise FormulationError(
                    "a program cannot both pack jobs and decide where gangs are spread: drop PairedShares, or "
                    "NodeCapacity and SpreadPenalty"
                )
            if self.phases is not None:
                raise ThroughputError(
                    "jobs whose rates change as they progress cannot share GPUs, because how fast pairs are in which "
                    "phase is not known: use a policy that does not pack, or an oracle without phases"
                )
            self.pairing = Pairing.of(oracle, table, cluster, self.requested_rate, pair_threshold)
        self.offsets: IntArray = np.concatenate([[0], np.cumsum(np.bincount(job[row], minlength=len(table)))]).astype(
            np.int64
        )

    def rebuilt(
        self, rows: IntArray | None = None, table: JobTable | None = None, cluster: Cluster | None = None
    ) -> ConfigurationCatalog:
        """A catalog of jobs ``rows`` (None: all), each in its present phase, that changes apart from this one.

        ``table`` replaces the static columns of those jobs, ``cluster`` the cluster.
        """
        if table is None:
            table = self.table if rows is None else self.table.take(rows)
        twin = ConfigurationCatalog(table, self.cluster if cluster is None else cluster, self.oracle, *self._settings)
        phase = self.phase if rows is None else self.phase[rows]
        if len(moved := np.flatnonzero(phase)):
            twin.enter_phase(moved, phase[moved])
        return twin

    def jobs(self, row: IntArray) -> JobTable:
        """Static columns of jobs ``row``, each in its present phase."""
        jobs = self.table.take(row)
        return jobs if self.phases is None else jobs.in_phase(self.phase[row])

    def enter_phase(self, row: IntArray, phase: IntArray) -> None:
        """Jobs ``row`` (each once) have come to ``phase``: their rates are those of it from now on.

        Raises :class:`~bloxopt.errors.ThroughputError` if a configuration has lost its rate.
        """
        self.phase[row] = phase
        self.version += 1
        self.__dict__.pop("best_requested_rate", None)
        types = self.cluster.gpu_types
        self.requested_rate[row] = checked_rates(self.oracle, self.jobs(row), types, self.table.num_gpus[row])
        job, column = columns_of(self.offsets, row)
        owner, kind, count = row[job], self.gpu_type[column], self.num_gpus[column]
        rate = checked_rates(self.oracle, self.jobs(owner), types, count)[np.arange(len(owner)), kind]
        if not rate.all():
            lost = int(np.argmin(rate))
            raise ThroughputError(
                f"job {self.table.job_id[owner[lost]]!r} has no throughput on {count[lost]} x {types[kind[lost]]} in "
                f"phase {self.phase[owner[lost]]} although it had in phase 0: a job must be able to run on the same "
                "GPUs in all its phases"
            )
        if self.has_twin is not None and self.slowdown is not None:
            apart = self.has_twin[column] & (self.spread[column] == 1)
            fewest = self.fewest_nodes(kind[apart], count[apart])
            rate[apart] *= self._factors(self.slowdown, owner[apart], kind[apart], count[apart], fewest + 1)
        self.rate[column] = rate

    def mean_requested_rate(self) -> FloatArray:
        """Steps/s at the GPU count each job asks for, over all of its work, (jobs, types); 0 where it cannot run."""
        if self.phases is None:
            return self.requested_rate
        count, table, types = self.phases.count, self.table, self.cluster.gpu_types
        job = np.repeat(np.arange(len(table)), count)
        phase = np.arange(len(job)) - self.phases.offsets[job]
        end = np.minimum(self.phases.ends(job, phase), table.total_steps[job])
        begin = np.where(phase > 0, np.minimum(np.roll(end, 1), table.total_steps[job]), 0.0)
        rate = checked_rates(self.oracle, table.take(job).in_phase(phase), types, table.num_gpus[job])
        spent = np.divide((end - begin)[:, None], rate, out=np.zeros_like(rate), where=rate > 0)
        seconds = np.add.reduceat(spent, self.phases.offsets[:-1], axis=0)
        return np.divide(table.total_steps[:, None], seconds, out=np.zeros_like(seconds), where=seconds > 0)

    @cached_property
    def position(self) -> dict[str, int]:
        """Row of each job id in ``table``."""
        return {job_id: row for row, job_id in enumerate(self.table.job_id)}

    @cached_property
    def runs_on(self) -> BoolArray:
        """Whether each job makes progress on each GPU type at the GPU count it asks for, (jobs, types)."""
        return np.greater(self.requested_rate, 0.0)

    @cached_property
    def best_requested_rate(self) -> FloatArray:
        """Steps/s of each job on its fastest GPU type at the GPU count it asks for, shape (jobs,)."""
        best: FloatArray = self.requested_rate.max(axis=1, initial=0.0)
        return best

    def _add_spread_columns(self, job: IntArray, slowdown: Slowdown) -> IntArray:
        """Give columns that more nodes slow down a twin for that; returns the source of each column, job-major."""
        fewest = self.fewest_nodes(self.gpu_type, self.num_gpus)
        factor = self._factors(slowdown, job, self.gpu_type, self.num_gpus, fewest + 1)
        nodes = np.bincount(self.cluster.node_gpu_type, minlength=len(self.cluster.gpu_types))
        can_spread = (self.num_gpus > fewest) & (fewest < nodes[self.gpu_type])
        twin = can_spread & (factor < 1)
        source = np.concatenate([np.arange(len(job)), twin.nonzero()[0]])
        spread = np.concatenate([(can_spread & ~twin).astype(np.int64), np.ones(int(twin.sum()), dtype=np.int64)])
        rate = np.concatenate([self.rate, (self.rate * factor)[twin]])
        order = np.argsort(job[source], kind="stable")
        source = source[order]
        self.gpu_type, self.num_gpus = self.gpu_type[source], self.num_gpus[source]
        self.rate, self.spread, self.has_twin = rate[order], spread[order], twin[source]
        return source

    def fewest_nodes(self, gpu_type: IntArray, num_gpus: IntArray) -> IntArray:
        """Nodes that gangs span at least on the empty cluster."""
        fewest = np.ones(len(num_gpus), dtype=np.int64)
        for kind in np.unique(gpu_type):
            mine = gpu_type == kind
            sizes = self.cluster.node_gpus[self.cluster.node_gpu_type == kind]
            fewest[mine] = fewest_nodes(sizes, num_gpus[mine])
        return fewest

    def _factors(
        self, slowdown: Slowdown, row: IntArray, gpu_type: IntArray, num_gpus: IntArray, nodes: IntArray
    ) -> FloatArray:
        """Rate of gangs on that many nodes over their rate on the fewest."""
        fewest = self.fewest_nodes(gpu_type, num_gpus)
        factors = np.ones(len(row))
        for kind in np.unique(gpu_type[nodes > fewest]):
            mine = ((gpu_type == kind) & (nodes > fewest)).nonzero()[0]
            factors[mine] = slowdown.factors(
                self.jobs(row[mine]), self.cluster.gpu_types[kind], num_gpus[mine], nodes[mine], fewest[mine]
            )
        return factors

    def rate_on_nodes(self, row: IntArray, gpu_type: IntArray, num_gpus: IntArray, nodes: IntArray) -> FloatArray:
        """The same on that many ``nodes``: :meth:`rate_of` less what spreading costs."""
        return self.rate_of(row, gpu_type, num_gpus) * self.placement_factors(row, gpu_type, num_gpus, nodes)

    @property
    def knows_placements(self) -> bool:
        """Whether rates follow from the GPUs on each node of a gang, as the oracle was measured."""
        return self.slowdown is None and hasattr(self.oracle, "rates_on")

    def rate_placed(self, row: IntArray, gpu_type: IntArray, counts: Sequence[tuple[int, ...]]) -> FloatArray:
        """Steps/s of jobs ``row`` on ``counts[i]`` GPUs of each of their nodes, where :attr:`knows_placements`.

        Raises :class:`~bloxopt.errors.ThroughputError` for a placement that a job makes no progress on.
        """
        oracle, rates = self.oracle, np.zeros(len(row))
        assert hasattr(oracle, "rates_on")
        for kind in np.unique(gpu_type).tolist():
            mine = (gpu_type == kind).nonzero()[0]
            on = [counts[position] for position in mine.tolist()]
            name = f"the throughput oracle {type(oracle).__name__}: rates_on(jobs, gpu_type, counts)"
            with guarded(name, ThroughputError):
                given = np.asarray(oracle.rates_on(self.jobs(row[mine]), self.cluster.gpu_types[kind], on), dtype=float)
            if given.shape != (len(mine),):
                raise ThroughputError(
                    f"{name} gave shape {given.shape}, must give one rate for each of {len(mine)} jobs"
                )
            bad = ~(np.isfinite(given) & (given > 0))
            if bad.any():
                at = int(np.argmax(bad))
                raise ThroughputError(
                    f"{name}: job {self.table.job_id[row[mine[at]]]!r} on {'+'.join(map(str, on[at]))} GPUs of "
                    f"{self.cluster.gpu_types[kind]} nodes runs at {given[at]} steps/s: a placement must let every "
                    "job progress that has a rate on as many GPUs"
                )
            rates[mine] = given
        return rates

    def placement_factors(self, row: IntArray, gpu_type: IntArray, num_gpus: IntArray, nodes: IntArray) -> FloatArray:
        """What is left of each gang's rate on that many ``nodes``, in (0, 1]."""
        if self.slowdown is None:
            return np.ones(len(row))
        return self._factors(self.slowdown, row, gpu_type, num_gpus, nodes)

    def rate_of(self, row: IntArray, gpu_type: IntArray, num_gpus: IntArray) -> FloatArray:
        """Steps/s of jobs ``row`` on the given types and counts, all of which must be in the catalog."""
        if self.rigid:
            return np.asarray(self.requested_rate[row, gpu_type])
        rates = np.empty(len(row))
        for position, (job, kind, count) in enumerate(zip(row, gpu_type, num_gpus, strict=True)):
            columns = slice(self.offsets[job], self.offsets[job + 1])
            match = (self.gpu_type[columns] == kind) & (self.num_gpus[columns] == count)
            rates[position] = self.rate[columns][match][0]
        return rates

    def check_every_job_can_run(self) -> None:
        """Raise :class:`TraceError` naming a job without any configuration, and the level at which its needs fail."""
        self.cluster.check_fits(self.table)
        check_placeable(self)
        empty = np.flatnonzero(np.diff(self.offsets) == 0)
        if empty.size:
            i = int(empty[0])
            more = f" ({empty.size} such jobs)" if empty.size > 1 else ""
            raise TraceError(
                f"job {self.table.job_id[i]!r} ({self.table.job_type_names[i]}, {self.table.num_gpus[i]} GPUs) has "
                f"zero throughput on every GPU type it fits on in {self.cluster.describe()}{more}: add its rates to "
                "the throughput table or drop it from the trace"
            )


def columns_of(offsets: IntArray, row: IntArray) -> tuple[IntArray, IntArray]:
    """Position in ``row`` and column of every column of those jobs, job by job."""
    start = offsets[row]
    count = offsets[row + 1] - start
    job = np.repeat(np.arange(len(row)), count)
    first = np.cumsum(count) - count
    return job, np.arange(len(job)) - np.repeat(first - start, count)


def _gpu_counts(table: JobTable, every_count_up_to: int) -> tuple[IntArray, IntArray]:
    """Job index and GPU count of every size to consider, job-major and ascending."""
    if np.array_equal(table.min_gpus, table.max_gpus):
        return np.arange(len(table)), table.num_gpus
    jobs: list[IntArray] = []
    counts: list[IntArray] = []
    # Elastic traces repeat few distinct ranges, so the sizes are worked out once per range.
    shapes = np.column_stack([table.min_gpus, table.num_gpus, table.max_gpus])
    distinct, inverse = np.unique(shapes, axis=0, return_inverse=True)
    for code, (low, asked, high) in enumerate(distinct):
        sizes = np.arange(low, min(high, every_count_up_to) + 1)
        powers = 2 ** np.arange(int(high).bit_length() + 1)
        extra = np.concatenate([powers[(powers >= low) & (powers <= high)], [low, asked, high]])
        sizes = np.union1d(sizes, extra).astype(np.int64)
        members = np.flatnonzero(inverse.ravel() == code)
        jobs.append(np.repeat(members, len(sizes)))
        counts.append(np.tile(sizes, len(members)))
    job, count = np.concatenate(jobs), np.concatenate(counts)
    order = np.argsort(job, kind="stable")
    return job[order], count[order]
