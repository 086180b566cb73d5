"""What is proven of an allocation is proven again from the program and its prices, not believed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import csc_array

from bloxopt.formulations import (
    Capacity,
    EffectiveThroughput,
    FinishTimeRatio,
    MaxMin,
    MaxSum,
    MinMax,
    NormalizedThroughput,
    OneConfiguration,
    Policy,
    RemainingTime,
    TenantQuota,
    TimeShare,
)
from bloxopt.formulations.solving.certificate import Proof, verify
from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import Job
from bloxopt.solvers import solve
from bloxopt.solvers.base import Capabilities, SolverOptions, SolverResult

SOLVERS = ("highs", "cvxpy:clarabel", "ortools:glop", "ortools:pdlp")


def _space(count: int = 10, tenants: int = 2, **state: object) -> AllocationSpace:
    jobs = [Job(job_id=f"j{k}", job_type=f"t{k % 3}", total_steps=1e5, tenant=f"u{k % tenants}") for k in range(count)]
    speed = {"V100": 4.0, "K80": 1.0}
    table = {(f"t{k}", kind, 1): rate * (1 + 0.3 * k) for k in range(3) for kind, rate in speed.items()}
    return AllocationSpace.from_jobs(jobs, "2xV100+3xK80", table, **state)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "objective", [MaxMin(NormalizedThroughput()), MaxSum(EffectiveThroughput())], ids=["min", "sum"]
)
def test_an_optimal_linear_program_is_verified_whoever_solved_it(solver: str, objective) -> None:
    certificate = Policy(objective=objective, solver=solver).allocate(_space()).certificate
    assert certificate.verification is not None
    assert certificate.verification.verified
    assert (certificate.status, certificate.gap) == ("optimal", pytest.approx(0.0, abs=1e-5))


@given(st.integers(0, 100_000), st.integers(1, 6), st.integers(1, 5))
def test_prices_of_an_independent_solver_prove_its_optimum_and_no_other_point(
    seed: int, columns: int, rows: int
) -> None:
    random = np.random.default_rng(seed)
    cost, matrix, upper = (
        random.normal(size=columns),
        random.uniform(-0.3, 1, (rows, columns)),
        random.uniform(0.5, 2, rows),
    )
    answer = linprog(cost, A_ub=matrix, b_ub=upper, bounds=(0, 1), method="highs")
    form = StandardForm(
        cost,
        csc_array(matrix),
        np.full(rows, -np.inf),
        upper,
        np.zeros(columns),
        np.ones(columns),
        np.zeros(columns, bool),
    )
    proof = Proof(form, answer.x, answer.ineqlin.marginals)
    assert verify(proof).verified
    worse = np.clip(answer.x * 0.5, 0, 1)
    if cost @ worse > cost @ answer.x + 1e-3 * np.abs(cost) @ np.abs(answer.x) + 1e-6:
        assert not verify(replace(proof, x=worse)).verified
    wrong = answer.ineqlin.marginals - 1.0
    assert verify(replace(proof, row_duals=wrong)).duality_gap >= verify(proof).duality_gap - 1e-12


def test_a_point_outside_is_not_verified_however_good() -> None:
    allocation = Policy(objective=MaxSum(EffectiveThroughput()), solver="highs").allocate(_space())
    proof = allocation.proof
    outside = verify(replace(proof, x=np.ones_like(proof.x)))
    assert outside.primal_residual > 0.1
    assert not outside.verified
    assert not verify(replace(proof, row_duals=None)).verified
    assert not verify(replace(proof, row_duals=np.full_like(proof.row_duals, np.nan))).verified


def test_the_binding_blocks_are_those_without_which_the_optimum_is_better() -> None:
    space = _space(12)
    for quota, binds in ((1, True), (100, False)):
        blocks = [Capacity(), TimeShare(), TenantQuota({"u0": quota})]
        with_quota = Policy(objective=MaxSum(EffectiveThroughput()), constraints=blocks).allocate(space)
        without = Policy(objective=MaxSum(EffectiveThroughput()), constraints=blocks[:2]).allocate(space)
        assert ("TenantQuota" in with_quota.certificate.binding) == binds
        assert (without.objective > with_quota.objective + 1e-6) == binds
        assert "Capacity" in with_quota.certificate.binding


@pytest.mark.parametrize("solver", ["highs", "cvxpy:clarabel", "ortools:glop"])
@pytest.mark.parametrize("elapsed", [0.0, 1e4, 1e6])
@pytest.mark.parametrize("expression", [RemainingTime(), FinishTimeRatio()], ids=["remaining time", "finish time"])
def test_a_largest_time_that_several_level_programs_minimise_is_verified_by_the_prices_of_the_last(
    solver: str, elapsed: float, expression
) -> None:
    space = _space(now=elapsed)
    allocation = Policy(objective=MinMax(expression), solver=solver).allocate(space)
    certificate = allocation.certificate
    assert certificate.verification is not None
    assert certificate.verification.verified
    assert certificate.status == "optimal"
    # What is verified is a program over the jobs' levels, in which nothing needs to be believed.
    unpriced = verify(replace(allocation.proof, row_duals=np.zeros(allocation.proof.form.num_rows)))
    assert not unpriced.verified


class Halving:
    """A solver that gives half of every share and calls it optimal."""

    name = "halving"
    capabilities = Capabilities(duals=True)

    def solve(self, form, options: SolverOptions = SolverOptions(), warm_start=None) -> SolverResult:
        best = solve(form, "highs")
        return replace(best, x=0.5 * best.x, objective=0.5 * best.objective, bound=0.5 * best.objective)


@pytest.mark.parametrize("expression", [RemainingTime(), FinishTimeRatio()], ids=["remaining time", "finish time"])
def test_a_largest_time_that_is_not_the_least_is_not_verified(expression) -> None:
    allocation = Policy(objective=MinMax(expression), solver=Halving()).allocate(_space())
    best = Policy(objective=MinMax(expression), solver="highs").allocate(_space())
    assert allocation.objective == pytest.approx(2 * best.objective, rel=1e-6)
    assert not allocation.certificate.verification.verified
    assert allocation.certificate.verification.duality_gap == pytest.approx(1.0, rel=0.5)
    assert allocation.bound == pytest.approx(best.objective, rel=1e-6), "and what is possible is told"


def test_of_an_integer_program_the_full_blocks_bind_and_nothing_is_verified_by_prices() -> None:
    policy = Policy(
        objective=MaxSum(EffectiveThroughput()), constraints=[Capacity(), OneConfiguration()], solver="highs"
    )
    certificate = policy.allocate(_space(12)).certificate
    assert certificate.verification is None
    assert certificate.binding["Capacity"] == 2, "both GPU types are full"


def test_a_closed_form_has_nothing_to_verify() -> None:
    from bloxopt.formulations.policies import get_policy

    certificate = get_policy("isolated").allocate(_space()).certificate
    assert (certificate.verification, dict(certificate.binding)) == (None, {})
