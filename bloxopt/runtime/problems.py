"""What is wrong with data that a model refused, in plain words: one sentence for the first thing."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from bloxopt.runtime.messages import NAME_PATTERN, SUBMISSION_KEY_PATTERN, VARIABLE_PATTERN
from bloxopt.wording import shown

_PATTERNS = {
    NAME_PATTERN: "must consist of letters, digits, '.', '_' and '-', and begin with a letter or digit",
    VARIABLE_PATTERN: "must consist of letters, digits and '_', and not begin with a digit",
    SUBMISSION_KEY_PATTERN: "must consist of 1 to 64 letters, digits, '.', '_' and '-'",
}
"""What a text that matches each pattern consists of."""


def first_problem(error: ValidationError, model: type[BaseModel]) -> tuple[list[str], str]:
    """The key of the first problem, and what is wrong with its value."""
    first = error.errors(include_url=False)[0]
    keys = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        return keys, unknown(keys[-1], _known(model, keys[:-1]))
    return keys, said(first)


def said(problem: Mapping[str, Any]) -> str:
    """What is wrong with the value of one of a model's errors, as :meth:`pydantic.ValidationError.errors` gives it."""
    kind, value = problem["type"], problem.get("input")
    if kind == "extra_forbidden":
        return "unknown key"
    if kind == "missing":
        return "must be given"
    if kind == "model_type":
        return f"is {shown(value)}: must be a table"
    if kind == "model_attributes_type":
        return f"is {shown(value)}: must be an object"
    text = str(problem["msg"]).removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    if kind == "string_pattern_mismatch":
        text = _PATTERNS.get(problem["ctx"]["pattern"], text)
    elif kind == "finite_number":
        text = "must be a finite number"
    return f"is {shown(value)}: {text}" if isinstance(value, (str, int, float, bool)) else text


def unknown(key: str, known: Sequence[str], what: str = "key") -> str:
    """That there is no such key, and the one that may be meant, or else all there are."""
    close = difflib.get_close_matches(key, known, n=1)
    return f"unknown {what}: " + (f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}")


def _known(model: type[BaseModel], tables: Sequence[str]) -> list[str]:
    """The keys of a table."""
    for table in tables:
        inner = model.model_fields[table].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)
