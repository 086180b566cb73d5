"""Small programs with known answers that every solver must agree on, after CVXPY's file of the same purpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csc_array

from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.solvers import Termination

INF = np.inf


def program(
    cost: Sequence[float],
    rows: Sequence[Sequence[float]] = (),
    row_lower: Sequence[float] | float = -INF,
    row_upper: Sequence[float] | float = INF,
    lower: Sequence[float] | float = 0.0,
    upper: Sequence[float] | float = INF,
    integer: Sequence[bool] | bool = False,
    constant: float = 0.0,
) -> StandardForm:
    """A StandardForm from plain lists; scalars count for every row or column."""
    n, m = len(cost), len(rows)
    return StandardForm(
        cost=np.array(cost, float),
        matrix=csc_array(np.array(rows, float).reshape(m, n)),
        row_lower=np.broadcast_to(np.array(row_lower, float), (m,)).copy(),
        row_upper=np.broadcast_to(np.array(row_upper, float), (m,)).copy(),
        lower=np.broadcast_to(np.array(lower, float), (n,)).copy(),
        upper=np.broadcast_to(np.array(upper, float), (n,)).copy(),
        integer=np.broadcast_to(np.array(integer, bool), (n,)).copy(),
        constant=constant,
    )


@dataclass(frozen=True)
class Case:
    """A program and what is known of its answer; ``None`` where the answer is not unique or not defined."""

    name: str
    form: StandardForm
    termination: Termination
    objective: float | None = None
    x: Sequence[float] | None = None
    row_duals: Sequence[float] | None = None
    needs: frozenset[str] = field(default_factory=frozenset)
    """What besides LP or MIP the program asks of a solver: ``continuous`` columns in a MIP, ``unbounded`` integers."""

    def __str__(self) -> str:
        return self.name


def _optimal(name: str, form: StandardForm, objective: float, **known: Sequence[float] | frozenset[str]) -> Case:
    return Case(name, form, Termination.OPTIMAL, objective, **known)  # type: ignore[arg-type]


def _max_min_one_job() -> StandardForm:
    # One job, normalised throughputs 1, 0.5 and 0.2 on three types, one GPU of each; columns x1 x2 x3 t.
    return program(
        cost=[0, 0, 0, -1],
        rows=[[1, 0.5, 0.2, -1], [1, 1, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]],
        row_lower=[0, -INF, -INF, -INF, -INF],
        row_upper=[INF, 1, 1, 1, 1],
        lower=[0, 0, 0, -INF],
        upper=[1, 1, 1, INF],
    )


LINEAR = [
    _optimal(
        "optimal",
        # max 3a + 5b: the Wyndor glass problem (Hillier and Lieberman); duals 0, 1.5, 1 by its textbook.
        program([-3, -5], [[1, 0], [0, 2], [3, 2]], row_upper=[4, 12, 18]),
        -36.0,
        x=[2, 6],
        row_duals=[0, -1.5, -1],
    ),
    _optimal(
        "constant in the objective",
        program([-3, -5], [[1, 0], [0, 2], [3, 2]], row_upper=[4, 12, 18], constant=100.0),
        64.0,
        x=[2, 6],
    ),
    _optimal(
        "lower sides",
        # The diet problem in small: min 2a + 3b, a + b ≥ 4, a + 3b ≥ 6.
        program([2, 3], [[1, 1], [1, 3]], row_lower=[4, 6]),
        9.0,
        x=[3, 1],
        row_duals=[1.5, 0.5],
    ),
    _optimal(
        "rows with two sides",
        program([1, -1], [[1, 1], [1, -1]], row_lower=[1, -2], row_upper=[3, 2]),
        -2.0,
        row_duals=[0, 1],
    ),
    _optimal(
        "degenerate",
        # Beale's cycling example: Dantzig's rule without safeguards loops at the origin.
        program(
            [-0.75, 150, -0.02, 6],
            [[0.25, -60, -0.04, 9], [0.5, -90, -0.02, 3], [0, 0, 1, 0]],
            row_upper=[0, 0, 1],
        ),
        -0.05,
        x=[0.04, 0, 1, 0],
    ),
    _optimal(
        "many optima",
        program([-1, -1, -1], [[1, 1, 1]], row_upper=[2], upper=1.0),
        -2.0,
        row_duals=[-1],
    ),
    _optimal(
        "equality rows",
        program([1, 2, 3], [[1, 1, 1], [1, -1, 0]], row_lower=[6, 1], row_upper=[6, 1]),
        8.5,
        x=[3.5, 2.5, 0],
        row_duals=[1.5, -0.5],
    ),
    _optimal(
        "free columns",
        program([1, 1], [[1, 2], [2, 1]], row_lower=[-3, -3], lower=-INF),
        -2.0,
        x=[-1, -1],
        row_duals=[1 / 3, 1 / 3],
    ),
    _optimal(
        "negative lower bounds",
        program([1, 1], [[1, -1]], row_lower=[-1], row_upper=[1], lower=[-5, -7], upper=[-2, 3]),
        -11.0,
        x=[-5, -6],
    ),
    _optimal(
        "fixed columns",
        program([1, -2, 1], [[1, 1, 1]], row_upper=[10], lower=[3, 0, 2], upper=[3, INF, 2]),
        -5.0,
        x=[3, 5, 2],
        row_duals=[-2],
    ),
    _optimal("one job", _max_min_one_job(), -1.0, x=[1, 0, 0, 1]),
    _optimal("zero cost", program([0, 0], [[1, 1]], row_lower=[1], row_upper=[2]), 0.0, row_duals=[0]),
    _optimal(
        "row without entries and row without sides",
        program([-1, -1], [[0, 0], [1, 1], [1, 3]], row_lower=[-1, -INF, -INF], row_upper=[1, 5, INF]),
        -5.0,
        row_duals=[0, -1, 0],
    ),
    _optimal(
        "column without entries",
        program([-1, 1, 0], [[1, 0, 0]], row_upper=[5], lower=[0, -4, -1], upper=[INF, 4, 1]),
        -9.0,
        row_duals=[-1],
    ),
    _optimal(
        "huge coefficients",
        # A row of steps per hour and one of bytes: 1e9 beside 1.
        program([-3, -5], [[1e9, 0], [0, 2e9], [3e9, 2e9]], row_upper=[4e9, 12e9, 18e9]),
        -36.0,
        x=[2, 6],
        row_duals=[0, -1.5e-9, -1e-9],
    ),
    _optimal(
        "tiny coefficients",
        program([-3e-9, -5e-9], [[1e-10, 0], [0, 2e-10], [3e-10, 2e-10]], row_upper=[4e-10, 12e-10, 18e-10]),
        -36e-9,
        x=[2, 6],
        row_duals=[0, -15, -10],
    ),
    _optimal(
        "columns in different units",
        program([-3e6, -5e-6], [[1e6, 0], [0, 2e-6], [3e6, 2e-6]], row_upper=[4, 12, 18]),
        -36.0,
        x=[2e-6, 6e6],
        row_duals=[0, -1.5, -1],
    ),
    _optimal("bounds beyond 1e20 are none", program([1], [[1]], row_lower=[2], row_upper=[1e30], upper=1e25), 2.0),
    _optimal("no columns", program([], [[], []], row_lower=[-1, 0], row_upper=[1, INF], constant=7.0), 7.0, x=[]),
    _optimal("no rows", program([1, -1, 0], lower=[-2, 0, 3], upper=[5, 4, 9], constant=1.0), -5.0, x=[-2, 4, 3]),
    _optimal("nothing at all", program([]), 0.0, x=[]),
    Case("infeasible rows", program([1, 1], [[1, 1], [1, 1]], [3, -INF], [INF, 2]), Termination.INFEASIBLE),
    Case("infeasible by bounds", program([-1, -1], [[1, 1]], row_lower=[3], upper=1.0), Termination.INFEASIBLE),
    Case("infeasible equalities", program([0, 0], [[1, 1], [2, 2]], [1, 3], [1, 3], -INF), Termination.INFEASIBLE),
    Case("crossed column bounds", program([1, 1], [[1, 1]], [0], lower=[2, 0], upper=[1, 1]), Termination.INFEASIBLE),
    Case("crossed row bounds", program([1, 1], [[1, 1]], [2], [1]), Termination.INFEASIBLE),
    Case("row without entries cannot be 1", program([1, 1], [[0, 0], [1, 1]], [1, 0]), Termination.INFEASIBLE),
    Case("no columns, infeasible", program([], [[]], row_lower=[1]), Termination.INFEASIBLE),
    Case(
        "infeasible with a ray",
        program([-1, 0, 0], [[0, 1, 1], [0, 1, 1]], [3, -INF], [INF, 2]),
        Termination.INFEASIBLE,
    ),
    Case("unbounded", program([-1, -1], [[1, -1]], row_upper=[1]), Termination.UNBOUNDED),
    Case("unbounded free column", program([1, 0], [[1, 1]], row_upper=[4], lower=[-INF, 0]), Termination.UNBOUNDED),
    Case("unbounded without rows", program([1, -1]), Termination.UNBOUNDED),
]

_KNAPSACK_VALUES, _KNAPSACK_WEIGHTS = [10, 13, 7, 8, 2], [5, 7, 4, 3, 1]
_CONTINUOUS, _UNBOUNDED = frozenset({"continuous"}), frozenset({"unbounded"})

INTEGER = [
    _optimal(
        "knapsack",
        # 10 + 8 + 2 weighs 9, 13 + 8 weighs 10 and is worth 21: the best of the 32.
        program([-v for v in _KNAPSACK_VALUES], [_KNAPSACK_WEIGHTS], row_upper=[10], upper=1.0, integer=True),
        -21.0,
        x=[0, 1, 0, 1, 0],
    ),
    _optimal(
        "rounding is not optimal",
        # The LP optimum (2.25, 3.75) rounds to points that are infeasible or worse.
        program([-5, -8], [[1, 1], [5, 9]], row_upper=[6, 45], integer=True),
        -40.0,
        x=[0, 5],
    ),
    _optimal(
        "fractional coefficients",
        program([-0.7, -0.31], [[0.3, 0.1]], row_upper=[0.95], upper=10.0, integer=True),
        -2.79,
        x=[0, 9],
    ),
    _optimal(
        "negative integers",
        program([1, 1], [[2, 1], [1, 3]], row_lower=[-7.5, -8.5], lower=-10.0, upper=10.0, integer=True),
        -4.0,
    ),
    _optimal(
        "fixed integers", program([1, -1], [[1, 1]], row_upper=[4.5], lower=[2, 0], upper=[2, 9], integer=True), 0.0
    ),
    _optimal(
        "integer bounds are rounded inwards",
        program([-1], [[1]], row_upper=[9], lower=0.4, upper=2.7, integer=True),
        -2.0,
    ),
    _optimal("integers without rows", program([-1, 1], lower=-1.5, upper=2.5, integer=True), -3.0, x=[2, -1]),
    _optimal("bounds implied by a row", program([-1, -2], [[1, 1]], row_upper=[7.5], integer=True), -14.0, x=[0, 7]),
    _optimal(
        "equality knapsack",
        program([1, 1, 1], [[3, 5, 7]], row_lower=[22], row_upper=[22], upper=9.0, integer=True),
        4.0,
    ),
    _optimal(
        "continuous columns",
        # Fixed charge: open (binary, cost 3) to use up to 5 units that earn 1 each; and 1.5 units must flow.
        program(
            [3, -1, 10],
            [[-5, 1, 0], [0, 1, 1]],
            row_lower=[-INF, 1.5],
            row_upper=[0, INF],
            upper=[1, INF, INF],
            integer=[True, False, False],
        ),
        -2.0,
        x=[1, 5, 0],
        needs=_CONTINUOUS,
    ),
    Case("infeasible in integers only", program([1], [[2]], [1], [1], upper=5.0, integer=True), Termination.INFEASIBLE),
    Case("infeasible integers", program([1, 1], [[1, 1]], [3], upper=1.0, integer=True), Termination.INFEASIBLE),
    Case(
        "no integer between bounds",
        program([1], [[1]], [0], lower=0.2, upper=0.8, integer=True),
        Termination.INFEASIBLE,
    ),
    Case(
        "unbounded integers",
        program([-1, -1], [[1, -1]], row_upper=[1.5], integer=True),
        Termination.UNBOUNDED,
        needs=_UNBOUNDED,
    ),
    Case(
        "infeasible in integers with a ray",
        program([-1, 0], [[0, 2]], [1], [1], integer=True),
        Termination.INFEASIBLE,
        needs=_UNBOUNDED,
    ),
    Case(
        "unbounded continuous column",
        program([-1, 1], [[1, -1]], row_lower=[0], integer=[False, True], upper=[INF, 4]),
        Termination.UNBOUNDED,
        needs=_CONTINUOUS,
    ),
]
