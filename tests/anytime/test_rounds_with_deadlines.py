"""Rounds with a deadline: every job finishes whatever the solver does, and how each round was decided is said."""

from __future__ import annotations

import pytest
from faulty_solvers import Faulty

import bloxopt as bx
from bloxopt.errors import ConfigError
from bloxopt.experiments import load_experiment
from bloxopt.placement.exact import ExactPlacement
from bloxopt.selection.exact import ExactSelection
from bloxopt.simulation import SimulationOptions

CLUSTER = "2xV100+4xP100+6xK80"


def _simulate(solver: object, **options: object):
    trace = bx.load_trace("gavel-100").head(8)
    return bx.simulate(trace, CLUSTER, "max_min_fairness", solver=solver, options=SimulationOptions(**options))


def test_with_time_enough_a_deadline_changes_nothing() -> None:
    plain, timed = _simulate("highs"), _simulate("highs", round_budget=20.0)
    assert timed.jobs["finish"].tolist() == pytest.approx(plain.jobs["finish"].tolist())
    solved = timed.rounds[timed.rounds["solved"]]
    assert set(solved["rung"]) == {"solved"}
    assert set(solved["verified"]) == {True}
    assert (timed.rounds["late_seconds"] == 0).all()
    assert (timed.rounds["decide_seconds"] > 0).all()


@pytest.mark.parametrize(
    ("fault", "rung"), [("crash", "other_solver"), ("nan", "other_solver"), ("lies: infeasible", "other_solver")]
)
def test_a_solver_that_fails_every_time_leaves_a_cluster_that_works(fault: str, rung: str) -> None:
    result = _simulate(Faulty(fault), round_budget=20.0)
    assert result.jobs["finish"].notna().all()
    assert set(result.rounds["rung"].dropna()) == {rung}


def test_without_any_time_every_round_is_decided_greedily_and_all_jobs_finish() -> None:
    result = _simulate("highs", round_budget=1e-9)
    assert result.jobs["finish"].notna().all()
    assert set(result.rounds["rung"].dropna()) <= {"greedy", "carried_over"}
    assert (result.rounds.loc[result.rounds["solved"], "late_seconds"] > 0).all()


def test_without_a_deadline_a_solver_that_fails_is_an_error() -> None:
    with pytest.raises(bx.BloxoptError, match="faulty"):
        _simulate(Faulty("error"))


def test_the_binding_blocks_are_told_for_every_plan() -> None:
    result = _simulate("highs")
    solved = result.rounds[result.rounds["solved"]]
    contended = solved[solved["active_jobs"] == 8]
    assert contended["binding"].str.contains("Capacity").all()


@pytest.mark.parametrize("budget", [0, -1, float("nan"), float("inf"), True])
def test_a_budget_that_is_no_time_is_refused(budget: object) -> None:
    with pytest.raises(ConfigError, match="round_budget"):
        SimulationOptions(round_budget=budget)  # type: ignore[arg-type]


def test_experiment_files_set_it(tmp_path) -> None:
    path = tmp_path / "e.toml"
    path.write_text('[trace]\nname = "gavel-100"\n[simulation]\nround_budget = 0.5\n')
    assert load_experiment(path).simulation.round_budget == 0.5


@pytest.mark.parametrize("budget", [1e-9, 20.0])
def test_exact_selection_and_placement_keep_the_deadline_too(budget: float) -> None:
    result = _simulate("highs", round_budget=budget, selector="exact", placement="exact")
    assert result.jobs["finish"].notna().all()


@pytest.mark.parametrize("fault", ["crash", "nan"])
def test_solvers_of_selection_and_placement_cannot_take_the_scheduler_along(fault: str) -> None:
    faulty = Faulty(fault)
    selector, placement = ExactSelection(solver=faulty), ExactPlacement(solver=faulty)
    trace, options = bx.load_trace("gavel-100").head(5), SimulationOptions(round_budget=20.0, round_seconds=7200.0)
    result = bx.simulate(
        trace, CLUSTER, "max_min_fairness", solver="highs", options=options, selector=selector, placement=placement
    )
    assert result.jobs["finish"].notna().all()


def test_selection_without_time_serves_those_that_are_owed_most_within_their_limits() -> None:
    from bloxopt.formulations import Capacity, MaxMin, NormalizedThroughput, Policy, TenantQuota, TimeShare

    quota = TenantQuota({"default": 3})
    policy = Policy(objective=MaxMin(NormalizedThroughput()), constraints=[Capacity(), TimeShare(), quota])
    trace = bx.load_trace("gavel-100").where(max_gpus=2).head(8)
    options = SimulationOptions(round_budget=1e-9, selector="exact")
    result = bx.simulate(trace, CLUSTER, policy, options=options)
    assert result.jobs["finish"].notna().all()
    assert result.rounds["gpus_used"].max() == 3
