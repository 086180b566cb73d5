"""Reading experiments: TOML and command-line values into a checked ``Experiment``, errors by key."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from bloxopt.errors import ConfigError
from bloxopt.experiments.config import Experiment
from bloxopt.experiments.files import reason
from bloxopt.experiments.policies import is_policy_file

_MAIN_KEYS = {
    "trace": ("name", "path", "format", "throughput"),
    "cluster": ("nodes", "path"),
    "policy": ("name", "options"),
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
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such experiment file") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not an experiment file: not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
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
    try:
        return Experiment.model_validate(_absolute(tables, Path.cwd()))
    except ValidationError as error:
        problems = error.errors()
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        key, text = _located(problems[0])
        # The third value of a list is named by the option that gave the list.
        listed = key.rstrip("0123456789").rstrip(".")
        where = (labels or {}).get(key) or (labels or {}).get(listed) or prefix + key
        raise ConfigError(f"{where}: {text}{more}") from error


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
            changed = [str(base / v) if isinstance(v, str) and is_path(v) else v for v in _as_list(value)]
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


def _located(problem: ErrorDetails) -> tuple[str, str]:
    """The dotted key, and in one line the value, what is wrong with it and what to do."""
    parts = [str(part) for part in problem["loc"] if not _is_union_branch(part)]
    return ".".join(parts) or "experiment", _description(problem, parts)


def _description(problem: ErrorDetails, parts: list[str]) -> str:
    kind, value = problem["type"], problem["input"]
    if kind == "extra_forbidden":
        known = _keys(parts[:-1])
        close = difflib.get_close_matches(parts[-1], known, n=1, cutoff=0.5)
        return "unknown key; " + (f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}")
    if kind == "missing":
        return "missing"
    if kind in ("model_type", "dict_type") and not isinstance(value, dict):
        return f"is {value!r}, must be a table"
    cause = problem.get("ctx", {}).get("error")
    if cause is not None:
        return str(cause)
    text = problem["msg"].replace("Input should be", "must be")
    return f"is {value!r}, {text[0].lower()}{text[1:]}"


def _is_union_branch(part: Any) -> bool:
    """Pydantic names the branch of a union (``str``, ``list[str]``) in the place of an error."""
    return isinstance(part, str) and (part in ("str", "int", "float") or "[" in part)


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
