"""``auto``: the solver that measurements say is fastest for the program's class and size, with fallbacks."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bloxopt.errors import SolverNotInstalledError
from bloxopt.jobs import FloatArray
from bloxopt.solvers.base import Capabilities, SolverOptions, SolverResult, Start, Termination
from bloxopt.solvers.check import Tolerance

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm

LARGE_LP_ENTRIES = 2_000
"""Non-zeros from which the interior-point method wins over HiGHS's simplex: see benchmarks/solvers.py."""

SMALL_LP = ("highs", "ortools:glop", "cvxpy:clarabel")
LARGE_LP = ("cvxpy:clarabel", "highs", "ortools:glop")
MIP = ("highs", "ortools:scip", "pulp:cbc")


@dataclass(frozen=True)
class Automatic:
    """Asks the first of a list of solvers, and the next if one fails or proves nothing it should have.

    The result's ``solver`` names the one that answered.
    """

    name: str
    capabilities: Capabilities
    tolerance: Tolerance

    @property
    def version(self) -> str | None:
        """The package's own: ``auto`` is part of bloxopt."""
        from importlib.metadata import version

        return version("bloxopt")

    def solve(
        self,
        form: StandardForm,
        options: SolverOptions = SolverOptions(),
        warm_start: FloatArray | None = None,
        start: Start | None = None,
    ) -> SolverResult:
        """Minimise the form with the first solver that answers; see :class:`bloxopt.solvers.base.IncrementalSolver`.

        The time limit counts for all tries together.
        """
        from bloxopt.solvers.highs_direct import HIGHS
        from bloxopt.solvers.highs_resume import LARGE_ROWS
        from bloxopt.solvers.registry import get_solver

        started = time.perf_counter()
        best: SolverResult | None = None
        failures = []
        names, refusal = candidates(form), ""
        if start is not None:
            if form.num_rows <= LARGE_ROWS:
                # More programs like this one will follow: only a simplex method's answer is one to begin the next from.
                names = ("highs", *(name for name in names if name != "highs"))
            try:
                result = HIGHS.resumed(form, options, start)
                if result.resumed:
                    return result
                refusal = result.refusal
            except SolverNotInstalledError as error:
                refusal = str(error)
        for name in names:
            remaining = options
            if options.time_limit is not None:
                remaining = replace(options, time_limit=max(0.0, options.time_limit - time.perf_counter() + started))
            try:
                result = get_solver(name).solve(form, remaining, warm_start)
            except SolverNotInstalledError as error:
                failures.append(str(error))
                continue
            best = _better(best, result)
            if _settled(result, remaining):
                break
            failures.append(f"{name}: {result.message}")
        if best is None:
            raise SolverNotInstalledError("; ".join(failures))
        message = (
            "; ".join([best.message, *failures])
            if failures and best.termination is not Termination.OPTIMAL
            else best.message
        )
        return replace(best, solve_seconds=time.perf_counter() - started, message=message, refusal=refusal)


def candidates(form: StandardForm) -> tuple[str, ...]:
    """Names of the solvers to try, best first, by class and size."""
    if form.is_mip:
        return MIP
    return LARGE_LP if form.matrix.nnz >= LARGE_LP_ENTRIES else SMALL_LP


def _settled(result: SolverResult, options: SolverOptions) -> bool:
    """True unless another solver could do better: an error, or an answer without proof and without a limit."""
    if result.termination is Termination.ERROR:
        return False
    limited = options.time_limit is not None and result.solve_seconds >= 0.9 * options.time_limit
    unproven = result.termination in (Termination.FEASIBLE, Termination.LIMIT_NO_SOLUTION)
    return limited or not unproven


def _better(first: SolverResult | None, second: SolverResult) -> SolverResult:
    """The more useful of two results: a proof, then a solution with the lower objective, then any."""
    proofs = (Termination.OPTIMAL, Termination.INFEASIBLE, Termination.UNBOUNDED)
    if first is None or second.termination in proofs:
        return second
    if first.objective is None:
        return second
    if second.objective is None or second.objective >= first.objective:
        return first
    return second


AUTO = Automatic(
    name="auto",
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
    tolerance=Tolerance(),
)
