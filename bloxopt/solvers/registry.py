"""The solvers by name: one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bloxopt.errors import InputError, UnknownNameError
from bloxopt.jobs import FloatArray
from bloxopt.registry import Registry
from bloxopt.solvers.base import Capabilities, Solver, SolverOptions, SolverResult
from bloxopt.solvers.check import Tolerance

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm

SOLVERS = Registry(
    "solver",
    {
        "auto": "bloxopt.solvers.automatic:AUTO",
        "highs": "bloxopt.solvers.highs_direct:HIGHS",
        "prices": "bloxopt.solvers.prices:PRICES",
        "ortools:glop": "bloxopt.solvers.ortools_mathopt:GLOP",
        "ortools:pdlp": "bloxopt.solvers.ortools_mathopt:PDLP",
        "ortools:cp-sat": "bloxopt.solvers.ortools_mathopt:CP_SAT",
        "ortools:scip": "bloxopt.solvers.ortools_mathopt:SCIP",
        "ortools:highs": "bloxopt.solvers.ortools_mathopt:HIGHS",
        "cvxpy:clarabel": "bloxopt.solvers.clarabel_direct:CLARABEL",
        "cvxpy:scs": "bloxopt.solvers.cvxpy_models:SCS",
        "cvxpy:highs": "bloxopt.solvers.cvxpy_models:HIGHS",
        "pulp:cbc": "bloxopt.solvers.pulp_models:CBC",
        "pulp:highs": "bloxopt.solvers.pulp_models:HIGHS",
    },
)


@dataclass(frozen=True, slots=True)
class SolverRow:
    """One line of ``bloxopt solvers``: ``classes`` such as ``"LP, MIP"``; ``version`` is None if not installed.

    ``tolerance`` is the stated relative accuracy of the objective.
    """

    name: str
    classes: str
    capabilities: Capabilities
    version: str | None
    tolerance: float

    @property
    def installed(self) -> bool:
        return self.version is not None


def get_solver(name: str | Solver) -> Solver:
    """The solver of that name, or the Solver itself; raises as :func:`check_solver` does."""
    check_solver(name)
    solver: Solver = SOLVERS.get(name) if isinstance(name, str) else name
    return solver


def check_solver(solver: object) -> None:
    """Raise unless this is the name of a solver or a Solver, without importing one.

    :class:`~bloxopt.errors.UnknownNameError` with a suggestion for a name, else
    :class:`~bloxopt.errors.InputError`.
    """
    if isinstance(solver, str):
        if solver not in SOLVERS:
            raise UnknownNameError("solver", solver, SOLVERS)
    elif isinstance(solver, type) or not callable(getattr(solver, "solve", None)):
        raise InputError(f"solver is {solver!r}: it must be a name of `bloxopt solvers` or an object with solve()")


def solve(
    form: StandardForm,
    solver: str = "auto",
    *,
    time_limit: float | None = None,
    mip_gap: float | None = None,
    threads: int | None = None,
    seed: int | None = None,
    warm_start: FloatArray | None = None,
) -> SolverResult:
    """Minimise a program with the solver of that name.

    ``time_limit`` in seconds, ``mip_gap`` relative; a solver without an option ignores it
    (:func:`solver_table`). ``warm_start`` (n,) is a feasible point to start from. Raises
    :class:`~bloxopt.errors.UnknownNameError`, :class:`~bloxopt.errors.SolverNotInstalledError` and
    :class:`~bloxopt.errors.SolverError` (a program of a class the solver cannot take).
    """
    options = SolverOptions(time_limit=time_limit, mip_gap=mip_gap, threads=threads, seed=seed)
    return get_solver(solver).solve(form, options, warm_start)


def solver_table() -> list[SolverRow]:
    """All registered solvers with what they can do and the version installed."""
    rows = []
    for name in SOLVERS:
        solver = get_solver(name)
        can = solver.capabilities
        classes = [label for label, able in (("LP", can.lp), ("MIP", can.mip), ("conic", can.conic)) if able]
        version: str | None = getattr(solver, "version", "unknown")
        tolerance: Tolerance = getattr(solver, "tolerance", Tolerance())
        rows.append(SolverRow(name, ", ".join(classes), can, version, tolerance.objective))
    return rows
