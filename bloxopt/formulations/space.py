"""The columns of a scheduling program: one per active job and configuration it could be given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bloxopt.arguments import fits
from bloxopt.cluster import Cluster, load_cluster
from bloxopt.errors import InputError
from bloxopt.formulations.catalog import EVERY_COUNT_UP_TO as EVERY_COUNT_UP_TO
from bloxopt.formulations.catalog import ConfigurationCatalog as ConfigurationCatalog
from bloxopt.formulations.catalog import columns_of
from bloxopt.formulations.job_state import as_job_table, state_column
from bloxopt.jobs import BoolArray, FloatArray, IntArray, Job, JobTable
from bloxopt.pairing import ALONE, PAIR_SHARE, PairColumns
from bloxopt.placement.slowdown import as_slowdown
from bloxopt.state import JobLedger, JobStatus
from bloxopt.throughput import DurationThroughput, as_oracle


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
        table = as_job_table(getattr(jobs, "jobs", jobs))
        if throughput is None:
            throughput = getattr(jobs, "throughput", None) or DurationThroughput()
        moment = float(table.arrival.max()) if now is None else now
        if not fits(moment, float) or not abs(moment) < np.inf:
            raise InputError(f"now is {moment!r}: it must be a finite number of seconds")
        if not fits(round_seconds, float) or not 0 < round_seconds < np.inf:
            raise InputError(f"round_seconds is {round_seconds!r}: it must be a finite number of seconds > 0")
        model = None if slowdown is None else as_slowdown(slowdown)
        oracle = as_oracle(throughput)
        catalog = ConfigurationCatalog(
            table, cluster, oracle, model, model is not None and pair_threshold is None, pair_threshold
        )
        catalog.check_every_job_can_run()
        ledger = JobLedger(table)
        for name, value in state.items():
            getattr(ledger, name)[...] = state_column(name, value, len(table), len(cluster.gpu_types))
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
        job, position = columns_of(self.catalog.offsets, self.index)
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
        """Steps/s at the requested GPU count, shape (num_jobs, types); 0 where it has none (see the catalog)."""
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
