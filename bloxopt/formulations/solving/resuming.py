"""What one allocation leaves for the next: the answers to its programs, carried over to the rows and columns of today.

Between two rounds most jobs stay. A program is compiled anew in each (vectorised, a few per cent of a solve), but the
solver need not begin anew: the last answer, its prices and its basis are looked up row by row and column by column by
what they stand for: a job's configuration, a block's row for a job. Whoever calls ``Policy.allocate`` owns the
:class:`Resolver`; policies hold no state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray
from bloxopt.solvers.base import Basis, SolverResult, Start, Status

WORTH_RESUMING = 2_000
"""Entries of a program from which beginning with the last answer pays; smaller ones take milliseconds anyhow."""

_KNOWN = 0.5
"""Part of the space's columns that must have been in the program before."""

_Kind: TypeAlias = tuple[tuple[str, ...], int]


@dataclass(frozen=True, eq=False)
class _Columns:
    """The columns of a space by what they stand for, shared by all answers of an allocation.

    ``job`` (columns,) numbers ``job_ids`` in ascending order, ``start`` (jobs + 1,) delimits the columns of each;
    ``configuration`` (columns,) is one number for GPU count, GPU type, spread and kind of the partner.
    """

    job_ids: list[str]
    job: IntArray
    start: IntArray
    configuration: IntArray

    @classmethod
    def of(cls, space: AllocationSpace) -> _Columns:
        configuration: IntArray = (space.num_gpus << 27) | (space.gpu_type << 21) | (space.spread << 20)
        start = np.searchsorted(space.job, np.arange(space.num_jobs + 1))
        return cls(list(space.job_ids), space.job, start, configuration | (space.partner + 1))

    def among(self, theirs: _Columns, found: IntArray) -> IntArray:
        """Where each column is among ``theirs``, -1 for none; ``found`` (jobs,) is where each job is among theirs."""
        owner = found[self.job]
        place = theirs.start[owner] + np.arange(len(owner)) - self.start[self.job]
        # Most jobs have the same columns in the same order as before.
        place = np.where((owner >= 0) & (place < theirs.start[owner + 1]), place, -1)
        same = (place >= 0) & (theirs.configuration[place] == self.configuration)
        place[~same] = -1
        other = np.flatnonzero(~same & (owner >= 0))
        if len(other):
            keys = (theirs.job << 42) | theirs.configuration
            order = np.argsort(keys, kind="stable")
            wanted = (owner[other] << 42) | self.configuration[other]
            at = order[np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)]
            place[other] = np.where(keys[at] == wanted, at, -1)
        return place


@dataclass(frozen=True, eq=False)
class _Answered:
    """A program and its answer, by what its rows and columns stand for."""

    columns: _Columns
    own_columns: tuple[tuple[str, int, int], ...]
    rows: tuple[tuple[int, list[str]], ...]
    x: FloatArray
    row_duals: FloatArray
    basis: Basis | None

    @classmethod
    def of(cls, program: Program, columns: _Columns, result: SolverResult) -> _Answered | None:
        """None for an answer that another program can do nothing with."""
        prices = result.multipliers if result.row_duals is None else result.row_duals
        if result.x is None or (prices is None and not program.is_mip):
            return None
        return cls(
            columns,
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
    _answers: dict[_Kind, list[_Answered]] = field(default_factory=dict)
    _numbers: dict[str, float] = field(default_factory=dict)
    _used: bool = False

    def begin(self) -> Resumption:
        """For one allocation."""
        return Resumption(self)

    def forget(self) -> None:
        """Let the next allocation begin anew."""
        self._answers, self._numbers, self._used = {}, {}, False


class Resumption:
    """One allocation's use of a :class:`Resolver`.

    ``rebuild`` says why its first program was solved without the last round's answer, "" if it was not, None if there
    was no program. ``resumed`` counts the solves that began from an earlier answer.
    """

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._answers: dict[_Kind, list[_Answered]] = {}
        self._numbers: dict[str, float] = {}
        self._latest: dict[tuple[str, ...], list[_Answered]] = {}
        self._refused: set[_Kind] = set()
        self._columns: _Columns | None = None
        self._places = _Places()
        self._able = self._recalled = False
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
        self._able = True
        kind = _kind(program)
        here, before = self._answers.get(kind, []), self._resolver._answers.get(kind, [])
        # Of an allocation in steps the same one is nearest, then the one just before; of a search that begins where the
        # last one ended, the end.
        same = [] if self._recalled else before[len(here) : len(here) + 1]
        near = [*same, *here[:-2:-1], *before[::-1], *self._latest.get(kind[0], [])]
        if not near:
            if not self._resolver._used:
                return "first round"
            return "the blocks have changed" if self._resolver._answers else "the last round left no answer"
        nearest = next((answer for answer in near if answer.basis is not None), near[0])
        if nearest.basis is None and not self._resolver._used:
            # Within an allocation programs change more than from one to the next: too much for a point alone.
            return "first round"
        if kind in self._refused and (nearest.basis is None or nearest not in here):
            return "an earlier program of the round did not get anywhere from its start"
        return _carried_over(nearest, program, self._columns_of(program), self._places)

    def keep(self, program: Program, form: StandardForm, result: SolverResult, started: bool) -> None:
        """Note an answer, for later programs of this allocation and for the next."""
        if started:
            self.resumed += result.resumed
            self._note("" if result.resumed else result.refusal or f"solver {result.solver!r} did not take the start")
            if not result.resumed:
                self._refused.add(_kind(program))
        if form.matrix.nnz < self._resolver.least_entries:
            return
        answered = _Answered.of(program, self._columns_of(program), result)
        if answered is not None:
            kind = _kind(program)
            self._answers.setdefault(kind, []).append(answered)
            self._latest[kind[0]] = [answered]

    def recall(self, name: str) -> float | None:
        """Where a search of the last allocation ended; None if it remembered nothing of that name."""
        number = self._resolver._numbers.get(name)
        self._recalled |= number is not None
        return number

    def remember(self, name: str, number: float) -> None:
        """Keep a number for the next allocation, if programs like those of this one can begin from earlier answers."""
        if self._able:
            self._numbers[name] = number

    def sifted(self) -> None:
        """Note that a program's columns were offered to the solver bit by bit."""
        self._note("columns are sifted")

    def end(self) -> None:
        """Leave the answers for the next allocation."""
        self._resolver._answers, self._resolver._numbers, self._resolver._used = self._answers, self._numbers, True

    def _columns_of(self, program: Program) -> _Columns:
        if self._columns is None:
            self._columns = _Columns.of(program.space)
        return self._columns

    def _note(self, reason: str) -> None:
        if self.rebuild is None:
            self.rebuild = reason


def _kind(program: Program) -> _Kind:
    """The blocks with rows or columns of their own, and the stage: programs with the same are alike."""
    rows, columns = program.families, program.own_columns
    return (*(family.name for family in rows), "", *(family.name for family in columns)), program.stage


class _Places:
    """Where labels of now were among labels of before, looked up once for all blocks that have a row for each job."""

    def __init__(self) -> None:
        self._known: list[tuple[list[str], list[str], IntArray, bool]] = []

    def of(self, theirs: list[str], ours: list[str]) -> tuple[IntArray, bool]:
        """Where each of ours is among theirs, -1 for none; whether theirs are all different."""
        for before, now, place, distinct in self._known:
            if before == theirs and now == ours:
                return place, distinct
        known = {label: position for position, label in enumerate(theirs)}
        distinct = len(known) == len(theirs)
        place = np.array([known.get(label, -1) for label in ours], dtype=np.int64)
        self._known.append((theirs, ours, place, distinct))
        return place, distinct


def _carried_over(before: _Answered, program: Program, ours: _Columns, places: _Places) -> Start | str:
    """The earlier answer in terms of a program of the same shape; a reason where it cannot be told."""
    theirs = before.columns
    count = len(ours.job)
    columns = np.full(program.num_columns, -1)
    columns[:count] = (
        np.arange(count) if theirs is ours else ours.among(theirs, places.of(theirs.job_ids, ours.job_ids)[0])
    )
    if np.count_nonzero(columns[:count] >= 0) < _KNOWN * count:
        return "most columns are new"
    for (name, start, stop), own in zip(before.own_columns, program.own_columns, strict=True):
        # Columns have no labels: while jobs come and go, only one that is alone is known to be the same as before.
        if stop - start != own.stop - own.start or (stop - start > 1 and theirs.job_ids != ours.job_ids):
            return f"{name} has columns of its own that have changed"
        columns[own.start : own.stop] = np.arange(start, stop)
    rows = np.full(program.num_rows, -1)
    for (first, labels), family in zip(before.rows, program.families, strict=True):
        found, distinct = places.of(labels, family.row_labels())
        if not distinct:
            return f"{family.name} has rows with equal labels"
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
