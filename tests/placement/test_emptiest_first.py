"""Emptiest first: the node with the most free GPUs is taken whole, then the next."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.jobs import JobTable
from bloxopt.placement.emptiest_first import EmptiestFirst
from bloxopt.placement.passes import place_decision
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment


def _round(gangs: list[int], before: list[int], rank: list[int] | None, nodes: int) -> dict[int, tuple]:
    """Nodes and counts of each job after a round in which all of ``gangs`` are to run and ``before`` ran already."""
    cluster = bx.load_cluster(f"{nodes}x4xT4")
    jobs = JobTable.from_jobs([bx.Job(job_id=str(i), duration=1.0, num_gpus=size) for i, size in enumerate(gangs)])
    assignment = Assignment(cluster, jobs)
    for rows in (before, list(range(len(gangs)))):
        row = np.array(rows, dtype=np.int64)
        if len(row):
            up = np.ones(nodes, dtype=bool)
            workspace = Workspace(assignment, cluster, jobs, up, EmptiestFirst())
            order = None if rank is None else np.array(rank)[row]
            stop, start = place_decision(row, 0 * row, jobs.num_gpus[row], assignment, workspace, rank=order)
            assignment = assignment.change(stop, start)
    return {row: (grant.nodes, grant.counts) for row, grant in assignment.grants.items()}


def _plain(gangs: list[int], order: list[int], nodes: int, held: dict[int, tuple]) -> dict[int, tuple]:
    left = [4] * nodes
    for on, counts in held.values():
        for node, count in zip(on, counts, strict=True):
            left[node] -= count
    found = dict(held)
    for job in order:
        if job in found or sum(left) < gangs[job]:
            continue
        on, counts = [], []
        while sum(counts) < gangs[job]:
            node = left.index(max(left))
            on.append(node)
            counts.append(min(left[node], gangs[job] - sum(counts)))
            left[node] -= counts[-1]
        found[job] = tuple(on), tuple(counts)
    return found


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(0, 4), st.integers(1, 6), st.randoms())
def test_gangs_are_placed_smallest_first_or_in_the_order_of_the_policy(gangs, kept, nodes, random) -> None:
    before = list(range(min(kept, len(gangs))))
    for ranked in (False, True):
        rank = random.sample(range(len(gangs)), len(gangs)) if ranked else gangs
        by_rank = sorted(range(len(gangs)), key=lambda job, rank=rank: (rank[job], job))
        held = _plain(gangs, [job for job in by_rank if job in before], nodes, {})
        expected = _plain(gangs, by_rank, nodes, held)
        assert _round(gangs, before, rank if ranked else None, nodes) == expected


@pytest.mark.parametrize("policy", ["las", "optimus", "max_min_fairness"])
def test_it_serves_any_policy(policy: str) -> None:
    trace = bx.load_trace("gavel-15")
    result = bx.simulate(trace, "4xV100+4xP100+4xK80", policy, placement="emptiest_first")
    assert result.jobs["finish"].notna().all()
