"""What a host allocation is: it divides the CPUs and memory of the nodes between the jobs of a round."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from bloxopt.errors import InputError
from bloxopt.hosts.rates import HostRates
from bloxopt.jobs import BoolArray, FloatArray
from bloxopt.runtime.assignment import Assignment, HostShare
from bloxopt.runtime.resources import WHOLE_GPU, Grant


class HostAllocation(Protocol):
    """Decides, after the jobs of a round are selected and placed, how many CPUs and GiB each gets on its nodes.

    It holds no state. Every job gets at least the rate of its proportional share, whatever it is given.
    """

    @property
    def gives_more(self) -> bool:
        """False if every job gets its proportional share and no more, so that waiting jobs can expect no more."""
        ...

    def allocate(
        self, assignment: Assignment, order: Sequence[int], rates: HostRates, node_up: BoolArray
    ) -> Assignment:
        """The assignment with CPUs and memory for every job (``Assignment.with_hosts``), perhaps on other GPUs.

        ``order`` has the rows of all jobs that run, first the one with the best claim. ``node_up`` (nodes,).
        """
        ...


class Hosts:
    """A host allocation and the rates of the jobs that it serves: what the round loop and a backend need of it."""

    def __init__(self, allocation: HostAllocation, rates: HostRates) -> None:
        self.allocation = allocation
        self.rates = rates
        self._last: tuple[Assignment, list[int], BoolArray] | None = None

    @cached_property
    def expected(self) -> FloatArray:
        """Relative rate that each job may expect while it waits, (jobs,)."""
        return self.rates.best if self.allocation.gives_more else self.rates.proportional

    def allocate(self, assignment: Assignment, order: Sequence[int], node_up: BoolArray) -> Assignment:
        """The assignment with CPUs and memory divided; jobs that ``order`` does not name come last.

        Where nothing has changed since the last division, it stands. Raises :class:`~bloxopt.errors.InputError` for
        jobs that share GPUs.
        """
        grants = assignment.grants
        shared = next((row for row, grant in grants.items() if grant.milli != WHOLE_GPU), None)
        if shared is not None:
            raise InputError(
                f"job {self.rates.table.job_id[shared]!r} shares its GPUs with another: a host allocation divides CPUs "
                "and memory between jobs with whole GPUs; use a policy that does not pack jobs, or no host allocation"
            )
        named = [row for row in order if row in grants]
        if len(named) < len(grants):
            known = set(named)
            named.extend(row for row in grants if row not in known)
        last = self._last
        if last is not None and last[0] is assignment and last[1] == named and np.array_equal(last[2], node_up):
            return assignment
        divided = self.allocation.allocate(assignment, named, self.rates, node_up)
        self._last = divided, named, node_up
        return divided

    def factors(self, assignment: Assignment) -> FloatArray:
        """Relative rate of every job, (jobs,): with what it has, or what it may expect if it does not run."""
        factors = self.expected.copy()
        if assignment.hosts:
            row = np.fromiter(assignment.hosts, dtype=np.int64, count=len(assignment.hosts))
            gpus, cpus, memory_gib = (
                np.array(values)
                for values in zip(
                    *(per_gpu(assignment.grants[r], assignment.hosts[r]) for r in row.tolist()), strict=True
                )
            )
            factors[row] = self.rates.factors(row, gpus, cpus, memory_gib)
        return factors


def per_gpu(grant: Grant, share: HostShare) -> tuple[int, float, float]:
    """GPUs of a job, and the CPUs and GiB for each of them where it has the fewest: the slowest part sets the pace."""
    return (
        grant.num_gpus,
        min(cpus / count for cpus, count in zip(share.cpus, grant.counts, strict=True)),
        min(memory / count for memory, count in zip(share.memory_gib, grant.counts, strict=True)),
    )


def share_of(grant: Grant, cpus: float, memory_gib: float) -> HostShare:
    """So many CPUs and GiB for each GPU of a grant."""
    return HostShare(
        tuple([count * cpus for count in grant.counts]), tuple([count * memory_gib for count in grant.counts])
    )
