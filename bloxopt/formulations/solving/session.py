"""One allocation in progress: the blocks built once, every solve counted, timed and its ending interpreted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bloxopt.errors import FormulationError, SolverError, UnboundedError, guarded
from bloxopt.formulations.checks import shown
from bloxopt.formulations.constraints.base import Constraint
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.certificate import Proof
from bloxopt.formulations.solving.diagnosis import infeasibility
from bloxopt.formulations.solving.dual import with_duals
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.resuming import Resumption
from bloxopt.formulations.solving.sifting import WORTH_SIFTING, sift
from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray
from bloxopt.solvers.base import Capabilities, Solver, SolverOptions, SolverResult, Start, Termination

if TYPE_CHECKING:
    from bloxopt.formulations.objectives.base import Objective


@dataclass(frozen=True, eq=False)
class Solved:
    """A program, its neutral form and a result that has a solution."""

    program: Program
    form: StandardForm
    result: SolverResult

    @property
    def x(self) -> FloatArray:
        """Time shares of the space's columns, clipped to [0, 1]."""
        assert self.result.x is not None
        return np.clip(self.result.x[: self.program.space.num_columns], 0.0, 1.0)

    @property
    def proof(self) -> Proof:
        """The program with its solution, for anyone to verify."""
        assert self.result.x is not None
        return Proof(self.form, self.result.x, self.result.row_duals)

    @property
    def utility(self) -> float:
        """Value of what was maximised."""
        assert self.result.objective is not None
        return -self.result.objective

    @property
    def utility_bound(self) -> float | None:
        """Proven upper bound on the utility."""
        return None if self.result.bound is None else -self.result.bound


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an objective found: the point, and how good it is proven to be.

    ``utility`` and ``bound`` (an upper bound, None if unknown) are in the sense of maximisation. ``prices``
    (rows of ``program``) is the change of the utility per unit of each row's active bound. ``ranking`` is the
    order of jobs of a priority objective, ``levels`` what each job was guaranteed by a level objective. ``proof`` is
    the program whose optimality is that of the whole, None where there is no such one: most objectives solved in stages
    or in closed form.
    """

    x: FloatArray
    utility: float
    bound: float | None
    termination: Termination
    program: Program | None = None
    prices: FloatArray | None = None
    ranking: IntArray | None = None
    levels: FloatArray | None = None
    message: str = ""
    proof: Proof | None = None


class Session:
    """The space, named blocks and solver of one call of ``Policy.allocate``."""

    def __init__(
        self,
        space: AllocationSpace,
        constraints: Mapping[str, Constraint],
        solver: Solver,
        options: SolverOptions,
        resumption: Resumption | None = None,
    ) -> None:
        self.space = space
        self.constraints = constraints
        self.solver = solver
        self.options = options
        self.resumption = resumption
        self.num_solves = 0
        self.solve_seconds = 0.0
        self.solver_name = str(getattr(solver, "name", type(solver).__name__))
        self._started = time.perf_counter()
        self._base = built_program(space, constraints)
        self._paid = np.zeros(space.num_columns, dtype=bool)

    @property
    def exclusive_job(self) -> IntArray | None:
        """The job of each column (num_columns,) if its time shares add up to at most 1 under these blocks."""
        exclusive = any(block.exclusive_time for block in self.constraints.values())
        return self.space.job if exclusive else None

    def program(self) -> Program:
        """A fresh program with the rows of the constraint blocks."""
        return self._base.copy()

    def hold(self, objective: Objective, outcome: Outcome, tolerance: float) -> None:
        """Keep what ``objective`` found, within ``tolerance``, in every program from here on."""
        objective.hold(self, self._base, outcome, tolerance)
        self._base.block = "program"

    @property
    def out_of_time(self) -> bool:
        """True once the time limit, which covers all solves of an allocation together, has passed."""
        limit = self.options.time_limit
        return limit is not None and time.perf_counter() - self._started >= limit

    def solve(self, program: Program, utility: Affine, *, duals: bool = False) -> Solved:
        """Maximise one row over the program.

        ``duals`` asks for row prices even of solvers that give none (a second solve, of the dual program).
        Raises :class:`~bloxopt.errors.InfeasibleError` naming blocks, ``UnboundedError`` and ``SolverError``.
        """
        form = program.compile(utility)
        result = self._sifted(program, form) or self._whole(program, form)
        ending = result.termination
        if ending is Termination.INFEASIBLE:
            blocks = self._base.copy()
            blocks.shares_as_in(program)
            raise infeasibility(blocks, self.constraints, self.solver, self.options, self._left, result.solver)
        if ending is Termination.UNBOUNDED:
            raise UnboundedError(
                f"solver {result.solver!r}: the objective grows without limit: bound the columns that blocks add, "
                "or limit what it measures"
            )
        if result.x is not None and np.shape(result.x) != form.cost.shape:
            raise SolverError(
                f"solver {result.solver!r} gave {np.shape(result.x)} values for {form.num_columns} columns: use another"
            )
        if result.x is None or not np.all(np.isfinite(result.x)):
            raise SolverError(
                f"solver {result.solver!r} ended with {ending.value} and no solution"
                f"{': ' + result.message if result.message else ''}; {self._way_out(ending)}"
            )
        if result.objective is None:
            result = replace(result, objective=form.objective(result.x))
        if duals and result.row_duals is None and not form.is_mip:
            result = with_duals(form, result, self._run)
        return Solved(program, form, result)

    def recall(self, name: str) -> float | None:
        """A number that the allocation before remembered, to begin a search from; None if there is none."""
        return None if self.resumption is None else self.resumption.recall(name)

    def remember(self, name: str, number: float) -> None:
        """Keep a number for the next allocation."""
        if self.resumption is not None:
            self.resumption.remember(name, number)

    def _sifted(self, program: Program, form: StandardForm) -> SolverResult | None:
        """The optimum of a linear program with many columns that may be left out, None for others."""
        if form.is_mip or len(program.deferred) < WORTH_SIFTING:
            return None
        deferred = np.zeros(form.num_columns, dtype=bool)
        deferred[program.deferred] = True
        # What paid in one program of an allocation mostly does in the next.
        deferred[: self.space.num_columns] &= ~self._paid
        group = np.full(form.num_columns, -1)
        if self.exclusive_job is not None:
            group[: self.space.num_columns] = self.exclusive_job
        if self.resumption is not None:
            self.resumption.sifted()
        found = sift(form, deferred, group, self._run)
        if found is None:
            return None
        result, joined = found
        self._paid |= joined[: self.space.num_columns]
        return result

    def _whole(self, program: Program, form: StandardForm) -> SolverResult:
        """The answer to the program as it is, from an earlier one where the solver can begin with that."""
        if self.resumption is None:
            return self._run(form)
        capabilities = getattr(self.solver, "capabilities", Capabilities())
        start = self.resumption.start(program, form, capabilities.incremental, self.solver_name)
        result = self._run(form, start)
        self.resumption.keep(program, form, result, start is not None)
        return result

    def _way_out(self, ending: Termination) -> str:
        if ending is Termination.LIMIT_NO_SOLUTION and self.options.time_limit is not None:
            return "raise the time limit or choose another solver"
        return "choose another solver, or look for weights and coefficients of very different sizes"

    def _left(self) -> SolverOptions:
        """The options, with what is left of the time limit."""
        if self.options.time_limit is None:
            return self.options
        left = self.options.time_limit - (time.perf_counter() - self._started)
        return replace(self.options, time_limit=max(left, 1e-3))

    def _run(self, form: StandardForm, start: Start | None = None) -> SolverResult:
        options = self._left()
        started = time.perf_counter()
        from_answer: dict[str, Any] = {} if start is None else {"start": start}
        with guarded(f"solver {self.solver_name!r}", SolverError):
            result: Any = self.solver.solve(form, options, **from_answer)
        if not isinstance(result, SolverResult):
            raise SolverError(f"solver {self.solver_name!r} returned {shown(result)}, must return a SolverResult")
        self.solve_seconds += time.perf_counter() - started
        self.num_solves += 1
        self.solver_name = result.solver or self.solver_name
        return result


def built_program(space: AllocationSpace, constraints: Mapping[str, Constraint]) -> Program:
    """A program with the rows of the blocks, each filed under its name.

    Raises :class:`~bloxopt.errors.FormulationError` naming a block that cannot be built.
    """
    program = Program(space)
    for name, block in constraints.items():
        program.block = name
        with guarded(f"constraint block {name}: build(space, program)", FormulationError):
            block.build(space, program)
    program.block = "program"
    return program


def outcome_of(solved: Solved) -> Outcome:
    """The outcome of an objective that is one program."""
    duals = solved.result.row_duals
    return Outcome(
        x=solved.x,
        utility=solved.utility,
        bound=solved.utility_bound,
        termination=solved.result.termination,
        program=solved.program,
        prices=None if duals is None else -duals,
        message=solved.result.message,
        proof=solved.proof,
    )
