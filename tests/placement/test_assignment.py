"""An assignment that oversubscribes a node, splits a gang or mixes GPU types cannot be built."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.errors import CheckError
from bloxopt.runtime.assignment import Assignment, Grant

CLUSTER = bx.load_cluster("3x4xV100+2x8xK80")
JOBS = bx.JobTable.from_jobs(
    [bx.Job(job_id=f"job-{i}", duration=1.0, num_gpus=size) for i, size in enumerate([1, 1, 2, 2, 4, 4, 8, 6])]
)
grants = st.builds(
    lambda kind, parts: Grant(kind, tuple(parts), tuple(parts.values())),
    st.integers(0, 1),
    st.dictionaries(st.integers(0, 4), st.integers(0, 8), min_size=1, max_size=4),
)
steps = st.lists(
    st.tuples(st.sets(st.integers(0, 7), max_size=3), st.dictionaries(st.integers(0, 7), grants, max_size=4)),
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
        used = np.zeros(len(CLUSTER.nodes), dtype=int)
        for row, grant in assignment.items():
            assert grant.num_gpus == JOBS.num_gpus[row]
            assert {CLUSTER.nodes[node].gpu_type for node in grant.nodes} == {CLUSTER.gpu_types[grant.gpu_type]}
            used[list(grant.nodes)] += grant.counts
        assert (used <= CLUSTER.node_gpus).all()
        assert (assignment.free_gpus == CLUSTER.node_gpus - used).all()


@pytest.mark.parametrize(
    ("grants", "message"),
    [
        ({4: Grant(0, (0,), (3,))}, "'job-4' needs 4 to 4 GPUs and was given 3"),
        ({6: Grant(1, (2, 3), (4, 4))}, "more than one type"),
        ({2: Grant(0, (0, 0), (1, 1))}, "one node twice"),
        ({4: Grant(0, (0,), (4,)), 5: Grant(0, (0,), (4,))}, "'node-0' is short of 4 GPUs"),
        ({0: Grant(0, (0, 1), (1, 0))}, "needs 1 to 1"),
    ],
)
def test_the_error_names_job_or_node(grants: dict[int, Grant], message: str) -> None:
    with pytest.raises(CheckError, match=message):
        Assignment(CLUSTER, JOBS).change([], grants)


def test_a_job_cannot_start_twice() -> None:
    assignment = Assignment(CLUSTER, JOBS).change([], {0: Grant(0, (0,), (1,))})
    with pytest.raises(CheckError, match="'job-0' was given GPUs twice"):
        assignment.change([], {0: Grant(0, (1,), (1,))})
    moved = assignment.change([0], {0: Grant(0, (1,), (1,))})
    assert moved[0].nodes == (1,)
    assert assignment[0].nodes == (0,), "the old assignment must not change"


def test_cpus_and_memory_are_booked_too() -> None:
    cluster = bx.Cluster((bx.Node(name="n", gpu_type="V100", num_gpus=8, cpus=10, memory_gib=64),))
    jobs = bx.JobTable.from_jobs(
        [bx.Job(job_id=str(i), duration=1.0, num_gpus=2, cpus_per_gpu=3, memory_gib_per_gpu=1) for i in range(2)]
    )
    one = Assignment(cluster, jobs).change([], {0: Grant(0, (0,), (2,))})
    assert one.free_cpus is not None
    assert one.free_cpus.tolist() == [4]
    with pytest.raises(CheckError, match="short of 2 CPUs"):
        one.change([], {1: Grant(0, (0,), (2,))})
