"""Preset ``gavel``: average JCT and makespan of Gavel's simulator on its 100-job trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bloxopt as bx

REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "gavel_makespan100.json").read_text())["policies"]
CLUSTER = "8xV100+16xP100+24xK80"


def simulate(policy: str, **options: Any) -> bx.SimulationResult:
    return bx.simulate("gavel-100", CLUSTER, policy, preset="gavel", **options)


@pytest.mark.parametrize(
    ("policy", "published"),
    [
        ("max_min_fairness", "max_min_fairness_perf"),
        ("max_sum_throughput_raw", "max_sum_throughput_perf"),
        ("isolated", "isolated"),
        ("fifo", "fifo_perf"),
        ("finish_time_fairness", "finish_time_fairness_perf"),
    ],
)
def test_average_jct_and_makespan_are_within_two_percent(policy: str, published: str) -> None:
    summary, reference = simulate(policy).summary(), REFERENCE[published]
    assert summary["finished"] == reference["n_done"] == 100
    assert summary["average_jct"] == pytest.approx(reference["avg_jct_s"], rel=0.02)
    assert summary["makespan"] == pytest.approx(reference["makespan_s"], rel=0.02)


def test_fifo_gives_every_job_the_published_completion_time() -> None:
    jobs = simulate("fifo").jobs.set_index("job_id")
    published = REFERENCE["fifo_perf"]["per_job_jct_s"]
    assert jobs["jct"].to_dict() == pytest.approx(published, abs=1e-3)


def test_the_makespan_of_the_exact_program_is_at_most_that_of_bisection() -> None:
    assert simulate("min_makespan").summary()["makespan"] <= REFERENCE["min_total_duration_perf"]["makespan_s"]


@pytest.mark.parametrize("solver", ["highs", "ortools:glop", "cvxpy:clarabel"])
def test_swapping_the_solver_keeps_the_result_within_two_percent(solver: str) -> None:
    summary, reference = simulate("max_min_fairness", solver=solver).summary(), REFERENCE["max_min_fairness_perf"]
    assert summary["average_jct"] == pytest.approx(reference["avg_jct_s"], rel=0.02)


def test_plans_are_at_least_1920_seconds_apart_after_the_first() -> None:
    rounds = simulate("max_min_fairness").rounds
    planned = rounds.loc[rounds["solved"], "time"].to_numpy()
    assert len(planned) > 10
    assert ((planned[2:] - planned[1:-1]) >= 1920).all()
