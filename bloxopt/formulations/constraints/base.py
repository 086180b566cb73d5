"""What a constraint block is: rows for the program, and an independent look at a finished allocation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.expressions import ExpressionLike, build_affine
from bloxopt.formulations.program import Program
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray


@dataclass(frozen=True, eq=False)
class Limit:
    """``lower ≤ expression ≤ upper``, row by row; bounds are numbers or arrays (rows,)."""

    expression: ExpressionLike
    lower: float | FloatArray = -math.inf
    upper: float | FloatArray = math.inf


class Constraint:
    """Base of constraint blocks. A user's own overrides :meth:`limits`, and nothing else::

        class AtMostHalfTheTime(Constraint):
            def limits(self, space):
                return [Limit(TimeFraction(), upper=0.5)]

    Blocks that need columns of their own override :meth:`build`, :meth:`violations` and :meth:`labels`.
    ``name`` is what reports call the block (default: its class, numbered when there are several).
    """

    name: str | None = None
    exclusive_time = False
    """True if the block lets a job's time shares add up to at most 1."""
    progress_dependent = False
    """True if the block asks for something else as jobs progress, so that each round must solve again."""
    uses_spread = False
    """True if the block tells consolidated gangs from others, so that it needs columns for both."""

    def limits(self, space: AllocationSpace) -> Iterable[Limit]:
        """The block as bounds on expressions."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it limits: override limits(space)")

    def round_limits(self, space: AllocationSpace) -> Iterable[Limit]:
        """Those of its upper limits that hold in every round, not only on average; per-job rows are passed over.

        By default all upper limits of a block that overrides :meth:`limits`.
        """
        return () if type(self).limits is Constraint.limits else self.limits(space)

    def build(self, space: AllocationSpace, program: Program) -> None:
        """Add the block's rows to the program."""
        for limit in self.limits(space):
            program.add_rows(build_affine(limit.expression, space, program.block), limit.lower, limit.upper)

    def violations(self, space: AllocationSpace, x: FloatArray) -> FloatArray:
        """By how much ``x`` (num_columns,) breaks each row, 0 where it does not.

        Relative to the limit where that exceeds 1, so that one tolerance fits steps/s, GPUs and shares.
        """
        parts = []
        for limit in self.limits(space):
            value = build_affine(limit.expression, space, describe(self)).at(x)
            parts.append(excess(value, limit.lower, limit.upper))
        return np.concatenate(parts) if parts else np.zeros(0)

    def labels(self, space: AllocationSpace) -> Sequence[str]:
        """A name for each entry of :meth:`violations`."""
        names: list[str] = []
        for limit in self.limits(space):
            built = build_affine(limit.expression, space, describe(self))
            names += built.labels() if built.labels else [str(row) for row in range(built.num_rows)]
        return names


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


def checked_amounts(
    user: str, amounts: Mapping[str, float], what: str, lowest: float = 0.0, highest: float = math.inf
) -> dict[str, float]:
    """The mapping as floats; raises naming the block, key and value if one is not a number in range."""
    if not isinstance(amounts, Mapping):
        raise FormulationError(f"{user}: expected a mapping of names to {what}, got {amounts!r}")
    return {str(key): checked_amount(user, f"{what} of {key!r}", v, lowest, highest) for key, v in amounts.items()}


def checked_amount(user: str, what: str, value: Any, lowest: float = 0.0, highest: float = math.inf) -> float:
    """``value`` as a float; raises naming the block if it is not a number in [lowest, highest]."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number) or math.isinf(number) or not lowest <= number <= highest:
        wanted = f">= {lowest:g}" if math.isinf(highest) else f"between {lowest:g} and {highest:g}"
        raise FormulationError(f"{user}: {what} is {value!r}, must be a finite number {wanted}")
    return number


def tenant_codes(user: str, names: Iterable[str], space: AllocationSpace) -> dict[str, int]:
    """Code of each tenant name; raises for one that owns no job of the trace."""
    known = {name: code for code, name in enumerate(space.catalog.table.tenants)}
    codes = {}
    for name in names:
        if name not in known:
            raise FormulationError(f"{user}: unknown tenant {name!r}; tenants of this trace: {', '.join(known)}")
        codes[name] = known[name]
    return codes
