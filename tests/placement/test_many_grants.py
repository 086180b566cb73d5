"""Many grants at once are what they are one after the other: the same books, the same refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import bloxopt as bx
from bloxopt.cluster import Cluster
from bloxopt.errors import CheckError
from bloxopt.jobs import JobTable
from bloxopt.needs import PlacementNeeds
from bloxopt.runtime import assignment as assignments
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.resources import Grant, Resources

COLUMNS = ("milli", "gpus", "jobs", "cpus", "memory_gib", "exclusive", "group_jobs")


def hosts(numbers: np.random.Generator) -> Cluster:
    nodes = bx.load_cluster("60x8xA100+40x4xV100").nodes
    return Cluster(tuple(replace(node, cpus=64.1, memory_gib=300.3) for node in nodes if numbers.random() < 0.9))


def workload(numbers: np.random.Generator, needs: bool) -> JobTable:
    jobs = []
    for number in range(600):
        size = int(numbers.choice([1, 1, 1, 2, 4, 12]))
        host = {"cpus_per_gpu": 0.1 * size, "memory_gib_per_gpu": 1.7} if needs and numbers.random() < 0.5 else {}
        share = {"gpu_share": 0.5} if size == 1 and numbers.random() < 0.2 else {}
        jobs.append(bx.Job(job_id=f"job-{number}", duration=1.0, num_gpus=size, **host, **share))
    return JobTable.from_jobs(jobs)


def some_that_fit(cluster: Cluster, jobs: JobTable, numbers: np.random.Generator) -> dict[int, Grant]:
    """Gangs on whatever is free, spread as chance has it."""
    free, grants = Resources(cluster, jobs), {}
    for row in numbers.permutation(len(jobs)).tolist():
        kind, milli = int(numbers.integers(len(cluster.gpu_types))), int(jobs.gpu_milli[row])
        open_now = np.flatnonzero((free.milli >= milli) & (cluster.node_gpu_type[cluster.gpu_node] == kind))
        size = int(jobs.num_gpus[row])
        if len(open_now) >= size:
            gpus = np.sort(numbers.choice(open_now, size, replace=False))
            nodes, counts = np.unique(cluster.gpu_node[gpus], return_counts=True)
            grants[row] = Grant(kind, tuple(nodes.tolist()), tuple(counts.tolist()), tuple(gpus.tolist()), milli)
            free.take(row, grants[row])
    return grants


def spoiled(grants: dict[int, Grant], numbers: np.random.Generator, cluster: Cluster) -> dict[int, Grant]:
    """One of them is made wrong."""
    row = int(numbers.choice(list(grants)))
    grant, other = grants[row], grants[int(numbers.choice(list(grants)))]
    wrong = (
        grant._replace(gpus=other.gpus, nodes=other.nodes, counts=other.counts),
        grant._replace(gpus=(*grant.gpus[1:], other.gpus[0])),
        grant._replace(gpus=(grant.gpus[0],) * len(grant.gpus)),
        grant._replace(gpus=(*grant.gpus[1:], cluster.num_gpus - 1)),
        grant._replace(gpu_type=1 - grant.gpu_type),
        grant._replace(milli=250),
        grant._replace(counts=(*grant.counts[:-1], grant.counts[-1] + 1)),
        grant._replace(nodes=(*grant.nodes[:-1], (grant.nodes[-1] + 1) % len(cluster.nodes))),
    )
    return {**grants, row: wrong[int(numbers.integers(len(wrong)))]}


def outcome(before: Assignment, stop: list[int], start: dict[int, Grant]) -> Assignment | str:
    try:
        return before.change(stop, start)
    except CheckError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(60))
def test_books_and_refusals_are_those_of_one_after_the_other(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(seed)
    cluster = hosts(numbers)
    jobs = workload(numbers, needs=seed % 2 == 0)
    grants = some_that_fit(cluster, jobs, numbers)
    first = dict(list(grants.items())[:10])
    stop = list(first)[:5]
    start = {row: grant for row, grant in grants.items() if row not in first or row in stop}
    start = spoiled(start, numbers, cluster) if seed % 3 == 0 else start
    assert len(start) >= assignments.MANY
    before = Assignment(cluster, jobs).change((), first)
    untouched = {name: np.copy(getattr(before.free, name)) for name in COLUMNS}
    together = outcome(before, stop, start)
    for name in COLUMNS:
        assert np.array_equal(getattr(before.free, name), untouched[name])
    monkeypatch.setattr(assignments, "MANY", 10**9)
    singly = outcome(before, stop, start)
    if isinstance(singly, str):
        assert together == singly
        return
    assert isinstance(together, Assignment)
    assert together.grants == singly.grants
    assert sorted(together.free.touched) == sorted(singly.free.touched)
    for name in COLUMNS:
        one, other = getattr(together.free, name), getattr(singly.free, name)
        assert (one is None and other is None) or (one == other).all(), name


def test_some_are_refused_and_some_are_not() -> None:
    found = set()
    for seed in range(60):
        numbers = np.random.default_rng(seed)
        cluster = hosts(numbers)
        jobs = workload(numbers, needs=False)
        grants = spoiled(some_that_fit(cluster, jobs, numbers), numbers, cluster)
        found.add(isinstance(outcome(Assignment(cluster, jobs), [], grants), str))
    assert found == {True, False}


def test_nodes_that_a_job_wants_for_itself_and_groups_that_keep_apart() -> None:
    cluster = bx.load_cluster("100x4xA100")
    needs = [
        {"exclusive_node": True} if number < 30 else {"anti_affinity": "replica"} if number < 60 else {}
        for number in range(80)
    ]
    jobs = JobTable.from_jobs(
        [
            bx.Job(job_id=f"job-{number}", duration=1.0, needs=PlacementNeeds(**need))
            for number, need in enumerate(needs)
        ]
    )
    grants = {row: Grant(0, (row,), (1,), (4 * row,)) for row in range(80)}
    many = Assignment(cluster, jobs).change((), grants)
    assert many.free.exclusive is not None
    assert many.free.exclusive.sum() == 30
    assert many.free.group_jobs is not None
    assert many.free.group_jobs.sum() == 30
    with pytest.raises(CheckError, match="wants it for itself"):
        Assignment(cluster, jobs).change((), {**grants, 79: Grant(0, (0,), (1,), (1,))})
    with pytest.raises(CheckError, match="anti-affinity group 'replica'"):
        Assignment(cluster, jobs).change((), {**grants, 59: Grant(0, (58,), (1,), (4 * 58 + 1,))})
