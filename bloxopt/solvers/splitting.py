"""Columns of very many entries, split into copies that a simplex method factors in a fraction of the time.

The level of a max-min program stands in a row of every job. To factor a basis with such a column, each pivot walks
along all that is left of it: quadratic work. Copies of the column with a part of the rows each, and rows that keep
them equal, are the same program, whose basis is factored in linear time (Lustig, Mulvey and Carpenter, 1991, split
columns so for interior-point methods).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csc_array

from bloxopt.jobs import FloatArray, IntArray
from bloxopt.solvers.base import Basis, Status

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm

LONG = 256
"""Entries of a column from which it is split."""

_PART = 64


@dataclass(frozen=True, eq=False)
class Split:
    """A program with copies of its long columns: its own columns and rows come first, in order.

    ``copied`` (copies,) is the column that each copy behind them stands for; row ``m + k`` keeps copy k equal to it.
    """

    form: StandardForm
    copied: IntArray

    @classmethod
    def of(cls, form: StandardForm) -> Split:
        """The program itself, without copies, where no column is long."""
        matrix = form.matrix
        count = np.diff(matrix.indptr)
        long = np.flatnonzero(count >= LONG)
        if not len(long):
            return cls(form, np.zeros(0, dtype=np.int64))
        copies = (count[long] - 1) // _PART
        copied = np.repeat(long, copies)
        first = form.num_columns + np.cumsum(copies) - copies
        column = np.repeat(np.arange(form.num_columns), count)
        for start, stop, name in zip(matrix.indptr[long], matrix.indptr[long + 1], first, strict=True):
            part = np.arange(stop - start) // _PART
            column[start:stop] = np.where(part > 0, name + part - 1, column[start:stop])
        total, extra = len(copied), form.num_rows + np.arange(len(copied))
        entries = (
            np.concatenate([matrix.indices, extra, extra]),
            np.concatenate([column, copied, form.num_columns + np.arange(total)]),
        )
        value = np.concatenate([matrix.data, np.ones(total), np.full(total, -1.0)])
        shape = (form.num_rows + total, form.num_columns + total)
        split = replace(
            form,
            cost=np.append(form.cost, np.zeros(total)),
            matrix=csc_array((value, entries), shape=shape),
            row_lower=np.append(form.row_lower, np.zeros(total)),
            row_upper=np.append(form.row_upper, np.zeros(total)),
            lower=np.append(form.lower, np.full(total, -np.inf)),
            upper=np.append(form.upper, np.full(total, np.inf)),
            integer=np.append(form.integer, np.zeros(total, dtype=bool)),
        )
        return cls(split, copied)

    def basis(self, basis: Basis) -> Basis:
        """A basis of the program, in terms of the split one: copies are basic, what keeps them equal is not."""
        total = len(self.copied)
        return Basis(
            np.append(basis.column, np.full(total, Status.BASIC)).astype(np.int8),
            np.append(basis.row, np.full(total, Status.LOWER)).astype(np.int8),
        )

    def own(self, columns: FloatArray, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Values of columns and rows of the split program, less those of copies."""
        total = len(self.copied)
        return columns[: len(columns) - total], rows[: len(rows) - total]
