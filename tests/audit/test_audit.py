"""The audit finds what a policy breaks, as a plain calculation on small instances does."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.optimize import linprog

import bloxopt as bx
from bloxopt.audit import PROPERTIES, audit
from bloxopt.audit.properties import Question, entitled_rate
from bloxopt.cli import run as run_cli
from bloxopt.errors import InputError, UnknownNameError
from bloxopt.formulations import EffectiveThroughput, Expression, MaxSum, Policy
from bloxopt.formulations.allocation import Allocation
from bloxopt.formulations.policies import get_policy
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import Job

CLUSTER = "2xV100+2xK80"


def _space(rates: list[tuple[float, float]], gpus: list[int] | None = None, weights: list[float] | None = None):
    count = len(rates)
    jobs = [
        Job(
            job_id=f"j{k}",
            job_type=f"t{k}",
            total_steps=1e6,
            num_gpus=(gpus or [1] * count)[k],
            weight=(weights or [1.0] * count)[k],
        )
        for k in range(count)
    ]
    table = {
        (f"t{k}", kind, job.num_gpus): rate
        for k, (job, pair) in enumerate(zip(jobs, rates, strict=True))
        for kind, rate in zip(("V100", "K80"), pair, strict=True)
    }
    return AllocationSpace.from_jobs(jobs, CLUSTER, table)


def _amounts(name: str, allocation: Allocation, policy: Policy) -> np.ndarray:
    return PROPERTIES.get(name).amounts(Question(allocation, policy.allocate, np.random.default_rng(0)))


def _given(space: AllocationSpace, x: list[list[float]]) -> Allocation:
    """An allocation with the given time shares, (jobs, types)."""
    made = get_policy("isolated").allocate(space)
    object.__setattr__(made, "x", np.array(x)[space.job, space.gpu_type])
    return made


def test_what_a_weight_entitles_to_is_its_part_of_every_type() -> None:
    space = _space([(4.0, 2.0), (4.0, 2.0), (8.0, 1.0)], weights=[2.0, 1.0, 1.0])
    # Half of 2 + 2 GPUs is two GPUs, more than one job of one GPU can use: half of its time on each type.
    assert entitled_rate(space) == pytest.approx([3.0, 0.5 * 4 + 0.5 * 2, 0.5 * 8 + 0.5 * 1])


def test_the_sharing_incentive_is_what_a_job_lacks_of_its_part() -> None:
    space = _space([(4.0, 2.0)] * 4)
    allocation = _given(space, [[1, 0], [1, 0], [0, 1], [0, 0]])
    assert _amounts("sharing_incentive", allocation, get_policy("isolated")) == pytest.approx([0, 0, 1 / 3, 1])


def test_a_job_envies_what_would_make_it_faster() -> None:
    space = _space([(4.0, 2.0), (6.0, 2.0), (2.0, 2.0)])
    allocation = _given(space, [[1, 0], [0, 1], [0, 1]])
    # The second would do 6 instead of 2 with what the first has; the third the same as now.
    assert _amounts("envy_freeness", allocation, get_policy("isolated")) == pytest.approx([0, 2 / 3, 0])


def test_envy_takes_gangs_and_weights_into_account() -> None:
    space = _space([(4.0, 2.0), (8.0, 4.0)], gpus=[1, 2], weights=[1.0, 2.0])
    allocation = _given(space, [[1, 0], [0, 0.5]])
    # One V100 scaled by 2 is two: a gang of two all the time, 8 steps/s instead of 2.
    assert _amounts("envy_freeness", allocation, get_policy("isolated")) == pytest.approx([0, 0.75])


def test_pareto_inefficiency_is_what_a_linear_program_can_still_gain() -> None:
    rates = [(4.0, 1.0), (3.0, 2.0), (5.0, 5.0)]
    space = _space(rates)
    x = np.array([[0.2, 0.3], [0.5, 0.1], [0.0, 0.6]])
    allocation = _given(space, x.tolist())
    rate, most = np.array(rates), np.array(rates).max(axis=1)
    now = (rate * x).sum(axis=1)
    answer = linprog(
        -(rate / most[:, None]).ravel(),
        A_ub=np.vstack(
            [np.kron(np.eye(3), [1, 1]), np.kron([1, 1, 1], np.eye(2)), -np.kron(np.eye(3), [1, 1]) * rate.ravel()]
        ),
        b_ub=np.concatenate([np.ones(3), [2, 2], -now]),
        bounds=(0, 1),
    )
    expected = (-answer.fun - (now / most).sum()) / -answer.fun
    assert _amounts("pareto_efficiency", allocation, get_policy("isolated")) == pytest.approx([expected], abs=1e-6)


def test_an_optimal_sum_is_pareto_efficient_and_the_isolated_share_is_not() -> None:
    space = _space([(4.0, 1.0), (3.0, 2.9), (5.0, 1.0), (2.0, 1.9)] * 2)
    for name, efficient in (("max_sum_throughput", True), ("isolated", False)):
        policy = get_policy(name)
        [gain] = _amounts("pareto_efficiency", policy.allocate(space), policy)
        assert (gain < 1e-6) == efficient


def test_a_policy_that_looks_at_the_order_of_jobs_is_not_invariant() -> None:
    space = _space([(4.0, 2.0)] * 5)
    for name, invariant in (("isolated", True), ("fifo", False)):
        policy = get_policy(name)
        amounts = _amounts("permutation_invariance", policy.allocate(space), policy)
        assert (amounts.max() < 1e-6) == invariant


def test_a_policy_that_gives_by_reported_speed_can_be_gamed_and_the_isolated_share_cannot() -> None:
    space = _space([(4.0, 2.0), (4.1, 2.0), (4.2, 2.0), (3.9, 2.0), (4.0, 2.1)])
    for policy, proof in ((get_policy("isolated"), True), (Policy(objective=MaxSum(EffectiveThroughput())), False)):
        allocation = policy.allocate(space)
        gains = [_amounts("strategy_proofness", allocation, policy) for _ in range(4)]
        looked_at = np.concatenate(gains)
        assert np.isnan(looked_at).any(), "only a few jobs misreport at a time"
        assert (np.nanmax(looked_at) < 1e-6) == proof


def test_more_gpus_hurt_nobody_under_the_isolated_share_of_a_contended_cluster() -> None:
    space = _space([(4.0, 2.0), (1.0, 2.0), (5.0, 0.0)] * 2)
    policy = get_policy("isolated")
    assert _amounts("resource_monotonicity", policy.allocate(space), policy).max() == 0


def test_more_gpus_hurt_whoever_a_policy_wants_them_to_hurt() -> None:
    class LessWithMore(Expression):
        progress_dependent = False

        def build(self, space: AllocationSpace) -> np.ndarray:
            return np.where(space.job == 0, 1.0 if space.capacity.sum() == 4 else -1.0, 1.0)

    policy = Policy(objective=MaxSum(LessWithMore()))
    space = _space([(4.0, 2.0), (4.0, 2.0)])
    assert _amounts("resource_monotonicity", policy.allocate(space), policy) == pytest.approx([1.0, 0.0])


def test_judging_leaves_the_simulation_as_it_is() -> None:
    trace = bx.load_trace("gavel-100").head(15)
    plain = bx.simulate(trace, "2xV100+4xP100+6xK80", "finish_time_fairness")
    report = audit(trace, "2xV100+4xP100+6xK80", "finish_time_fairness")
    assert report.result.jobs.equals(plain.jobs)
    assert set(report.summary["property"]) == set(PROPERTIES)
    assert (report.summary["plans"] == plain.rounds["solved"].sum()).all()
    feasible = report.summary.set_index("property").loc["feasibility"]
    assert (feasible.plans_broken, feasible.worst) == (0, 0.0)


def test_every_nth_plan_is_judged_and_the_same_seed_gives_the_same_report() -> None:
    trace = bx.load_trace("gavel-100").head(15)
    first, second = (
        audit(trace, "2xV100+4xP100+6xK80", properties=["strategy_proofness"], every=3, seed=7) for _ in range(2)
    )
    assert first.plans.equals(second.plans)
    assert len(first.plans) == -(-int(first.result.rounds["solved"].sum()) // 3)


def test_the_command_prints_one_row_a_property(capsys, tmp_path) -> None:
    common = ["audit", "--trace", "gavel-100", "--first", "8", "--policy", "fifo", "--properties"]
    assert run_cli([*common, "sharing_incentive,envy_freeness", "--json", "--csv", str(tmp_path / "p.csv")]) == 0
    rows = json.loads(capsys.readouterr().out)["properties"]
    assert [row["property"] for row in rows] == ["sharing_incentive", "envy_freeness"]
    assert (tmp_path / "p.csv").read_text().startswith("property,time,jobs,places,broken,worst,mean")
    assert run_cli([*common, "envy"]) == 2


def test_what_cannot_be_audited_is_said() -> None:
    with pytest.raises(UnknownNameError, match="envy_freeness"):
        audit("gavel-100", "8xV100", properties=["envy_fredness"])
    with pytest.raises(InputError, match="every"):
        audit("gavel-100", "8xV100", every=0)
    with pytest.raises(InputError, match="no plans"):
        audit(bx.load_trace("blox-mx-fifo-4").head(5), "32x4xV100", "fifo", preset="blox")
