"""What one allocation leaves for the next: the answers to its programs, carried over to the rows and columns of today.

Between two rounds most jobs stay. A program is compiled anew in each (vectorised, a few per cent of a solve), but the
solver need not begin anew: the last answer, its prices and its basis are looked up row by row and column by column by
what they stand for: a job's configuration, a block's row for a job. Whoever calls ``Policy.allocate`` owns the
:class:`Resolver`; policies hold no state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bloxopt.formulations.program import Program
from bloxopt.formulations.standard_form import StandardForm
from bloxopt.jobs import FloatArray, IntArray
from bloxopt.solvers.base import Basis, SolverResult, Start, Status

WORTH_RESUMING = 2_000
"""Entries of a program from which beginning with the last answer pays; smaller ones take milliseconds anyhow."""

_KNOWN = 0.5
"""Part of the space's columns that must have been in the program before."""


@dataclass(frozen=True, eq=False)
class _Answered:
    """A program and its answer, by what its rows and columns stand for."""

    job_ids: list[str]
    column_keys: IntArray
    own_columns: tuple[tuple[str, int, int], ...]
    rows: tuple[tuple[int, list[str]], ...]
    x: FloatArray
    row_duals: FloatArray
    basis: Basis | None

    @classmethod
    def of(cls, program: Program, result: SolverResult) -> _Answered | None:
        """None for an answer that another program can do nothing with."""
        prices = result.multipliers if result.row_duals is None else result.row_duals
        if result.x is None or (prices is None and not program.is_mip):
            return None
        return cls(
            list(program.space.job_ids),
            _column_keys(program, np.arange(program.space.num_jobs)),
            tuple((family.name, family.start, family.stop) for family in program.own_columns),
            tuple((family.start, family.row_labels()) for family in program.families),
            result.x,
            np.zeros(program.num_rows) if prices is None else prices,
            result.basis,
        )


@dataclass(eq=False)
class Resolver:
    """The answers of the last allocation; one belongs to one sequence of allocations over the same jobs.

    Pass it to :meth:`bloxopt.formulations.policy.Policy.allocate` again and again. ``least_entries`` is the size of a
    program from which the solver is given a start.
    """

    least_entries: int = WORTH_RESUMING
    _answers: dict[tuple[str, ...], list[_Answered]] = field(default_factory=dict)
    _used: bool = False

    def begin(self) -> Resumption:
        """For one allocation."""
        return Resumption(self)

    def forget(self) -> None:
        """Let the next allocation begin anew."""
        self._answers, self._used = {}, False


class Resumption:
    """One allocation's use of a :class:`Resolver`.

    ``rebuild`` says why its first program was solved without the last round's answer, "" if it was not, None if there
    was no program. ``resumed`` counts the solves that began from an earlier answer.
    """

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._answers: dict[tuple[str, ...], list[_Answered]] = {}
        self._refused: set[tuple[str, ...]] = set()
        self.rebuild: str | None = None
        self.resumed = 0

    def start(self, program: Program, form: StandardForm, incremental: bool, solver: str) -> Start | None:
        """What the solver may begin from: the answer to the last such program of this allocation, or the one before."""
        found = self._start(program, form, incremental, solver)
        if isinstance(found, Start):
            return found
        self._note(found)
        return None

    def _start(self, program: Program, form: StandardForm, incremental: bool, solver: str) -> Start | str:
        if form.matrix.nnz < self._resolver.least_entries:
            return f"fewer than {self._resolver.least_entries} entries"
        if not incremental:
            return f"solver {solver!r} takes no start"
        shape = _shape(program)
        if shape in self._refused:
            return "an earlier program of the round did not get anywhere from its start"
        here, before = self._answers.get(shape, []), self._resolver._answers.get(shape, [])
        # Of an allocation in stages the same stage is nearest, then the stage just before.
        near = [*before[len(here) : len(here) + 1], *here[-1:], *before[-1:]]
        if not near:
            if not self._resolver._used:
                return "first round"
            return "the blocks have changed" if self._resolver._answers else "the last round left no answer"
        return _carried_over(next((answer for answer in near if answer.basis is not None), near[0]), program)

    def keep(self, program: Program, form: StandardForm, result: SolverResult, started: bool) -> None:
        """Note an answer, for later programs of this allocation and for the next."""
        if started:
            self.resumed += result.resumed
            self._note("" if result.resumed else result.refusal or f"solver {result.solver!r} did not take the start")
            if not result.resumed:
                self._refused.add(_shape(program))
        if form.matrix.nnz < self._resolver.least_entries:
            return
        answered = _Answered.of(program, result)
        if answered is not None:
            self._answers.setdefault(_shape(program), []).append(answered)

    def sifted(self) -> None:
        """Note that a program's columns were offered to the solver bit by bit."""
        self._note("columns are sifted")

    def end(self) -> None:
        """Leave the answers for the next allocation."""
        self._resolver._answers, self._resolver._used = self._answers, True

    def _note(self, reason: str) -> None:
        if self.rebuild is None:
            self.rebuild = reason


def _shape(program: Program) -> tuple[str, ...]:
    """The blocks with rows or columns of their own: programs with the same are alike."""
    return (*(family.name for family in program.families), "", *(family.name for family in program.own_columns))


def _column_keys(program: Program, number: IntArray) -> IntArray:
    """One number per column of the space: (job, GPU count, GPU type, spread, kind of the partner).

    ``number`` (num_jobs,) is what each job counts as: rows of the table may be numbered anew between two rounds.
    """
    space = program.space
    key: IntArray = (number[space.job] << 42) | (space.num_gpus << 27) | (space.gpu_type << 21)
    return key | (space.spread << 20) | (space.partner + 1)


def _places(theirs: list[str], ours: list[str]) -> IntArray:
    """Where each of ours is among theirs, -1 for none."""
    place = {label: position for position, label in enumerate(theirs)}
    return np.array([place.get(label, -1) for label in ours], dtype=np.int64)


def _carried_over(before: _Answered, program: Program) -> Start | str:
    """The earlier answer in terms of a program of the same shape; a reason where it cannot be told."""
    theirs, ours = before.job_ids, list(program.space.job_ids)
    found = _places(theirs, ours)
    columns = np.full(program.num_columns, -1)
    order = np.argsort(before.column_keys, kind="stable")
    keys, mine = before.column_keys[order], _column_keys(program, found)
    at = np.minimum(np.searchsorted(keys, mine), len(keys) - 1)
    known = keys[at] == mine
    columns[: len(mine)] = np.where(known, order[at], -1)
    if known.sum() < _KNOWN * len(mine):
        return "most columns are new"
    for (name, start, stop), own in zip(before.own_columns, program.own_columns, strict=True):
        # Columns have no labels: while jobs come and go, only one that is alone is known to be the same as before.
        if stop - start != own.stop - own.start or (stop - start > 1 and theirs != ours):
            return f"{name} has columns of its own that have changed"
        columns[own.start : own.stop] = np.arange(start, stop)
    rows = np.full(program.num_rows, -1)
    for (first, labels), family in zip(before.rows, program.families, strict=True):
        wanted = family.row_labels()
        if labels != theirs or wanted != ours:
            # Most blocks have a row for each job: one look-up serves them all.
            theirs, ours = labels, wanted
            if len(set(theirs)) < len(theirs):
                return f"{family.name} has rows with equal labels"
            found = _places(theirs, ours)
        rows[family.start : family.stop] = np.where(found >= 0, first + found, -1)
    new_columns, new_rows = columns < 0, rows < 0
    basis = before.basis
    return Start(
        x=np.where(new_columns, 0.0, before.x[columns]),
        row_duals=np.where(new_rows, 0.0, before.row_duals[rows]),
        new_columns=new_columns,
        new_rows=new_rows,
        basis=None
        if basis is None
        else Basis(
            np.where(new_columns, Status.LOWER, basis.column[columns]).astype(np.int8),
            np.where(new_rows, Status.BASIC, basis.row[rows]).astype(np.int8),
        ),
    )
