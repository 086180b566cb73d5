"""CBC and HiGHS through PuLP, which holds a program as Python objects: one per column and one per row."""

from __future__ import annotations

import importlib
import re
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bloxopt.jobs import FloatArray
from bloxopt.solvers.backend import BackEnd
from bloxopt.solvers.base import Capabilities, SolverOptions, Termination
from bloxopt.solvers.highs_direct import highs_answer, highs_options, prepared_highspy
from bloxopt.solvers.presolve import Answer

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm


@cache
def _pulp() -> Any:
    """The module ``pulp``, loaded after OR-Tools.

    PuLP makes the symbols of ``highspy`` those of the whole process. An OR-Tools that is loaded later takes them for
    those of its own HiGHS, of another version, and crashes.
    """
    with suppress(ImportError):
        importlib.import_module("ortools.math_opt.core.python.solver")
    return importlib.import_module("pulp")


@contextmanager
def _without_announcements() -> Iterator[None]:
    """PuLP 3 warns of what PuLP 4 drops; the package requires PuLP below 4."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _problem(form: StandardForm) -> tuple[Any, list[Any], list[Any]]:
    """PuLP's problem, its variables in column order and its constraints in row order.

    A row with two different finite sides becomes two constraints: the upper sides follow all others.
    """
    pulp = _pulp()

    problem = pulp.LpProblem("bloxopt", pulp.LpMinimize)
    width = len(str(form.num_columns))  # names sort as columns do
    columns = [
        pulp.LpVariable(f"x{j:0{width}d}", low, high, pulp.LpInteger if whole else pulp.LpContinuous)
        for j, (low, high, whole) in enumerate(
            zip(_sides(form.lower), _sides(form.upper), form.integer.tolist(), strict=True)
        )
    ]
    # Columns without a cost are named as well: PuLP knows only the variables it meets.
    problem.setObjective(pulp.LpAffineExpression(list(zip(columns, form.cost.tolist(), strict=True))))
    by_row = form.matrix.tocsr()
    starts, indices, values = by_row.indptr.tolist(), by_row.indices.tolist(), by_row.data.tolist()
    lower, upper = form.row_lower, form.row_upper
    one_side = np.where(np.isfinite(lower), pulp.LpConstraintGE, pulp.LpConstraintLE)
    senses = np.where(lower == upper, pulp.LpConstraintEQ, one_side)
    sides = np.where(np.isfinite(lower), lower, upper).tolist()
    ranged = np.flatnonzero(np.isfinite(lower) & np.isfinite(upper) & (lower != upper)).tolist()

    def add(row: int, sense: int, side: float) -> Any:
        entries = slice(starts[row], starts[row + 1])
        terms = pulp.LpAffineExpression(list(zip([columns[j] for j in indices[entries]], values[entries], strict=True)))
        constraint = pulp.LpConstraint(terms, sense, rhs=side)
        problem.addConstraint(constraint)
        return constraint

    constraints = [add(row, int(senses[row]), sides[row]) for row in range(form.num_rows)]
    constraints += [add(row, pulp.LpConstraintLE, float(upper[row])) for row in ranged]
    return problem, columns, constraints


def _sides(bounds: FloatArray) -> list[float | None]:
    return [bound if np.isfinite(bound) else None for bound in bounds.tolist()]


def _row_duals(form: StandardForm, prices: FloatArray) -> FloatArray:
    """Duals (m,) from one price a constraint: a row with two sides has the sum of its two."""
    ranged = np.isfinite(form.row_lower) & np.isfinite(form.row_upper) & (form.row_lower != form.row_upper)
    duals = prices[: form.num_rows].copy()
    duals[ranged] += prices[form.num_rows :]
    return duals


def _cbc(form: StandardForm, options: SolverOptions, warm_start: FloatArray | None) -> Answer:
    """Solve without CBC's integer preprocessing, which cuts off the optimum of about 1 in 1,500 small programs.

    Without it CBC crashes on some infeasible programs, so those are asked again with it; an optimum found
    that way is not believed to be one.
    """
    pulp = _pulp()

    try:
        return _cbc_once(form, options, warm_start, preprocess=False)
    except pulp.PulpSolverError:
        answer = _cbc_once(form, options, warm_start, preprocess=True)
        if answer.termination is Termination.OPTIMAL:
            return replace(answer, termination=Termination.FEASIBLE, bound=None)
        return answer


def _cbc_once(form: StandardForm, options: SolverOptions, warm_start: FloatArray | None, preprocess: bool) -> Answer:
    pulp = _pulp()

    with _without_announcements():
        problem, columns, constraints = _problem(form)
    settings = [] if preprocess else ["preprocess off"]
    if options.seed is not None:
        settings += [f"randomSeed {options.seed}", f"randomCbcSeed {options.seed}"]
    if warm_start is not None:
        for column, value in zip(columns, warm_start.tolist(), strict=True):
            column.setInitialValue(value, check=False)
    with tempfile.TemporaryDirectory(prefix="bloxopt-cbc-") as folder, _without_announcements():
        log = Path(folder) / "cbc.log"
        cbc = pulp.PULP_CBC_CMD(
            msg=False,
            timeLimit=options.time_limit if options.time_limit != np.inf else None,
            gapRel=options.mip_gap,
            threads=options.threads,
            options=settings,
            warmStart=warm_start is not None and form.is_mip,
            logPath=str(log),
        )
        cbc.tmpDir = folder
        problem.solve(cbc)
        text = log.read_text(errors="replace")
    termination = _cbc_termination(problem)
    if termination not in (Termination.OPTIMAL, Termination.FEASIBLE):
        return Answer(termination, message=f"CBC: {pulp.LpStatus[problem.status]}")
    x = np.array([column.varValue for column in columns], float)
    row_duals = None
    if not form.is_mip:
        row_duals = _row_duals(form, np.array([constraint.pi for constraint in constraints], float))
    return Answer(
        termination,
        x,
        row_duals,
        bound=_cbc_bound(text, termination, float(form.cost @ x), options) if form.is_mip else None,
        message=f"CBC: {pulp.LpStatus[problem.status]}",
    )


def _cbc_termination(problem: Any) -> Termination:
    pulp = _pulp()

    found_all = problem.sol_status == pulp.LpSolutionOptimal
    endings = {
        pulp.LpStatusOptimal: Termination.OPTIMAL if found_all else Termination.FEASIBLE,
        # CBC's preprocessing calls some unbounded programs infeasible: the common check tells which it is.
        pulp.LpStatusInfeasible: Termination.UNBOUNDED,
        pulp.LpStatusUnbounded: Termination.UNBOUNDED,
        pulp.LpStatusNotSolved: Termination.LIMIT_NO_SOLUTION,
    }
    return endings.get(problem.status, Termination.ERROR)


def _cbc_bound(log: str, termination: Termination, value: float, options: SolverOptions) -> float | None:
    """The bound that CBC logs; where it logs none it has closed the gap to the one it was asked for."""
    logged = re.findall(r"^Lower bound:\s+(\S+)", log, re.MULTILINE)
    if logged:
        return float(logged[-1])
    if termination is not Termination.OPTIMAL:
        return None
    return value - (options.mip_gap or 0.0) * abs(value)


def _highs(form: StandardForm, options: SolverOptions, warm_start: FloatArray | None) -> Answer:
    pulp = _pulp()

    prepared_highspy(options)
    with _without_announcements():
        problem, _, _ = _problem(form)
        problem.solve(pulp.HiGHS(msg=False, **highs_options(form, options)))
    # PuLP calls a program without a solution at the time limit solved, so HiGHS itself is asked.
    answer = highs_answer(form, problem.solverModel)
    if answer.row_duals is None:
        return answer
    return replace(answer, row_duals=_row_duals(form, answer.row_duals))


CBC = BackEnd(
    name="pulp:cbc",
    package="pulp",
    module="pulp",
    capabilities=Capabilities(
        mip=True,
        duals=True,
        warm_start=True,
        time_limit=True,
        mip_gap=True,
        threads=True,
        seed=True,
        incremental=True,
    ),
    run=_cbc,
)
HIGHS = BackEnd(
    name="pulp:highs",
    package="pulp",
    module="pulp",
    capabilities=Capabilities(mip=True, duals=True, time_limit=True, mip_gap=True, threads=True, seed=True),
    run=_highs,
)
