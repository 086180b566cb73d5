"""GLOP, PDLP, CP-SAT, SCIP and HiGHS of OR-Tools, through MathOpt's protocol buffers filled from arrays."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bloxopt.errors import SolverError
from bloxopt.jobs import FloatArray
from bloxopt.solvers.backend import BackEnd
from bloxopt.solvers.base import Capabilities, SolverOptions, Termination
from bloxopt.solvers.bounds import tightened
from bloxopt.solvers.check import Tolerance, dual_bound, relative_row_violation
from bloxopt.solvers.presolve import Answer

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm

PDLP_TRIES = ((1e-8, 100_000), (1e-7, 100_000), (1e-6, None))
"""Relative optimality that PDLP is asked for and its most iterations, the next pair if it does not get there.

At 1e-6, its default, rows are violated by as much. At 1e-8 it takes 10,000 iterations on most programs, but some
small ones take millions, and for one in thirty its steps become too short to move on, which it reports as an error.
"""
PDLP_GOOD = 1e-6
"""Relative error of the point at hand when PDLP does not get there, up to which it is not asked again."""
PDLP_TOLERANCE = Tolerance(objective=1e-5, feasibility=1e-5)
CP_SAT_LARGEST_BOUND = 1e7
"""CP-SAT cuts bounds beyond ±1e7 off without a word, which could cut off the optimum."""
CP_SAT_PRECISION = 1e-7
"""Relative precision CP-SAT scales fractional coefficients of a row to; its default is 1e-6."""

SENDS_MESSAGES = ("PDLP",)
"""Solvers that print warnings, however silent they are told to be, unless someone takes their messages."""

INFINITE_OBJECTIVE = "value: -inf; invalid PrimalSolutionProto.objective_value"

Prepare: TypeAlias = "Callable[[StandardForm, SolverOptions, Any], StandardForm]"
"""Last changes to the program and to MathOpt's SolveParametersProto for one solver."""


def _unchanged(form: StandardForm, options: SolverOptions, parameters: Any) -> StandardForm:
    return form


def _pdlp_try(
    optimality: float, iterations: int | None, form: StandardForm, options: SolverOptions, parameters: Any
) -> StandardForm:
    criteria = parameters.pdlp.termination_criteria.simple_optimality_criteria
    criteria.eps_optimal_relative = optimality
    criteria.eps_optimal_absolute = optimality
    if iterations is not None:
        parameters.iteration_limit = iterations
    # Whoever takes messages gets all of them unless told otherwise; at 0 only warnings.
    parameters.pdlp.verbosity_level = 0
    return form


def _cp_sat(form: StandardForm, options: SolverOptions, parameters: Any) -> StandardForm:
    """Refuse what CP-SAT would answer wrongly: it works on bounded integers and rounds everything else."""
    if not form.integer.all():
        raise SolverError(
            f"ortools:cp-sat takes programs whose columns are all integer; {int((~form.integer).sum())} are "
            "continuous, and it would round them: use another solver with MIP, such as highs or ortools:scip"
        )
    form = tightened(form)
    widest = np.maximum(np.abs(form.lower), np.abs(form.upper))
    if widest.max(initial=0.0) > CP_SAT_LARGEST_BOUND:
        raise SolverError(
            f"ortools:cp-sat needs bounds within ±{CP_SAT_LARGEST_BOUND:g} on every column, stated or implied by "
            f"the rows; column {int(np.argmax(widest))} has none: add them or use highs or ortools:scip"
        )
    parameters.cp_sat.mip_wanted_precision = CP_SAT_PRECISION
    parameters.cp_sat.mip_check_precision = CP_SAT_PRECISION
    if options.seed is not None:  # several workers race and repeat themselves only if interleaved
        parameters.cp_sat.interleave_search = options.threads is not None and options.threads > 1
        parameters.threads = options.threads or 1
    return form


def _back_end(
    solver: str, capabilities: Capabilities, prepare: Prepare = _unchanged, tolerance: Tolerance = Tolerance()
) -> BackEnd:
    def run(form: StandardForm, options: SolverOptions, warm_start: FloatArray | None) -> Answer:
        return _solve(solver, capabilities, prepare, form, options, warm_start)

    name = f"ortools:{solver.lower().replace('gscip', 'scip').replace('_', '-')}"
    return BackEnd(name, "ortools", "ortools", capabilities, run, tolerance)


def _run_pdlp(form: StandardForm, options: SolverOptions, warm_start: FloatArray | None) -> Answer:
    """PDLP's answer; where it does not get to the accuracy asked for, the best of several tries."""
    started = time.perf_counter()
    best: tuple[float, Answer] | None = None
    for optimality, iterations in PDLP_TRIES:
        left = options
        if options.time_limit is not None:
            left = replace(options, time_limit=max(0.0, options.time_limit - (time.perf_counter() - started)))
        prepare = partial(_pdlp_try, optimality, iterations)
        answer = _solve("PDLP", PDLP_CAPABILITIES, prepare, form, left, warm_start)
        if answer.termination is Termination.OPTIMAL:
            return answer
        error = _error(form, answer) if answer.termination is Termination.FEASIBLE else math.inf
        if best is None or error < best[0]:
            best = error, answer
        late = options.time_limit is not None and time.perf_counter() - started >= options.time_limit
        if answer.termination is not Termination.FEASIBLE or error <= PDLP_GOOD or late:
            break
    assert best is not None
    return best[1]


def _error(form: StandardForm, answer: Answer) -> float:
    """Relative violation of rows, or relative distance from the bound that the duals prove, whichever is larger."""
    if answer.x is None or answer.row_duals is None:
        return math.inf
    x = np.clip(answer.x, form.lower, form.upper)
    value = float(form.cost @ x)
    gap = abs(value - dual_bound(form, answer.row_duals, x).bound) / max(abs(value), 1e-9)
    return max(gap, float(relative_row_violation(form, x).max(initial=0.0)))


def _solve(
    solver: str,
    capabilities: Capabilities,
    prepare: Prepare,
    form: StandardForm,
    options: SolverOptions,
    warm_start: FloatArray | None,
) -> Answer:
    from ortools.math_opt import callback_pb2, model_parameters_pb2, parameters_pb2
    from ortools.math_opt.core.python import solver as mathopt

    parameters = parameters_pb2.SolveParametersProto()
    if options.time_limit is not None and math.isfinite(options.time_limit):
        parameters.time_limit.FromNanoseconds(int(options.time_limit * 1e9))
    if capabilities.threads and options.threads is not None:
        parameters.threads = options.threads
    if capabilities.seed and options.seed is not None:
        parameters.random_seed = options.seed
    if capabilities.mip_gap and options.mip_gap is not None and form.is_mip:
        parameters.relative_gap_tolerance = options.mip_gap
    form = prepare(form, options, parameters)

    model_parameters = model_parameters_pb2.ModelSolveParametersProto()
    if warm_start is not None:
        hint = model_parameters.solution_hints.add().variable_values
        hint.ids.extend(range(form.num_columns))
        hint.values.extend(warm_start.tolist())
    try:
        result = mathopt.solve(
            _model(form),
            getattr(parameters_pb2, f"SOLVER_TYPE_{solver}"),
            parameters_pb2.SolverInitializerProto(),
            parameters,
            model_parameters,
            _discard if solver in SENDS_MESSAGES else None,
            callback_pb2.CallbackRegistrationProto(),
            None,
            None,
        )
    except Exception as error:
        # SCIP gives some unbounded programs a point at infinity, which MathOpt will not hand over.
        if INFINITE_OBJECTIVE in str(error):
            return Answer(Termination.UNBOUNDED, message=str(error))
        raise
    return _answer(form, result)


def _discard(messages: list[str]) -> None:
    pass


def _model(form: StandardForm) -> Any:
    """MathOpt's ModelProto of a program; entries must be sorted by row, then column."""
    from ortools.math_opt import model_pb2

    model = model_pb2.ModelProto()
    variables, rows = model.variables, model.linear_constraints
    variables.ids.extend(range(form.num_columns))
    variables.lower_bounds.extend(form.lower.tolist())
    variables.upper_bounds.extend(form.upper.tolist())
    variables.integers.extend(form.integer.tolist())
    rows.ids.extend(range(form.num_rows))
    rows.lower_bounds.extend(form.row_lower.tolist())
    rows.upper_bounds.extend(form.row_upper.tolist())
    priced = np.flatnonzero(form.cost)
    model.objective.linear_coefficients.ids.extend(priced.tolist())
    model.objective.linear_coefficients.values.extend(form.cost[priced].tolist())
    by_row = form.matrix.tocsr()
    by_row.sort_indices()
    entries = model.linear_constraint_matrix
    entries.row_ids.extend(np.repeat(np.arange(form.num_rows), np.diff(by_row.indptr)).tolist())
    entries.column_ids.extend(by_row.indices.tolist())
    entries.coefficients.extend(by_row.data.tolist())
    return model


def _answer(form: StandardForm, result: Any) -> Answer:
    from ortools.math_opt import result_pb2

    endings = {
        result_pb2.TERMINATION_REASON_OPTIMAL: Termination.OPTIMAL,
        # The common check finds out whether the duals prove it optimal.
        result_pb2.TERMINATION_REASON_IMPRECISE: Termination.FEASIBLE,
        result_pb2.TERMINATION_REASON_NUMERICAL_ERROR: Termination.FEASIBLE,
        result_pb2.TERMINATION_REASON_INFEASIBLE: Termination.INFEASIBLE,
        result_pb2.TERMINATION_REASON_UNBOUNDED: Termination.UNBOUNDED,
        result_pb2.TERMINATION_REASON_INFEASIBLE_OR_UNBOUNDED: Termination.UNBOUNDED,
        result_pb2.TERMINATION_REASON_FEASIBLE: Termination.FEASIBLE,
        result_pb2.TERMINATION_REASON_NO_SOLUTION_FOUND: Termination.LIMIT_NO_SOLUTION,
    }
    ending = result.termination
    numerical = ending.reason == result_pb2.TERMINATION_REASON_NUMERICAL_ERROR
    message = ending.detail or ("numerical difficulties" if numerical else "")
    answer = Answer(endings.get(ending.reason, Termination.ERROR), message=message)
    if not result.solutions:
        return answer
    solution = result.solutions[0]
    if solution.HasField("primal_solution"):
        # PDLP does not say whether the point at hand at a limit is feasible: the common check does.
        undecided = answer.termination is Termination.LIMIT_NO_SOLUTION
        answer = replace(
            answer,
            termination=Termination.FEASIBLE if undecided else answer.termination,
            x=_dense(solution.primal_solution.variable_values, form.num_columns),
            bound=float(ending.objective_bounds.dual_bound),
        )
    if solution.HasField("dual_solution") and not form.is_mip:
        answer = replace(answer, row_duals=_dense(solution.dual_solution.dual_values, form.num_rows))
    return answer


def _dense(vector: Any, length: int) -> FloatArray:
    dense = np.zeros(length)
    dense[np.fromiter(vector.ids, np.intp, len(vector.ids))] = np.fromiter(vector.values, float, len(vector.values))
    return dense


GLOP = _back_end("GLOP", Capabilities(duals=True, time_limit=True, seed=True))
PDLP_CAPABILITIES = Capabilities(duals=True, time_limit=True, threads=True)
PDLP = BackEnd("ortools:pdlp", "ortools", "ortools", PDLP_CAPABILITIES, _run_pdlp, PDLP_TOLERANCE)
CP_SAT = _back_end(
    "CP_SAT",
    Capabilities(
        lp=False,
        mip=True,
        warm_start=True,
        time_limit=True,
        mip_gap=True,
        threads=True,
        seed=True,
        incremental=True,
    ),
    _cp_sat,
)
SCIP = _back_end(
    "GSCIP", Capabilities(mip=True, warm_start=True, time_limit=True, mip_gap=True, seed=True, incremental=True)
)
# Threads of the HiGHS inside OR-Tools are a global of its own library that MathOpt does not reach.
HIGHS = _back_end("HIGHS", Capabilities(mip=True, duals=True, time_limit=True, mip_gap=True, seed=True))
