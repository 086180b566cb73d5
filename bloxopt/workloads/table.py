"""Columns of a trace file, checked: every bad cell is an error that names the line, the field and the value."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bloxopt.errors import TraceError
from bloxopt.jobs import MAX_GPUS, MAX_SECONDS, BoolArray, FloatArray, IntArray
from bloxopt.workloads.files import TraceFile

TextArray = NDArray[np.object_]

SECONDS = "a finite number of seconds >= 0"
POSITIVE_SECONDS = "a finite number of seconds > 0"
STEPS = "a finite number of steps > 0"
POSITIVE = "a finite number > 0"
NOT_NEGATIVE = "a finite number >= 0"
GPUS = f"a whole number of GPUs from 1 to {MAX_GPUS}"

LARGEST = 1e18
"""Largest number in a trace but for times, which end at ``MAX_SECONDS``: products of two stay finite."""

_MISSING = ("", None)


@dataclass(frozen=True)
class Table:
    """Named columns of cells as they stand in a file (text, or typed values from Parquet).

    ``rows`` is the place of each row for messages: a line number, or ``row n`` where there are no lines.
    """

    path: Path
    columns: dict[str, Sequence[Any]]
    rows: Sequence[int]
    place: str = ""

    @classmethod
    def from_text(
        cls,
        file: TraceFile,
        *,
        delimiter: str = ",",
        names: Sequence[str] | None = None,
        required: Sequence[str] = (),
    ) -> Table:
        """Split a delimited text; ``names`` are the columns of a file without a header.

        Blank lines hold no job and are passed over; every other line must have one field per column.
        Raises :class:`~bloxopt.errors.TraceError` on a wrong number of fields, broken quotes, a
        repeated or missing (``required``) column, or when no row is left.
        """
        # Tab-separated traces hold shell commands: quotes are ordinary characters there.
        quoting: Literal[0, 3] = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
        lines_of_text = io.StringIO(file.text, newline="")
        reader = csv.reader(lines_of_text, delimiter=delimiter, quoting=quoting, strict=True)
        records: list[list[str]] = []
        lines: list[int] = []
        try:
            for record in reader:
                if record:
                    records.append(record)
                    lines.append(reader.line_num)
        except csv.Error as error:
            raise TraceError(f"{file.path}:{reader.line_num}: cannot be read as delimited text: {error}") from error
        if names is None:
            names = [name.strip() for name in records.pop(0)]
            header_line = lines.pop(0)
            cls._check_header(f"{file.path}:{header_line}", names, required)
        table = cls(file.path, {}, lines)
        if not records:
            raise TraceError(f"{file.path}: has a header but no jobs: a trace needs at least one job")
        counts = np.fromiter(map(len, records), np.int64, len(records))
        wrong = counts != len(names)
        if np.any(wrong):
            first = int(np.argmax(wrong))
            raise TraceError(
                f"{table.where(first)}: {counts[first]} fields instead of {len(names)} ({', '.join(names)})"
                + _others(int(wrong.sum()))
            )
        table.columns.update(zip(names, zip(*records, strict=True), strict=True))
        return table

    @staticmethod
    def _check_header(where: str, names: Sequence[str], required: Sequence[str]) -> None:
        for name in names:
            if names.count(name) > 1:
                raise TraceError(f"{where}: column {name!r} appears twice in the header")
        missing = [name for name in required if name not in names]
        if missing:
            raise TraceError(
                f"{where}: column {missing[0]!r} is missing; needed are {', '.join(required)}, found {', '.join(names)}"
            )

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, row: int) -> str:
        """``file:line`` of a row."""
        return f"{self.path}:{self.place}{self.rows[row]}"

    def fail(self, bad: BoolArray, field: str, wanted: str) -> None:
        """Raise for the first row marked ``bad``, saying how many there are; nothing if there is none."""
        if not np.any(bad):
            return
        first = int(np.argmax(bad))
        value = self.columns[field][first] if field in self.columns else None
        raise TraceError(f"{self.where(first)}: {field} is {_shown(value)}, must be {wanted}{_others(int(bad.sum()))}")

    def missing(self, field: str) -> BoolArray:
        """Which rows have no value in ``field``; all where the column is absent."""
        cells = self.columns.get(field)
        if cells is None:
            return np.ones(len(self), np.bool_)
        return np.fromiter((cell in _MISSING or cell != cell for cell in cells), np.bool_, len(self))

    def numbers(
        self,
        field: str,
        wanted: str,
        *,
        strict: bool = False,
        low: float = 0.0,
        high: float = LARGEST,
        default: float | None = None,
    ) -> FloatArray:
        """A column as finite floats >= ``low`` (> ``low`` if ``strict``); ``default`` fills empty cells."""
        values, readable = _floats(self.columns.get(field, [None] * len(self)))
        good = readable & np.isfinite(values) & ((values > low) if strict else (values >= low))
        if default is not None:
            missing = self.missing(field)
            values[missing] = default
            good |= missing
        self.fail(~good, field, wanted)
        self.fail((values > high) & np.isfinite(values), field, f"at most {high:g}")
        return values

    def seconds(self, field: str, *, strict: bool = False, default: float | None = None) -> FloatArray:
        """A column as times or durations (s) from 0, or above 0 if ``strict``, to ``MAX_SECONDS``."""
        wanted = POSITIVE_SECONDS if strict else SECONDS
        return self.numbers(field, wanted, strict=strict, high=MAX_SECONDS, default=default)

    def whole_numbers(self, field: str, wanted: str = GPUS, default: IntArray | None = None) -> IntArray:
        """A column as whole numbers from 1 to ``MAX_GPUS``; rows of ``default`` fill empty cells."""
        values, readable = _floats(self.columns.get(field, [None] * len(self)))
        if default is not None:
            missing = self.missing(field)
            values[missing] = default[missing]
            readable |= missing
        with np.errstate(invalid="ignore"):
            whole = readable & (values >= 1) & (values <= MAX_GPUS) & (values == np.floor(values))
        self.fail(~whole, field, wanted)
        return values.astype(np.int64)

    def text(self, field: str, default: str | None = None) -> TextArray:
        """A column as non-empty printable text; ``default`` fills empty cells."""
        cells = [_as_text(cell) for cell in self.columns.get(field, [None] * len(self))]
        if default is not None:
            cells = [cell or default for cell in cells]
        bad = np.fromiter((not cell or not cell.isprintable() for cell in cells), np.bool_, len(self))
        self.fail(bad, field, "non-empty printable text")
        return np.array(cells, dtype=object)

    def free_text(self, field: str) -> TextArray:
        """A column as it stands, empty cells included."""
        return np.array([_as_text(cell) for cell in self.columns[field]], dtype=object)

    def identifiers(self, field: str = "job_id") -> TextArray:
        """A text column whose values are unique."""
        values = self.text(field)
        first: dict[str, int] = {}
        repeated = np.fromiter((first.setdefault(v, i) != i for i, v in enumerate(values)), np.bool_, len(self))
        if np.any(repeated):
            row = int(np.argmax(repeated))
            raise TraceError(
                f"{self.where(row)}: {field} {values[row]!r} appears twice, first in "
                f"{self.place or 'line '}{self.rows[first[values[row]]]}: job ids must be unique"
                + _others(int(repeated.sum()))
            )
        return values

    def row_numbers(self) -> TextArray:
        """Ids ``0``, ``1``, … by row, for formats whose jobs have none."""
        return np.array([str(row) for row in range(len(self))], dtype=object)


def _floats(cells: Sequence[Any]) -> tuple[FloatArray, BoolArray]:
    """Cells as floats and which of them could be read; the others are NaN."""
    count = len(cells)
    try:
        # float() alone would take 1_000 for a number.
        if not any(isinstance(cell, bool) or (isinstance(cell, str) and "_" in cell) for cell in cells):
            return np.fromiter(map(float, cells), np.float64, count), np.ones(count, np.bool_)
    except (TypeError, ValueError, OverflowError):
        pass
    values = np.fromiter(map(_float, cells), np.float64, count)
    return values, ~np.isnan(values)


def _float(cell: Any) -> float:
    try:
        return math.nan if isinstance(cell, bool) or (isinstance(cell, str) and "_" in cell) else float(cell)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _as_text(cell: Any) -> str:
    return "" if cell in _MISSING or cell != cell else str(cell)


def _shown(value: Any) -> str:
    text = "missing" if value in _MISSING else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _others(count: int) -> str:
    """How many rows besides the one that the message names."""
    return "" if count == 1 else f" ({count} rows are like this)"
