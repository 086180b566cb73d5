"""Solvers by name, behind one protocol: ``solve(form, solver="ortools:glop", time_limit=5)``."""

from __future__ import annotations

from collections.abc import Mapping

from bloxopt.solvers.base import Capabilities, Solver, SolverOptions, SolverResult, Termination
from bloxopt.solvers.registry import SOLVERS, SolverRow, get_solver, solve, solver_table

TOLERANCES: Mapping[str, float] = {row.name: row.tolerance for row in solver_table()}
"""Per solver, by how much its optimal objective may differ from the true one, relative to the objective's terms."""

__all__ = [
    "SOLVERS",
    "TOLERANCES",
    "Capabilities",
    "Solver",
    "SolverOptions",
    "SolverResult",
    "SolverRow",
    "Termination",
    "get_solver",
    "solve",
    "solver_table",
]
