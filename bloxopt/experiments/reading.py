"""Reading experiments: TOML and command-line values into a checked ``Experiment``, errors by key."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from bloxopt.errors import ConfigError
from bloxopt.experiments.config import Experiment, Origin
from bloxopt.experiments.policies import is_policy_file
from bloxopt.input_files import read_input

_MAIN_KEYS = {
    "trace": ("name", "path", "format", "throughput"),
    "cluster": ("nodes", "path"),
    "policy": ("name", "options"),
    "admission": ("name", "options"),
    "solver": ("name",),
}
"""Tables that a string may stand for, and the keys that such a string replaces."""

_PATHS = (("trace", "path"), ("trace", "throughput"), ("generate", "throughput"), ("cluster", "path"))
"""Keys that hold paths; ``policy.name`` may hold one too."""


def load_experiment(
    path: str | Path, overrides: Mapping[str, Any] | None = None, labels: Mapping[str, str] | None = None
) -> Experiment:
    """The experiment of a TOML file, some of its values replaced.

    ``overrides`` maps dotted keys (``simulation.round_seconds``), or the tables that a string may
    stand for (``policy``), to values; ``labels`` says how messages name these. Paths in the file are
    relative to it. Raises :class:`~bloxopt.errors.ConfigError` naming file, key and value.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"{path}: no such experiment file")
    data = read_input(path, ConfigError)
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not an experiment file: not UTF-8 text") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    document = _absolute(_expanded(document), path.absolute().parent)
    return make_experiment(document, overrides, labels, f"{path}: ")


def make_experiment(
    document: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    prefix: str = "",
) -> Experiment:
    """An experiment from plain tables; paths are relative to the current folder. See :func:`load_experiment`.

    Messages name a key by its label, or else by ``prefix`` and the key itself.
    """
    tables = _expanded(deepcopy(dict(document)))
    for key, value in (overrides or {}).items():
        _override(tables, key, value)
    origin = Origin(labels or {}, prefix)
    try:
        return Experiment.model_validate(_absolute(tables, Path.cwd())).with_origin(origin)
    except ValidationError as error:
        problems = _by_key(error.errors())
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        key, text = next(iter(problems.items()))
        raise ConfigError(f"{origin.name(key)}: {text}{more}") from error


def parse_value(text: str) -> Any:
    """A value as TOML writes it, or the text itself where it is no TOML value (``fifo`` for ``"fifo"``)."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _expanded(document: dict[str, Any]) -> dict[str, Any]:
    """Strings that stand for tables written out: ``policy = "fifo"`` becomes ``[policy] name = "fifo"``."""
    return {
        key: _main_values(key, value) if key in _MAIN_KEYS and isinstance(value, str) else value
        for key, value in document.items()
    }


def _main_values(table: str, text: str) -> dict[str, Any]:
    if table == "cluster":
        return {"path" if _is_cluster_path(text) else "nodes": text}
    if table == "trace":
        return {"path" if _is_trace_path(text) else "name": text}
    return {"name": text}


def _is_trace_path(text: str) -> bool:
    """Registered names win; anything else that is a file, or looks like one, is a path."""
    from bloxopt.workloads import TRACES

    return text not in TRACES and ("/" in text or bool(Path(text).suffix) or Path(text).exists())


def _is_cluster_path(text: str) -> bool:
    return Path(text).suffix.lower() in (".toml", ".csv")


def labels_of(key: str, label: str) -> dict[str, str]:
    """The keys that an override of ``key`` sets, each with the label that messages name it by."""
    return {key: label, **{f"{key}.{entry}": label for entry in _MAIN_KEYS.get(key, ())}}


def _override(tables: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    if not parents and last in _MAIN_KEYS and isinstance(value, str):
        if last == "trace":
            tables.pop("generate", None)
        table = tables.get(last)
        if isinstance(table, dict) and table.get("name") == value:
            return
        kept = {name: entry for name, entry in table.items() if name not in _MAIN_KEYS[last]} if table else {}
        tables[last] = kept | _main_values(last, value)
        return
    for parent in parents:
        tables = tables.setdefault(parent, {})
        if not isinstance(tables, dict):
            raise ConfigError(f"{key}: {parent} is a value, not a table")
    tables[last] = value


def _absolute(tables: dict[str, Any], base: Path) -> dict[str, Any]:
    """Paths made absolute, so that they mean the same wherever the experiment is run again."""

    def change(table: str, key: str, is_path: Callable[[str], bool]) -> None:
        entries = tables.get(table)
        value = entries.get(key) if isinstance(entries, dict) else None
        if isinstance(entries, dict) and isinstance(value, (str, list)):
            changed = [str(base / v) if isinstance(v, str) and v.strip() and is_path(v) else v for v in _as_list(value)]
            tables[table] = {**entries, key: changed if isinstance(value, list) else changed[0]}

    for table, key in _PATHS:
        change(table, key, lambda _: True)
    change("policy", "name", is_policy_file)
    change("compare", "policies", is_policy_file)
    change("compare", "traces", _is_trace_path)
    change("compare", "clusters", _is_cluster_path)
    return tables


def _as_list(value: str | list[Any]) -> list[Any]:
    return value if isinstance(value, list) else [value]


_WORDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "model_type": "a table",
    "dict_type": "a table",
}
"""Kind of problem to what the value must be, in the words of an experiment file."""


def _by_key(problems: Sequence[ErrorDetails]) -> dict[str, str]:
    """Dotted key to one line: the value, what is wrong with it and what to do.

    A key that may hold values of several kinds has a problem for each kind; a value that is of one of them
    but holds something wrong has one below that kind, which alone is told.
    """
    found: dict[str, list[ErrorDetails]] = {}
    for problem in problems:
        places = [place for place, part in enumerate(problem["loc"]) if _is_union_branch(part)]
        root = problem["loc"][: places[0]] if places else problem["loc"]
        found.setdefault(".".join(map(str, root)), []).append(problem)
    described: dict[str, str] = {}
    for root_key, group in found.items():
        deepest = max(group, key=lambda problem: len(_parts(problem)))
        inside = [problem for problem in group if problem["type"] not in _WORDS]
        if len(group) == 1 or len(_parts(deepest)) > len(root_key.split(".")):
            group = [deepest]
        elif inside:
            group = inside[:1]
        problem = group[0]
        parts = _parts(problem)
        if extra := problem.get("ctx", {}).get("key"):
            parts = [*parts, str(extra)]
        kinds = list(dict.fromkeys(_WORDS[entry["type"]] for entry in group if entry["type"] in _WORDS))
        if len(parts) == 1 and parts[0] in _MAIN_KEYS and kinds:
            kinds = ["text", *kinds]
        described[".".join(parts) or "experiment"] = _description(problem, parts, " or ".join(kinds))
    return described


def _parts(problem: ErrorDetails) -> list[str]:
    return [str(part) for part in problem["loc"] if not _is_union_branch(part)]


def _description(problem: ErrorDetails, parts: list[str], wanted: str) -> str:
    kind, value = problem["type"], problem["input"]
    if kind == "extra_forbidden":
        known = _keys(parts[:-1])
        close = difflib.get_close_matches(parts[-1], known, n=1, cutoff=0.5)
        return "unknown key; " + (f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}")
    if kind == "missing":
        return "missing"
    if kind == "related_keys":
        return problem["msg"]
    if wanted:
        return f"is {value!r}, must be {wanted}"
    if kind == "too_short":
        return f"is {value!r}, must list at least one value"
    cause = problem.get("ctx", {}).get("error")
    if cause is not None:
        return str(cause)
    text = problem["msg"].replace("Input should be", "must be")
    return f"is {value!r}, {text[0].lower()}{text[1:]}"


def _is_union_branch(part: Any) -> bool:
    """Pydantic names the branch of a union (``str``, ``list[str]``, a validator) in the place of an error."""
    return isinstance(part, str) and (part in ("str", "int", "float") or "[" in part or part.startswith("constrained-"))


def _keys(path: list[str]) -> list[str]:
    """The keys of the table at ``path``."""
    model: Any = Experiment
    for part in path:
        field = model.model_fields.get(part)
        if field is None:
            continue
        choices = (field.annotation, *get_args(field.annotation))
        choices += tuple(inner for choice in choices for inner in get_args(choice))
        model = next(entry for entry in choices if isinstance(entry, type) and issubclass(entry, BaseModel))
    return list(model.model_fields)
