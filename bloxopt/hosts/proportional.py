"""Every job gets the part of a node's CPUs and memory that it has of the node's GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from bloxopt.hosts.rates import HostRates
from bloxopt.jobs import BoolArray
from bloxopt.runtime.assignment import Assignment, HostShare
from bloxopt.runtime.resources import Grant


class Proportional:
    """The share of CPUs and memory in proportion to GPUs, as schedulers give that look at GPUs alone.

    Source: the baseline of Mohan et al., OSDI 2022 (Synergy).
    """

    gives_more = False

    def allocate(
        self, assignment: Assignment, order: Sequence[int], rates: HostRates, node_up: BoolArray
    ) -> Assignment:
        """The same grants with their proportional shares."""
        return assignment.with_hosts({row: fair_share(grant, rates) for row, grant in assignment.grants.items()})


def fair_share(grant: Grant, rates: HostRates) -> HostShare:
    """The proportional share of a grant on each of its nodes."""
    return HostShare(
        tuple([float(rates.fair_cpus[node]) * count for node, count in zip(grant.nodes, grant.counts, strict=True)]),
        tuple(
            [float(rates.fair_memory_gib[node]) * count for node, count in zip(grant.nodes, grant.counts, strict=True)]
        ),
    )
