"""Jobs that a host allocation puts on other nodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bloxopt.errors import InputError
from bloxopt.hosts.rates import HostRates
from bloxopt.hosts.servers import Places
from bloxopt.needs import NO_NEEDS
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.resources import WHOLE_GPU, Grant


def moved(assignment: Assignment, places: Mapping[int, Places], rates: HostRates) -> Assignment:
    """The assignment with every job at its ``places``; one that is there already keeps its GPUs.

    Raises :class:`InputError` for jobs and clusters with placement constraints, which moving does not look at.
    """
    _check_free_to_move(rates)
    grants, offset = assignment.grants, rates.cluster.gpu_offset
    moving = [
        row
        for row, where in places.items()
        if dict(where) != dict(zip(grants[row].nodes, grants[row].counts, strict=True))
    ]
    if not moving:
        return assignment
    free = assignment.free.copy()
    for row in moving:
        free.give_back(row, grants[row])
    start: dict[int, Grant] = {}
    for row in moving:
        nodes, counts = zip(*places[row], strict=True)
        gpus: list[int] = []
        for node, count in places[row]:
            idle = np.flatnonzero(free.milli[offset[node] : offset[node + 1]] == WHOLE_GPU)[:count]
            gpus.extend((idle + offset[node]).tolist())
        grant = Grant(grants[row].gpu_type, tuple(nodes), tuple(counts), tuple(gpus))
        free.take(row, grant)
        start[row] = grant
    return assignment.change(moving, start)


def _check_free_to_move(rates: HostRates) -> None:
    cluster, table = rates.cluster, rates.table
    needy = np.flatnonzero([kind != NO_NEEDS for kind in table.need_kinds])
    if needy.size and np.isin(table.needs, needy).any():
        row = int(np.argmax(np.isin(table.needs, needy)))
        raise InputError(
            f"job {table.job_id[row]!r} has placement constraints, which a host allocation with repack=True does not "
            "look at: use repack=False, which leaves jobs where the placement puts them"
        )
    for node in cluster.nodes:
        if node.taints or node.reserved_for is not None:
            raise InputError(
                f"node {node.name!r} is tainted or reserved, which a host allocation with repack=True does not look "
                "at: use repack=False, which leaves jobs where the placement puts them"
            )
