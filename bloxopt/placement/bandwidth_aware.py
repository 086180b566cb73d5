"""Consolidated nodes, and inside a node the GPUs with the widest links among them."""

from __future__ import annotations

from itertools import combinations

import numpy as np

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
        self._nodes: dict[int, _NodeLinks] = {}

    def __call__(self, offer: Offer, need: int) -> Found | None:
        workspace, available = offer.workspace, offer.available
        jobs, cluster = workspace.jobs, workspace.cluster
        if jobs.gpu_milli[offer.row] < WHOLE_GPU:
            # One part of one GPU has no links to choose.
            return fewest_nodes(available, need, lambda fits, rest: int(np.where(fits, available, _FULL).argmin()))
        whole = workspace.free.milli == WHOLE_GPU

        def free_mask(node: int) -> int:
            first = int(cluster.gpu_offset[node])
            free = whole[first : int(cluster.gpu_offset[node + 1])]
            return int.from_bytes(np.packbits(free, bitorder="little").tobytes(), "little")

        def choose(fits: BoolArray, rest: int) -> int:
            left = np.where(fits, available, _FULL)
            tied = (left == left.min()).nonzero()[0].tolist()
            if rest == 1 or len(tied) == 1:
                return int(tied[0])
            worth: dict[tuple[int, int], tuple[float, ...]] = {}
            best: int = tied[0]
            best_worth: tuple[float, ...] = (-1.0,)
            for node in tied:
                links, mask = self._links(offer, node), free_mask(node)
                key = (id(links), mask)
                if key not in worth:
                    worth[key] = links.best(mask, rest)[1]
                if worth[key] > best_worth:
                    best, best_worth = node, worth[key]
            return best

        found = fewest_nodes(available, need, choose)
        if found is None:
            return None
        gpus: list[int] = []
        for node, count in zip(found.nodes, found.counts, strict=True):
            chosen = self._links(offer, node).best(free_mask(node), count)[0]
            gpus.extend(int(cluster.gpu_offset[node]) + local for local in chosen)
        return Found(found.nodes, found.counts, tuple(gpus))

    def _links(self, offer: Offer, node: int) -> _NodeLinks:
        links = offer.workspace.cluster.topology.links(node)
        known = self._nodes.get(id(links))
        if known is None or known.links is not links:
            known = self._nodes[id(links)] = _NodeLinks(links)
        return known


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
