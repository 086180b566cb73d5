"""What every solver back end offers: one protocol, one capability record, one vocabulary of endings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from bloxopt.errors import InputError
from bloxopt.jobs import BoolArray, FloatArray

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm


class Termination(StrEnum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    """Proven optimal to the solver's tolerance (and, for a MIP, to the requested gap)."""
    FEASIBLE = "feasible"
    """A limit was reached with a feasible, not proven optimal, solution at hand."""
    INFEASIBLE = "infeasible"
    """Proven: no solution exists."""
    UNBOUNDED = "unbounded"
    """Proven: the objective decreases without limit."""
    LIMIT_NO_SOLUTION = "limit_no_solution"
    """A limit was reached before any feasible solution was found."""
    ERROR = "error"
    """The solver failed; ``message`` says how."""


LONGEST_TIME_LIMIT = 1e9
"""Seconds, some 30 years: what is longer does not fit into the clocks of all solvers and is no limit."""


@dataclass(frozen=True, slots=True)
class SolverOptions:
    """Limits passed to a solver; ``None`` leaves the solver's own default.

    ``time_limit`` in seconds, ``mip_gap`` relative, ``threads`` and ``seed`` whole numbers. More threads than
    the machine has processors count as that many: solvers start every thread that they are told to.
    Raises :class:`~bloxopt.errors.InputError` naming the option that is out of range.
    """

    time_limit: float | None = None
    mip_gap: float | None = None
    threads: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        seconds = f"a number of seconds from 0 to {LONGEST_TIME_LIMIT:g} (None: no limit)"
        _check("time_limit", self.time_limit, _NUMBER, 0, LONGEST_TIME_LIMIT, seconds)
        _check("mip_gap", self.mip_gap, _NUMBER, 0, 1e300, "a finite number of 0 or more")
        _check("threads", self.threads, _WHOLE, 1, 2**31 - 1, "a whole number from 1 to 2^31 − 1")
        _check("seed", self.seed, _WHOLE, 0, 2**31 - 1, "a whole number from 0 to 2^31 − 1")
        if self.threads is not None:
            object.__setattr__(self, "threads", min(int(self.threads), os.cpu_count() or 1))


_WHOLE: tuple[type, ...] = (int, np.integer)
_NUMBER: tuple[type, ...] = (*_WHOLE, float, np.floating)


def _check(name: str, value: Any, kinds: tuple[type, ...], least: float, most: float, wanted: str) -> None:
    right_kind = isinstance(value, kinds) and not isinstance(value, bool)
    if value is not None and not (right_kind and least <= value <= most):
        raise InputError(f"solver option {name} is {value!r}: it must be {wanted}")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a back end can do; options it does not list are ignored by it, never an error."""

    lp: bool = True
    mip: bool = False
    conic: bool = False
    duals: bool = False
    warm_start: bool = False
    time_limit: bool = False
    mip_gap: bool = False
    threads: bool = False
    seed: bool = False
    incremental: bool = False
    """Takes a :class:`Start` from the answer to a similar program, linear or integer or both."""


class Status(IntEnum):
    """Where a simplex method has a column or a row: at a bound, basic, or at 0 without a bound."""

    LOWER = 0
    BASIC = 1
    UPPER = 2
    ZERO = 3


StatusArray = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """The :class:`Status` of every column (n,) and row (m,) at the end of a simplex method."""

    column: StatusArray
    row: StatusArray


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """The answer to a similar program in terms of the columns and rows of this one.

    ``x`` (n,), ``row_duals`` (m,; of an integer program the prices that prove its bound) and, from solvers that have
    one, the ``basis``. ``new_columns`` (n,) and ``new_rows`` (m,) mark what the other program did not have: x and duals
    are 0 there, rows basic and columns at a bound.
    """

    x: FloatArray
    row_duals: FloatArray
    new_columns: BoolArray
    new_rows: BoolArray
    basis: Basis | None = None


@dataclass(frozen=True, slots=True)
class SolverResult:
    """The answer to one :class:`StandardForm`.

    ``x`` (n,) is None unless termination is OPTIMAL or FEASIBLE. ``objective`` includes the form's
    constant. ``bound`` is the best proven lower bound on the minimum (equal to the objective for an
    optimal LP), None if the solver gives none. ``row_duals`` (m,) is the change of the minimum per
    unit of each row's active bound (≥ 0 where the lower bound binds, ≤ 0 where the upper does) and
    ``reduced_costs`` (n,) is ``c − Aᵀ row_duals``; both None for a MIP or a solver without duals. ``multipliers`` (m,)
    are the row prices that prove the bound of a MIP, from solvers that work by them. ``basis`` is where a simplex
    method ended. ``resumed`` tells whether the answer was reached from a given :class:`Start`, ``refusal`` why not.
    """

    termination: Termination
    x: FloatArray | None = None
    objective: float | None = None
    bound: float | None = None
    row_duals: FloatArray | None = None
    reduced_costs: FloatArray | None = None
    solve_seconds: float = 0.0
    solver: str = ""
    message: str = ""
    multipliers: FloatArray | None = None
    basis: Basis | None = None
    resumed: bool = False
    refusal: str = ""

    @property
    def gap(self) -> float | None:
        """Relative distance between objective and bound, None if either is unknown."""
        if self.objective is None or self.bound is None:
            return None
        return abs(self.objective - self.bound) / max(1e-10, abs(self.objective))


class Solver(Protocol):
    """A back end. Packages are imported inside ``solve``, so that listing solvers stays cheap."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def solve(
        self, form: StandardForm, options: SolverOptions = SolverOptions(), warm_start: FloatArray | None = None
    ) -> SolverResult:
        """Minimise the form. Never raises for a program it cannot finish: see :class:`Termination`.

        Raises :class:`~bloxopt.errors.SolverNotInstalledError` if its package is missing and
        :class:`~bloxopt.errors.SolverError` for a MIP given to an LP-only solver.
        """
        ...


class IncrementalSolver(Solver, Protocol):
    """A back end with the capability ``incremental``: it also takes the answer to a similar program to begin from.

    One that does not get anywhere from there begins anew, and says so by ``resumed`` and ``message``.
    """

    def solve(
        self,
        form: StandardForm,
        options: SolverOptions = SolverOptions(),
        warm_start: FloatArray | None = None,
        start: Start | None = None,
    ) -> SolverResult: ...
