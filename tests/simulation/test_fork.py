"""A fork decides as the scheduler it came from would, and nothing that happens to it shows there."""

from __future__ import annotations

import numpy as np
import pytest

import bloxopt as bx
from bloxopt.cluster import Cluster, Node
from bloxopt.formulations.policies import get_policy
from bloxopt.jobs import Job
from bloxopt.simulation.fork import fork
from bloxopt.workloads.trace import Trace

CLUSTER = "2xV100+4xP100+6xK80"
ROUNDS = 150
"""Rounds that are decided twice."""


@pytest.mark.parametrize(
    ("policy", "preset"),
    [
        *((policy, preset) for policy in ("fifo", "las") for preset in ("default", "gavel", "blox")),
        *(
            (policy, preset)
            for policy in ("max_min_fairness", "finish_time_fairness")
            for preset in ("default", "gavel")
        ),
        *((policy, "default") for policy in ("water_filling_max_min_fairness_packed", "gandiva", "antman")),
    ],
)
def test_the_next_decision_of_a_fork_is_the_next_decision(policy: str, preset: str) -> None:
    expected: list[object] = []
    seen: list[object] = []

    def grants(assignment) -> list[tuple]:
        return sorted((row, grant.gpu_type, grant.gpus) for row, grant in assignment.grants.items())

    def compare(scheduler, state) -> None:
        twin, before = fork(scheduler, state)
        expected.append(grants(twin.decide(before).assignment))
        seen.append(grants(state.assignment))

    trace = bx.load_trace("gavel-100").head(20)
    plain = bx.simulate(trace, CLUSTER, policy, preset=preset, max_rounds=ROUNDS)
    finishes = []

    def at_start(scheduler, state) -> None:
        compare(scheduler, state)
        finishes.append(scheduler.backend.ledger.finish.copy())

    forked = bx.simulate(trace, CLUSTER, policy, preset=preset, max_rounds=ROUNDS, before_round=at_start)
    assert forked.jobs.equals(plain.jobs), "forking changes nothing"
    # What a round decided is what runs at the start of the next, less the jobs that finished in it.
    for decided, then, finish in zip(expected, seen[1:], finishes[1:], strict=False):
        assert [entry for entry in decided if np.isnan(finish[entry[0]])] == then


def test_a_fork_runs_on_to_the_same_end_when_nobody_else_comes() -> None:
    trace = bx.load_trace("gavel-100").head(12)  # all arrive at once
    finishes: list[np.ndarray] = []

    def at(scheduler, state) -> None:
        if state.now == 3600.0:
            twin, _ = fork(scheduler, state)
            while not twin.backend.finished:
                twin.run_round()
            finishes.append(twin.backend.ledger.finish.copy())

    result = bx.simulate(trace, CLUSTER, "max_min_fairness", before_round=at)
    assert finishes[0] == pytest.approx(result.jobs["finish"].to_numpy())


def test_jobs_still_to_come_do_not_come_in_a_fork() -> None:
    jobs = [Job(job_id="a", duration=1000.0), Job(job_id="b", arrival=500.0, duration=10.0)]
    finishes: list[np.ndarray] = []

    def at(scheduler, state) -> None:
        if state.now == 360.0:
            twin, _ = fork(scheduler, state)
            while not twin.backend.finished:
                twin.run_round()
            finishes.append(twin.backend.ledger.finish.copy())

    bx.simulate(Trace.from_jobs(jobs), "1xV100", "fifo", before_round=at)
    assert finishes[0][0] == 1000.0
    assert np.isnan(finishes[0][1])


def test_with_more_nodes_more_runs() -> None:
    jobs = [Job(job_id=f"j{k}", duration=1000.0, num_gpus=2) for k in range(3)]
    ran: list[int] = []

    def at(scheduler, state) -> None:
        cluster = scheduler.backend.catalog.cluster
        bigger = Cluster((*cluster.nodes, Node(name="new", gpu_type="V100", num_gpus=4)), cluster.network)
        for other in (None, bigger):
            twin, before = fork(scheduler, state, cluster=other)
            ran.append(len(twin.decide(before).assignment))

    bx.simulate(Trace.from_jobs(jobs), "2xV100", "fifo", before_round=at, max_rounds=1)
    assert ran == [1, 3]


def test_another_policy_may_decide() -> None:
    jobs = [Job(job_id="long", duration=1000.0), Job(job_id="short", duration=10.0)]
    ran: list[set[int]] = []

    def at(scheduler, state) -> None:
        for policy in (None, get_policy("srtf")):
            twin, before = fork(scheduler, state, policy=policy)
            ran.append(set(twin.decide(before).assignment))

    bx.simulate(Trace.from_jobs(jobs), "1xV100", "fifo", before_round=at, max_rounds=1)
    assert ran == [{0}, {1}]
