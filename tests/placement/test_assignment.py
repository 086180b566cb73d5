"""An assignment that oversubscribes a node, splits a gang or mixes GPU types cannot be built."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.errors import CheckError
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.resources import Grant

CLUSTER = bx.load_cluster("3x4xV100+2x8xK80")
JOBS = bx.JobTable.from_jobs(
    [bx.Job(job_id=f"job-{i}", duration=1.0, num_gpus=size) for i, size in enumerate([1, 1, 2, 2, 4, 4, 8, 6])]
    + [bx.Job(job_id=f"part-{i}", duration=1.0, gpu_share=share) for i, share in enumerate([0.5, 0.5, 0.25, 0.25])]
)


def grant(kind: int, parts: dict[int, list[int]], milli: int = 1000) -> Grant:
    """A grant of the given GPUs, numbered within each node."""
    gpus = tuple(int(CLUSTER.gpu_offset[node]) + local for node, locals_ in parts.items() for local in locals_)
    return Grant(kind, tuple(parts), tuple(len(locals_) for locals_ in parts.values()), gpus, milli)


grants = st.builds(
    grant,
    st.integers(0, 1),
    st.dictionaries(st.integers(0, 4), st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=3),
    st.sampled_from([1000, 1000, 500, 250]),
)
steps = st.lists(
    st.tuples(st.sets(st.integers(0, 11), max_size=3), st.dictionaries(st.integers(0, 11), grants, max_size=4)),
    max_size=8,
)


@given(steps)
def test_any_sequence_of_changes_keeps_every_node_within_its_gpus(changes: list) -> None:
    assignment = Assignment(CLUSTER, JOBS)
    for stop, start in changes:
        try:
            assignment = assignment.change([row for row in stop if row in assignment], start)
        except CheckError:
            continue
        used = np.zeros(CLUSTER.num_gpus, dtype=int)
        for row, grant in assignment.items():
            assert grant.num_gpus == JOBS.num_gpus[row]
            assert grant.milli == JOBS.gpu_milli[row]
            assert {CLUSTER.nodes[node].gpu_type for node in grant.nodes} == {CLUSTER.gpu_types[grant.gpu_type]}
            assert set(CLUSTER.gpu_node[list(grant.gpus)].tolist()) == set(grant.nodes)
            used[list(grant.gpus)] += grant.milli
        assert (used <= 1000).all()
        assert (assignment.free.milli == 1000 - used).all()
        whole = np.bincount(CLUSTER.gpu_node, weights=used == 0, minlength=len(CLUSTER.nodes))
        assert (assignment.free.gpus == whole).all()


@pytest.mark.parametrize(
    ("grants", "message"),
    [
        ({4: grant(0, {0: [0, 1, 2]})}, "'job-4' needs 4 to 4 GPUs and was given"),
        ({6: grant(1, {2: [0, 1, 2, 3], 3: [0, 1, 2, 3]})}, "more than one type"),
        ({2: Grant(0, (0, 0), (1, 1), (0, 1))}, "different ones"),
        ({2: Grant(0, (0,), (2,), (0, 0))}, "different ones"),
        ({2: Grant(0, (0,), (2,), (0, 5))}, "different ones"),
        ({4: grant(0, {0: [0, 1, 2, 3]}), 5: grant(0, {0: [0, 1, 2, 3]})}, "'node-0' is oversubscribed"),
        ({8: grant(0, {0: [0]}, 500), 0: grant(0, {0: [0]})}, "GPU 0 on node 'node-0' is oversubscribed by 500/1000"),
        ({8: grant(0, {0: [0]}, 250)}, "'part-0' needs 500/1000 of each GPU"),
        ({0: Grant(0, (0, 1), (1, 0), (0,))}, "needs 1 to 1"),
    ],
)
def test_the_error_names_job_or_node(grants: dict[int, Grant], message: str) -> None:
    with pytest.raises(CheckError, match=message):
        Assignment(CLUSTER, JOBS).change([], grants)


def test_a_job_cannot_start_twice() -> None:
    assignment = Assignment(CLUSTER, JOBS).change([], {0: grant(0, {0: [0]})})
    with pytest.raises(CheckError, match="'job-0' was given GPUs twice"):
        assignment.change([], {0: grant(0, {1: [0]})})
    moved = assignment.change([0], {0: grant(0, {1: [0]})})
    assert moved[0].nodes == (1,)
    assert assignment[0].nodes == (0,), "the old assignment must not change"


def test_cpus_and_memory_are_booked_too() -> None:
    cluster = bx.Cluster((bx.Node(name="n", gpu_type="V100", num_gpus=8, cpus=10, memory_gib=64),))
    jobs = bx.JobTable.from_jobs(
        [bx.Job(job_id=str(i), duration=1.0, num_gpus=2, cpus_per_gpu=3, memory_gib_per_gpu=1) for i in range(2)]
    )
    one = Assignment(cluster, jobs).change([], {0: Grant(0, (0,), (2,), (0, 1))})
    assert one.free.cpus is not None
    assert one.free.cpus.tolist() == [4]
    with pytest.raises(CheckError, match="short of 2 CPUs"):
        one.change([], {1: Grant(0, (0,), (2,), (2, 3))})
