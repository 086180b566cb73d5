"""What each placement strategy promises about the nodes it finds."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloxopt.cluster import Cluster, Node
from bloxopt.errors import UnknownNameError
from bloxopt.jobs import Job, JobTable
from bloxopt.placement import PLACEMENTS, Found, Offer, get_placement
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment

free_gpus = st.lists(st.integers(0, 8), min_size=1, max_size=8).map(lambda counts: np.array(counts, dtype=np.int64))
gangs = st.integers(1, 24)


def find(name: str, available: np.ndarray, need: int) -> Found | None:
    """Ask a strategy on an otherwise empty cluster of 8-GPU nodes, three in a rack."""
    nodes = (Node(name=f"n{i}", gpu_type="V100", num_gpus=8, rack=f"rack-{i // 3}") for i in range(len(available)))
    cluster, jobs = Cluster(tuple(nodes)), JobTable.from_jobs([Job(job_id="job", duration=1.0)])
    strategy = get_placement(name)
    up = np.ones(len(available), dtype=bool)
    workspace = Workspace(Assignment(cluster, jobs), cluster, jobs, up, strategy)
    workspace.free.gpus[:] = available
    workspace.free.milli[:] = np.where(np.arange(8) < available[:, None], 1000, 0).ravel()
    return strategy(Offer(available, row=0, gpu_type=0, workspace=workspace), need)


@pytest.mark.parametrize("name", list(PLACEMENTS))
@given(available=free_gpus, need=gangs)
def test_whatever_is_found_is_the_whole_gang_within_what_is_free(name: str, available: np.ndarray, need: int) -> None:
    found = find(name, available, need)
    if found is not None:
        nodes, counts, _ = found
        assert sum(counts) == need
        assert len(set(nodes)) == len(nodes) == len(counts)
        assert all(0 < count <= available[node] for node, count in zip(nodes, counts, strict=True))


@pytest.mark.parametrize("name", ["first_fit", "consolidated", "spread", "rack_aware"])
@given(available=free_gpus, need=gangs)
def test_a_gang_that_fits_in_all_is_always_placed(name: str, available: np.ndarray, need: int) -> None:
    assert (find(name, available, need) is not None) == (available.sum() >= need)


@given(available=free_gpus, need=gangs)
def test_first_fit_uses_the_lowest_nodes(available: np.ndarray, need: int) -> None:
    found = find("first_fit", available, need)
    if found is not None:
        nodes, counts, _ = found
        assert list(nodes) == sorted(nodes)
        skipped = [n for n in range(nodes[-1]) if n not in nodes]
        assert not available[skipped].any()
        assert all(count == available[node] for node, count in zip(nodes[:-1], counts[:-1], strict=True))


@given(available=free_gpus, need=gangs)
def test_consolidated_uses_the_fewest_nodes_there_are(available: np.ndarray, need: int) -> None:
    found = find("consolidated", available, need)
    if found is not None:
        fewest = next(
            size
            for size in range(1, len(available) + 1)
            if any(available[list(group)].sum() >= need for group in combinations(range(len(available)), size))
        )
        assert len(found[0]) == fewest


def test_consolidated_leaves_the_emptier_node_whole() -> None:
    assert find("consolidated", np.array([8, 3, 2]), 2) == Found((2,), (2,))


@given(available=free_gpus, need=gangs)
def test_spread_takes_one_gpu_at_a_time_from_the_emptiest_node(available: np.ndarray, need: int) -> None:
    found = find("spread", available, need)
    if found is not None:
        left = available.copy()
        for _ in range(need):
            left[left.argmax()] -= 1
        taken = np.zeros_like(available)
        taken[list(found.nodes)] = found.counts
        assert sorted(available - taken) == sorted(left)


@given(available=free_gpus, need=gangs)
def test_rack_aware_uses_the_fewest_racks_and_in_one_rack_the_fewest_nodes(available: np.ndarray, need: int) -> None:
    found = find("rack_aware", available, need)
    if found is not None:
        racks = np.arange(len(available)) // 3
        used = len({node // 3 for node in found.nodes})
        room = np.sort(np.bincount(racks, weights=available))[::-1].cumsum()
        assert used == int(np.searchsorted(room, need)) + 1
        if used == 1:
            fewest = next(
                size
                for size in range(1, 4)
                if any(
                    len({node // 3 for node in group}) == 1 and available[list(group)].sum() >= need
                    for group in combinations(range(len(available)), size)
                )
            )
            assert len(found.nodes) == fewest


def test_rack_aware_goes_where_it_leaves_the_fewest_gpus_over() -> None:
    assert find("rack_aware", np.array([8, 8, 8, 4, 2, 0]), 4) == Found((3,), (4,))
    assert find("rack_aware", np.array([8, 8, 8, 4, 2, 0, 8, 1, 0]), 5) == Found((6,), (5,))


def test_blox_scattered_fails_where_a_remainder_would_be_needed() -> None:
    assert find("blox_scattered", np.array([1, 4]), 2) is None
    assert find("blox_scattered", np.array([1, 1, 4]), 2) == Found((0, 1), (1, 1))
    assert find("blox_scattered", np.array([0, 4]), 2) == Found((1,), (2,))


def test_blox_consolidated_wants_an_exact_node() -> None:
    assert find("blox_consolidated", np.array([4, 2, 2]), 2) == Found((1,), (2,))
    assert find("blox_consolidated", np.array([4, 4]), 2) is None


def test_an_unknown_strategy_is_named_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'consolidated'"):
        get_placement("consolidate")


def test_a_function_is_a_strategy() -> None:
    def last_node(offer: Offer, need: int) -> Found | None:
        return Found((len(offer.available) - 1,), (need,)) if offer.available[-1] >= need else None

    import bloxopt as bx

    trace = bx.Trace.from_jobs([bx.Job(job_id="a", duration=100.0)])
    result = bx.simulate(trace, "3x4xV100", "fifo", placement=last_node)
    assert result.placements["node"].tolist() == ["node-2"]
