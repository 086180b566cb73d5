"""Swapping the solver changes one string and the objective by less than the stated tolerance, on all policies."""

from __future__ import annotations

import numpy as np
import pytest
from instances import make_space

from bloxopt.errors import SolverError
from bloxopt.formulations import Capacity, MaxSum, NormalizedThroughput, OneConfiguration, Policy
from bloxopt.formulations.policies import POLICIES, get_policy
from bloxopt.solvers.base import SolverOptions, SolverResult, Termination
from bloxopt.solvers.registry import SOLVERS, get_solver

EXACT = 1e-5
FIRST_ORDER = 2e-3
TOLERANCE = {"ortools:pdlp": FIRST_ORDER, "cvxpy:scs": FIRST_ORDER}
INTEGER_ONLY = {"ortools:cp-sat"}
LP_SOLVERS = [name for name in SOLVERS if name not in INTEGER_ONLY]

_RNG = np.random.default_rng(11)
INSTANCE = {
    "rates": _RNG.uniform(1, 9, (8, 3)), "num_gpus": _RNG.choice([1, 2, 4], 8), "capacity": [4, 4, 6],
    "steps": _RNG.uniform(100, 900, 8), "now": 60.0, "weights": _RNG.choice([1.0, 2.0], 8),
}  # fmt: skip


def _allocate(name, solver):
    policy = get_policy(name)
    # Policies of whole configurations are content with a gap of their own, within which solvers differ.
    options = SolverOptions(mip_gap=1e-6)
    return policy.allocate(make_space(**INSTANCE, pair_threshold=policy.pair_threshold), solver=solver, options=options)


SPACE = make_space(**INSTANCE)
REFERENCE = {name: _allocate(name, "highs") for name in POLICIES}
INTEGER = {name for name, found in REFERENCE.items() if found.program is not None and found.program.is_mip}


@pytest.mark.parametrize("solver", LP_SOLVERS)
@pytest.mark.parametrize("policy", list(POLICIES))
def test_the_objective_does_not_depend_on_the_solver(policy, solver):
    if policy in INTEGER and not get_solver(solver).capabilities.mip:
        pytest.skip("an integer program")
    allocation = _allocate(policy, solver)
    assert allocation.objective == pytest.approx(REFERENCE[policy].objective, rel=TOLERANCE.get(solver, EXACT))
    assert all((amounts <= 1e-6).all() for amounts in allocation.violations.values())


@pytest.mark.parametrize("solver", [name for name in SOLVERS if get_solver(name).capabilities.mip])
def test_a_whole_round_program_does_not_depend_on_the_solver(solver):
    policy = Policy(objective=MaxSum(NormalizedThroughput()), constraints=[Capacity(), OneConfiguration()])
    space = make_space([[4, 2], [6, 1], [5, 5]], [1, 1, 1], [1, 2])
    expected = policy.allocate(space, solver="highs").objective
    assert expected > 0
    assert policy.allocate(space, solver=solver).objective == pytest.approx(expected, rel=1e-6)


class _Scripted:
    """A solver that returns what it is told to."""

    name = "scripted"
    capabilities = get_solver("highs").capabilities

    def __init__(self, **answer):
        self.answer = answer

    def solve(self, form, options=SolverOptions(), warm_start=None):
        x = self.answer.get("x")
        return SolverResult(
            **{**self.answer, "x": None if x is None else np.full(form.num_columns, x)}, solver=self.name
        )


def test_a_solver_that_lies_is_caught_before_its_answer_is_used():
    from bloxopt.errors import CheckError

    liar = _Scripted(termination=Termination.OPTIMAL, x=1.0, objective=-1.0)
    with pytest.raises(CheckError, match="Capacity"):
        get_policy("max_sum_throughput").allocate(SPACE, solver=liar)


def test_an_answer_at_a_limit_is_used_and_reported_as_such():
    slow = _Scripted(termination=Termination.FEASIBLE, x=0.01, objective=-0.1, bound=-5.0)
    allocation = get_policy("max_sum_throughput").allocate(SPACE, solver=slow)
    assert allocation.termination is Termination.FEASIBLE
    assert allocation.bound == 5.0
    assert allocation.gap > 0


@pytest.mark.parametrize("ending", [Termination.LIMIT_NO_SOLUTION, Termination.ERROR])
def test_no_answer_is_an_error_with_the_solvers_words(ending):
    with pytest.raises(SolverError, match="ran out of luck"):
        get_policy("max_min_fairness").allocate(SPACE, solver=_Scripted(termination=ending, message="ran out of luck"))


def test_an_unbounded_objective_is_said_to_be():
    from bloxopt.errors import UnboundedError
    from bloxopt.formulations import Affine, Objective

    class Free(Objective):
        def terms(self, space, program):
            return Affine.one_column(int(program.add_columns()[0]))

    with pytest.raises(UnboundedError, match="without limit"):
        Policy(objective=Free(), solver="highs").allocate(SPACE)


def test_solves_and_seconds_are_counted():
    allocation = get_policy("max_min_fairness").allocate(SPACE, solver="highs")
    assert allocation.num_solves == 1
    assert allocation.solver == "highs"
    assert allocation.solve_seconds > 0 < allocation.build_seconds
