"""What the commands print: tables and JSON on stdout, progress and notes on stderr."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from rich.tree import Tree

    from bloxopt.simulation.simulate import ProgressUpdate

_PIPED_WIDTH = 10_000
"""A pipe has no width: lines are as long as their content."""


class Advance(Protocol):
    """Moves a progress bar to ``done`` of ``total`` and shows a note beside it."""

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


def note(message: str) -> None:
    """A message for people, on stderr."""
    sys.stdout.flush()
    print(message, file=sys.stderr)


def print_json(document: Any) -> None:
    """Strictly valid JSON on stdout."""
    from bloxopt.experiments.files import json_text

    sys.stdout.write(json_text(document))


def print_table(
    rows: Sequence[Mapping[str, Any]],
    title: str = "",
    columns: Iterable[str] | None = None,
    numeric: Iterable[str] = (),
    at_least: int | None = None,
) -> list[str]:
    """Rows as a table; ``numeric`` columns are aligned right.

    Nothing is cut off when stdout is not a terminal. On a terminal that is too narrow cells are
    folded; or, given ``at_least``, columns are left out from the end down to that many. Returns those left out.
    """
    names = list(columns) if columns is not None else list(rows[0]) if rows else []
    right = set(numeric)
    if not _is_terminal():
        if title:
            print(title)
        sys.stdout.writelines(f"{line}\n" for line in _lines(rows, names, right))
        return []
    kept = names if at_least is None else _fitting(rows, names, at_least, Console().width)
    _print(_table(rows, kept, right), title)
    return names[len(kept) :]


def _fitting(rows: Sequence[Mapping[str, Any]], names: list[str], at_least: int, width: int) -> list[str]:
    """The columns, less the last ones for which there is no room."""
    # A blank, a line and a blank between columns, and a blank at each edge.
    ends = list(accumulate(_width(rows, name) + 3 for name in names))
    return names[: max(sum(end - 1 <= width for end in ends), at_least)]


def _lines(rows: Sequence[Mapping[str, Any]], names: Sequence[str], right: set[str]) -> Iterator[str]:
    """Rows one a line, in columns two blanks apart, without blanks at their ends."""
    columns = []
    for name in names:
        texts = [name.replace("_", " "), *(" ".join(_cell(row.get(name)).split("\n")) for row in rows)]
        widths = list(map(cell_len, texts))
        most = max(widths)
        blanks = [" " * (most - width) for width in widths]
        columns.append([b + t if name in right else t + b for t, b in zip(texts, blanks, strict=True)])
    return ("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _width(rows: Sequence[Mapping[str, Any]], name: str) -> int:
    """Of a column on a terminal: its widest cell, or line of its heading."""
    cells = [cell_len(_cell(row.get(name))) for row in rows]
    return max([*cells, *map(len, _heading(name, max([10, *cells])))])


def _heading(name: str, width: int) -> list[str]:
    """On several lines, so that a long heading does not widen a column of short numbers."""
    return textwrap.wrap(name.replace("_", " "), width, break_long_words=False)


def _table(rows: Sequence[Mapping[str, Any]], names: Sequence[str], right: set[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD if _is_terminal() else None, pad_edge=False)
    for name in names:
        cells = [_cell(row.get(name)) for row in rows]
        heading = "\n".join(_heading(name, max([10, *map(len, cells)]))) if _is_terminal() else name.replace("_", " ")
        table.add_column(heading, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in names))
    return table


def lines_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], numeric: Iterable[str], width: int) -> Table:
    """Rows as a table of one line each, not printed yet, with as many of the first columns as fit into ``width``."""
    table = _table(rows, _fitting(rows, list(columns), 1, width), set(numeric))
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    return table


def print_pairs(pairs: Iterable[tuple[str, str]], title: str = "") -> None:
    """Two columns without a heading: a name and its value."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in pairs:
        table.add_row(name, value)
    _print(table, title)


def print_facts(pairs: Iterable[tuple[str, str]], title: str = "") -> None:
    """Two columns without a heading: a name and a sentence about it."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, plain(value))
    _print(table, title)


def print_tree(tree: Tree) -> None:
    """A tree; in a pipe too, drawn with lines."""
    _print(tree, "")


@contextmanager
def progress_bar(what: str, unit: str) -> Iterator[Advance]:
    """A bar on stderr while that is a terminal, nothing otherwise."""
    if not sys.stderr.isatty():
        yield lambda done, total, note="": None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=None, note="")
        yield lambda done, total, note="": bar.update(task, completed=done, total=total, note=note)


@contextmanager
def simulation_progress() -> Iterator[Any]:
    """The ``progress`` callback of a simulation, shown as a bar over finished jobs."""
    with progress_bar("simulating", "jobs finished") as advance:

        def update(state: ProgressUpdate) -> None:
            advance(state.finished_jobs, state.total_jobs, f"{state.now / 3600:,.1f} h simulated")

        yield update


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return plain("; ".join(str(entry) for entry in value))
    return plain(str(value))


def plain(text: str) -> str:
    """A text that no terminal obeys: characters that are not shown are written out, as ``\\x1b``; lines stay."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode() for each in text
    )


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _print(table: Table | Tree, title: str) -> None:
    """Fitted to a terminal; in a pipe every row is one line, without blanks at its end."""
    if title:
        print(title)
    if _is_terminal():
        Console(highlight=False, markup=False).print(table)
        return
    console = Console(file=sys.stdout, width=_PIPED_WIDTH, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(table)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())
