"""What would make a job run now: changes tried out on forks of the scheduler, never guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from bloxopt.cluster import Cluster, Node
from bloxopt.decisions import Decided
from bloxopt.errors import BloxoptError
from bloxopt.explanations.reasons import Remedy
from bloxopt.formulations.constraints.base import name_blocks
from bloxopt.formulations.policy import Policy
from bloxopt.formulations.space import ConfigurationCatalog
from bloxopt.jobs import IntArray
from bloxopt.placement.rules import allowed_nodes
from bloxopt.rounds import Scheduler
from bloxopt.runtime.backend import ClusterState
from bloxopt.simulation.fork import fork

_MOST_TRIES = 8
"""Numbers of GPUs that are tried of each type before the fewest is looked for between two of them."""


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


def new_plan(scheduler: Scheduler, state: ClusterState, row: int) -> Remedy | None:
    """Planning again before the interval between two plans has passed, if that makes the job run now."""
    if not scheduler.solve_interval or not runs_with(scheduler, state, row, replan=True):
        return None
    return Remedy("plan", scheduler.policy.name, 1.0, "a plan made now would let it run")


def more_gpus(scheduler: Scheduler, state: ClusterState, row: int, active: IntArray) -> Iterator[Remedy]:
    """For each GPU type on which the job makes progress, how many additional GPUs would let it run now.

    With one fewer it does not run. ``active`` are the rows of the jobs that compete for them.
    """
    catalog = scheduler.backend.catalog
    cluster = catalog.cluster
    need = int(catalog.table.num_gpus[row])
    wanted = int(catalog.table.num_gpus[active].sum())
    for kind in np.flatnonzero(catalog.runs_on[row]):
        name = cluster.gpu_types[kind]
        like = _model(catalog, row, name)
        if like is None:
            continue

        def runs(amount: int, like: Node = like) -> bool:
            return runs_with(scheduler, state, row, cluster=with_node(cluster, like, amount))

        amount = _fewest(runs, _amounts(need, wanted))
        if amount is not None:
            alike = "" if _all_alike(cluster, name) else f" like {like.name}"
            text = f"{amount} more {name} on one node{alike} would let it run now"
            yield Remedy("gpus", name, float(amount), text)


def _fewest(runs: Callable[[int], bool], amounts: list[int]) -> int | None:
    """An amount that is enough while one fewer is not: the first of ``amounts`` that is, then by halving."""
    enough = next((amount for amount in amounts if runs(amount)), None)
    if enough is None:
        return None
    too_few = max((amount for amount in amounts if amount < enough), default=0)
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if runs(middle):
            enough = middle
        else:
            too_few = middle
    return enough


def _model(catalog: ConfigurationCatalog, row: int, gpu_type: str) -> Node | None:
    """The largest node of a type on which the job may run at all, the first of several."""
    table = catalog.table
    allowed = allowed_nodes(
        catalog.cluster, table.need_kinds[table.needs[row]], table.tenants[int(table.tenant[row])]
    ).tolist()
    nodes = [node for node, may in zip(catalog.cluster.nodes, allowed, strict=True) if may]
    return max((node for node in nodes if node.gpu_type == gpu_type), key=lambda node: node.num_gpus, default=None)


def _all_alike(cluster: Cluster, gpu_type: str) -> bool:
    """Whether nodes of a type differ in nothing that jobs can ask for by name."""
    nodes = [node for node in cluster.nodes if node.gpu_type == gpu_type]
    return len({(node.rack, node.datacenter, node.labels, node.taints, node.reserved_for) for node in nodes}) == 1


def with_node(cluster: Cluster, like: Node, num_gpus: int) -> Cluster:
    """The cluster with one more node, like one of its own but for the number of GPUs, with CPUs and memory to match."""
    scale = max(1.0, num_gpus / like.num_gpus)
    taken = {node.name for node in cluster.nodes}
    added = replace(
        like,
        name=next(name for k in range(len(taken) + 1) if (name := f"additional-{k}") not in taken),
        num_gpus=num_gpus,
        cpus=None if like.cpus is None else like.cpus * scale,
        memory_gib=None if like.memory_gib is None else like.memory_gib * scale,
        island_gpus=None,
        links=None,
    )
    return Cluster((*cluster.nodes, added), cluster.network)


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
