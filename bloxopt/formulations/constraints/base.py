"""What a constraint block is: rows for the program, and an independent look at a finished allocation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bloxopt.errors import FormulationError, guarded
from bloxopt.formulations.checks import real_numbers, shown
from bloxopt.formulations.expressions import ExpressionLike, build_affine
from bloxopt.formulations.progress import ProgressDependent
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray


@dataclass(frozen=True, eq=False)
class Limit:
    """``lower ≤ expression ≤ upper``, row by row; bounds are numbers or arrays (rows,)."""

    expression: ExpressionLike
    lower: float | FloatArray = -math.inf
    upper: float | FloatArray = math.inf


class Constraint(ProgressDependent):
    """Base of constraint blocks. A user's own overrides :meth:`limits`, and nothing else::

        class AtMostHalfTheTime(Constraint):
            progress_dependent = False

            def limits(self, space):
                return [Limit(TimeFraction(), upper=0.5)]

    ``progress_dependent = False`` says that the limits change only as jobs or nodes come and go; without it they
    are asked for in every round, and the program is solved again. Blocks that need columns of their own override
    :meth:`build`, :meth:`violations` and :meth:`labels`.
    ``name`` is what reports call the block (default: its class, numbered when there are several).
    """

    name: str | None = None
    exclusive_time = False
    """True if the block lets a job's time shares add up to at most 1."""
    uses_spread = False
    """True if the block tells consolidated gangs from others, so that it needs columns for both."""
    physical = False
    """True for what the cluster imposes and no change of mind can relax: the GPUs there are, one place at a time."""
    unit = ""
    """What the bounds of its rows are measured in, such as ``"GPUs"``; empty for parts of the time."""
    pair_threshold: float | None = None
    """A number if the block needs columns for jobs that share GPUs: see :class:`bloxopt.pairing.Pairing`."""
    unserved = ""
    """Which jobs make it fail for all, and the option that changes that; empty if it serves whatever jobs come."""

    def limits(self, space: AllocationSpace) -> Iterable[Limit]:
        """The block as bounds on expressions."""
        raise FormulationError(
            f"constraint block {describe(self)} does not say what it limits: override limits(space), which returns a "
            "list of Limit, or build(space, program)"
        )

    def in_own_terms(self, space: AllocationSpace, label: str, bound: float) -> str:
        """What a bound of the row ``label`` is in the terms of the block's own arguments; empty if it is the same."""
        return ""

    @property
    def limits_rounds(self) -> bool:
        """True if :meth:`round_limits` may have something to say."""
        mine = type(self)
        return mine.round_limits is not Constraint.round_limits or mine.limits is not Constraint.limits

    def round_limits(self, space: AllocationSpace) -> Iterable[Limit]:
        """Those of its upper limits that hold in every round, not only on average; per-job rows are passed over.

        By default all upper limits of a block that overrides :meth:`limits`.
        """
        return self.limits(space) if self.limits_rounds else ()

    def build(self, space: AllocationSpace, program: Program) -> None:
        """Add the block's rows to the program."""
        for rows, lower, upper in built_limits(program.block, self.limits, space):
            program.add_rows(rows, lower, upper)

    def violations(self, space: AllocationSpace, x: FloatArray) -> FloatArray:
        """By how much ``x`` (num_columns,) breaks each row, 0 where it does not.

        Relative to the limit where that exceeds 1, so that one tolerance fits steps/s, GPUs and shares.
        """
        limits = built_limits(describe(self), self.limits, space)
        parts = [excess(rows.at(x), lower, upper) for rows, lower, upper in limits]
        return np.concatenate(parts) if parts else np.zeros(0)

    def labels(self, space: AllocationSpace) -> Sequence[str]:
        """A name for each entry of :meth:`violations`."""
        names: list[str] = []
        for rows, _, _ in built_limits(describe(self), self.limits, space):
            names += rows.labels() if rows.labels else [str(row) for row in range(rows.num_rows)]
        return names


def built_limits(
    user: str, limits: Callable[[AllocationSpace], Iterable[Limit]], space: AllocationSpace
) -> list[tuple[Affine, FloatArray, FloatArray]]:
    """Rows, lower and upper bounds (numbers, or (rows,)) of each limit that ``limits(space)`` gives.

    Raises :class:`FormulationError` naming the block if that fails or gives anything but limits.
    """
    with guarded(f"constraint block {user}: limits(space)", FormulationError):
        given: Any = limits(space)
        listed = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, Mapping)) else None
    if listed is None:
        hint = "put the Limit into a list" if isinstance(given, Limit) else "return [] for no limit"
        raise FormulationError(
            f"constraint block {user}: limits(space) gave {shown(given)}, must be a list of Limit: {hint}"
        )
    built = []
    for limit in listed:
        if not isinstance(limit, Limit):
            raise FormulationError(
                f"constraint block {user}: limits(space) gave a list with {shown(limit)}, each entry must be a Limit, "
                "such as Limit(TimeFraction(), upper=0.5)"
            )
        rows = build_affine(limit.expression, space, user)
        built.append((rows, _bound(user, "lower", limit.lower, rows), _bound(user, "upper", limit.upper, rows)))
    return built


def _bound(user: str, side: str, value: Any, rows: Affine) -> FloatArray:
    """A bound of a limit as an array of no dimension or (rows,)."""
    what = f"constraint block {user}: {side} of a Limit"
    wanted = f"a number, or an array of {rows.num_rows} numbers, one per row of the expression"
    bound = real_numbers(what, value, wanted)
    if bound.shape not in ((), (rows.num_rows,)):
        raise FormulationError(f"{what} has shape {bound.shape}, must be {wanted}")
    if np.isnan(bound).any():
        raise FormulationError(f"{what} is {'NaN' if bound.ndim == 0 else 'NaN in some rows'}, must be {wanted}")
    return bound.astype(np.float64)


def excess(value: FloatArray, lower: float | FloatArray, upper: float | FloatArray) -> FloatArray:
    """Distance of ``value`` from [lower, upper], relative to the bound where that exceeds 1 in size."""
    low, high = np.asarray(lower, np.float64), np.asarray(upper, np.float64)
    amount = np.zeros(len(value))
    for distance, bound in ((low - value, low), (value - high, high)):
        size = np.where(np.isfinite(bound), np.maximum(1.0, np.abs(bound)), 1.0)
        np.maximum(amount, distance / size, out=amount)
    return amount


def describe(block: Any) -> str:
    """The name that reports use for a block on its own."""
    return getattr(block, "name", None) or type(block).__name__


def name_blocks(blocks: Sequence[Constraint]) -> dict[str, Constraint]:
    """Blocks under distinct names: ``MinimumShare``, ``MinimumShare#2``; raises if a given name repeats."""
    named: dict[str, Constraint] = {}
    for block in blocks:
        name, number = describe(block), 2
        if name in named and getattr(block, "name", None):
            raise FormulationError(f"two constraint blocks are named {name!r}: give each its own name")
        while name in named:
            name, number = f"{describe(block)}#{number}", number + 1
        named[name] = block
    return named


def tenant_codes(user: str, names: Iterable[str], space: AllocationSpace) -> dict[str, int]:
    """Code of each tenant name; raises for one that owns no job of the trace.

    Where jobs come and go, on a live cluster, tenants without jobs at present are left out.
    """
    return space.catalog.table.tenant_codes(user, names, FormulationError)
