"""Why there is no solution: which rows of which blocks conflict, and the least that must be given up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csc_array, hstack

from bloxopt.errors import InfeasibleError
from bloxopt.formulations.constraints.base import Constraint
from bloxopt.formulations.program import Program
from bloxopt.formulations.standard_form import StandardForm
from bloxopt.jobs import BoolArray, FloatArray, IntArray
from bloxopt.solvers.base import SolverResult, Termination

Run = Callable[[StandardForm], SolverResult]

_NOTICEABLE = 1e-6
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
    """A bound given up in part: ``by`` (in the unit of ``old``) to what ``new`` says."""

    old: Bound
    new: Bound
    by: float

    def __str__(self) -> str:
        unit = f" {self.old.unit}" if self.old.unit else ""
        return f"{self.old.name} by {self.by:.4g}{unit}, to {self.new.own_terms}"


@dataclass(frozen=True)
class Diagnosis:
    """Why a program has no solution.

    ``conflict``: bounds that cannot all hold, none of which can be left out without the rest holding together
    (``irreducible``; where time or size did not allow that, some may be too many). ``relaxation``: the smallest
    total change, relative to each bound, after which there is a solution. ``alternatives``: for each bound of the
    conflict that can mend it on its own, by how little. What the cluster imposes is relaxed only
    if nothing else helps.
    """

    conflict: tuple[Bound, ...]
    relaxation: tuple[Relaxed, ...]
    alternatives: tuple[Relaxed, ...]
    irreducible: bool

    def __str__(self) -> str:
        parts = [f"no allocation satisfies {_listed([str(bound) for bound in self.conflict], 'and')} together"]
        if self.relaxation:
            parts.append(f"the least change that would be to relax {_listed([str(r) for r in self.relaxation], 'and')}")
        if len(self.alternatives) > len(self.relaxation) or (self.alternatives and len(self.relaxation) > 1):
            parts.append(f"one alone would do: {_listed([str(r) for r in self.alternatives], 'or')}")
        return ": ".join([parts[0], "; ".join(parts[1:])]) if len(parts) > 1 else parts[0]


def infeasibility(program: Program, blocks: Mapping[str, Constraint], run: Run, solver: str) -> InfeasibleError:
    """The error to raise for blocks that cannot all hold, from one elastic solve.

    It can work out the whole :class:`Diagnosis` when asked for it, which takes more solves.
    """
    sides = _Sides.of(program, blocks)
    relaxation, duals = _least_relaxation(sides, run)
    names = list(dict.fromkeys(family.name for family in program.families))
    head = f"no allocation satisfies the constraints {', '.join(names)} together"
    if duals is not None:
        priced = np.abs(duals) > _NOTICEABLE * float(np.abs(duals).max(initial=0.0))
        conflicting = [part.name for part in program.families if priced[part.start : part.stop].any()]
        if conflicting:
            head = f"no allocation satisfies {' and '.join(dict.fromkeys(conflicting))} together"
    if relaxation is None:
        text = f"{head} (solver {solver!r}); relax or drop one of them"
    elif not relaxation:
        text = f"{head} (solver {solver!r}), though only within rounding; relax one of them slightly"
    else:
        shown = [str(relaxed) for relaxed in relaxation[:_MOST_ROWS_NAMED]]
        more = f" and {len(relaxation) - _MOST_ROWS_NAMED} more rows" if len(relaxation) > _MOST_ROWS_NAMED else ""
        text = f"{head}: the least change that would is to relax {', '.join(shown)}{more}"
    return InfeasibleError(text, diagnose=lambda: diagnose(program, blocks, run))


def diagnose(program: Program, blocks: Mapping[str, Constraint], run: Run) -> Diagnosis | None:
    """Why the rows of ``program`` have no solution; None if they have one, or no solver can tell.

    ``run`` solves a form; every solver will do, for linear and integer programs. Raises nothing of its own.
    """
    sides = _Sides.of(program, blocks)
    everything = np.ones(len(sides.row), dtype=bool)
    if run(sides.form(everything)).termination is not Termination.INFEASIBLE:
        return None
    kept, irreducible = _irreducible(sides, run)
    conflict = tuple(sides.bound(int(k)) for k in np.flatnonzero(kept))
    alone = [relaxed for k in np.flatnonzero(kept & sides.soft) if (relaxed := _alone(sides, int(k), run)) is not None]
    return Diagnosis(conflict, tuple(_least_relaxation(sides, run)[0] or ()), tuple(alone), irreducible)


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
        """The rows with only the ``kept`` bounds; those in ``slack`` get one that costs 1 relative to the bound."""
        form = self.rows
        lower, upper = np.full(form.num_rows, -np.inf), np.full(form.num_rows, np.inf)
        low, high = kept & (self.sign > 0), kept & (self.sign < 0)
        lower[self.row[low]], upper[self.row[high]] = self.value[low], self.value[high]
        cut = replace(form, row_lower=lower, row_upper=upper, cost=np.zeros(form.num_columns))
        if slack is None:
            return cut
        at = np.flatnonzero(slack & kept)
        matrix = csc_array((self.sign[at], (self.row[at], np.arange(len(at)))), shape=(form.num_rows, len(at)))
        return StandardForm(
            cost=np.concatenate([cut.cost, 1.0 / np.maximum(1.0, np.abs(self.value[at]))]),
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
        plain = f"{side} {size:.4g}{f' {unit}' if unit else ''}"
        own = plain if block is None else block.in_own_terms(self.program.space, label, size) or plain
        return Bound(family.name, label, side, size, unit, own)

    def relaxed(self, k: int, by: float) -> Relaxed:
        return Relaxed(self.bound(k), self.bound(k, float(self.value[k] - self.sign[k] * by)), by)


def _least_relaxation(sides: _Sides, run: Run) -> tuple[list[Relaxed] | None, FloatArray | None]:
    """The least total slack that makes the rows hold, largest first, and the rows' prices; None where not found."""
    everything = np.ones(len(sides.row), dtype=bool)
    for slack in (sides.soft, everything):
        if not slack.any():
            continue
        result = run(sides.form(everything, slack))
        if result.x is None:
            continue
        given = result.x[sides.rows.num_columns :]
        at = np.flatnonzero(slack)
        size = given / np.maximum(1.0, np.abs(sides.value[at]))
        short = np.flatnonzero(size > _NOTICEABLE)
        short = short[np.argsort(-size[short], kind="stable")]
        return [sides.relaxed(int(at[k]), float(given[k])) for k in short], result.row_duals
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
    kept = np.ones(len(sides.row), dtype=bool)
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
        if _conflicts(sides, without, run):
            kept = without
    return kept, True


def _soft_last(candidates: IntArray, sides: _Sides) -> Sequence[int]:
    """What the cluster imposes is tried first, so that a conflict is told in the user's own bounds where it can be."""
    order: list[int] = candidates[np.argsort(sides.soft[candidates], kind="stable")].tolist()
    return order


def _conflicts(sides: _Sides, kept: BoolArray, run: Run) -> bool:
    return run(sides.form(kept)).termination is Termination.INFEASIBLE


def _listed(entries: Sequence[str], word: str) -> str:
    shown = list(entries[:_MOST_ROWS_NAMED])
    if len(entries) > _MOST_ROWS_NAMED:
        shown.append(f"{len(entries) - _MOST_ROWS_NAMED} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} {word} {shown[-1]}"
