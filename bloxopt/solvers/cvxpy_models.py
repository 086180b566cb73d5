"""SCS and HiGHS through CVXPY: one vector variable, one matrix, no expression per row."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from bloxopt.jobs import FloatArray
from bloxopt.solvers.backend import BackEnd
from bloxopt.solvers.base import Capabilities, SolverOptions, Termination
from bloxopt.solvers.check import Tolerance
from bloxopt.solvers.conic import one_sided
from bloxopt.solvers.highs_direct import highs_options, prepared_highspy
from bloxopt.solvers.presolve import Answer

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm

SCS_TOLERANCE = 1e-7
SCS_ITERATIONS = 200_000


def _scs(form: StandardForm, options: SolverOptions, warm_start: FloatArray | None) -> Answer:
    chosen: dict[str, Any] = {"eps_abs": SCS_TOLERANCE, "eps_rel": SCS_TOLERANCE, "max_iters": SCS_ITERATIONS}
    if options.time_limit is not None and math.isfinite(options.time_limit):
        chosen["time_limit_secs"] = float(options.time_limit)
    return _solve(form, "SCS", chosen)


def _highs(form: StandardForm, options: SolverOptions, warm_start: FloatArray | None) -> Answer:
    prepared_highspy(options)
    # Nested, because HiGHS has an option named ``solver`` as CVXPY's solve has.
    return _solve(form, "HIGHS", {"highs_options": highs_options(form, options)})


def _solve(form: StandardForm, solver: str, chosen: dict[str, Any]) -> Answer:
    import cvxpy

    program = one_sided(form)
    whole = np.flatnonzero(form.integer)
    x = cvxpy.Variable(form.num_columns, integer=[whole]) if form.is_mip else cvxpy.Variable(form.num_columns)
    equal, unequal = slice(None, program.num_equal), slice(program.num_equal, None)
    blocks = [
        program.matrix[equal] @ x == program.right[equal],
        program.matrix[unequal] @ x <= program.right[unequal],
    ]
    blocks = [block for block in blocks if block.size]
    problem = cvxpy.Problem(cvxpy.Minimize(form.cost @ x), blocks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CVXPY warns of inaccuracy, which the common check measures
        problem.solve(solver=solver, **chosen)
    endings = {
        cvxpy.OPTIMAL: Termination.OPTIMAL,
        # The common check finds out whether the duals prove it optimal.
        cvxpy.OPTIMAL_INACCURATE: Termination.FEASIBLE,
        cvxpy.INFEASIBLE: Termination.INFEASIBLE,
        cvxpy.UNBOUNDED: Termination.UNBOUNDED,
        cvxpy.settings.INFEASIBLE_OR_UNBOUNDED: Termination.UNBOUNDED,
        cvxpy.settings.USER_LIMIT: Termination.FEASIBLE if x.value is not None else Termination.LIMIT_NO_SOLUTION,
    }
    termination = endings.get(problem.status, Termination.ERROR)
    if termination not in (Termination.OPTIMAL, Termination.FEASIBLE):
        return Answer(termination, message=problem.status)
    row_duals = None
    if not form.is_mip:
        row_duals = program.row_duals(np.concatenate([np.atleast_1d(block.dual_value) for block in blocks]))
    bound = None
    if form.is_mip:
        bound = float(problem.solver_stats.extra_stats.mip_dual_bound)
    return Answer(termination, np.array(x.value), row_duals, bound, problem.status)


SCS = BackEnd(
    name="cvxpy:scs",
    package="cvxpy",
    module="cvxpy",
    capabilities=Capabilities(duals=True, time_limit=True),
    run=_scs,
    tolerance=Tolerance(objective=1e-4, feasibility=1e-4),
)
HIGHS = BackEnd(
    name="cvxpy:highs",
    package="cvxpy",
    module="cvxpy",
    capabilities=Capabilities(mip=True, duals=True, time_limit=True, mip_gap=True, threads=True, seed=True),
    run=_highs,
)
