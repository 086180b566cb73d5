"""Whether tenants can have all their guaranteed cells, decided by trying every way; shares no code with bloxopt."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bloxopt.cluster import Cluster


def tree(cluster: Cluster, gpu_type: str) -> list:
    """Nested lists: data centres of racks of nodes of islands of GPU numbers, for the nodes of one type."""
    top: dict[str, dict[str, list]] = {}
    number = 0
    for node in cluster.nodes:
        gpus = list(range(number, number + node.num_gpus))
        number += node.num_gpus
        if node.gpu_type == gpu_type:
            size = node.island_gpus or node.num_gpus
            islands = [gpus[i : i + size] for i in range(0, len(gpus), size)]
            top.setdefault(node.datacenter, {}).setdefault(node.rack, []).append(islands)
    return [list(racks.values()) for racks in top.values()]


def shape(part: object) -> object:
    """What of a cell its users can tell: the multiset of its parts' shapes."""
    return tuple(sorted((shape(inner) for inner in part), key=repr)) if isinstance(part, list) else "gpu"


def gpus_in(part: object) -> set[int]:
    return set().union(*map(gpus_in, part)) if isinstance(part, list) else {part}


def can_have_all(
    cluster: Cluster,
    gpu_type: str,
    guaranteed: Mapping[str, Mapping[object, int]],
    held: Mapping[int, str],
    taken: Collection[int] = (),
) -> bool:
    """Whether disjoint cells exist for every guarantee such that each GPU in ``held`` lies in one of its tenant's.

    ``guaranteed`` counts cells by tenant and ``(depth, shape)``, depth 0 for data centres to 4 for GPUs; ``held``
    maps GPUs used by guaranteed gangs to tenants. Opportunistic jobs do not appear: they can all be stopped. No
    cell may contain a GPU in ``taken``.
    """
    wanted = [(tenant, cell) for tenant, cells in guaranteed.items() for cell, count in cells.items() if count]
    limit = tuple(guaranteed[tenant][cell] for tenant, cell in wanted)
    nothing = (0,) * len(wanted)

    def together(one: set[tuple[int, ...]], other: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
        sums = {tuple(map(sum, zip(a, b, strict=True))) for a in one for b in other}
        return {total for total in sums if all(have <= most for have, most in zip(total, limit, strict=True))}

    def ways(part: object, depth: int) -> set[tuple[int, ...]]:
        """Every combination of guaranteed cells that this part can be cut into, all held GPUs covered."""
        users = {held[gpu] for gpu in gpus_in(part) if gpu in held}
        found: set[tuple[int, ...]] = set()
        for index, (tenant, cell) in enumerate(wanted):
            if cell == (depth, shape(part)) and users <= {tenant} and gpus_in(part).isdisjoint(taken):
                found.add(tuple(int(i == index) for i in range(len(wanted))))
        if isinstance(part, list):
            inner = {nothing}
            for piece in part:
                inner = together(inner, ways(piece, depth + 1))
            found |= inner
        elif not users:
            found.add(nothing)
        return found

    total = {nothing}
    for datacenter in tree(cluster, gpu_type):
        total = together(total, ways(datacenter, 0))
    return limit in total
