"""Why there is no solution: which rows of which blocks conflict, and the least that must be given up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csc_array, hstack

from bloxopt.errors import BloxoptError, InfeasibleError, SolverError, guarded
from bloxopt.formulations.constraints.base import Constraint
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.jobs import BoolArray, FloatArray, IntArray
from bloxopt.solvers.base import Solver, SolverOptions, SolverResult, Termination
from bloxopt.solvers.registry import get_solver
from bloxopt.wording import rounded_down, rounded_up

Run = Callable[[StandardForm], SolverResult]

_NOTICEABLE = 1e-6
"""What is smaller than this, relative to its bound, is a rounding error, and so is a bound of this size."""
_MOST_ROWS_NAMED = 5
_MOST_ROWS_FILTERED = 400
"""Rows that are tried one by one for an irreducible conflict; of more, only whole blocks are left out."""


@dataclass(frozen=True)
class Bound:
    """One side of one row: ``block('label')`` at least or at most ``bound``, in the block's ``unit``.

    ``own_terms`` is the bound as the user wrote it, such as a share instead of GPUs.
    """

    block: str
    label: str
    side: str
    bound: float
    unit: str
    own_terms: str

    @property
    def name(self) -> str:
        return f"{self.block}({self.label!r})"

    def __str__(self) -> str:
        return f"{self.name} {self.own_terms}"


@dataclass(frozen=True)
class Relaxed:
    """A bound given up in part: ``by`` (in the unit of ``old``) to what ``new`` says.

    In text both are rounded to the side on which there is a solution.
    """

    old: Bound
    new: Bound
    by: float

    def __str__(self) -> str:
        unit = f" {self.old.unit}" if self.old.unit else ""
        return f"{self.old.name} by {rounded_up(self.by):.12g}{unit}, to {self.new.own_terms}"


@dataclass(frozen=True)
class Diagnosis:
    """Why a program has no solution.

    ``conflict``: bounds that cannot all hold, none of which can be left out without the rest holding together
    (``irreducible``; where time or size did not allow that, some may be too many). ``relaxation``: the smallest
    total change, each as a part of its bound (of 1 where the bound is 0), after which there is a solution.
    ``alternatives``: for each bound of the conflict that can mend it on its own, by how little. What the cluster
    imposes is relaxed only if nothing else helps.
    """

    conflict: tuple[Bound, ...]
    relaxation: tuple[Relaxed, ...]
    alternatives: tuple[Relaxed, ...]
    irreducible: bool

    def __str__(self) -> str:
        parts = [_nothing_satisfies([str(bound) for bound in self.conflict])]
        if self.relaxation:
            parts.append(f"the least change that helps is to relax {_listed([str(r) for r in self.relaxation], 'and')}")
        if len(self.alternatives) > len(self.relaxation) or (self.alternatives and len(self.relaxation) > 1):
            parts.append(f"one alone would do: {_listed([str(r) for r in self.alternatives], 'or')}")
        return ": ".join([parts[0], "; ".join(parts[1:])]) if len(parts) > 1 else parts[0]


def infeasibility(
    program: Program,
    blocks: Mapping[str, Constraint],
    solver: Solver,
    options: SolverOptions,
    left: Callable[[], SolverOptions],
    told_by: str,
) -> InfeasibleError:
    """The error to raise for blocks that cannot all hold, by the word of ``told_by``, from one elastic solve.

    That one is made under the options that are ``left`` by now. When asked for it, the error works out the whole
    :class:`Diagnosis`, with more solves, each of which has all the time that ``options`` allow.
    """
    sides = _Sides.of(program, blocks)
    # A solver that must not hold up this process brings one to decide instead that does not either.
    deciding = getattr(solver, "deciding", None)
    relaxation, duals = _least_relaxation(sides, _decided_by(_asking(solver, left), left, deciding))
    names = list(dict.fromkeys(family.name for family in program.families))
    head = _nothing_satisfies([])
    if names:
        head = f"no allocation satisfies the constraints {', '.join(names)} together"
    if duals is not None:
        priced = np.abs(duals) > _NOTICEABLE * float(np.abs(duals).max(initial=0.0))
        conflicting = [part.name for part in program.families if priced[part.start : part.stop].any()]
        if conflicting:
            head = _nothing_satisfies(list(dict.fromkeys(conflicting)), len(conflicting))
    if relaxation is None:
        text = f"{head} (solver {told_by!r}); relax or drop one of them"
    elif not relaxation:
        text = f"{head} (solver {told_by!r}), though only within rounding; relax one of them slightly"
    else:
        listed = _listed([str(relaxed) for relaxed in relaxation], "and")
        text = f"{head}: the least change that helps is to relax {listed}"
    return InfeasibleError(text, lambda: diagnose(program, blocks, _asking(solver, lambda: options), options))


def diagnose(
    program: Program, blocks: Mapping[str, Constraint], run: Run, options: SolverOptions = SolverOptions()
) -> Diagnosis | None:
    """Why the rows of ``program`` have no solution; None if they have one, or no solver can tell.

    ``run`` solves a form; every solver will do, for linear and integer programs: what it cannot decide, HiGHS does,
    under ``options``. Raises nothing of its own.
    """
    run = _decided_by(run, lambda: options)
    sides = _Sides.of(program, blocks)
    everything = np.ones(len(sides.row), dtype=bool)
    if not _conflicts(sides, everything, run):
        return None
    kept, irreducible = _irreducible(sides, run)
    conflict = tuple(sides.bound(int(k)) for k in np.flatnonzero(kept))
    alone = [relaxed for k in np.flatnonzero(kept & sides.soft) if (relaxed := _alone(sides, int(k), run)) is not None]
    return Diagnosis(conflict, tuple(_least_relaxation(sides, run)[0] or ()), tuple(alone), irreducible)


def _asking(solver: Solver, options: Callable[[], SolverOptions]) -> Run:
    """Solve with ``solver`` under the options of the moment; its own exceptions become a SolverError."""

    def run(form: StandardForm) -> SolverResult:
        with guarded(f"solver {getattr(solver, 'name', type(solver).__name__)!r}", SolverError):
            return solver.solve(form, options())

    return run


def _decided_by(run: Run, options: Callable[[], SolverOptions], deciding: Solver | None = None) -> Run:
    """``run``, and ``deciding`` (None: HiGHS) for programs that this cannot take or decide.

    Such as those with continuous slack of an integer program.
    """
    decided = (Termination.OPTIMAL, Termination.INFEASIBLE)
    deciding = get_solver("highs") if deciding is None else deciding

    def answer(form: StandardForm) -> SolverResult:
        first: SolverResult | None = None
        try:
            first = run(form)
            if first.termination in decided:
                return first
            second = deciding.solve(form, options())
        except BloxoptError:
            if first is not None:
                return first
            second = deciding.solve(form, options())
        return second if first is None or second.termination in decided else first

    return answer


@dataclass(frozen=True, eq=False)
class _Sides:
    """The finite bounds of all rows, one entry each: ``row``, ``sign`` (+1 lower, −1 upper), ``value``, ``soft``."""

    program: Program
    blocks: Mapping[str, Constraint]
    rows: StandardForm
    row: IntArray
    sign: FloatArray
    value: FloatArray
    soft: BoolArray
    family: IntArray

    @property
    def size(self) -> FloatArray:
        """What a change of each bound is measured by: the bound, or 1 where that is 0."""
        size = np.abs(self.value)
        return np.where(size > _NOTICEABLE, size, 1.0)

    @classmethod
    def of(cls, program: Program, blocks: Mapping[str, Constraint]) -> _Sides:
        rows = program.compile_rows()
        lower, upper = np.flatnonzero(np.isfinite(rows.row_lower)), np.flatnonzero(np.isfinite(rows.row_upper))
        row = np.concatenate([lower, upper])
        sign = np.concatenate([np.ones(len(lower)), -np.ones(len(upper))])
        value = np.concatenate([rows.row_lower[lower], rows.row_upper[upper]])
        family = np.zeros(rows.num_rows, dtype=np.int64)
        for number, part in enumerate(program.families):
            family[part.start : part.stop] = number
        hard = [getattr(blocks.get(part.name), "physical", False) for part in program.families]
        soft = ~np.array(hard, dtype=bool)[family[row]] if len(row) else np.zeros(0, dtype=bool)
        return cls(program, blocks, rows, row, sign, value, soft, family[row])

    def form(self, kept: BoolArray, slack: BoolArray | None = None) -> StandardForm:
        """The rows with only the ``kept`` bounds; those in ``slack`` get one that counts in sizes of the bound."""
        form = self.rows
        lower, upper = np.full(form.num_rows, -np.inf), np.full(form.num_rows, np.inf)
        low, high = kept & (self.sign > 0), kept & (self.sign < 0)
        lower[self.row[low]], upper[self.row[high]] = self.value[low], self.value[high]
        cut = replace(form, row_lower=lower, row_upper=upper, cost=np.zeros(form.num_columns))
        if slack is None:
            return cut
        at = np.flatnonzero(slack & kept)
        step = self.sign[at] * self.size[at]
        matrix = csc_array((step, (self.row[at], np.arange(len(at)))), shape=(form.num_rows, len(at)))
        return StandardForm(
            cost=np.concatenate([cut.cost, np.ones(len(at))]),
            matrix=csc_array(hstack([form.matrix, matrix])),
            row_lower=lower,
            row_upper=upper,
            lower=np.concatenate([form.lower, np.zeros(len(at))]),
            upper=np.concatenate([form.upper, np.full(len(at), np.inf)]),
            integer=np.concatenate([form.integer, np.zeros(len(at), dtype=bool)]),
        )

    def bound(self, k: int, value: float | None = None) -> Bound:
        """Entry ``k`` for people, with another value if one is given."""
        family = self.program.families[self.family[k]]
        label = family.row_labels()[int(self.row[k]) - family.start]
        size = float(self.value[k]) if value is None else value
        side = "at least" if self.sign[k] > 0 else "at most"
        block = self.blocks.get(family.name)
        unit = "" if block is None else block.unit
        shown = rounded_down(size) if self.sign[k] > 0 else rounded_up(size)
        plain = f"{side} {shown:.12g}{f' {unit}' if unit else ''}"
        own = plain if block is None else block.in_own_terms(self.program.space, label, size) or plain
        return Bound(family.name, label, side, size, unit, own)

    def relaxed(self, k: int, part: float) -> Relaxed:
        """Entry ``k`` given up by ``part`` of its size."""
        by = part * float(self.size[k])
        new = float(self.value[k] - self.sign[k] * by)
        return Relaxed(self.bound(k), self.bound(k, new if abs(new) > _NOTICEABLE * self.size[k] else 0.0), by)


def _least_relaxation(sides: _Sides, run: Run) -> tuple[list[Relaxed] | None, FloatArray | None]:
    """The least total slack that makes the rows hold, largest first, and the rows' prices; None where not found."""
    everything = np.ones(len(sides.row), dtype=bool)
    for slack in (sides.soft, everything):
        if not slack.any():
            continue
        result = run(sides.form(everything, slack))
        if result.x is None:
            continue
        part = result.x[sides.rows.num_columns :]
        at = np.flatnonzero(slack)
        short = np.flatnonzero(part > _NOTICEABLE)
        short = short[np.argsort(-part[short], kind="stable")]
        return [sides.relaxed(int(at[k]), float(part[k])) for k in short], result.row_duals
    return None, None


def _alone(sides: _Sides, k: int, run: Run) -> Relaxed | None:
    """The least by which one bound must give way if no other does; None if that is not enough."""
    everything = np.ones(len(sides.row), dtype=bool)
    only = np.zeros_like(everything)
    only[k] = True
    result = run(sides.form(everything, only))
    if result.x is None:
        return None
    return sides.relaxed(k, float(result.x[-1]))


def _irreducible(sides: _Sides, run: Run) -> tuple[BoolArray, bool]:
    """Bounds that conflict, and whether none of them is too many: a deletion filter, blocks first, then rows.

    Prices of the elastic program of an LP name a conflict to begin with, as its dual is a Farkas certificate.
    """
    kept, irreducible = np.ones(len(sides.row), dtype=bool), True
    if not sides.rows.is_mip:
        duals = run(sides.form(kept, kept)).row_duals
        if duals is not None and np.isfinite(duals).all():
            priced = np.abs(duals[sides.row]) > _NOTICEABLE * max(1e-12, float(np.abs(duals).max(initial=0.0)))
            priced &= np.sign(duals[sides.row]) == sides.sign
            if _conflicts(sides, priced, run):
                kept = priced
    for family in range(len(sides.program.families)):
        without = kept & (sides.family != family)
        if not np.array_equal(without, kept) and _conflicts(sides, without, run):
            kept = without
    candidates = np.flatnonzero(kept)
    if len(candidates) > _MOST_ROWS_FILTERED:
        return kept, False
    for k in _soft_last(candidates, sides):
        without = kept.copy()
        without[k] = False
        conflicts = _conflicts(sides, without, run)
        if conflicts:
            kept = without
        irreducible = irreducible and conflicts is not None
    return kept, irreducible


def _soft_last(candidates: IntArray, sides: _Sides) -> Sequence[int]:
    """What the cluster imposes is tried first, so that a conflict is told in the user's own bounds where it can be."""
    order: list[int] = candidates[np.argsort(sides.soft[candidates], kind="stable")].tolist()
    return order


def _conflicts(sides: _Sides, kept: BoolArray, run: Run) -> bool | None:
    """Whether the ``kept`` bounds cannot all hold; None where no solver can tell."""
    result = run(sides.form(kept))
    if result.termination is Termination.INFEASIBLE:
        return True
    return None if result.x is None else False


def _nothing_satisfies(names: Sequence[str], rows: int = 0) -> str:
    """The head of a message about bounds or blocks that cannot all hold, of ``rows`` rows (default: one each)."""
    if not names:
        return "no allocation stays within the bounds of its columns"
    return f"no allocation satisfies {_listed(names, 'and')}{' together' if max(len(names), rows) > 1 else ''}"


def _listed(entries: Sequence[str], word: str) -> str:
    shown = list(entries[:_MOST_ROWS_NAMED])
    if len(entries) > _MOST_ROWS_NAMED:
        shown.append(f"{len(entries) - _MOST_ROWS_NAMED} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} {word} {shown[-1]}"
