"""The fragmentation measure of Weng et al. (ATC 2023), and placement by its gradient, against literal versions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.placement import get_placement
from bloxopt.placement.fragmentation import TargetWorkload, fragmentation
from bloxopt.placement.fragmentation_gradient import FragmentationGradient
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment

CLUSTER = bx.Cluster(
    tuple(
        bx.Node(name=f"n{i}", gpu_type=kind, num_gpus=gpus, cpus=cpus, memory_gib=memory)
        for i, (kind, gpus, cpus, memory) in enumerate(
            [("A", 4, 32, 128), ("A", 4, 32, 128), ("A", 2, 64, None), ("B", 8, 48, 256), ("B", 1, None, 64)]
        )
    )
)

tasks = st.builds(
    lambda gpus, share, cpus, memory: dict(  # noqa: C408
        num_gpus=1 if share < 1 else gpus, gpu_share=share, cpus_per_gpu=float(cpus), memory_gib_per_gpu=float(memory)
    ),
    st.sampled_from([1, 1, 2, 4, 8]),
    st.sampled_from([1.0, 1.0, 0.5, 0.3, 0.7, 0.25]),
    st.sampled_from([0, 4, 8, 16]),
    st.sampled_from([0, 16, 40]),
)
workloads = st.lists(tasks, min_size=1, max_size=12)


def table(rows: list[dict]) -> bx.JobTable:
    return bx.JobTable.from_jobs([bx.Job(job_id=str(i), duration=1.0, **row) for i, row in enumerate(rows)])


def workspace_of(jobs: bx.JobTable, name: str = "first_fit") -> Workspace:
    up = np.ones(len(CLUSTER.nodes), dtype=bool)
    return Workspace(Assignment(CLUSTER, jobs), CLUSTER, jobs, up, get_placement(name))


def literal(gpus: list[int], cpus: float, memory: float, jobs: bx.JobTable, weigh: str) -> float:
    """GPUs of a node that are fragments, task by task as the paper defines them."""
    most = int(CLUSTER.node_gpus.max())
    expected = total = 0.0
    for job in jobs:
        count, milli = min(job.num_gpus, most), round(job.gpu_share * 1000)
        weight = count * milli if weigh == "gpus" else 1
        total += weight
        enough_host = cpus >= count * job.cpus_per_gpu - 1e-6 and memory >= count * job.memory_gib_per_gpu - 1e-6
        enough_gpus = sum(free >= milli for free in gpus) >= count
        useless = [free for free in gpus if free < milli] if enough_host and enough_gpus else gpus
        expected += weight * sum(useless) / 1000
    return expected / total


def literal_of_node(workspace: Workspace, node: int, weigh: str = "gpus") -> float:
    free, first = workspace.free, int(CLUSTER.gpu_offset[node])
    gpus = free.milli[first : first + CLUSTER.nodes[node].num_gpus].tolist()
    cpus = np.inf if free.cpus is None else free.cpus[node]
    memory = np.inf if free.memory_gib is None else free.memory_gib[node]
    return literal(gpus, cpus, memory, workspace.jobs, weigh)


def fill(workspace: Workspace, rows: list[int]) -> list[int]:
    """Place what can be placed, job by job; rows that were."""
    placed = []
    for row in rows:
        for kind in range(2):
            grant = workspace.find(row, kind, int(workspace.jobs.num_gpus[row]))
            if grant is not None:
                workspace.take(row, grant)
                placed.append(row)
                break
    return placed


@pytest.mark.parametrize("weigh", ["tasks", "gpus"])
@given(rows=workloads, data=st.data())
def test_the_measure_is_the_papers_sum_over_tasks(weigh: str, rows: list[dict], data: st.DataObject) -> None:
    jobs = table(rows)
    workspace = workspace_of(jobs)
    fill(workspace, data.draw(st.lists(st.integers(0, len(rows) - 1), unique=True)))
    measured = fragmentation(workspace.free, CLUSTER, TargetWorkload.of(jobs, CLUSTER, weigh=weigh))
    assert measured.tolist() == pytest.approx([literal_of_node(workspace, node, weigh) for node in range(5)])


@settings(deadline=None)
@given(workloads, st.data())
def test_the_gradient_chooses_the_least_growth_of_all_nodes_and_gpus(rows: list[dict], data: st.DataObject) -> None:
    jobs = table(rows)
    workspace = workspace_of(jobs, "fragmentation_gradient")
    order = data.draw(st.permutations(range(len(rows))))
    for row in order:
        for kind in range(2):
            need, milli = int(jobs.num_gpus[row]), jobs.gpu_milli[row]
            growth = {}
            for node in range(len(CLUSTER.nodes)):
                first = int(CLUSTER.gpu_offset[node])
                able = (workspace.free.milli[first : int(CLUSTER.gpu_offset[node + 1])] >= milli).nonzero()[0] + first
                if CLUSTER.node_gpu_type[node] != kind or workspace._available(row, kind)[node] < need:
                    continue
                for gpus in [able[:need]] if milli == 1000 else [able[k : k + 1] for k in range(len(able))]:
                    grant = bx.runtime.resources.Grant(kind, (node,), (need,), tuple(gpus.tolist()), milli)
                    before = literal_of_node(workspace, node)
                    workspace.take(row, grant)
                    growth[node, grant.gpus] = literal_of_node(workspace, node) - before
                    workspace.give_back(row, grant)
            found = workspace.find(row, kind, need)
            if not growth:
                assert found is None or len(found.nodes) > 1
                continue
            assert found is not None
            assert growth[found.nodes[0], found.gpus] == pytest.approx(min(growth.values()), abs=1e-6)
            workspace.take(row, found)
            break


def test_gpu_types_on_which_a_task_makes_no_progress_are_fragments_to_it() -> None:
    jobs = table([{"num_gpus": 1}])
    free = workspace_of(jobs).free
    only_b = TargetWorkload.of(jobs, CLUSTER, runs_on=np.array([[False, True]]))
    assert fragmentation(free, CLUSTER, only_b).tolist() == [4.0, 4.0, 2.0, 0.0, 0.0]


def test_the_target_is_the_job_mix_by_kind() -> None:
    target = TargetWorkload.of(table([{"num_gpus": 2}] * 3 + [{"gpu_share": 0.5}]), CLUSTER, weigh="tasks")
    assert sorted(zip(target.count.tolist(), target.milli.tolist(), target.weight.tolist(), strict=True)) == [
        (1, 500, 0.25),
        (2, 1000, 0.75),
    ]


def test_a_half_goes_to_the_gpu_that_is_half_used_already() -> None:
    jobs = table([{"gpu_share": 0.5}] * 2 + [{"num_gpus": 4}])
    workspace = workspace_of(jobs, "fragmentation_gradient")
    assert fill(workspace, [0, 1, 2]) == [0, 1, 2]
    assert sorted(workspace.free.milli[:4].tolist() + workspace.free.milli[8:10].tolist()).count(500) == 0


def test_a_gang_larger_than_any_node_takes_the_emptiest_nodes_whole() -> None:
    jobs = table([{"num_gpus": 6}])
    grant = workspace_of(jobs, "fragmentation_gradient").find(0, 0, 6)
    assert grant is not None
    assert sorted(grant.counts) == [2, 4]
    assert workspace_of(jobs, "fragmentation_gradient").find(0, 0, 11) is None


def test_one_strategy_may_serve_many_runs() -> None:
    strategy = FragmentationGradient()
    trace = bx.Trace.from_jobs([bx.Job(job_id=str(i), duration=500.0, gpu_share=0.4) for i in range(9)])
    first = bx.simulate(trace, "2x2xV100", "fifo", placement=strategy)
    other = bx.simulate(trace, "3x1xV100", "fifo", placement=strategy)
    again = bx.simulate(trace, "2x2xV100", "fifo", placement="fragmentation_gradient")
    assert first.jobs.equals(again.jobs)
    assert np.isfinite(other.jobs["finish"]).all()
