"""How values and numbers appear in messages and listings."""

from __future__ import annotations

from typing import Any


def shown(value: Any) -> str:
    """A value as it appears in messages: not longer than a line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def counted(number: int, what: str) -> str:
    """``"1 node"``, ``"1,024 nodes"``: a number of things whose plural is an s."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
