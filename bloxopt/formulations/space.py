"""The columns of a scheduling program: one per active job and configuration it could be given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bloxopt.cluster import Cluster, load_cluster
from bloxopt.errors import FormulationError, InputError, ThroughputError, TraceError, UnknownNameError, guarded
from bloxopt.formulations.checks import real_numbers
from bloxopt.jobs import BoolArray, FloatArray, IntArray, Job, JobTable
from bloxopt.pairing import ALONE, PAIR_SHARE, PairColumns, Pairing
from bloxopt.phases import Phases
from bloxopt.placement.feasibility import check_placeable, largest_gangs, needs_limit
from bloxopt.placement.slowdown import Slowdown, as_slowdown, fewest_nodes
from bloxopt.state import JobLedger, JobStatus
from bloxopt.throughput import DurationThroughput, ThroughputOracle, as_oracle, checked_rates

EVERY_COUNT_UP_TO = 16
"""Elastic jobs get every GPU count up to here unless the catalog is told otherwise."""


class ConfigurationCatalog:
    """Every feasible (GPU type, GPU count) of every job, built once per trace and cluster.

    Feasible means that the job has a rate there and that its gang can be placed on the empty cluster within its needs.
    Flat arrays in job-major order, ``offsets`` (jobs + 1,) delimiting each job's part:
    ``gpu_type`` code, ``num_gpus`` GPUs, ``rate`` steps/s (> 0). ``requested_rate`` (jobs, types) is
    the rate at the GPU count the job asks for, 0 where it cannot run.

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
        job, column = _columns_of(self.offsets, row)
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


def _columns_of(offsets: IntArray, row: IntArray) -> tuple[IntArray, IntArray]:
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


class AllocationSpace:
    """The active jobs, the GPUs that are up, and the columns a policy decides on.

    Per job (shape (num_jobs,)), in admission order: ``remaining_steps``, ``elapsed`` (s since
    arrival), ``attained_seconds``, ``attained_service`` (GPU-s), ``isolated_seconds``, ``weight``,
    ``current_gpu_type`` (-1 if not running), ``current_num_gpus``, ``running``; static columns through
    ``jobs`` (a :class:`JobTable`). Per column (shape (num_columns,)), job-major: ``job`` (0 …
    num_jobs-1), ``gpu_type``, ``num_gpus``, ``gpu_demand`` (GPUs of capacity it uses, a share counting as its
    part), ``rate`` (steps/s, > 0, on the share the job asks for), ``spread`` and ``has_twin`` (see the catalog),
    ``partner`` (kind of the job it shares its GPUs with, -1 for none; see :mod:`bloxopt.pairing`).
    ``capacity`` (types,) GPUs up, ``node_up`` (nodes,) where they are.
    Everything is computed on first use and must not be written to.
    """

    def __init__(
        self,
        catalog: ConfigurationCatalog,
        ledger: JobLedger,
        index: IntArray,
        *,
        capacity: IntArray | None = None,
        now: float = 0.0,
        round_seconds: float = 360.0,
        node_up: BoolArray | None = None,
    ) -> None:
        self.catalog = catalog
        self.ledger = ledger
        self.index = index
        self.cluster = catalog.cluster
        self.capacity: IntArray = catalog.cluster.capacity if capacity is None else capacity
        self.now = now
        self.round_seconds = round_seconds
        self._node_up = node_up
        self._may_share = catalog.pairing is not None

    @classmethod
    def from_jobs(
        cls,
        jobs: Iterable[Job] | JobTable | Any,
        cluster: Cluster | str,
        throughput: Any = None,
        *,
        now: float | None = None,
        round_seconds: float = 360.0,
        slowdown: Any = None,
        pair_threshold: float | None = None,
        **state: Any,
    ) -> AllocationSpace:
        """A space for one allocation without a simulation: all ``jobs`` are active.

        ``jobs`` is a trace, the name of one, a table or ``Job`` objects; ``throughput`` is anything that
        :func:`bloxopt.throughput.as_oracle` takes (default: the trace's own, else durations); ``now``
        (s) defaults to the last arrival. ``slowdown`` (anything that
        :func:`~bloxopt.placement.slowdown.as_slowdown` takes) adds columns for gangs on more nodes than
        necessary, ``pair_threshold`` columns for jobs that share GPUs (``Policy.pair_threshold`` says which value a
        policy wants; 1 loses nothing). ``state`` sets columns of the :class:`~bloxopt.state.JobLedger` (in arrival
        order): ``remaining_steps``, ``attained_seconds``, ``attained_service``, ``isolated_seconds``, ``gpu_type``
        (codes of the cluster's types, -1 for a job that waits), ``gpus`` (default: what a running job asks for) and
        ``nodes``.
        Raises :class:`~bloxopt.errors.InputError` naming the argument that cannot be used.
        """
        cluster = load_cluster(cluster)
        if isinstance(jobs, (str, Path)):
            from bloxopt.workloads import load_trace

            jobs = load_trace(jobs)
        table = _job_table(getattr(jobs, "jobs", jobs))
        if throughput is None:
            throughput = getattr(jobs, "throughput", None) or DurationThroughput()
        moment = float(table.arrival.max()) if now is None else now
        if not _is_number(moment) or not abs(moment) < np.inf:
            raise InputError(f"now is {moment!r}: it must be a finite number of seconds")
        if not _is_number(round_seconds) or not 0 < round_seconds < np.inf:
            raise InputError(f"round_seconds is {round_seconds!r}: it must be a finite number of seconds > 0")
        model = None if slowdown is None else as_slowdown(slowdown)
        oracle = as_oracle(throughput)
        catalog = ConfigurationCatalog(
            table, cluster, oracle, model, model is not None and pair_threshold is None, pair_threshold
        )
        catalog.check_every_job_can_run()
        ledger = JobLedger(table)
        for name, value in state.items():
            getattr(ledger, name)[...] = _state_column(name, value, len(table), len(cluster.gpu_types))
        running = ledger.gpu_type >= 0
        if "gpus" not in state:
            ledger.gpus[running] = table.num_gpus[running]
        ledger.status[:] = np.where(running, JobStatus.RUNNING, JobStatus.WAITING)
        return cls(catalog, ledger, np.arange(len(table)), now=float(moment), round_seconds=float(round_seconds))

    def without(self, rows: IntArray) -> AllocationSpace:
        """The same space less some jobs, given by their rows of the table."""
        return self._with(self.index[~np.isin(self.index, rows)], self._may_share)

    def alone(self) -> AllocationSpace:
        """The same space less the columns of jobs that share GPUs."""
        return self._with(self.index, False) if self._may_share else self

    def _with(self, index: IntArray, may_share: bool) -> AllocationSpace:
        other = AllocationSpace(
            self.catalog,
            self.ledger,
            index,
            capacity=self.capacity,
            now=self.now,
            round_seconds=self.round_seconds,
            node_up=self._node_up,
        )
        other._may_share = may_share
        return other

    def including(self, rows: IntArray) -> AllocationSpace:
        """The same space and jobs ``rows`` of the table beside its own, after them."""
        return self._with(np.concatenate([self.index, rows]), self._may_share)

    @property
    def num_jobs(self) -> int:
        return len(self.index)

    @property
    def num_columns(self) -> int:
        return len(self.job)

    @property
    def gpu_types(self) -> Sequence[str]:
        return self.cluster.gpu_types

    @cached_property
    def jobs(self) -> JobTable:
        """Static columns of the active jobs."""
        return self.catalog.jobs(self.index)

    @cached_property
    def job_ids(self) -> NDArray[np.object_]:
        """Ids of the active jobs, without taking the other static columns."""
        return self.catalog.table.job_id[self.index]

    @cached_property
    def tenant(self) -> IntArray:
        """Code of each active job's tenant into ``catalog.table.tenants``."""
        return self.catalog.table.tenant[self.index]

    @cached_property
    def requested_gpus(self) -> IntArray:
        """GPUs that each active job asks for."""
        return self.catalog.table.num_gpus[self.index]

    @cached_property
    def requested_demand(self) -> IntArray | FloatArray:
        """GPUs that each active job asks for, a share counting as its part."""
        return self.catalog.table.gpu_demand[self.index]

    @cached_property
    def deadline(self) -> FloatArray:
        """Absolute deadline of each active job (s), +inf for none."""
        return self.catalog.table.deadline[self.index]

    @cached_property
    def restart_cost(self) -> FloatArray:
        """Seconds each active job loses when it starts again."""
        return self.catalog.table.restart_cost[self.index]

    @cached_property
    def fastest_rate(self) -> FloatArray:
        """Highest steps/s among each job's columns; 0 for a job without columns."""
        fastest = np.zeros(self.num_jobs)
        np.maximum.at(fastest, self.job, self.rate)
        return fastest

    @cached_property
    def _columns(self) -> tuple[IntArray, IntArray]:
        """Owning active job and catalog position of every column."""
        job, position = _columns_of(self.catalog.offsets, self.index)
        if not np.array_equal(self.capacity, self.cluster.capacity):
            # While nodes are down, a gang larger than what is up cannot run in any round.
            fits = self.catalog.num_gpus[position] <= self.capacity[self.catalog.gpu_type[position]]
            job, position = job[fits], position[fits]
        return job, position

    @cached_property
    def _pairs(self) -> tuple[PairColumns, IntArray] | None:
        """The columns beside a partner, and the order that puts them behind the other columns of their job."""
        if self.catalog.pairing is None or not self._may_share:
            return None
        owner, position = self._columns
        asked = self.catalog.num_gpus[position] == self.requested_gpus[owner]
        rate = np.zeros((self.num_jobs, len(self.gpu_types)))
        rate[owner[asked], self.catalog.gpu_type[position][asked]] = self.catalog.rate[position][asked]
        pairs = self.catalog.pairing.columns(self.index, rate)
        return pairs, np.argsort(np.concatenate([owner, pairs.job]), kind="stable")

    def _and_pairs(self, alone: NDArray[Any], paired: str) -> NDArray[Any]:
        """Values of the columns without a partner and, if there are any, of those with one, in order of columns."""
        if self._pairs is None:
            return alone
        pairs, order = self._pairs
        return np.concatenate([alone, getattr(pairs, paired)])[order]

    @cached_property
    def job(self) -> IntArray:
        return self._and_pairs(self._columns[0], "job")

    @cached_property
    def gpu_type(self) -> IntArray:
        return self._and_pairs(self.catalog.gpu_type[self._columns[1]], "gpu_type")

    @cached_property
    def num_gpus(self) -> IntArray:
        return self._and_pairs(self.catalog.num_gpus[self._columns[1]], "num_gpus")

    @cached_property
    def partner(self) -> IntArray:
        """Kind of the job that every column shares its GPUs with, -1 for none, (num_columns,)."""
        return self._and_pairs(np.full(len(self._columns[0]), ALONE), "partner")

    @cached_property
    def gpu_demand(self) -> IntArray | FloatArray:
        """GPUs of capacity that every column uses: ``num_gpus``, times the share for jobs that share a GPU.

        Beside a partner that is half of them.
        """
        demand: IntArray | FloatArray = self.num_gpus
        if self.catalog.table.has_shares:
            demand = demand * self.catalog.table.gpu_share[self.index].round(3)[self.job]
        return demand if self._pairs is None else np.where(self.partner >= 0, PAIR_SHARE * demand, demand)

    @cached_property
    def rate(self) -> FloatArray:
        return self._and_pairs(self.catalog.rate[self._columns[1]], "rate")

    @cached_property
    def spread(self) -> IntArray:
        """0 for columns that need the fewest nodes, 1 for those that may have any, (num_columns,)."""
        if self._pairs is not None:
            return np.zeros(self.num_columns, dtype=np.int64)
        return self.catalog.spread[self._columns[1]]

    @cached_property
    def has_twin(self) -> BoolArray:
        """Columns of a configuration that has one for the fewest nodes and one for any, (num_columns,)."""
        twins = self.catalog.has_twin
        return np.zeros(self.num_columns, dtype=bool) if twins is None else twins[self._columns[1]]

    @cached_property
    def node_up(self) -> BoolArray:
        """Nodes that are up and not drained, (nodes,)."""
        usable = ~self.cluster.node_drained
        return usable if self._node_up is None else usable & self._node_up

    @cached_property
    def runnable(self) -> BoolArray:
        """Jobs with at least one column; the others (nodes are down) take no part in this program."""
        return np.greater(np.bincount(self.job, minlength=self.num_jobs), 0)

    @cached_property
    def requested_rate(self) -> FloatArray:
        """Steps/s at the requested GPU count, shape (num_jobs, types); 0 where it cannot run."""
        return self.catalog.requested_rate[self.index]

    @cached_property
    def proportional_rate(self) -> FloatArray:
        """``Σ_j T_ij c_j / Σ_j c_j`` (steps/s): the rate on an average GPU of the cluster (Gavel, OSDI 2020)."""
        share: FloatArray = self.cluster.capacity / self.cluster.capacity.sum()
        rate: FloatArray = self.requested_rate @ share
        return rate

    @cached_property
    def isolated_share(self) -> FloatArray:
        """Time share of each job on each type when all have an equal part of the cluster, (num_jobs, types).

        ``c_j / (m s_i)`` with m jobs and s_i the GPUs asked for (a share as its part); rows that exceed 1 are scaled
        down to 1 (Gavel's isolated policy).
        """
        share: FloatArray = self.capacity[None, :] / (self.num_jobs * self.requested_demand[:, None])
        share /= np.maximum(share.sum(axis=1, keepdims=True), 1.0)
        return share

    @cached_property
    def isolated_rate(self) -> FloatArray:
        """Steps/s of each job on its isolated share."""
        rate: FloatArray = np.multiply(self.isolated_share, self.requested_rate).sum(axis=1)
        return rate

    @cached_property
    def remaining_steps(self) -> FloatArray:
        return self.ledger.remaining_steps[self.index]

    @cached_property
    def arrival(self) -> FloatArray:
        return self.catalog.table.arrival[self.index]

    @cached_property
    def elapsed(self) -> FloatArray:
        return self.now - self.arrival

    @cached_property
    def attained_seconds(self) -> FloatArray:
        return self.ledger.attained_seconds[self.index]

    @cached_property
    def attained_service(self) -> FloatArray:
        return self.ledger.attained_service[self.index]

    @cached_property
    def isolated_seconds(self) -> FloatArray:
        return self.ledger.isolated_seconds[self.index]

    @cached_property
    def weight(self) -> FloatArray:
        return self.catalog.table.weight[self.index]

    @cached_property
    def current_gpu_type(self) -> IntArray:
        return self.ledger.gpu_type[self.index]

    @cached_property
    def current_num_gpus(self) -> IntArray:
        return self.ledger.gpus[self.index]

    @cached_property
    def running(self) -> BoolArray:
        return np.greater_equal(self.current_gpu_type, 0)

    @cached_property
    def is_current(self) -> BoolArray:
        """Columns that are what their job runs on now, shape (num_columns,)."""
        current: BoolArray = self.gpu_type == self.current_gpu_type[self.job]
        current &= self.num_gpus == self.current_num_gpus[self.job]
        if self.catalog.pairing is not None:
            partner = self.ledger.partner[self.index]
            kind = np.where(partner >= 0, self.catalog.pairing.kind[partner], ALONE)
            current &= self.partner == kind[self.job]
        if self.catalog.has_twin is not None:
            nodes = self.ledger.nodes[self.index][self.job]
            apart = nodes > self.catalog.fewest_nodes(self.gpu_type, self.num_gpus)
            current &= ~self.has_twin | (self.spread == apart)
        return current

    def to_pandas(self) -> pd.DataFrame:
        """The columns for people: job_id, gpu_type, num_gpus, steps_per_second, current (spread, beside: if any)."""
        frame = pd.DataFrame(
            {
                "job_id": self.catalog.table.job_id[self.index][self.job],
                "gpu_type": np.asarray(self.gpu_types, dtype=object)[self.gpu_type],
                "num_gpus": self.num_gpus,
                "steps_per_second": self.rate,
                "current": self.is_current,
            }
        )
        if self.catalog.pairing is not None:
            names = np.asarray([*self.catalog.pairing.names, ""], dtype=object)
            frame = frame.assign(beside=names[self.partner])
        return frame if self.catalog.has_twin is None else frame.assign(spread=self.spread)


def _job_table(jobs: Any) -> JobTable:
    if isinstance(jobs, JobTable):
        table = jobs
    else:
        if isinstance(jobs, Job) or not isinstance(jobs, Iterable):
            hint = "put it into a list" if isinstance(jobs, Job) else "give a trace, the name of one, or Job objects"
            raise TraceError(f"jobs is a {type(jobs).__name__}, must be a list of jobs: {hint}")
        listed = list(jobs)
        for position, job in enumerate(listed):
            if not isinstance(job, Job):
                raise TraceError(f"jobs[{position}] is {job!r}: it must be a Job")
        table = JobTable.from_jobs(listed)
    if len(table) == 0:
        raise TraceError("no jobs to allocate: the list is empty")
    return table


_STATE = {
    "remaining_steps": ("finite numbers >= 0", 0),
    "attained_seconds": ("finite numbers >= 0", 0),
    "attained_service": ("finite numbers >= 0", 0),
    "isolated_seconds": ("finite numbers >= 0", 0),
    "gpu_type": ("whole numbers from -1 (waits) to the cluster's last GPU type", -1),
    "gpus": ("whole numbers >= 0", 0),
    "nodes": ("whole numbers >= 1", 1),
}
"""What may be said of jobs under way: which numbers, and the least."""


def _state_column(name: str, value: Any, count: int, types: int) -> NDArray[Any]:
    """A column of the ledger as given: one number, or one per job; raises naming what is wrong with it."""
    if name not in _STATE:
        raise UnknownNameError("state of jobs", name, _STATE)
    wanted, least = _STATE[name]
    most = types - 1 if name == "gpu_type" else np.inf
    array = real_numbers(name, value, f"{wanted}, one per job", InputError)
    if array.shape not in ((), (count,)):
        raise InputError(f"{name} has shape {array.shape}: it must be {wanted}, one for each of {count} jobs")
    bad = ~(np.isfinite(array) & (array >= least) & (array <= most))
    if wanted.startswith("whole"):
        bad |= array != np.floor(array)
    if bad.any():
        first = np.atleast_1d(array)[np.atleast_1d(bad)][0]
        raise InputError(f"{name} has {first}: it must be {wanted}, one per job")
    return array


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
