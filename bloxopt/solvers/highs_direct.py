"""HiGHS through its own Python package: arrays in, arrays out."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from bloxopt.jobs import FloatArray
from bloxopt.solvers.backend import BackEnd
from bloxopt.solvers.base import Basis, Capabilities, SolverOptions, Start, Termination
from bloxopt.solvers.presolve import Answer

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm

INTERIOR_POINT_FROM = 3000
"""Rows from which an LP goes to the interior-point method with crossover: see benchmarks/solvers.py."""

WHOLE_WITHIN = 1e-9
"""How far an integer column may be from a whole number. At HiGHS' own 1e-6, columns whose costs nearly cancel (the
powers of :class:`~bloxopt.formulations.PowerMean`) made it call answers optimal that were several per cent off."""


def highs_options(form: StandardForm, options: SolverOptions) -> dict[str, float | int | str]:
    """Options in HiGHS's own names, for every interface to it."""
    chosen: dict[str, float | int | str] = {}
    if options.time_limit is not None:
        chosen["time_limit"] = float(options.time_limit)
    if options.mip_gap is not None:
        chosen["mip_rel_gap"] = float(options.mip_gap)
    if options.threads is not None:
        chosen["threads"] = int(options.threads)
    if options.seed is not None:
        chosen["random_seed"] = int(options.seed)
    if form.is_mip:
        chosen["mip_feasibility_tolerance"] = WHOLE_WITHIN
    elif form.num_rows >= INTERIOR_POINT_FROM:
        chosen["solver"] = "ipm"
    return chosen


def prepared_highspy(options: SolverOptions) -> Any:
    """The module ``highspy``, silent, with a thread pool that fits the options.

    HiGHS makes its pool once a process, so a wanted number of threads needs a new one.
    """
    import highspy

    _swallow_banner()
    if options.threads is not None:
        highspy.Highs.resetGlobalScheduler(True)
    return highspy


@cache
def _swallow_banner() -> None:
    """Make HiGHS's first object of the process, which prints a banner before it can be told not to.

    The banner goes to file descriptor 1, where it would spoil output that programs read.
    """
    import highspy

    if sys.__stdout__ is not None:
        sys.__stdout__.flush()
    try:
        saved = os.dup(1)
    except OSError:  # a daemon without a standard output has nothing to spoil
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            highspy.Highs()
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def highs_termination(highs: Any) -> Termination:
    """How a run of a ``highspy.Highs`` ended."""
    import highspy

    status = highspy.HighsModelStatus
    has_point = highs.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    at_hand = Termination.FEASIBLE if has_point else Termination.LIMIT_NO_SOLUTION
    endings = {
        status.kOptimal: Termination.OPTIMAL,
        status.kInfeasible: Termination.INFEASIBLE,
        status.kUnbounded: Termination.UNBOUNDED,
        status.kUnboundedOrInfeasible: Termination.UNBOUNDED,
        status.kTimeLimit: at_hand,
        status.kIterationLimit: at_hand,
        status.kSolutionLimit: at_hand,
        status.kInterrupt: at_hand,
        status.kObjectiveTarget: at_hand,
    }
    return endings.get(highs.getModelStatus(), Termination.ERROR)


def highs_answer(form: StandardForm, highs: Any) -> Answer:
    """The answer of a ``highspy.Highs`` that has run on a model with the form's rows and columns in order."""
    termination = highs_termination(highs)
    message = highs.modelStatusToString(highs.getModelStatus())
    if termination not in (Termination.OPTIMAL, Termination.FEASIBLE):
        return Answer(termination, message=message)
    solution = highs.getSolution()
    return Answer(
        termination,
        x=np.array(solution.col_value),
        row_duals=None if form.is_mip else np.array(solution.row_dual),
        bound=float(highs.getInfo().mip_dual_bound) if form.is_mip else None,
        message=message,
    )


def run_highs(
    form: StandardForm, options: SolverOptions, warm_start: FloatArray | None, target: float | None = None
) -> Answer:
    """Minimise a cleaned program; an integer program also stops at an objective of ``target`` or less."""
    highspy = prepared_highspy(options)
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    for name, value in highs_options(form, options).items():
        highs.setOptionValue(name, value)
    if target is not None:
        highs.setOptionValue("objective_target", target)
    if not pass_model(highs, form):
        return Answer(Termination.ERROR, message="HiGHS rejected the program")
    if warm_start is not None and form.is_mip:
        start = highspy.HighsSolution()
        start.col_value = warm_start.tolist()
        highs.setSolution(start)
    highs.run()
    answer = highs_answer(form, highs)
    return answer if form.is_mip or answer.x is None else replace(answer, basis=_basis(highs))


def _basis(highs: Any) -> Basis | None:
    """Where HiGHS ended, None after an interior-point method without crossover."""
    basis = highs.getBasis()
    if not basis.valid:
        return None
    column, row = (np.array([int(status) for status in part], np.int8) for part in (basis.col_status, basis.row_status))
    return Basis(column, row)


def pass_model(highs: Any, form: StandardForm) -> bool:
    """Give the form to a ``highspy.Highs``, as arrays: its ``HighsLp`` takes ten times as long to fill."""
    import highspy

    matrix = form.matrix
    program = (form.cost, form.lower, form.upper, form.row_lower, form.row_upper)
    entries = (matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32), matrix.data)
    sizes = (form.num_columns, form.num_rows, matrix.nnz, int(highspy.MatrixFormat.kColwise))
    minimise = int(highspy.ObjSense.kMinimize)
    status = highs.passModel(*sizes, minimise, 0.0, *program, *entries, form.integer.astype(np.int32))
    return bool(status != highspy.HighsStatus.kError)


def _resume(form: StandardForm, options: SolverOptions, start: Start) -> Answer | None:
    from bloxopt.solvers.highs_resume import resume_highs

    return None if form.is_mip else resume_highs(form, options, start)


HIGHS = BackEnd(
    name="highs",
    package="highspy",
    module="highspy",
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
    run=run_highs,
    resume=_resume,
)
