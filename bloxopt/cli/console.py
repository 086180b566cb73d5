"""What the commands print: tables and JSON on stdout, progress and notes on stderr."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from rich import box
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
    left_out: list[str] = []
    table = _table(rows, names, set(numeric))
    if _is_terminal() and at_least is not None:
        unbounded, width = Console(width=_PIPED_WIDTH), Console().width
        while len(names) > at_least and unbounded.measure(table).maximum > width:
            left_out.insert(0, names.pop())
            table = _table(rows, names, set(numeric))
    _print(table, title)
    return left_out


def _table(rows: Sequence[Mapping[str, Any]], names: Sequence[str], right: set[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD if _is_terminal() else None, pad_edge=False)
    for name in names:
        cells = [_cell(row.get(name)) for row in rows]
        heading = name.replace("_", " ")
        if _is_terminal():
            # On several lines, so that a long heading does not widen a column of short numbers.
            heading = "\n".join(textwrap.wrap(heading, max([10, *map(len, cells)]), break_long_words=False))
        table.add_column(heading, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in names))
    return table


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], numeric: Iterable[str] = ()) -> Table:
    """Rows as a table that is not printed yet."""
    return _table(rows, columns, set(numeric))


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
        table.add_row(name, value)
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
        return "; ".join(str(entry) for entry in value)
    return str(value)


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
