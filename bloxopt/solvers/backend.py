"""What all back ends share: refusing, cleaning, timing, verifying and checking around one function that solves."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from bloxopt.errors import BloxoptError, InputError, SolverError, SolverNotInstalledError
from bloxopt.jobs import FloatArray
from bloxopt.solvers.base import Capabilities, SolverOptions, SolverResult, Start, Termination
from bloxopt.solvers.check import Tolerance, checked
from bloxopt.solvers.presolve import Answer, Reduced, rays, reduce

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm

Run: TypeAlias = "Callable[[StandardForm, SolverOptions, FloatArray | None], Answer]"
"""Solves a cleaned program: canonical CSC, every row with an entry and a finite bound, no crossed bounds."""

Resume: TypeAlias = "Callable[[StandardForm, SolverOptions, Start], Answer | None]"
"""Solves a cleaned program from the answer to a similar one; None for programs that it cannot do that with."""

S = TypeVar("S")
A = TypeVar("A")


@dataclass(frozen=True)
class BackEnd:
    """A solver: a name, a package and one function that solves a cleaned program.

    ``run`` imports its package itself and may claim anything: what it returns is checked here.
    ``package`` is the name that pip installs, ``module`` the name that Python imports. ``resume`` solves from the
    answer to a similar program.
    """

    name: str
    package: str
    module: str
    capabilities: Capabilities
    run: Run
    tolerance: Tolerance = field(default_factory=Tolerance)
    resume: Resume | None = None

    @property
    def version(self) -> str | None:
        """Version of the installed package, None if it cannot be imported."""
        return importlib.metadata.version(self.package) if self._installed else None

    @property
    def _installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None

    def solve(
        self,
        form: StandardForm,
        options: SolverOptions = SolverOptions(),
        warm_start: FloatArray | None = None,
        start: Start | None = None,
    ) -> SolverResult:
        """Minimise the form; see :meth:`bloxopt.solvers.base.IncrementalSolver.solve`.

        Raises :class:`InputError` for a warm start of the wrong kind, besides what the protocol states.
        """
        started = time.perf_counter()
        refusal = ""
        if start is not None and self.capabilities.incremental:
            result = self.resumed(form, options, start)
            if result.resumed:
                return result
            refusal = result.refusal
            if options.time_limit is not None:
                left = options.time_limit - (time.perf_counter() - started)
                options = replace(options, time_limit=max(left, 0.0))
        result = self._solved(form, options, warm_start, started)
        return replace(result, refusal=refusal)

    def resumed(self, form: StandardForm, options: SolverOptions, start: Start) -> SolverResult:
        """Minimise the form from the answer to a similar one, or find out that this leads nowhere.

        Only a result that is ``resumed`` is one: of the others all that counts is their ``refusal``.
        """
        started = time.perf_counter()
        self._require_capable(form)
        if not self._installed:
            raise SolverNotInstalledError(self._not_installed(self.module, "not found"))
        reduced = reduce(form)
        answer = None
        if not isinstance(reduced, Answer):
            answer = self._from_start(reduced, options, reduced.reduce_answer(start))
        if answer is None or isinstance(reduced, Answer):
            return SolverResult(Termination.ERROR, refusal=f"{self.name} cannot begin from the earlier answer")
        lifted = reduced.lift(answer)
        proven = checked(form, lifted, self.tolerance, options.mip_gap)
        good = proven.x is not None if form.is_mip else proven.termination is Termination.OPTIMAL
        if not good:
            reason = f"{self.name} did not get from the earlier answer to the optimum: {proven.message}"
            return SolverResult(Termination.ERROR, refusal=reason)
        result = self._result(form, proven, started)
        return replace(result, resumed=True, multipliers=lifted.row_duals if form.is_mip else None)

    def _from_start(self, reduced: Reduced, options: SolverOptions, start: Start) -> Answer | None:
        """What the solver makes of a start: its own way, or for integer programs the point as a warm start."""
        if self.resume is not None:
            answer = self._guarded(self.resume, reduced.form, options, start)
            if answer is not None:
                return answer
        form = reduced.form
        if not (form.is_mip and self.capabilities.warm_start):
            return None
        x = np.clip(start.x, form.lower, form.upper)
        return self._run(form, options, x) if form.max_violation(x) <= self.tolerance.feasibility else None

    def _solved(
        self, form: StandardForm, options: SolverOptions, warm_start: FloatArray | None, started: float
    ) -> SolverResult:
        self._require_capable(form)
        if not self._installed:
            raise SolverNotInstalledError(self._not_installed(self.module, "not found"))
        if warm_start is not None and (warm_start.shape != form.cost.shape or not np.isfinite(warm_start).all()):
            raise InputError(f"warm_start must be {form.num_columns} finite numbers, one a column")
        reduced = reduce(form)
        if isinstance(reduced, Answer):
            answer = reduced if self.capabilities.duals else replace(reduced, row_duals=None)
        elif options.time_limit is not None and options.time_limit <= 0:
            answer = Answer(Termination.LIMIT_NO_SOLUTION, message="the time limit is 0 seconds")
        else:
            start = reduced.reduce_start(warm_start) if self.capabilities.warm_start else None
            answer = reduced.lift(self._run(reduced.form, options, start))
            # An integer program may be proven infeasible by a long search: that is believed, not repeated.
            proven = form.is_mip and answer.termination is Termination.INFEASIBLE
            if answer.termination in (Termination.UNBOUNDED, Termination.INFEASIBLE) and not proven:
                answer = self._verified(reduced.form, options, answer)
        result = self._result(form, checked(form, answer, self.tolerance, options.mip_gap), started)
        return replace(result, multipliers=answer.row_duals) if form.is_mip else result

    def _require_capable(self, form: StandardForm) -> None:
        if form.is_mip and not self.capabilities.mip:
            raise SolverError(
                f"{self.name} solves linear programs only and {int(form.integer.sum())} columns must be integer: "
                f"use one of {', '.join(_able('mip'))}"
            )
        if not form.is_mip and not self.capabilities.lp:
            raise SolverError(
                f"{self.name} solves integer programs only and no column is integer: "
                f"use one of {', '.join(_able('lp'))}"
            )

    def _not_installed(self, module: str, reason: str) -> str:
        root = module.partition(".")[0]
        package = self.package if root == self.module else root
        return f"solver {self.name} needs the package {package!r} ({reason}): pip install {package}"

    def _run(self, form: StandardForm, options: SolverOptions, start: FloatArray | None) -> Answer:
        return self._guarded(self.run, form, options, start)

    def _guarded(
        self, call: Callable[[StandardForm, SolverOptions, S], A], form: StandardForm, options: SolverOptions, start: S
    ) -> A | Answer:
        try:
            return call(form, options, start)
        except ImportError as error:
            raise SolverNotInstalledError(self._not_installed(error.name or self.module, str(error))) from error
        except BloxoptError:
            raise
        except Exception as error:  # a solver's own exception types are as many as solvers; all mean the same here
            return Answer(Termination.ERROR, message=f"{type(error).__name__}: {error}")

    def _verified(self, form: StandardForm, options: SolverOptions, answer: Answer) -> Answer:
        """Tell infeasible from unbounded by two programs that cannot be both: a point without cost, and a ray.

        Solvers confuse the two in their presolve: CBC and HiGHS have called unbounded programs infeasible.
        """
        free = replace(form, cost=np.zeros(form.num_columns))
        point = checked(free, self._run(free, options, None), self.tolerance, options.mip_gap)
        if point.termination is Termination.UNBOUNDED:  # said as "infeasible or unbounded", and this has no cost
            return Answer(Termination.INFEASIBLE, message=point.message)
        if point.termination not in (Termination.OPTIMAL, Termination.FEASIBLE):
            return point
        program = rays(form)
        ray = checked(program, self._run(program, options, None), self.tolerance, options.mip_gap)
        if ray.x is not None and program.cost @ ray.x < -self.tolerance.objective * np.abs(program.cost).max():
            return Answer(Termination.UNBOUNDED, message=answer.message)
        claim = answer.termination.value
        return Answer(Termination.ERROR, message=f"called {claim}, but a point is feasible and no ray was found")

    def _result(self, form: StandardForm, answer: Answer, started: float) -> SolverResult:
        return SolverResult(
            termination=answer.termination,
            x=answer.x,
            objective=None if answer.x is None else form.objective(answer.x),
            bound=None if answer.bound is None else answer.bound + form.constant,
            row_duals=answer.row_duals,
            basis=answer.basis,
            reduced_costs=None if answer.row_duals is None else form.cost - form.matrix.T @ answer.row_duals,
            solve_seconds=time.perf_counter() - started,
            solver=self.name,
            message=answer.message,
        )


def _able(capability: str) -> list[str]:
    """Names of the registered solvers that have a capability."""
    from bloxopt.solvers.registry import SOLVERS, get_solver

    return [name for name in SOLVERS if getattr(get_solver(name).capabilities, capability)]
