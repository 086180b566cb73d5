"""What would make a job run now: changes tried out on forks of the scheduler, never guessed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bloxopt.cluster import Cluster, Node
from bloxopt.errors import BloxoptError
from bloxopt.explanations.reasons import Remedy
from bloxopt.formulations.constraints.base import name_blocks
from bloxopt.formulations.policy import Policy
from bloxopt.jobs import IntArray
from bloxopt.rounds import Decided, Scheduler
from bloxopt.runtime.backend import ClusterState
from bloxopt.simulation.fork import fork

_MOST_TRIES = 8
"""Numbers of GPUs that are tried of each type."""


def decided_with(scheduler: Scheduler, state: ClusterState, **changes: object) -> Decided | None:
    """The round decided on a fork with ``changes``, those of :func:`~bloxopt.simulation.fork.fork`; None if none is."""
    try:
        twin, before = fork(scheduler, state, **changes)  # type: ignore[arg-type]
        return twin.decide(before)
    except BloxoptError:
        return None


def runs_with(scheduler: Scheduler, state: ClusterState, row: int, **changes: object) -> bool:
    """Whether job ``row`` runs if the round is decided with ``changes``."""
    made = decided_with(scheduler, state, **changes)
    return made is not None and row in made.assignment


def more_gpus(scheduler: Scheduler, state: ClusterState, row: int, active: IntArray) -> Iterator[Remedy]:
    """For each GPU type on which the job makes progress, the fewest additional GPUs tried with which it runs now.

    ``active`` are the rows of the jobs that compete for them.
    """
    catalog = scheduler.backend.catalog
    cluster = catalog.cluster
    need = int(catalog.table.num_gpus[row])
    wanted = int(catalog.table.num_gpus[active].sum())
    for kind in np.flatnonzero(catalog.runs_on[row]):
        name = cluster.gpu_types[kind]
        for amount in _amounts(need, wanted):
            if runs_with(scheduler, state, row, cluster=with_node(cluster, name, amount)):
                text = f"{amount} more {name} on one node would let it run now"
                yield Remedy("gpus", name, float(amount), text)
                break


def with_node(cluster: Cluster, gpu_type: str, num_gpus: int) -> Cluster:
    """The cluster with one more node, like its first one of the type but for the number of GPUs."""
    like = next(node for node in cluster.nodes if node.gpu_type == gpu_type)
    host = {
        field: None if (has := getattr(like, field)) is None else has * max(1.0, num_gpus / like.num_gpus)
        for field in ("cpus", "memory_gib")
    }
    taken = {node.name for node in cluster.nodes}
    name = next(name for k in range(len(taken) + 1) if (name := f"additional-{k}") not in taken)
    return Cluster((*cluster.nodes, Node(name=name, gpu_type=gpu_type, num_gpus=num_gpus, **host)), cluster.network)  # type: ignore[arg-type]


def _amounts(need: int, wanted: int) -> list[int]:
    """Multiples of a gang, growing geometrically up to what all active jobs ask for together."""
    amounts: list[int] = []
    amount = need
    while len(amounts) < _MOST_TRIES - 1 and amount < wanted:
        amounts.append(amount)
        amount *= 2
    return [*amounts, max(wanted, need)]


def without_block(policy: Policy, name: str) -> Policy:
    """The policy without one of its constraint blocks."""
    return replace(policy, constraints=[block for other, block in name_blocks(policy.blocks).items() if other != name])
