"""Phases of a job's work: stretches of steps within which its rates stay the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bloxopt.errors import ThroughputError, guarded
from bloxopt.jobs import FloatArray, IntArray, JobTable


@dataclass(frozen=True, eq=False)
class Phases:
    """When the rates of each job change: job i is in phase k until it has done ``end[offsets[i] + k]`` steps.

    ``offsets`` (jobs + 1,), every job having at least one phase; ``end`` steps done, ascending within a job. The last
    phase of a job ends with its work, whatever ``end`` says. Raises :class:`ThroughputError` naming a job for others.
    """

    offsets: IntArray
    end: FloatArray

    @classmethod
    def of(cls, oracle: Any, table: JobTable) -> Phases | None:
        """The phases that an oracle with a method ``phases(jobs)`` knows of; None for one without, or of one phase."""
        method = getattr(oracle, "phases", None)
        if method is None:
            return None
        name = f"the throughput oracle {type(oracle).__name__}: phases(jobs)"
        with guarded(name, ThroughputError):
            phases = method(table)
        if phases is None:
            return None
        if not isinstance(phases, cls):
            raise ThroughputError(f"{name} gave {type(phases).__name__}, must give Phases or None")
        phases._check(table, name)
        return phases if len(phases.end) > len(table) else None

    def _check(self, table: JobTable, name: str) -> None:
        count = np.diff(self.offsets)
        if len(count) != len(table) or self.offsets[0] != 0 or self.offsets[-1] != len(self.end) or (count < 1).any():
            raise ThroughputError(f"{name}: offsets must delimit at least one phase for each of {len(table)} jobs")
        job = np.repeat(np.arange(len(table)), count)
        first = np.zeros(len(self.end), dtype=bool)
        first[self.offsets[:-1]] = True
        before = np.where(first, 0.0, np.roll(self.end, 1))
        bad = ~(self.end > before)
        if bad.any():
            row = int(job[np.argmax(bad)])
            raise ThroughputError(f"{name}: the phases of job {table.job_id[row]!r} must end after more and more steps")

    @property
    def count(self) -> IntArray:
        """Number of phases of each job, (jobs,)."""
        return np.diff(self.offsets)

    def ends(self, row: IntArray, phase: IntArray) -> FloatArray:
        """Steps done at which jobs ``row`` leave ``phase``; inf for their last one."""
        at = self.offsets[row] + phase
        return np.where(at + 1 < self.offsets[row + 1], self.end[at], np.inf)

    def phase_at(self, row: IntArray, steps: FloatArray) -> IntArray:
        """The phase of jobs ``row`` once they have done that many steps, (rows,)."""
        phase = np.zeros(len(row), dtype=np.int64)
        behind = self.ends(row, phase) <= steps
        while behind.any():
            phase[behind] += 1
            behind = self.ends(row, phase) <= steps
        return phase


class PhasedThroughput(Protocol):
    """A :class:`~bloxopt.throughput.ThroughputOracle` whose rates change as jobs progress.

    ``rates(jobs, …)`` finds the phase that each job is in as ``jobs.phase``; which configurations have a rate must not
    depend on it.
    """

    def phases(self, jobs: JobTable) -> Phases | None:
        """When the rates of each job change; None if they never do."""
        ...
