"""What is known of every job while it is scheduled, as arrays: the ledger and a view of the active jobs."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from bloxopt.jobs import BoolArray, FloatArray, IntArray, JobTable


class JobStatus(IntEnum):
    """Where a job is in its life."""

    NOT_ARRIVED = 0
    WAITING = 1
    RUNNING = 2
    FINISHED = 3
    REJECTED = 4


class JobLedger:
    """One row per job of the table; written by the backend and the scheduler, read by everyone else.

    ``remaining_steps`` steps · ``attained_seconds`` time spent running (s) · ``attained_service``
    GPU-seconds received · ``received`` (jobs, types) seconds run on each GPU type ·
    ``isolated_seconds`` time the work done so far would have taken on an equal share of the cluster
    (finish-time fairness; kept by the scheduler) · ``gpu_type`` and ``gpus`` what the job runs on
    now, -1 and 0 when it does not · ``start`` and ``finish`` absolute seconds, NaN before they
    happen · ``preemptions`` and ``restarts`` counts.
    """

    def __init__(self, table: JobTable, num_gpu_types: int) -> None:
        count = len(table)
        self.table = table
        self.status = np.full(count, JobStatus.NOT_ARRIVED, dtype=np.int8)
        self.remaining_steps = table.total_steps.copy()
        self.attained_seconds = np.zeros(count)
        self.attained_service = np.zeros(count)
        self.received = np.zeros((count, num_gpu_types))
        self.isolated_seconds = np.zeros(count)
        self.gpu_type = np.full(count, -1, dtype=np.int64)
        self.gpus = np.zeros(count, dtype=np.int64)
        self.start = np.full(count, np.nan)
        self.finish = np.full(count, np.nan)
        self.preemptions = np.zeros(count, dtype=np.int64)
        self.restarts = np.zeros(count, dtype=np.int64)

    def active(self) -> IntArray:
        """Rows of the jobs that wait or run, in admission order of the table."""
        return np.flatnonzero((self.status == JobStatus.WAITING) | (self.status == JobStatus.RUNNING))

    def running_mask(self) -> BoolArray:
        return np.equal(self.status, JobStatus.RUNNING)

    def executed_fraction(self) -> FloatArray:
        """Share of its steps that each job has done."""
        return 1.0 - self.remaining_steps / self.table.total_steps
