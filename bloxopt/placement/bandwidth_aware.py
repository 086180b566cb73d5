"""Consolidated nodes, and inside a node the GPUs with the widest links among them."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from bloxopt.cluster import Cluster
from bloxopt.jobs import BoolArray, FloatArray, IntArray
from bloxopt.placement.fewest_nodes import fewest_nodes
from bloxopt.placement.strategy import Found, Offer
from bloxopt.runtime.resources import WHOLE_GPU

MOST_ENUMERATED = 8
"""GPUs of a node up to which the best set is found by looking at all of them; beyond that it is grown greedily."""

_FULL = np.iinfo(np.int64).max


class BandwidthAware:
    """Fewest nodes, best fit; in each node the GPUs with the widest ring, then the most bandwidth among them.

    A collective runs at the speed of the narrowest link of its ring, so a set of GPUs is worth its
    widest Hamiltonian ring's narrowest link (GB/s), then the sum of its links, then what the free GPUs left over are
    worth among themselves. Exact for nodes of up to 8 GPUs, by enumeration, remembered by free GPUs;
    larger nodes grow the set by the GPU with the widest narrowest link to it. Of nodes that leave equally many GPUs
    the one with the better set is used. Links come from the cluster's topology. Lives for one run.
    """

    def __init__(self) -> None:
        self._cluster: Cluster | None = None
        self._kind: list[int] = []
        self._links: list[_NodeLinks] = []

    def __call__(self, offer: Offer, need: int) -> Found | None:
        workspace, available = offer.workspace, offer.available
        jobs, cluster = workspace.jobs, workspace.cluster
        if jobs.gpu_milli[offer.row] < WHOLE_GPU:
            # One part of one GPU has no links to choose.
            return fewest_nodes(available, need, lambda fits, rest: int(np.where(fits, available, _FULL).argmin()))
        if cluster is not self._cluster:
            self._remember(cluster)

        def free_mask(node: int) -> int:
            first = int(cluster.gpu_offset[node])
            free = workspace.free.milli[first : int(cluster.gpu_offset[node + 1])] == WHOLE_GPU
            return int.from_bytes(np.packbits(free, bitorder="little").tobytes(), "little")

        def choose(fits: BoolArray, rest: int) -> int:
            left = np.where(fits, available, _FULL)
            best = int(left.argmin())
            tied = (left == left[best]).nonzero()[0]
            if rest == 1 or rest == cluster.node_gpus[best] or len(tied) == 1:
                return best
            best_worth: tuple[float, ...] = (-1.0,)
            for node in self._different(tied, workspace.free.milli):
                worth = self._links[self._kind[node]].best(free_mask(node), rest)[1]
                if worth > best_worth:
                    best, best_worth = node, worth
            return best

        found = fewest_nodes(available, need, choose)
        if found is None:
            return None
        gpus: list[int] = []
        for node, count in zip(found.nodes, found.counts, strict=True):
            chosen = self._links[self._kind[node]].best(free_mask(node), count)[0]
            gpus.extend(int(cluster.gpu_offset[node]) + local for local in chosen)
        return Found(found.nodes, found.counts, tuple(gpus))

    def _remember(self, cluster: Cluster) -> None:
        """Number the kinds of nodes, by their links."""
        number: dict[int, int] = {}
        tables = [cluster.topology.links(node) for node in range(len(cluster.nodes))]
        self._kind = [number.setdefault(id(table), len(number)) for table in tables]
        kinds = np.array(self._kind)
        self._links = [_NodeLinks(tables[node]) for node in np.unique(kinds, return_index=True)[1]]
        self._first_gpu: IntArray = cluster.gpu_offset[:-1]
        # Any weights that tell apart which GPUs are free, and the kinds of nodes: random ones of 61 bits.
        weights = np.random.default_rng(0).integers(1 << 61, size=int(cluster.node_gpus.max()) + len(number))
        local = np.arange(cluster.num_gpus) - cluster.gpu_offset[cluster.gpu_node]
        self._gpu_weight: IntArray = weights[local]
        self._kind_weight: IntArray = weights[len(weights) - len(number) :][kinds]
        self._cluster = cluster

    def _different(self, nodes: IntArray, milli: IntArray) -> list[int]:
        """The first of the nodes with each combination of links and free GPUs."""
        free = np.add.reduceat(np.where(milli == WHOLE_GPU, self._gpu_weight, 0), self._first_gpu)
        signature = (free + self._kind_weight)[nodes]
        if (signature == signature[0]).all():
            return [int(nodes[0])]
        first = np.unique(signature, return_index=True)[1]
        first.sort()
        return [int(node) for node in nodes[first]]


class _NodeLinks:
    """The best sets of GPUs of one kind of node, found once for each set of free GPUs."""

    def __init__(self, links: FloatArray) -> None:
        self.links = links
        self._table = links.tolist()
        self._best: dict[tuple[int, int], tuple[tuple[int, ...], tuple[float, ...]]] = {}
        self._worth: dict[tuple[int, ...], tuple[float, float]] = {}

    def best(self, free: int, count: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Numbers of the best ``count`` GPUs of those in the bit mask ``free``, and what they are worth."""
        found = self._best.get((free, count))
        if found is None:
            members = [gpu for gpu in range(len(self._table)) if free >> gpu & 1]
            small = len(self._table) <= MOST_ENUMERATED
            found = self._enumerate(members, count) if small else self._grow(members, count)
            self._best[free, count] = found
        return found

    def _enumerate(self, members: list[int], count: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        best: tuple[int, ...] = tuple(members[:count])
        best_worth: tuple[float, ...] = (-1.0,)
        for chosen in combinations(members, count):
            rest = tuple(gpu for gpu in members if gpu not in chosen)
            worth = (*self.worth(chosen), *self.worth(rest))
            if worth > best_worth:
                best, best_worth = chosen, worth
        return best, best_worth

    def _grow(self, members: list[int], count: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Grow a set from every GPU, adding the one with the widest narrowest link to it; keep the best."""
        links = self.links
        best: tuple[int, ...] = tuple(members[:count])
        best_worth: tuple[float, ...] = (-1.0,)
        for seed in members:
            chosen = [seed]
            others = np.array([gpu for gpu in members if gpu != seed], dtype=np.int64)
            while len(chosen) < count:
                to_set = links[others][:, chosen]
                pick = int(np.lexsort((-to_set.sum(axis=1), -to_set.min(axis=1)))[0])
                chosen.append(int(others[pick]))
                others = np.delete(others, pick)
            among = links[chosen][:, chosen][np.triu_indices(count, 1)]
            worth = (float(among.min(initial=np.inf)), float(among.sum()))
            if worth > best_worth:
                best, best_worth = tuple(sorted(chosen)), worth
        return best, best_worth

    def worth(self, chosen: tuple[int, ...]) -> tuple[float, float]:
        """GB/s of the narrowest link of the widest ring over these GPUs, and of all links among them."""
        found = self._worth.get(chosen)
        if found is None:
            table = self._table
            total = sum(table[a][b] for a, b in combinations(chosen, 2))
            found = self._worth[chosen] = (widest_ring(self.links, np.array(chosen, dtype=np.int64)), total)
        return found


def widest_ring(links: FloatArray, members: IntArray) -> float:
    """GB/s of the narrowest link of the widest ring through ``members`` (2 are joined by their link); +inf for fewer.

    Bottleneck travelling salesman by dynamic programming over subsets: for few GPUs.
    """
    count = len(members)
    if count < 2:
        return float("inf")
    width = links[np.ix_(members, members)].tolist()
    # reach[s][v]: the widest path from GPU 0 through exactly the set s (of the others) that ends in v.
    reach = [[-1.0] * count for _ in range(1 << (count - 1))]
    for end in range(1, count):
        reach[1 << (end - 1)][end] = width[0][end]
    for visited, ends in enumerate(reach):
        for end in range(1, count):
            so_far = ends[end]
            if so_far < 0:
                continue
            for following in range(1, count):
                bit = 1 << (following - 1)
                if not visited & bit:
                    wider = min(so_far, width[end][following])
                    if wider > reach[visited | bit][following]:
                        reach[visited | bit][following] = wider
    return float(max(min(reach[-1][end], width[end][0]) for end in range(1, count)))
