"""Placement constraints while a round is placed: which nodes a job may use, and searches that keep to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bloxopt.cluster import Cluster, Node
from bloxopt.jobs import BoolArray, IntArray, JobTable
from bloxopt.needs import NO_NEEDS, PlacementNeeds
from bloxopt.placement.grouping import best_groups
from bloxopt.placement.strategy import Found, Offer, Strategy
from bloxopt.placement.topology import Topology


class Rules:
    """The needs of every job and the conditions of every node, for one run of the scheduler.

    :meth:`of` gives None where there is nothing to obey, so that such runs pay nothing. The nodes that
    a job may use at all are worked out once for each kind of needs and tenant; who else is on a node is read
    from the resources of the moment.
    """

    def __init__(self, cluster: Cluster, jobs: JobTable) -> None:
        self.cluster = cluster
        self.jobs = jobs
        self._needs: list[PlacementNeeds] = [jobs.need_kinds[kind] for kind in jobs.needs.tolist()]
        self._node_rack = Topology.of(cluster).node_rack
        self._racks = len(Topology.of(cluster).rack_names)
        self._allowed: dict[tuple[int, int], BoolArray] = {}

    @classmethod
    def of(cls, cluster: Cluster, jobs: JobTable) -> Rules | None:
        """The rules of a cluster and its jobs, None if neither states any."""
        return cls(cluster, jobs) if states_needs(jobs, cluster) else None

    def needs(self, row: int) -> PlacementNeeds:
        """What job ``row`` asks of its place."""
        return self._needs[row]

    def allowed(self, row: int) -> BoolArray:
        """Nodes that job ``row`` may start on, whoever else is there: (nodes,), read-only."""
        key = (int(self.jobs.needs[row]), int(self.jobs.tenant[row]))
        mask = self._allowed.get(key)
        if mask is None:
            mask = self._allowed[key] = allowed_nodes(
                self.cluster, self.jobs.need_kinds[key[0]], self.jobs.tenants[key[1]]
            )
        return mask

    def choice(self, row: int) -> int:
        """How many nodes job ``row`` may start on, whoever is there; an exclusive job has the least choice."""
        return 0 if self.needs(row).exclusive_node else int(np.count_nonzero(self.allowed(row)))

    def open_nodes(self, offer: Offer) -> BoolArray:
        """Nodes that the job of ``offer`` may start on now: allowed, and with no company that it or they refuse."""
        row, free = offer.row, offer.workspace.free
        mask = self.allowed(row)
        if free.exclusive is not None:
            mask = mask & ((free.jobs == 0) if self.needs(row).exclusive_node else (free.exclusive == 0))
        if free.group_jobs is not None and (group := free.groups[self.jobs.needs[row]]) >= 0:
            mask = mask & (free.group_jobs[group] == 0)
        return mask

    def search(self, strategy: Strategy, offer: Offer, need: int) -> Found | None:
        """The answer of ``strategy`` within the rules: on open nodes, few enough and, if need be, of one rack."""
        needs = self.needs(offer.row)
        available = np.where(self.open_nodes(offer), offer.available, 0)
        if needs.same_rack != "any" and self._racks > 1:
            found = self._search_racks(strategy, offer, available, need, needs.max_nodes)
            if found is not None or needs.same_rack == "required":
                return found
        return _search(strategy, offer, available, need, needs.max_nodes)

    def _search_racks(
        self, strategy: Strategy, offer: Offer, available: IntArray, need: int, max_nodes: int | None
    ) -> Found | None:
        """The rack in which the gang takes the fewest nodes, of those the one with the fewest GPUs free."""
        for rack in best_groups(available, self._node_rack, self._racks, need, max_nodes).tolist():
            inside = np.where(self._node_rack == rack, available, 0)
            found = _search(strategy, offer, inside, need, max_nodes)
            if found is not None:
                return found
        return None


def _search(strategy: Strategy, offer: Offer, available: IntArray, need: int, max_nodes: int | None) -> Found | None:
    """The strategy's answer on at most ``max_nodes`` nodes.

    Where it would use more by itself it is offered as many nodes only: of the nodes in order of free GPUs, the
    first neighbours that hold the gang. If any nodes do, the emptiest ones do, and they come last.
    """
    if available.sum() < need:
        return None
    found = strategy(replace(offer, available=available), need)
    if max_nodes is None or (found is not None and len(found[0]) <= max_nodes):
        return found
    order = np.argsort(available, kind="stable")[-np.count_nonzero(available) :]
    total = np.concatenate([[0], np.cumsum(available[order])])
    width = min(max_nodes, len(order))
    enough = (total[width:] - total[:-width] >= need).nonzero()[0]
    if not len(enough):
        return None
    few = np.zeros_like(available)
    chosen = order[enough[0] : enough[0] + width]
    few[chosen] = available[chosen]
    return strategy(replace(offer, available=few), need)


def states_needs(jobs: JobTable, cluster: Cluster) -> bool:
    """Whether some job or some node states a placement constraint."""
    return any(need != NO_NEEDS for need in jobs.need_kinds) or any(
        node.taints or node.reserved_for or node.drained for node in cluster.nodes
    )


def allowed_nodes(cluster: Cluster, needs: PlacementNeeds, tenant: str) -> BoolArray:
    """Nodes with the labels asked for, without other taints, not drained nor another tenant's: (nodes,)."""
    wanted = dict(needs.node_selector)
    tolerated = set(needs.tolerations)
    mask = np.array(
        [
            not node.drained
            and node.reserved_for in (None, tenant)
            and tolerated.issuperset(node.taints)
            and selected(node, wanted)
            for node in cluster.nodes
        ]
    )
    mask.setflags(write=False)
    return mask


def selected(node: Node, wanted: Mapping[str, str]) -> bool:
    """Whether a node carries all the labels of a selector."""
    return not wanted or wanted.items() <= labels_of(node).items()


def labels_of(node: Node) -> dict[str, str]:
    """The labels of a node: its own, and ``node``, ``rack``, ``datacenter`` and ``gpu_type``, which every node has."""
    built_in = {"node": node.name, "rack": node.rack, "datacenter": node.datacenter, "gpu_type": node.gpu_type}
    return built_in | dict(node.labels)
