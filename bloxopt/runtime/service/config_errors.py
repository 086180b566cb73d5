"""What is wrong with a configuration file, and in which line: one sentence for the first thing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from pydantic import BaseModel, ValidationError

from bloxopt.wording import shown

_HEADER = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


def line_of(text: str, keys: Sequence[str]) -> int | None:
    """The line of a TOML ``text`` that sets the key ``keys`` (its tables, then itself), or else the innermost table
    around it that is there; None where none is."""
    table: tuple[str, ...] = ()
    found, depth = None, 0
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            here = table = _parts(header[1])
        elif key := _KEY.match(line):
            here = (*table, *_parts(key[1]))
        else:
            continue
        if depth < len(here) <= len(keys) and tuple(keys[: len(here)]) == here:
            found, depth = number, len(here)
    return found


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


def first_problem(error: ValidationError, model: type[BaseModel]) -> tuple[list[str], str]:
    """The key of the first problem, and what is wrong with its value."""
    first = error.errors(include_url=False)[0]
    keys = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        known = _known(model, keys[:-1])
        close = difflib.get_close_matches(keys[-1], known, n=1)
        return keys, "unknown key: " + (f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}")
    if first["type"] == "model_type":
        return keys, f"is {shown(first['input'])}: must be a table"
    text = str(first["msg"]).removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    value = first.get("input")
    if isinstance(value, (str, int, float, bool)):
        text = f"is {shown(value)}: {text}"
    return keys, text


def _known(model: type[BaseModel], tables: Sequence[str]) -> list[str]:
    """The keys of a table."""
    for table in tables:
        inner = model.model_fields[table].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)
