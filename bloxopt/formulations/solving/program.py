"""The program under construction: columns and rows are added by blocks, then compiled once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csc_array

from bloxopt.errors import FormulationError
from bloxopt.formulations.solving.affine import Affine, Labels
from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class ColumnFamily:
    """Columns ``start`` … ``stop`` - 1 of a program that the block ``name`` added."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class RowFamily:
    """Rows ``start`` … ``stop`` - 1 of a program, added under one name, with a label per row."""

    name: str
    start: int
    stop: int
    labels: Labels | None

    def row_labels(self) -> list[str]:
        return self._row_labels

    @cached_property
    def _row_labels(self) -> list[str]:
        if self.labels is None:
            return [str(k) for k in range(self.stop - self.start)]
        return [str(label) for label in self.labels()]


class Program:
    """``maximise utility`` over the columns of a space (time shares in [0, 1]) and what blocks add.

    Rows carry the name of the block that added them (``family``), so that duals, slacks and conflicts can
    be reported by block. Everything is vectorised: a block adds all its rows in one call.
    """

    def __init__(self, space: AllocationSpace) -> None:
        self.space = space
        self.block = "program"
        """Name that rows are filed under unless ``family`` says otherwise; set while a block builds."""
        self.families: list[RowFamily] = []
        self.own_columns: list[ColumnFamily] = []
        """Columns that blocks added, behind those of the space."""
        self._lower: list[FloatArray] = [np.zeros(space.num_columns)]
        self._upper: list[FloatArray] = [np.ones(space.num_columns)]
        self._integer: list[BoolArray] = [np.zeros(space.num_columns, dtype=bool)]
        self.num_columns = space.num_columns
        self.num_rows = 0
        self.stage = 0
        """Of an objective solved in stages, which one: answers are sought among those of the same."""
        self.deferred: IntArray = np.zeros(0, dtype=np.int64)
        """Columns that are many and need not be there for the program to be feasible: see ``sifting``."""
        self._entries: list[tuple[IntArray, IntArray, FloatArray]] = []
        self._row_bounds: list[tuple[FloatArray, FloatArray]] = []

    def copy(self) -> Program:
        """An independent program with the same content, to add another objective to."""
        twin = copy.copy(self)
        for name in ("families", "own_columns", "_lower", "_upper", "_entries", "_row_bounds"):
            setattr(twin, name, list(getattr(self, name)))
        twin._integer = [part.copy() for part in self._integer]
        return twin

    @property
    def is_mip(self) -> bool:
        """True if some column must be integer."""
        return any(bool(part.any()) for part in self._integer)

    def unique_family(self, name: str) -> str:
        """``name``, or ``name#2`` … if rows are already filed under it."""
        taken = {family.name for family in self.families}
        candidate, number = name, 2
        while candidate in taken:
            candidate, number = f"{name}#{number}", number + 1
        return candidate

    def add_columns(
        self,
        count: int = 1,
        lower: float | FloatArray = 0.0,
        upper: float | FloatArray = np.inf,
        integer: bool = False,
    ) -> IntArray:
        """Add ``count`` columns of a block's own; returns their positions."""
        self._lower.append(np.broadcast_to(np.asarray(lower, np.float64), count))
        self._upper.append(np.broadcast_to(np.asarray(upper, np.float64), count))
        self._integer.append(np.full(count, integer))
        if np.any(~(self._lower[-1] <= self._upper[-1])):
            raise FormulationError(f"{self.block}: columns need lower <= upper bounds that are numbers")
        start = self.num_columns
        self.num_columns += count
        self.own_columns.append(ColumnFamily(self.block, start, self.num_columns))
        return np.arange(start, start + count)

    def add_rows(
        self,
        expression: Affine,
        lower: float | FloatArray = -np.inf,
        upper: float | FloatArray = np.inf,
        labels: Labels | Sequence[str] | None = None,
        family: str | None = None,
    ) -> None:
        """Add ``lower ≤ expression ≤ upper``, one row per row of the expression.

        ``labels`` name the rows in reports (default: the expression's own).
        """
        name = family or self.block
        count = expression.num_rows
        low = np.broadcast_to(np.asarray(lower, np.float64), count) - expression.constant
        high = np.broadcast_to(np.asarray(upper, np.float64), count) - expression.constant
        if np.any(~(low <= high)):
            bad = int(np.flatnonzero(~(low <= high))[0])
            raise FormulationError(
                f"{name}: row {bad} has bounds {low[bad]} and {high[bad]}: they must be numbers with lower <= upper"
            )
        if len(expression.column) and not 0 <= expression.column.min() <= expression.column.max() < self.num_columns:
            raise FormulationError(f"{name}: a row refers to a column outside 0 … {self.num_columns - 1}")
        named: Labels | None
        if labels is None or callable(labels):
            named = labels or expression.labels
        else:
            names = list(labels)
            named = lambda: names  # noqa: E731
        self.families.append(RowFamily(name, self.num_rows, self.num_rows + count, named))
        self._entries.append((expression.row + self.num_rows, expression.column, expression.value))
        self._row_bounds.append((low, high))
        self.num_rows += count

    def make_integer(self) -> None:
        """Every time share becomes 0 or 1: a job has a configuration for the whole round or not at all."""
        self._integer[0] = np.ones(self.space.num_columns, dtype=bool)

    def shares_as_in(self, other: Program) -> None:
        """Time shares are whole where they are in ``other``."""
        self._integer[0] = other._integer[0]

    def restrict(self, columns: IntArray, lower: FloatArray | float, upper: FloatArray | float) -> None:
        """Tighten the bounds of time shares of the space to [lower, upper]."""
        self._lower[0] = self._lower[0].copy()
        self._upper[0] = self._upper[0].copy()
        self._lower[0][columns] = np.maximum(self._lower[0][columns], lower)
        self._upper[0][columns] = np.minimum(self._upper[0][columns], upper)

    def raise_upper(self, row: int, amount: float) -> None:
        """Give one row ``amount`` more room above."""
        for part, (lower, upper) in enumerate(self._row_bounds):
            if row < len(upper):
                raised = upper.copy()
                raised[row] += amount
                self._row_bounds[part] = lower, raised
                return
            row -= len(upper)

    def compile(self, utility: Affine) -> StandardForm:
        """The neutral form of ``maximise utility`` (one row): its objective is minimised, so ``-utility``."""
        form = self.compile_rows()
        cost = -sum_by(utility.column, utility.value, self.num_columns)
        return StandardForm(
            cost=cost.astype(np.float64),
            matrix=form.matrix,
            row_lower=form.row_lower,
            row_upper=form.row_upper,
            lower=form.lower,
            upper=form.upper,
            integer=form.integer,
            constant=-float(utility.constant.sum()),
        )

    def compile_rows(self) -> StandardForm:
        """The neutral form without an objective."""
        shape = (self.num_rows, self.num_columns)
        if self._entries:
            row = np.concatenate([part[0] for part in self._entries])
            column = np.concatenate([part[1] for part in self._entries])
            value = np.concatenate([part[2] for part in self._entries])
            matrix = csc_array((value, (row, column)), shape=shape)
            low = np.concatenate([part[0] for part in self._row_bounds])
            high = np.concatenate([part[1] for part in self._row_bounds])
        else:
            matrix, low, high = csc_array(shape), np.zeros(0), np.zeros(0)
        return StandardForm(
            cost=np.zeros(self.num_columns),
            matrix=matrix,
            row_lower=low,
            row_upper=high,
            lower=np.concatenate(self._lower),
            upper=np.concatenate(self._upper),
            integer=np.concatenate(self._integer),
        )
