"""Every back end answers the same programs in the same way, to the tolerance it states."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from canonical_programs import INF, INTEGER, LINEAR, Case, program
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import block_array, csc_array, eye_array, kron, vstack

from bloxopt.errors import SolverError
from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.solvers import SOLVERS, TOLERANCES, SolverResult, Termination, get_solver, solve

LP_SOLVERS = [name for name in SOLVERS if get_solver(name).capabilities.lp]
MIP_SOLVERS = [name for name in SOLVERS if get_solver(name).capabilities.mip]
REFUSES = {"ortools:cp-sat": {"continuous", "unbounded"}}
"""What a solver declines, with an error that names others, because it would answer it wrongly."""
X_TOLERANCE = 10.0
"""Times the tolerance of the objective: how far a unique optimal x or dual may be off."""


def assert_close(actual: float, expected: float, solver: str, terms: float = 0.0) -> None:
    """Equal to the solver's stated tolerance, relative to the objective or the terms that add up to it."""
    assert abs(actual - expected) <= TOLERANCES[solver] * max(abs(expected), terms, 1e-12), (actual, expected)


def assert_proven(form: StandardForm, result: SolverResult, solver: str) -> None:
    """Primal feasible, dual feasible and without a gap: optimality shown from the definition alone."""
    tolerance = 10 * TOLERANCES[solver]
    assert result.x is not None
    assert result.objective is not None
    assert result.bound is not None
    activity_scale = max(1.0, float((abs(form.matrix) @ np.abs(result.x)).max(initial=0.0)))
    assert form.max_violation(result.x) <= tolerance * activity_scale
    assert result.objective == pytest.approx(form.objective(result.x))
    assert result.bound <= result.objective + tolerance * max(1.0, abs(result.objective))
    if form.is_mip or result.row_duals is None or not form.cost.any():
        return
    y, d = result.row_duals, result.reduced_costs
    assert d is not None
    np.testing.assert_allclose(d, form.cost - form.matrix.T @ y, atol=1e-12, rtol=1e-9)
    assert not np.any(y[np.isneginf(form.row_lower)] > 0)
    assert not np.any(y[np.isposinf(form.row_upper)] < 0)
    terms = np.abs(form.cost) + abs(form.matrix).T @ np.abs(y)
    cheap = np.abs(d) <= np.maximum(0.1 * TOLERANCES[solver] * np.abs(form.cost).max(), tolerance * terms)
    assert np.all(cheap | np.where(d > 0, np.isfinite(form.lower), np.isfinite(form.upper)))
    side = np.where(y > 0, form.row_lower, np.where(y < 0, form.row_upper, 0.0))
    bounds = np.where(d > 0, form.lower, form.upper)
    bounds = np.where(np.isfinite(bounds), bounds, result.x)
    dual_objective = float(y @ side + d @ bounds) + form.constant
    scale = max(float(np.abs(form.cost) @ np.abs(result.x)), float(np.abs(y) @ np.abs(side)))
    rounding = 0.1 * TOLERANCES[solver] * float(terms @ np.maximum(1.0, np.abs(bounds)))
    assert abs(dual_objective - result.objective) <= tolerance * scale + rounding + 1e-12


@pytest.mark.parametrize("case", LINEAR, ids=str)
@pytest.mark.parametrize("solver", LP_SOLVERS)
def test_linear_programs(solver: str, case: Case) -> None:
    check_case(solver, case)


@pytest.mark.parametrize("case", INTEGER, ids=str)
@pytest.mark.parametrize("solver", MIP_SOLVERS)
def test_integer_programs(solver: str, case: Case) -> None:
    if REFUSES.get(solver, set()) & case.needs:
        with pytest.raises(SolverError, match="highs or ortools:scip"):
            solve(case.form, solver)
        return
    check_case(solver, case)


def check_case(solver: str, case: Case) -> None:
    result = solve(case.form, solver, time_limit=30.0)
    assert result.termination is case.termination, result.message
    if case.objective is None:
        assert result.x is None
        assert result.objective is None
        return
    assert_proven(case.form, result, solver)
    assert result.objective is not None
    assert_close(result.objective, case.objective, solver, float(np.abs(case.form.cost) @ np.abs(result.x)))
    if case.x is not None:
        np.testing.assert_allclose(result.x, case.x, rtol=X_TOLERANCE * TOLERANCES[solver], atol=1e-4)
    if case.row_duals is not None and result.row_duals is not None:
        size = float(np.max(np.abs(case.row_duals), initial=0.0))
        atol = X_TOLERANCE * TOLERANCES[solver] * size + 1e-12
        np.testing.assert_allclose(result.row_duals, case.row_duals, atol=atol)
    assert (result.row_duals is not None) == (get_solver(solver).capabilities.duals and not case.form.is_mip)


@pytest.mark.parametrize("solver", [name for name in LP_SOLVERS if name != "ortools:pdlp"])
def test_many_jobs_that_compete(solver: str) -> None:
    """Large enough for the interior-point methods; PDLP takes half a minute, see benchmarks/solvers.py."""
    form = max_min_fairness(1_600)
    result = solve(form, solver)
    assert result.termination is Termination.OPTIMAL, result.message
    assert_proven(form, result, solver)
    exact = linprog(form.cost, **one_sided_rows(form))
    assert_close(result.objective, float(exact.fun), solver)


def max_min_fairness(num_jobs: int) -> StandardForm:
    """Jobs on three GPU types with a GPU for every 48 of them: columns x (jobs, 3) and the free level t."""
    random = np.random.default_rng(0)
    gpus = random.choice([1.0, 2.0, 4.0, 8.0], num_jobs, p=[0.7, 0.1, 0.15, 0.05])
    throughput = random.lognormal(0.0, 1.0, (num_jobs, 3)) * gpus[:, None]
    per_job = kron(eye_array(num_jobs), np.ones((1, 3)))
    achieved = per_job.multiply(throughput.ravel()[None, :])
    used = kron(gpus[None, :], eye_array(3))
    return StandardForm(
        cost=np.append(np.zeros(3 * num_jobs), -1.0),
        matrix=csc_array(block_array([[achieved, -np.ones((num_jobs, 1))], [per_job, None], [used, None]])),
        row_lower=np.concatenate([np.zeros(num_jobs), np.full(num_jobs + 3, -INF)]),
        row_upper=np.concatenate([np.full(num_jobs, INF), np.ones(num_jobs), np.full(3, num_jobs / 48)]),
        lower=np.append(np.zeros(3 * num_jobs), -INF),
        upper=np.append(np.ones(3 * num_jobs), INF),
        integer=np.zeros(3 * num_jobs + 1, dtype=bool),
    )


def one_sided_rows(form: StandardForm) -> dict[str, object]:
    """The rows and bounds as SciPy's linprog takes them."""
    matrix = form.matrix.tocsr()
    above, below = np.isfinite(form.row_upper), np.isfinite(form.row_lower)
    return {
        "A_ub": vstack([matrix[above], -matrix[below]]),
        "b_ub": np.concatenate([form.row_upper[above], -form.row_lower[below]]),
        "bounds": list(zip(form.lower, form.upper, strict=True)),
    }


# --- random programs -------------------------------------------------------------------------------

whole = st.integers(-5, 5).map(float)


@st.composite
def linear_programs(draw: st.DrawFn) -> StandardForm:
    """Up to 5 columns and rows of small whole numbers; sides and bounds of every kind, often tied or degenerate."""
    n, m = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    rows = draw(st.lists(st.lists(whole, min_size=n, max_size=n), min_size=m, max_size=m))
    row_sides = [draw(sides()) for _ in range(m)]
    bounds = [draw(sides()) for _ in range(n)]
    return program(
        draw(st.lists(whole, min_size=n, max_size=n)),
        rows,
        [side[0] for side in row_sides],
        [side[1] for side in row_sides],
        [side[0] for side in bounds],
        [side[1] for side in bounds],
        constant=draw(whole),
    )


@st.composite
def sides(draw: st.DrawFn) -> tuple[float, float]:
    low = draw(whole)
    high = low + draw(st.integers(0, 6))
    return draw(st.sampled_from([(low, high), (low, high), (low, INF), (-INF, high), (0.0, INF), (-INF, INF)]))


@st.composite
def integer_programs(draw: st.DrawFn) -> StandardForm:
    """Up to 4 integer columns with at most 4 values each, halves as coefficients: small enough to enumerate."""
    n, m = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    half = st.integers(-9, 9).map(lambda k: k / 2)
    lower = draw(st.lists(st.integers(-2, 2).map(float), min_size=n, max_size=n))
    width = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    row_sides = [draw(sides()) for _ in range(m)]
    return program(
        draw(st.lists(half, min_size=n, max_size=n)),
        draw(st.lists(st.lists(half, min_size=n, max_size=n), min_size=m, max_size=m)),
        [side[0] for side in row_sides],
        [side[1] for side in row_sides],
        lower,
        [low + more for low, more in zip(lower, width, strict=True)],
        integer=True,
    )


def reference(form: StandardForm) -> tuple[Termination, float | None]:
    """The answer of SciPy's own solver, with unbounded told from infeasible by a second solve."""
    rows = one_sided_rows(form)
    if linprog(np.zeros(form.num_columns), method="highs-ds", **rows).status != 0:
        return Termination.INFEASIBLE, None
    answer = linprog(form.cost, method="highs-ds", **rows)
    if answer.status != 0:
        return Termination.UNBOUNDED, None
    return Termination.OPTIMAL, float(answer.fun) + form.constant


def enumerated(form: StandardForm) -> float | None:
    """The minimum over all integer points between the bounds, None if none is feasible."""
    ranges = [range(int(low), int(high) + 1) for low, high in zip(form.lower, form.upper, strict=True)]
    points = np.array(list(itertools.product(*ranges)), float)
    activity = points @ form.matrix.toarray().T
    feasible = np.all((activity >= form.row_lower - 1e-9) & (activity <= form.row_upper + 1e-9), axis=1)
    return float((points[feasible] @ form.cost).min()) + form.constant if feasible.any() else None


RANDOM = settings(
    max_examples=int(os.environ.get("BLOXOPT_EXAMPLES", "25")),
    derandomize="BLOXOPT_EXAMPLES" not in os.environ,  # solvers have rare bugs of their own: hunt them on purpose
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize("solver", LP_SOLVERS)
@RANDOM
@given(form=linear_programs())
def test_random_linear_programs_have_the_reference_optimum(solver: str, form: StandardForm) -> None:
    termination, objective = reference(form)
    result = solve(form, solver, time_limit=30.0)
    assert result.termination is termination, result.message
    if objective is not None:
        assert_proven(form, result, solver)
        assert result.objective is not None
        terms = float(np.abs(form.cost) @ np.abs(result.x)) + abs(form.constant)
        assert_close(result.objective, objective, solver, max(1.0, terms))


@pytest.mark.parametrize("solver", MIP_SOLVERS)
@RANDOM
@given(form=integer_programs())
def test_random_integer_programs_have_the_enumerated_optimum(solver: str, form: StandardForm) -> None:
    best = enumerated(form)
    result = solve(form, solver, mip_gap=0.0, time_limit=30.0)
    if best is None:
        assert result.termination is Termination.INFEASIBLE, result.message
        return
    assert result.termination is Termination.OPTIMAL, result.message
    assert_proven(form, result, solver)
    assert result.objective == pytest.approx(best, abs=1e-9)
    assert np.array_equal(result.x, np.round(result.x))
    assert result.row_duals is None


# --- options ---------------------------------------------------------------------------------------


def market_split(num_rows: int = 5, num_items: int = 40, seed: int = 0) -> StandardForm:
    """Cornuéjols and Dawande's market split with whole deviations: easy to satisfy, beyond any solver to optimise."""
    random = np.random.default_rng(seed)
    share = random.integers(0, 100, (num_rows, num_items)).astype(float)
    target = np.floor(share.sum(axis=1) / 2)
    deviation = np.eye(num_rows)
    rows = np.hstack([share, deviation, -deviation])
    cost = np.concatenate([np.zeros(num_items), np.ones(2 * num_rows)])
    upper = np.concatenate([np.ones(num_items), np.full(2 * num_rows, 5000.0)])
    return program(list(cost), rows.tolist(), list(target), list(target), 0.0, list(upper), integer=True)


@pytest.mark.parametrize("solver", MIP_SOLVERS)
def test_a_time_limit_ends_a_hard_program_with_what_is_at_hand(solver: str) -> None:
    form = market_split()
    result = solve(form, solver, time_limit=0.7)
    assert result.termination in (Termination.FEASIBLE, Termination.LIMIT_NO_SOLUTION), result.message
    if result.termination is Termination.FEASIBLE:
        assert result.x is not None
        assert form.max_violation(result.x) <= 1e-6
        if result.bound is not None:
            assert result.bound <= result.objective


@pytest.mark.parametrize("solver", MIP_SOLVERS)
def test_no_time_means_no_solution(solver: str) -> None:
    result = solve(market_split(), solver, time_limit=0.0)
    assert result.termination is Termination.LIMIT_NO_SOLUTION
    assert result.x is None


@pytest.mark.parametrize("solver", LP_SOLVERS)
def test_a_linear_program_cut_short_is_never_called_optimal_wrongly(solver: str) -> None:
    random = np.random.default_rng(1)
    rows = random.uniform(0.1, 1.0, (120, 150))
    form = program(list(-random.uniform(0.5, 1.0, 150)), rows.tolist(), row_upper=list(rows.sum(axis=1) / 3), upper=1.0)
    _, optimum = reference(form)
    result = solve(form, solver, time_limit=1e-4)
    assert result.termination in (Termination.OPTIMAL, Termination.FEASIBLE, Termination.LIMIT_NO_SOLUTION)
    assert result.solve_seconds < 5.0
    if result.termination is Termination.OPTIMAL:
        assert_close(result.objective, optimum, solver)
    elif result.x is not None:
        assert result.objective >= optimum - 1e-6 * abs(optimum)


def knapsack(num_items: int, seed: int) -> StandardForm:
    """Two knapsacks of correlated value and weight: a gap stays open for a while."""
    random = np.random.default_rng(seed)
    weight = random.integers(10, 100, (2, num_items)).astype(float)
    value = weight.mean(axis=0) + random.integers(1, 10, num_items)
    return program(list(-value), weight.tolist(), row_upper=list(weight.sum(axis=1) // 2), upper=1.0, integer=True)


@pytest.mark.parametrize("solver", MIP_SOLVERS)
def test_the_gap_that_was_asked_for_is_reached(solver: str) -> None:
    form = knapsack(30, seed=2)
    exact = solve(form, "highs", mip_gap=0.0)
    result = solve(form, solver, mip_gap=0.05)
    assert result.termination is Termination.OPTIMAL, result.message
    assert result.gap is not None
    assert result.gap <= 0.05 + 1e-6
    assert exact.objective is not None
    assert exact.objective - 1e-6 <= result.objective <= 0.95 * exact.objective
    assert result.bound is not None
    assert result.bound <= exact.objective + 1e-6


@pytest.mark.parametrize("solver", list(SOLVERS))
def test_the_same_seed_gives_the_same_answer(solver: str) -> None:
    form = knapsack(20, seed=3)
    if solver not in MIP_SOLVERS:
        form = program(list(form.cost), form.matrix.toarray().tolist(), row_upper=list(form.row_upper), upper=1.0)
    first, second = (solve(form, solver, seed=7) for _ in range(2))
    assert first.termination is Termination.OPTIMAL
    assert np.array_equal(first.x, second.x)
    assert first.objective == second.objective


@pytest.mark.parametrize("solver", list(SOLVERS))
def test_the_number_of_threads_may_change_from_one_solve_to_the_next(solver: str) -> None:
    form = knapsack(12, seed=4)
    if solver not in MIP_SOLVERS:
        form = program(list(form.cost), form.matrix.toarray().tolist(), row_upper=list(form.row_upper), upper=1.0)
    results = [solve(form, solver, threads=threads, mip_gap=0.0) for threads in (1, 2, None, 1)]
    assert {result.termination for result in results} == {Termination.OPTIMAL}
    for result in results:
        assert result.objective == pytest.approx(results[0].objective, rel=10 * TOLERANCES[solver])


@pytest.mark.parametrize("solver", MIP_SOLVERS)
def test_a_warm_start_changes_nothing_but_the_time(solver: str) -> None:
    form = knapsack(15, seed=5)
    cold = solve(form, solver, mip_gap=0.0)
    for start in (cold.x, np.zeros(15), np.ones(15)):
        warm = solve(form, solver, mip_gap=0.0, warm_start=start)
        assert warm.termination is Termination.OPTIMAL
        assert warm.objective == pytest.approx(cold.objective)


@pytest.mark.parametrize("solver", [name for name in MIP_SOLVERS if get_solver(name).capabilities.warm_start])
def test_a_warm_start_is_what_a_solver_falls_back_on(solver: str) -> None:
    form = market_split(seed=6)
    start = np.zeros(form.num_columns)
    start[40:45] = form.row_lower
    result = solve(form, solver, time_limit=0.5, warm_start=start)
    assert result.termination is Termination.FEASIBLE, result.message
    assert result.objective <= form.objective(start)


@pytest.mark.parametrize("solver", ["highs", "ortools:highs", "cvxpy:highs", "pulp:highs", "pulp:cbc", "ortools:scip"])
def test_solvers_write_nothing_to_the_standard_output(solver: str, capfd: pytest.CaptureFixture[str]) -> None:
    solve(knapsack(12, seed=4), solver)
    assert capfd.readouterr().out == ""
