"""Clarabel, the interior-point method that CVXPY brings, given the matrix that CVXPY would give it.

The program already is the conic form that CVXPY compiles to, so nothing is left for CVXPY to do but its
0.6 s of import and 10–20 % of each solve (benchmarks/solvers.py); the answers are the same.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csc_matrix

from bloxopt.jobs import FloatArray
from bloxopt.solvers.backend import BackEnd
from bloxopt.solvers.base import Capabilities, SolverOptions, Termination
from bloxopt.solvers.conic import one_sided
from bloxopt.solvers.presolve import Answer

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm

GAP = 1e-9
"""Duality gap to reach, absolute and relative; Clarabel's 1e-8 leaves 1e-7 of a max-min level of 0.1."""
REFINEMENT = 1e-9
"""Residual of the linear systems from which they are refined: Clarabel's 1e-12 costs a third more and gains nothing."""


def _run(form: StandardForm, options: SolverOptions, warm_start: FloatArray | None) -> Answer:
    import clarabel

    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_rel = settings.tol_gap_abs = GAP
    settings.iterative_refinement_reltol = settings.iterative_refinement_abstol = REFINEMENT
    if options.time_limit is not None and math.isfinite(options.time_limit):
        settings.time_limit = float(options.time_limit)
    if options.threads is not None:
        settings.max_threads = int(options.threads)
    program = one_sided(form)
    cones = [clarabel.ZeroConeT(program.num_equal)] if program.num_equal else []
    if num_unequal := len(program.right) - program.num_equal:
        cones.append(clarabel.NonnegativeConeT(num_unequal))
    no_quadratic = csc_matrix((form.num_columns, form.num_columns))
    solution = clarabel.DefaultSolver(
        no_quadratic, form.cost, csc_matrix(program.matrix), program.right, cones, settings
    ).solve()

    status = str(solution.status)
    endings = {
        "Solved": Termination.OPTIMAL,
        # Answers of reduced accuracy: the common check finds out whether their duals prove them optimal.
        "AlmostSolved": Termination.FEASIBLE,
        "InsufficientProgress": Termination.FEASIBLE,
        "NumericalError": Termination.FEASIBLE,
        "PrimalInfeasible": Termination.INFEASIBLE,
        "DualInfeasible": Termination.UNBOUNDED,
        "MaxIterations": Termination.FEASIBLE,
        "MaxTime": Termination.FEASIBLE,
    }
    return Answer(
        endings.get(status, Termination.ERROR),
        x=np.array(solution.x),
        row_duals=program.row_duals(np.array(solution.z)),
        message=status,
    )


CLARABEL = BackEnd(
    name="cvxpy:clarabel",
    package="clarabel",
    module="clarabel",
    capabilities=Capabilities(duals=True, time_limit=True, threads=True),
    run=_run,
)
