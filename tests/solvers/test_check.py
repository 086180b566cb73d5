"""No answer leaves a back end unchecked: what a faulty solver returns becomes an error with a reason."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from canonical_programs import INF, program

from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.jobs import FloatArray
from bloxopt.solvers import Capabilities, SolverOptions, SolverResult, Termination
from bloxopt.solvers.backend import BackEnd
from bloxopt.solvers.presolve import Answer

GLASS = program([-3, -5], [[1, 0], [0, 2], [3, 2]], row_upper=[4, 12, 18])
GLASS_DUALS = np.array([0, -1.5, -1])
KNAPSACK = program([-10, -13, -7], [[5, 7, 4]], row_upper=[11], upper=1.0, integer=True)


def faulty(claim: Answer | Exception | Callable[[StandardForm], Answer]) -> BackEnd:
    """A solver that returns the claim whatever it is asked."""

    def run(form: StandardForm, options: SolverOptions, warm_start: FloatArray | None) -> Answer:
        if isinstance(claim, Exception):
            raise claim
        return claim(form) if callable(claim) else claim

    return BackEnd("faulty", "numpy", "numpy", Capabilities(mip=True, duals=True), run)


def solve_with(form: StandardForm, termination: Termination, x: object, **claims: object) -> SolverResult:
    array = None if x is None else np.array(x, float)
    return faulty(Answer(termination, array, **claims)).solve(form)  # type: ignore[arg-type]


def test_a_right_answer_passes_with_its_objective_computed_from_x() -> None:
    result = solve_with(GLASS, Termination.OPTIMAL, [2, 6], row_duals=GLASS_DUALS)
    assert result.termination is Termination.OPTIMAL
    assert result.objective == -36.0
    assert result.bound == -36.0
    np.testing.assert_allclose(result.reduced_costs, [0, 0])


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        ([np.nan, 6], "not finite"),
        ([np.inf, 6], "not finite"),
        ([2, 6, 0], "no solution"),
        (None, "no solution"),
        ([2, 6.5], "violates row 1 by"),
        ([-0.5, 6], "violates column 0 by"),
    ],
)
def test_an_optimum_that_is_no_solution_is_an_error(x: object, reason: str) -> None:
    result = solve_with(GLASS, Termination.OPTIMAL, x, row_duals=GLASS_DUALS)
    assert result.termination is Termination.ERROR
    assert reason in result.message
    assert result.x is None
    assert result.objective is None
    assert result.row_duals is None


def test_an_integer_column_with_a_fraction_is_an_error() -> None:
    result = solve_with(KNAPSACK, Termination.OPTIMAL, [1, 0.4, 0], bound=-15.2)
    assert result.termination is Termination.ERROR
    assert "column 1" in result.message


def test_a_point_at_a_limit_that_is_infeasible_is_no_solution() -> None:
    result = solve_with(GLASS, Termination.FEASIBLE, [4, 6])
    assert result.termination is Termination.LIMIT_NO_SOLUTION
    assert result.x is None


def test_rounding_errors_are_cleaned_away() -> None:
    result = solve_with(KNAPSACK, Termination.OPTIMAL, [-1e-9, 1 + 1e-9, 1 - 1e-8], bound=-20.0)
    assert result.termination is Termination.OPTIMAL
    assert result.x is not None
    assert result.x.tolist() == [0.0, 1.0, 1.0]
    assert result.objective == -20.0


def test_an_optimum_that_its_duals_do_not_prove_is_only_feasible() -> None:
    result = solve_with(GLASS, Termination.OPTIMAL, [4, 3], row_duals=GLASS_DUALS)
    assert result.termination is Termination.FEASIBLE
    assert result.objective == -27.0
    assert "duals prove only -36" in result.message
    assert result.row_duals is None


def test_duals_that_ignore_a_cheap_column_prove_nothing() -> None:
    # The second column's cost is tiny beside the first's, but so is its unit: x = (4e-6, 0) is far from optimal.
    form = program([-3e6, -5e-6], [[1e6, 0], [0, 2e-6], [3e6, 2e-6]], row_upper=[4, 12, 18])
    result = solve_with(form, Termination.OPTIMAL, [4e-6, 0], row_duals=np.array([-3.0, 0, 0]))
    assert result.termination is not Termination.OPTIMAL


def test_a_feasible_point_that_its_duals_prove_is_optimal() -> None:
    result = solve_with(GLASS, Termination.FEASIBLE, [2, 6], row_duals=GLASS_DUALS)
    assert result.termination is Termination.OPTIMAL


def test_duals_that_are_not_finite_prove_nothing() -> None:
    result = solve_with(GLASS, Termination.OPTIMAL, [2, 6], row_duals=np.array([np.nan, 0, 0]))
    assert result.termination is Termination.FEASIBLE


@pytest.mark.parametrize("bound", [None, np.nan, -INF, -19.0, 5.0])
def test_an_integer_optimum_needs_a_bound_that_its_answer_does_not_refute(bound: float | None) -> None:
    result = solve_with(KNAPSACK, Termination.OPTIMAL, [0, 1, 1], bound=bound)
    assert result.termination is Termination.FEASIBLE
    assert result.bound is None
    assert result.objective == -20.0


def test_an_integer_optimum_far_from_its_bound_is_only_feasible() -> None:
    result = solve_with(KNAPSACK, Termination.OPTIMAL, [1, 0, 1], bound=-20.0)
    assert result.termination is Termination.FEASIBLE
    assert result.bound == -20.0
    assert result.gap == pytest.approx(3 / 17)


def test_a_bound_above_the_answer_is_not_passed_on() -> None:
    assert solve_with(KNAPSACK, Termination.FEASIBLE, [0, 1, 1], bound=-10.0).bound is None


@pytest.mark.parametrize("termination", [Termination.INFEASIBLE, Termination.LIMIT_NO_SOLUTION, Termination.ERROR])
def test_only_solutions_carry_an_x(termination: Termination) -> None:
    result = solve_with(GLASS, termination, [2, 6], row_duals=GLASS_DUALS, bound=-36.0)
    assert result.termination is termination
    assert (result.x, result.objective, result.bound, result.row_duals) == (None, None, None, None)


UNBOUNDED = program([-1, -1], [[1, -1]], row_upper=[1])


@pytest.mark.parametrize("claimed", [Termination.UNBOUNDED, Termination.INFEASIBLE])
@pytest.mark.parametrize(
    ("point", "ray", "answered"),
    [
        (Answer(Termination.OPTIMAL, np.zeros(2)), Answer(Termination.OPTIMAL, np.ones(2)), Termination.UNBOUNDED),
        (Answer(Termination.OPTIMAL, np.zeros(2)), Answer(Termination.OPTIMAL, np.zeros(2)), Termination.ERROR),
        (Answer(Termination.OPTIMAL, np.array([9.0, 0])), Answer(Termination.OPTIMAL, np.ones(2)), Termination.ERROR),
        (Answer(Termination.INFEASIBLE), None, Termination.INFEASIBLE),
        (Answer(Termination.UNBOUNDED), None, Termination.INFEASIBLE),
        (Answer(Termination.LIMIT_NO_SOLUTION), None, Termination.LIMIT_NO_SOLUTION),
    ],
)
def test_unbounded_and_infeasible_are_told_apart_by_a_point_and_a_ray(
    claimed: Termination, point: Answer, ray: Answer | None, answered: Termination
) -> None:
    def claim(form: StandardForm) -> Answer:
        if not form.cost.any():
            return point
        if np.all(form.upper == 1.0):
            assert ray is not None
            return ray
        return Answer(claimed)

    assert faulty(claim).solve(UNBOUNDED).termination is answered


def test_a_solver_that_raises_ends_in_an_error_that_names_it() -> None:
    result = faulty(ZeroDivisionError("pivot")).solve(GLASS)
    assert result.termination is Termination.ERROR
    assert result.message == "ZeroDivisionError: pivot"
