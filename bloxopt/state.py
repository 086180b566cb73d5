"""What is known of every job while it is scheduled, as arrays of one row per job."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bloxopt.jobs import FloatArray, IntArray, JobTable


class JobStatus(IntEnum):
    """Where a job is in its life."""

    NOT_ADMITTED = 0
    WAITING = 1
    RUNNING = 2
    FINISHED = 3
    REJECTED = 4


class JobLedger:
    """One row per job of the table; written by the backend and the scheduler, read by everyone else.

    ``remaining_steps`` steps · ``attained_seconds`` time spent running (s) · ``attained_service``
    GPU-seconds received · ``isolated_seconds`` time the work done so far would have taken on an
    equal share of the cluster (finish-time fairness; kept by the scheduler) · ``gpu_type`` and
    ``gpus`` what the job runs on now, -1 and 0 when it does not · ``nodes`` how many nodes it spans or last spanned
    (kept where placement matters to the rate) · ``partner`` row of the job on the same GPUs, -1 for none ·
    ``start`` and ``finish`` absolute
    seconds, NaN before they happen · ``preemptions`` and ``restarts`` counts · ``active`` rows of the
    jobs that wait or run, in order of admission · ``num_finished`` how many are done · ``host_factor`` what CPUs and
    memory do to each job's rate: a running job's as it is, a waiting one's as it would be at best (None where no host
    allocation divides them, see :mod:`bloxopt.hosts`).
    """

    def __init__(self, table: JobTable) -> None:
        count = len(table)
        self.table = table
        self.num_finished = 0
        self.active: IntArray = np.zeros(0, dtype=np.int64)
        self.status = np.full(count, JobStatus.NOT_ADMITTED, dtype=np.int8)
        self.remaining_steps = table.total_steps.copy()
        self.attained_seconds = np.zeros(count)
        self.attained_service = np.zeros(count)
        self.isolated_seconds = np.zeros(count)
        self.gpu_type = np.full(count, -1, dtype=np.int64)
        self.gpus = np.zeros(count, dtype=np.int64)
        self.nodes = np.ones(count, dtype=np.int64)
        self.partner = np.full(count, -1, dtype=np.int64)
        self.start = np.full(count, np.nan)
        self.finish = np.full(count, np.nan)
        self.preemptions = np.zeros(count, dtype=np.int64)
        self.restarts = np.zeros(count, dtype=np.int64)
        self.host_factor: FloatArray | None = None

        self.refusals: dict[int, str] = {}
        """Why jobs, by row, wait for admission or were turned away."""
        self.notes: dict[str, float] = {}
        """Numbers that a policy or an admission remembers between rounds, by name."""
        self._memories: dict[str, NDArray[Any]] = {}
        self._fills: dict[str, float | bool | None] = {}

    def copy(self, table: JobTable | None = None) -> JobLedger:
        """The same ledger, to be changed apart from this one; ``table`` replaces the jobs' static columns."""
        twin = copy(self)
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                setattr(twin, name, column.copy())
        twin.table = self.table if table is None else table
        twin.refusals, twin.notes = dict(self.refusals), dict(self.notes)
        twin._memories = {name: column.copy() for name, column in self._memories.items()}
        twin._fills = dict(self._fills)
        return twin

    def take(self, rows: IntArray, table: JobTable | None = None) -> JobLedger:
        """A ledger of the jobs ``rows`` alone, all of them active, that changes apart from this one.

        ``table`` is their part of the table where that is at hand already.
        """
        part = self.renumbered(rows, self.table.take(rows) if table is None else table)
        part.active = np.arange(len(rows))
        return part

    def renumbered(self, rows: IntArray, table: JobTable) -> JobLedger:
        """A ledger for another ``table``, whose job k is in row ``rows[k]`` here, or new where that is -1.

        What is known of jobs that are in both is taken over, with the order of those that are active.
        """
        part = JobLedger(table)
        # One place more, so that "no row", -1, stays that.
        old, position = rows >= 0, np.full(len(self.table) + 1, -1)
        position[rows[old]] = np.flatnonzero(old)
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray) and name != "active":
                getattr(part, name)[old] = column[rows[old]]
        part.partner = position[part.partner]
        part.active = position[self.active]
        part.active = part.active[part.active >= 0]
        part.num_finished = int((part.status == JobStatus.FINISHED).sum())
        part.notes = dict(self.notes)
        part.refusals = {int(position[row]): why for row, why in self.refusals.items() if position[row] >= 0}
        part._fills = dict(self._fills)
        for name, column in self._memories.items():
            part.memory(name, self._fills[name], *column.shape[1:])[old] = column[rows[old]]
        return part

    def memory(self, name: str, fill: float | bool | None = 0.0, *shape: int) -> NDArray[Any]:
        """What schedulers remember of every job between rounds: one value (or array of ``shape``) a row of the table.

        The array named ``name`` is made of ``fill`` when it is first asked for and is the reader's to change. Policies,
        selectors and admissions hold no state of their own, so what is known of jobs is here and in the plan alone.
        Asked for with another ``shape``, such as that of one GPU type more, it keeps what fits and the rest is filled.
        """
        known = self._memories.get(name)
        if known is None or (shape and known.shape[1:] != shape):
            array: NDArray[Any] = np.full((len(self.table), *shape), fill)
            if known is not None and known.ndim == array.ndim:
                kept = tuple(slice(min(sizes)) for sizes in zip(known.shape, array.shape, strict=True))
                array[kept] = known[kept]
            self._memories[name], self._fills[name] = array, fill
        return self._memories[name]

    def memories(self) -> dict[str, tuple[NDArray[Any], float | bool | None]]:
        """Every array that :meth:`memory` has made by now, by name, with what it was made of."""
        return {name: (array, self._fills[name]) for name, array in self._memories.items()}

    def admit(self, rows: IntArray) -> None:
        """Let jobs in: they wait from now on."""
        self.status[rows] = JobStatus.WAITING
        self.active = np.concatenate([self.active, rows])
        if self.refusals:
            for row in rows.tolist():
                self.refusals.pop(row, None)

    def reject(self, rows: IntArray) -> None:
        """Turn jobs away for good."""
        self.status[rows] = JobStatus.REJECTED

    def explain(self, rows: IntArray | Iterable[int], reason: str) -> None:
        """Note why jobs are not admitted: a part of a sentence such as ``"its tenant has 4 jobs already"``."""
        self.refusals.update(dict.fromkeys(map(int, rows), reason))

    def complete(self, rows: IntArray, times: FloatArray) -> None:
        """Record jobs as finished at ``times`` (seconds)."""
        self.status[rows] = JobStatus.FINISHED
        self.num_finished += len(rows)
        self.finish[rows] = times
        self.remaining_steps[rows] = 0.0
        self.gpu_type[rows] = -1
        self.gpus[rows] = 0
        self.partner[rows] = -1
        self.active = self.active[self.status[self.active] != JobStatus.FINISHED]
