"""Cells and their allocation: what a cluster can promise, and that no sequence of events breaks the promise."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bloxopt.cluster import Cluster, Node, load_cluster
from bloxopt.errors import ClusterError
from bloxopt.placement.cells import BuddyAllocator, CellHierarchy, TenantCells, VirtualClusters
from bloxopt.placement.topology import Level
from tests.placement.cells_oracle import can_have_all, shape, tree

TENANTS = ("vision", "language", "speech")


def racks(*contents: list[int], island: int | None = None) -> Cluster:
    """One list a rack, of the GPUs of each of its nodes."""
    return Cluster(
        tuple(
            Node(
                name=f"r{r}n{n}",
                gpu_type="V100",
                num_gpus=gpus,
                rack=f"rack-{r}",
                island_gpus=island if island and gpus % island == 0 else None,
            )
            for r, nodes in enumerate(contents)
            for n, gpus in enumerate(nodes)
        )
    )


SMALL = [
    racks([2, 2], [2, 2]),
    racks([4, 4], [4], island=2),
    racks([2, 2, 2], [2], [4, 4], island=2),
    racks([4, 2], [2, 4], [4, 4], island=2),
]
"""Small clusters; in all but the first, cells of one level differ in shape."""


def oracle_guarantee(hierarchy: CellHierarchy, demand: dict[str, dict[int, int]]) -> dict[str, dict[object, int]]:
    """The demand in the oracle's words."""
    known: dict[str, object] = {}

    def note(part: object, depth: int) -> None:
        if isinstance(part, list):
            first = min(_gpus(part))
            level = Level(4 - depth)
            known[hierarchy.kind_of[int(hierarchy.cell_at[level][first])]] = (depth, shape(part))
            for inner in part:
                note(inner, depth + 1)
        else:
            known[hierarchy.kind_of[part]] = (depth, "gpu")

    for datacenter in tree(hierarchy.cluster, "V100"):
        note(datacenter, 0)
    return {tenant: {known[kind]: count for kind, count in cells.items()} for tenant, cells in demand.items()}


def _gpus(part: object) -> set[int]:
    return set().union(*map(_gpus, part)) if isinstance(part, list) else {part}


def random_demand(hierarchy: CellHierarchy, draw: random.Random) -> dict[str, dict[int, int]]:
    """Guaranteed cells that the cluster can just give, or nearly."""
    demand: dict[str, dict[int, int]] = {tenant: {} for tenant in TENANTS}
    for _ in range(draw.randint(1, 12)):
        tenant, kind = draw.choice(TENANTS), draw.randrange(len(hierarchy.kinds))
        names = {
            t: {hierarchy.kinds[k].level.name.lower() + ":" + hierarchy.kinds[k].shape: n for k, n in cells.items()}
            for t, cells in demand.items()
        }
        name = hierarchy.kinds[kind].level.name.lower() + ":" + hierarchy.kinds[kind].shape
        names[tenant][name] = names[tenant].get(name, 0) + 1
        try:
            demand = VirtualClusters(names).demand(hierarchy)
        except ClusterError:
            continue
    return demand


# What there is


def test_cells_nest_from_gpus_to_data_centres() -> None:
    hierarchy = CellHierarchy(racks([8, 8], [8, 8], island=4))
    assert [
        (str(kind.level), kind.shape, count) for kind, count in zip(hierarchy.kinds, hierarchy.count, strict=True)
    ] == [
        ("datacenter", "2x2x2x4xV100", 1),
        ("rack", "2x2x4xV100", 2),
        ("node", "2x4xV100", 4),
        ("island", "4xV100", 8),
        ("gpu", "V100", 32),
    ]
    assert sorted(hierarchy.gpus_of(hierarchy.tops[0])) == list(range(32))


def test_gpu_types_have_hierarchies_of_their_own_even_in_one_rack() -> None:
    hierarchy = CellHierarchy(load_cluster("2x4xV100+1x8xK80"))
    rack = {hierarchy.kinds[hierarchy.kind("rack:V100")].num_gpus, hierarchy.kinds[hierarchy.kind("rack:K80")].num_gpus}
    assert rack == {8}
    assert len(hierarchy.tops) == 2


@given(index=st.integers(0, len(SMALL) - 1))
def test_cells_of_one_kind_split_alike_and_cover_their_gpus(index: int) -> None:
    hierarchy = CellHierarchy(SMALL[index])
    for cell, parts in enumerate(hierarchy.children):
        kind = hierarchy.kinds[hierarchy.kind_of[cell]]
        assert len(hierarchy.gpus_of(cell)) == kind.num_gpus == hierarchy.size[cell]
        assert sorted(hierarchy.kind_of[part] for part in parts) == sorted(
            part for part, count in kind.parts for _ in range(count)
        )


def test_a_level_with_several_shapes_wants_one_named() -> None:
    hierarchy = CellHierarchy(racks([8, 8], [8]))
    with pytest.raises(ClusterError, match=r"'rack:V100' could be of several shapes.*rack:1x8xV100.*rack:2x8xV100"):
        hierarchy.kind("rack:V100")
    assert hierarchy.kinds[hierarchy.kind("rack:2x8xv100")].num_gpus == 16


# What can be promised


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"a": {"nod:V100": 1}}, r"virtual cluster 'a': unknown cell level 'nod': did you mean 'node'"),
        ({"a": {"node:V10": 1}}, r"virtual cluster 'a': unknown GPU type or shape of a node cell 'V10'.*V100"),
        ({"a": {"node": 1}}, r"write LEVEL:GPU_TYPE, such as node:V100"),
        ({"a": {"node:V100": 1.5}}, r"'node:V100' is 1.5, must be a whole number"),
        ({"a": {"node:V100": -1}}, r"must be a whole number of cells >= 0"),
        ({"a": 3}, r"must map cells such as 'node:V100'"),
        (
            {"a": {"node:V100": 3}, "b": {"node:V100": 2}},
            r"ask for 5 cells node:V100 \(a 3, b 2\).*has 4: ask for at most 4",
        ),
        (
            {"a": {"rack:V100": 1}, "b": {"node:V100": 3}},
            r"3 cells node:V100 \(b 3\).*has 2, once the larger cells are set",
        ),
        ({"a": {"node:V100": 3, "gpu:V100": 9}}, r"9 cells gpu:V100 \(a 9\).*has 8, once"),
    ],
)
def test_what_cannot_be_promised_is_refused_with_what_would_fit(cells: dict, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        VirtualClusters(cells).demand(CellHierarchy(racks([8, 8], [8, 8])))


def test_the_whole_cluster_can_be_promised() -> None:
    cells = {"a": {"rack:V100": 1, "gpu:V100": 7}, "b": {"node:V100": 1, "gpu:V100": 1}}
    demand = VirtualClusters(cells).demand(CellHierarchy(racks([8, 8], [8, 8])))
    assert sum(sum(counts.values()) for counts in demand.values()) == 10


def test_virtual_clusters_come_from_toml(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text('[virtual_clusters.vision]\n"node:V100" = 2\n"gpu:V100" = 3\n')
    assert VirtualClusters.from_toml(file).cells == {"vision": {"node:V100": 2, "gpu:V100": 3}}
    for text, message in [
        ("[tenants.vision]\n", "unknown key 'tenants'"),
        ('[virtual_clusters.vision]\n"node:V100" = "two"\n', "tenants.toml: virtual cluster 'vision'.*'two'"),
        ("[virtual", "not valid TOML"),
    ]:
        file.write_text(text)
        with pytest.raises(ClusterError, match=message):
            VirtualClusters.from_toml(file)
    with pytest.raises(ClusterError, match="cannot be read"):
        VirtualClusters.from_toml(tmp_path / "none.toml")


@settings(max_examples=150, deadline=None)
@given(index=st.integers(0, len(SMALL) - 1), data=st.data())
def test_a_promise_is_accepted_exactly_if_it_can_be_kept(index: int, data: st.DataObject) -> None:
    hierarchy = CellHierarchy(SMALL[index])
    demand: dict[str, dict[int, int]] = {tenant: {} for tenant in TENANTS[:2]}
    for _ in range(data.draw(st.integers(1, 5))):
        kind = data.draw(st.integers(0, len(hierarchy.kinds) - 1))
        demand[data.draw(st.sampled_from(TENANTS[:2]))][kind] = data.draw(st.integers(1, hierarchy.count[kind]))
    names = {
        tenant: {f"{hierarchy.kinds[kind].level}:{hierarchy.kinds[kind].shape}": n for kind, n in cells.items()}
        for tenant, cells in demand.items()
    }
    possible = can_have_all(hierarchy.cluster, "V100", oracle_guarantee(hierarchy, demand), {})
    try:
        accepted = VirtualClusters(names).demand(hierarchy) == demand
    except ClusterError:
        accepted = False
    assert accepted == possible


# How it is kept


class Sharing(RuleBasedStateMachine):
    """Gangs of three tenants come and go, nodes fail and are repaired; the promise is checked after every step."""

    @initialize(index=st.integers(0, len(SMALL) - 1), seed=st.integers(0, 10_000))
    def begin(self, index: int, seed: int) -> None:
        self.cluster = SMALL[index]
        self.hierarchy = CellHierarchy(self.cluster)
        self.demand = random_demand(self.hierarchy, random.Random(seed))
        self.guaranteed = oracle_guarantee(self.hierarchy, self.demand)
        self.cells = TenantCells(self.hierarchy, self.demand)
        self.down = np.zeros(len(self.cluster.nodes), dtype=bool)
        self.row = 0

    @rule(tenant=st.sampled_from(TENANTS), need=st.integers(1, 8))
    def arrive(self, tenant: str, need: int) -> None:
        room = self.cells.room(tenant, 0)
        free = np.where(self.down, 0, self.cluster.node_gpus)
        gang = self.cells.find(tenant, 0, need, free)
        if not self.down.any():
            # A private cluster: nothing counts but the tenant's own gangs.
            assert (gang is not None) == (need <= room)
        if gang is not None:
            assert len(gang.gpus) == need
            assert not self.down[self.cluster.gpu_node[list(gang.gpus)]].any()
            self.cells.start(self.row, gang)
            self.row += 1

    @precondition(lambda self: self.cells.gangs)
    @rule(data=st.data())
    def depart(self, data: st.DataObject) -> None:
        self.cells.stop(data.draw(st.sampled_from(sorted(self.cells.gangs))))

    @rule(data=st.data())
    def fail_or_repair(self, data: st.DataObject) -> None:
        node = data.draw(st.integers(0, len(self.down) - 1))
        self.down[node] = not self.down[node]
        if self.down[node]:
            for row, gang in list(self.cells.gangs.items()):
                if node in self.cluster.gpu_node[list(gang.gpus)]:
                    self.cells.stop(row)
        self.cells.allocator.set_down(self.down[self.cluster.gpu_node])

    @rule(data=st.data())
    def disturb(self, data: st.DataObject) -> None:
        cost = [data.draw(st.integers(0, 3)) for _ in range(self.cluster.num_gpus)]
        self.cells.allocator.set_disturbance(np.array(cost))

    @invariant()
    def everyone_can_still_have_all_guaranteed_cells(self) -> None:
        held = {gpu: gang.tenant for gang in self.cells.gangs.values() for gpu in gang.gpus}
        assert len(held) == sum(len(gang.gpus) for gang in self.cells.gangs.values())
        assert can_have_all(self.cluster, "V100", self.guaranteed, held)

    @invariant()
    def free_and_bound_cells_are_a_partition(self) -> None:
        allocator = self.cells.allocator
        free = [cell for kind in range(len(self.hierarchy.kinds)) for cell in allocator.free_cells(kind)]
        covered = sorted(gpu for cell in [*free, *allocator.tenant_of] for gpu in self.hierarchy.gpus_of(cell))
        assert covered == list(range(self.cluster.num_gpus))

    @invariant()
    def buddies_that_are_all_free_are_one_cell(self) -> None:
        allocator = self.cells.allocator
        free = {cell for kind in range(len(self.hierarchy.kinds)) for cell in allocator.free_cells(kind)}
        assert not any(parts and free.issuperset(parts) for parts in self.hierarchy.children)

    @invariant()
    def a_refusal_has_a_reason(self) -> None:
        """A guaranteed cell is refused only if every healthy free one is needed for another guarantee."""
        if not self.down.any():
            return
        allocator = self.cells.allocator
        bound = {gpu for cell in allocator.tenant_of for gpu in self.hierarchy.gpus_of(cell)}
        for tenant, cells in allocator.unbound.items():
            for kind in [kind for kind, count in cells.items() if count and allocator.find(kind) is None]:
                others = {
                    t: {k: n - (t == tenant and k == kind) for k, n in c.items()} for t, c in allocator.unbound.items()
                }
                others = oracle_guarantee(self.hierarchy, others)
                for cell in [cell for cell, of in enumerate(self.hierarchy.kind_of) if of == kind]:
                    gpus = self.hierarchy.gpus_of(cell)
                    healthy = not self.down[self.cluster.gpu_node[gpus]].any()
                    if healthy and bound.isdisjoint(gpus):
                        assert not can_have_all(self.cluster, "V100", others, {}, bound.union(gpus))


Sharing.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestSharing = Sharing.TestCase


def test_splitting_takes_the_smallest_free_cell_and_merging_undoes_it() -> None:
    hierarchy = CellHierarchy(racks([4, 4], [4, 4], island=2))
    allocator = BuddyAllocator(hierarchy, {"a": {hierarchy.kind("gpu:V100"): 3, hierarchy.kind("node:V100"): 1}})
    whole = [allocator.free_cells(kind) for kind in range(len(hierarchy.kinds))]

    def bind(name: str) -> int:
        cell = allocator.find(hierarchy.kind(name))
        assert cell is not None
        allocator.bind("a", cell)
        return cell

    first, second, third = bind("gpu:V100"), bind("gpu:V100"), bind("gpu:V100")
    assert hierarchy.parent[first] == hierarchy.parent[second] != hierarchy.parent[third]
    assert hierarchy.node_of[first] == hierarchy.node_of[third]
    node = bind("node:V100")
    assert hierarchy.parent[node] == hierarchy.parent[int(hierarchy.cell_at[Level.NODE][first])]
    for cell in (first, third, node, second):
        allocator.release(cell)
    assert [allocator.free_cells(kind) for kind in range(len(hierarchy.kinds))] == whole


def test_of_racks_of_different_shape_the_one_nobody_was_promised_is_split() -> None:
    hierarchy = CellHierarchy(racks([2, 2], [2, 2, 2]))
    for promised, split in [("rack:2x2xV100", 1), ("rack:3x2xV100", 0)]:
        cells = TenantCells(hierarchy, VirtualClusters({"a": {promised: 1}, "b": {"node:V100": 2}}).demand(hierarchy))
        gang = cells.find("b", 0, 2, hierarchy.cluster.node_gpus)
        assert gang is not None
        assert {hierarchy.cluster.nodes[hierarchy.node_of[gpu]].rack for gpu in gang.gpus} == {f"rack-{split}"}


def test_healthy_cells_are_bound_before_failed_ones_and_broken_racks_are_split_first() -> None:
    hierarchy = CellHierarchy(racks([2, 2], [2, 2]))
    cells = TenantCells(hierarchy, VirtualClusters({"a": {"node:V100": 1}, "b": {"rack:V100": 1}}).demand(hierarchy))
    down = np.array([False, False, True, False])
    cells.allocator.set_down(down[hierarchy.cluster.gpu_node])
    available = np.where(down, 0, hierarchy.cluster.node_gpus)
    node = cells.find("a", 0, 2, available)
    assert node is not None
    assert node.gpus == (6, 7)
    cells.start(0, node)
    rack = cells.find("b", 0, 4, available)
    assert rack is not None
    assert rack.gpus == (0, 1, 2, 3)


def test_a_gang_takes_the_tightest_cells_and_the_closest_gpus() -> None:
    hierarchy = CellHierarchy(racks([8, 8], [8, 8], island=4))
    demand = VirtualClusters({"a": {"node:V100": 2, "island:V100": 1, "gpu:V100": 1}}).demand(hierarchy)
    cells = TenantCells(hierarchy, demand)
    full = hierarchy.cluster.node_gpus
    kinds = {}
    for row, need in enumerate([1, 3, 8, 5, 2]):
        gang = cells.find("a", 0, need, full)
        assert gang is not None
        cells.start(row, gang)
        kinds[need] = [str(hierarchy.kinds[hierarchy.kind_of[cell]].level) for cell in gang.cells]
    assert kinds == {1: ["gpu"], 3: ["island"], 8: ["node"], 5: ["node"], 2: ["node"]}
    assert len({hierarchy.parent[gpu] for gpu in cells.gangs[4].gpus}) == 1


@pytest.mark.slow
def test_allocation_takes_less_than_a_millisecond_on_ten_thousand_gpus() -> None:
    names = tuple(
        Node(name=f"n{i}", gpu_type="A100", num_gpus=8, rack=f"r{i // 25}", island_gpus=4) for i in range(1250)
    )
    hierarchy = CellHierarchy(Cluster(names))
    cells = TenantCells(
        hierarchy,
        VirtualClusters(
            {f"tenant-{t}": {"rack:A100": 2, "node:A100": 50, "island:A100": 20, "gpu:A100": 100} for t in range(8)}
        ).demand(hierarchy),
    )
    draw = random.Random(1)
    times = []
    for row in range(3000):
        if cells.gangs and draw.random() < 0.35:
            cells.stop(draw.choice(list(cells.gangs)))
        begin = time.process_time()
        gang = cells.find(
            f"tenant-{draw.randrange(8)}", 0, draw.choice([1, 1, 2, 4, 8, 16]), hierarchy.cluster.node_gpus
        )
        if gang is not None:
            cells.start(row, gang)
        times.append(time.process_time() - begin)
    assert np.percentile(times, 99) < 1e-3


def test_the_promise_of_racks_is_not_mistaken_for_that_of_their_gpus() -> None:
    """The oracle itself: four of eight GPUs used across both racks leave room for four, but not for a rack."""
    cluster = racks([2, 2], [2, 2])
    rack = (1, shape([[[0, 1]], [[2, 3]]]))
    assert can_have_all(cluster, "V100", {"a": {rack: 1}, "b": {(4, "gpu"): 4}}, dict.fromkeys([0, 1, 2, 3], "b"))
    assert not can_have_all(cluster, "V100", {"a": {rack: 1}, "b": {(4, "gpu"): 4}}, dict.fromkeys([0, 1, 4, 5], "b"))
