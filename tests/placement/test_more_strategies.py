"""Best fit over all resources, dot product, Tiresias' skew rule, and GPUs chosen by their links."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.errors import InputError
from bloxopt.placement import get_placement
from bloxopt.placement.bandwidth_aware import _NodeLinks, widest_ring
from bloxopt.placement.strategy import Strategy
from bloxopt.placement.tiresias_skew import TiresiasSkew
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.resources import Grant

CUBE_MESH = np.full((8, 8), 10.0)
"""GB/s of a DGX-1 with V100s: hybrid cube mesh of single (25) and double (50) NVLinks, PCIe elsewhere."""
for _a, _b, _speed in [
    *((a, b, 25.0) for a, b in [(0, 1), (0, 2), (1, 3), (4, 5), (4, 6), (5, 7), (2, 6), (3, 7)]),
    *((a, b, 50.0) for a, b in [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]),
]:
    CUBE_MESH[_a, _b] = CUBE_MESH[_b, _a] = _speed
np.fill_diagonal(CUBE_MESH, np.inf)


def dgx(count: int = 1) -> bx.Cluster:
    links = tuple(tuple(1.0 if a == b else float(CUBE_MESH[a, b]) for b in range(8)) for a in range(8))
    return bx.Cluster(tuple(bx.Node(name=f"dgx-{i}", gpu_type="V100", num_gpus=8, links=links) for i in range(count)))


def workspace_of(cluster: bx.Cluster, jobs: list[bx.Job], strategy: str | Strategy) -> Workspace:
    table = bx.JobTable.from_jobs(jobs)
    up = np.ones(len(cluster.nodes), dtype=bool)
    return Workspace(Assignment(cluster, table), cluster, table, up, get_placement(strategy))


def take_gpus(workspace: Workspace, row: int, gpus: list[int]) -> None:
    """Book single GPUs of one node."""
    nodes = sorted({int(workspace.cluster.gpu_node[gpu]) for gpu in gpus})
    counts = tuple(sum(int(workspace.cluster.gpu_node[gpu]) == node for gpu in gpus) for node in nodes)
    workspace.take(row, Grant(0, tuple(nodes), counts, tuple(sorted(gpus))))


def job(number: int, gpus: int = 1, **columns: object) -> bx.Job:
    return bx.Job(job_id=str(number), duration=1.0, num_gpus=gpus, **columns)  # type: ignore[arg-type]


def brute_ring(links: np.ndarray, members: tuple[int, ...]) -> float:
    if len(members) < 2:
        return np.inf
    first, *others = members
    return max(
        min(links[a, b] for a, b in zip((first, *order), (*order, first), strict=True))
        for order in permutations(others)
    )


symmetric = st.lists(st.sampled_from([5.0, 10.0, 25.0, 50.0]), min_size=15, max_size=15).map(
    lambda speeds: _matrix(6, speeds)
)


def _matrix(size: int, speeds: list[float]) -> np.ndarray:
    links = np.full((size, size), np.inf)
    for (a, b), speed in zip(combinations(range(size), 2), speeds, strict=True):
        links[a, b] = links[b, a] = speed
    return links


@given(symmetric, st.integers(1, 6))
def test_the_widest_ring_is_that_of_all_rings(links: np.ndarray, count: int) -> None:
    for members in combinations(range(6), count):
        assert widest_ring(links, np.array(members)) == brute_ring(links, members)


@settings(max_examples=30)
@given(symmetric, st.integers(1, 63), st.integers(1, 6))
def test_the_gpus_chosen_have_the_best_ring_then_the_most_bandwidth(links: np.ndarray, free: int, count: int) -> None:
    members = [gpu for gpu in range(6) if free >> gpu & 1]
    if len(members) < count:
        return

    def worth(chosen: tuple[int, ...]) -> tuple[float, float]:
        return brute_ring(links, chosen), sum(links[a, b] for a, b in combinations(chosen, 2))

    chosen, _ = _NodeLinks(links).best(free, count)
    assert set(chosen) <= set(members)
    assert worth(chosen) == max(worth(other) for other in combinations(members, count))


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
def test_a_cube_mesh_gives_wider_rings_than_its_first_free_gpus(count: int) -> None:
    topology = dgx().topology
    better = 0
    for mask in range(1 << 8):
        free = [gpu for gpu in range(8) if mask >> gpu & 1]
        if len(free) < count:
            continue
        workspace = workspace_of(dgx(), [job(0, count), job(1, 8)], "bandwidth_aware")
        for gpu in set(range(8)) - set(free):
            workspace.free.milli[gpu] = 0
        workspace.free.gpus[0] = len(free)
        grant = workspace.find(0, 0, count)
        assert grant is not None
        assert set(grant.gpus) <= set(free)
        ours, first = topology.bandwidth(grant.gpus), topology.bandwidth(free[:count])
        rings = [brute_ring(CUBE_MESH, tuple(gpus)) for gpus in (grant.gpus, free[:count])]
        assert rings[0] >= rings[1]
        better += ours > first or rings[0] > rings[1]
    assert better > 0


def test_one_gpu_is_taken_where_the_others_lose_least() -> None:
    workspace = workspace_of(dgx(), [job(0), job(1, 5)], "bandwidth_aware")
    take_gpus(workspace, 1, [1, 2, 5, 6, 7])
    grant = workspace.find(0, 0, 1)
    assert grant is not None
    # Of 0, 3 and 4 the pairs (0, 3) and (0, 4) have two links each, 3 and 4 none.
    assert grant.gpus in ((3,), (4,))


def test_of_equally_full_nodes_the_one_with_the_better_links_is_used() -> None:
    workspace = workspace_of(dgx(2), [job(0, 2), job(1, 6), job(2, 6)], "bandwidth_aware")
    take_gpus(workspace, 1, [1, 2, 3, 4, 5, 6])
    take_gpus(workspace, 2, [8 + gpu for gpu in (1, 2, 3, 5, 6, 7)])
    grant = workspace.find(0, 0, 2)
    assert grant is not None
    assert grant.gpus == (8, 12)


def test_large_nodes_grow_their_set_greedily() -> None:
    cluster = bx.Cluster((bx.Node(name="big", gpu_type="V100", num_gpus=16, island_gpus=4),))
    workspace = workspace_of(cluster, [job(0, 4), job(1, 3)], "bandwidth_aware")
    take_gpus(workspace, 1, [0, 5, 9])
    grant = workspace.find(0, 0, 4)
    assert grant is not None
    assert grant.gpus == (12, 13, 14, 15)


def test_shares_and_gangs_over_nodes_need_no_links() -> None:
    workspace = workspace_of(dgx(2), [job(0, gpu_share=0.5), job(1, 12)], "bandwidth_aware")
    assert workspace.find(0, 0, 1) is not None
    grant = workspace.find(1, 0, 12)
    assert grant is not None
    assert sorted(grant.counts) == [4, 8]


HOSTS = bx.Cluster(
    tuple(
        bx.Node(name=name, gpu_type="V100", num_gpus=8, cpus=cpus, memory_gib=memory)
        for name, cpus, memory in [("cpus", 96, 128), ("small", 32, 128), ("memory", 32, 512)]
    )
)


def test_best_fit_counts_cpus_and_memory() -> None:
    grant = workspace_of(HOSTS, [job(0, 2, cpus_per_gpu=2.0)], "best_fit").find(0, 0, 2)
    assert grant is not None
    assert grant.nodes == (1,)


def test_best_fit_prefers_the_node_with_fewer_gpus_left_when_nothing_else_differs() -> None:
    cluster = bx.load_cluster("3x8xV100")
    workspace = workspace_of(cluster, [job(0, 2), job(1, 5), job(2, 7)], "best_fit")
    take_gpus(workspace, 1, list(range(8, 13)))
    take_gpus(workspace, 2, list(range(16, 23)))
    grant = workspace.find(0, 0, 2)
    assert grant is not None
    assert grant.nodes == (1,)


def test_dot_product_avoids_nodes_rich_in_what_the_job_takes() -> None:
    # CPUs on "cpus" are plentiful, which matters to a job that takes many of them and not to the sum.
    hungry = job(0, 1, cpus_per_gpu=24.0)
    grant = workspace_of(HOSTS, [hungry, job(1, memory_gib_per_gpu=1.0)], "dot_product").find(0, 0, 1)
    assert grant is not None
    assert grant.nodes[0] in (1, 2)
    greedy = job(0, 1, memory_gib_per_gpu=100.0)
    grant = workspace_of(HOSTS, [greedy, job(1, cpus_per_gpu=1.0)], "dot_product").find(0, 0, 1)
    assert grant is not None
    assert grant.nodes[0] in (0, 1)


@pytest.mark.parametrize("name", ["best_fit", "dot_product", "consolidated", "first_fit"])
def test_a_share_takes_the_fullest_gpu_with_room(name: str) -> None:
    jobs = [job(0, gpu_share=0.3), job(1, gpu_share=0.6), job(2, gpu_share=0.8)]
    workspace = workspace_of(bx.load_cluster("1x4xV100"), jobs, name)
    workspace.take(1, Grant(0, (0,), (1,), (2,), 600))
    workspace.take(2, Grant(0, (0,), (1,), (3,), 800))
    grant = workspace.find(0, 0, 1)
    assert grant is not None
    assert grant.gpus == (2,)


def scattered_cluster(workspace: Workspace) -> None:
    """Two GPUs free on each of the first three of four nodes, four on the last."""
    take_gpus(workspace, 1, [2, 3])
    take_gpus(workspace, 2, [6, 7])
    take_gpus(workspace, 3, [10, 11])


@pytest.mark.parametrize(
    ("job_type", "nodes"),
    [("VGG-16", (3,)), ("vgg19", (3,)), ("AlexNet (batch size 32)", (3,)), ("ResNet-50", (0, 1)), ("generic", (0, 1))],
)
def test_only_skewed_models_are_consolidated(job_type: str, nodes: tuple[int, ...]) -> None:
    jobs = [job(0, 4, job_type=job_type), *(job(i, 2, job_type="other") for i in (1, 2, 3))]
    workspace = workspace_of(bx.load_cluster("4x4xV100"), jobs, "tiresias_skew")
    scattered_cluster(workspace)
    grant = workspace.find(0, 0, 4)
    assert grant is not None
    assert grant.nodes == nodes


def test_the_skewed_models_may_be_given() -> None:
    jobs = [job(0, 4, job_type="Recommendation"), *(job(i, 2) for i in (1, 2, 3))]
    workspace = workspace_of(bx.load_cluster("4x4xV100"), jobs, TiresiasSkew(["recommend*"]))
    scattered_cluster(workspace)
    grant = workspace.find(0, 0, 4)
    assert grant is not None
    assert grant.nodes == (3,)


@pytest.mark.parametrize("skewed", ["vgg*", [1], [""]])
def test_patterns_that_are_none_are_refused(skewed: object) -> None:
    with pytest.raises(InputError, match="must be a list of job type patterns"):
        TiresiasSkew(skewed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["best_fit", "dot_product", "tiresias_skew", "bandwidth_aware", "fragmentation_gradient"]
)
def test_whole_simulations_run_with_every_strategy(name: str) -> None:
    jobs = [job(i, gpus=1 + i % 4, job_type="vgg16" if i % 2 else "resnet") for i in range(20)]
    result = bx.simulate(bx.Trace.from_jobs(jobs), "2x4xV100+1x8xP100", "las", placement=name)
    assert np.isfinite(result.jobs["finish"]).all()
