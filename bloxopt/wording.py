"""How values and numbers appear in messages and listings."""

from __future__ import annotations

import math
import re
from typing import Any

_ROUNDING = 1e-7
"""Parts of a number that the arithmetic of solvers cannot tell from none."""


def shown(value: Any) -> str:
    """A value as it appears in messages: not longer than a line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """A key for sorting that puts node-2 before node-10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def counted(number: int, what: str) -> str:
    """``"1 node"``, ``"1,024 nodes"``: a number of things whose plural is an s."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def rounded_up(value: float, digits: int = 4) -> float:
    """``value`` with that many significant digits, and all of its whole ones, not below it but for rounding errors."""
    if not value or not math.isfinite(value):
        return value
    scale = 10.0 ** max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    if not math.isfinite(scale * value):
        return value
    return math.ceil(scale * value - _ROUNDING * abs(scale * value)) / scale + 0.0


def rounded_down(value: float, digits: int = 4) -> float:
    """The same, not above it."""
    return -rounded_up(-value, digits) + 0.0
