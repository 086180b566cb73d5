"""Results on disk: one folder per run, written whole or not at all, and read back."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from bloxopt.errors import ResultError
from bloxopt.experiments.files import check_writable, json_text, plain, reason, staged, toml_text

if TYPE_CHECKING:
    from bloxopt.simulation.result import SimulationResult

SUMMARY = "summary.json"
"""Written last: a folder with it holds a complete result."""
CONFIG = "config.json"
EXPERIMENT = "experiment.toml"
TABLES = ("jobs", "rounds", "placements")
_PACKAGES = ("bloxopt", "numpy", "scipy", "pandas", "pyarrow", "ortools", "cvxpy", "clarabel", "scs", "pulp", "highspy")


def versions() -> dict[str, str]:
    """Versions of Python, bloxopt, the numerical packages and the solvers that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def holds_result(folder: Path) -> bool:
    """True if ``folder`` holds a result, complete or not."""
    return any((folder / name).exists() for name in (SUMMARY, CONFIG, *(f"{table}.parquet" for table in TABLES)))


def is_complete(folder: Path) -> bool:
    """True if ``folder`` holds a result that was written to the end."""
    return (folder / SUMMARY).exists()


def check_free(folder: str | Path, overwrite: bool = False) -> None:
    """Raise :class:`~bloxopt.errors.ResultError` if results cannot or must not be written to ``folder``."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ResultError(f"{folder}: results cannot be written: it is a file, not a folder")
    if not overwrite and holds_result(folder):
        raise ResultError(
            f"{folder}: holds the results of another run: choose another output folder, or overwrite them (--overwrite)"
        )
    check_writable(folder)


def save_result(
    result: SimulationResult,
    folder: str | Path,
    *,
    experiment: Mapping[str, Any] | None = None,
    inputs: Mapping[str, str] | None = None,
    plot_formats: Iterable[str] = (),
    overwrite: bool = False,
) -> Path:
    """Write ``result`` to ``folder``: three tables as Parquet, the summary and configuration as JSON, and plots.

    ``experiment`` is the resolved experiment, written as ``experiment.toml`` to run it again;
    ``inputs`` maps the files it reads to their SHA-256. ``plot_formats`` are file name endings such
    as ``png``. All files appear together or none does. Raises :class:`~bloxopt.errors.ResultError`
    with the path and the reason.
    """
    folder = Path(folder)
    check_free(folder, overwrite)
    config = {
        "experiment": experiment,
        "inputs": dict(inputs or {}),
        "simulation": result.config,
        "versions": versions(),
    }
    with staged(folder, last=SUMMARY) as stage:
        for table in TABLES:
            getattr(result, table).to_parquet(stage / f"{table}.parquet", index=False)
        (stage / CONFIG).write_text(json_text(config), encoding="utf-8")
        if experiment is not None:
            (stage / EXPERIMENT).write_text(toml_text(experiment), encoding="utf-8")
        formats = tuple(plot_formats)
        if formats:
            from bloxopt.experiments.plots import plot_result

            plot_result(result, stage, formats)
        (stage / SUMMARY).write_text(json_text(result.summary()), encoding="utf-8")
        _remove_stale_plots(folder, {file.name for file in stage.iterdir()})
    return folder


def load_result(folder: str | Path) -> SimulationResult:
    """Read back what :func:`save_result` wrote; raises :class:`~bloxopt.errors.ResultError` naming what is wrong."""
    from bloxopt.simulation.result import SimulationResult

    folder = Path(folder)
    if not folder.is_dir():
        raise ResultError(f"{folder}: no such result folder")
    summary = load_summary(folder)
    jobs, rounds, placements = (_read_table(folder / f"{table}.parquet") for table in TABLES)
    config = load_config(folder)["simulation"]
    return SimulationResult(jobs, rounds, placements, config, wall_seconds=summary.get("wall_seconds") or 0.0)


def load_config(folder: str | Path) -> dict[str, Any]:
    """``config.json`` of a result folder: experiment, inputs, simulation and versions."""
    path = Path(folder) / CONFIG
    config = _read_json(path)
    missing = {"experiment", "inputs", "simulation", "versions"} - config.keys()
    if missing:
        raise ResultError(f"{path}: corrupt: {sorted(missing)[0]!r} is missing")
    return config


def load_summary(folder: str | Path) -> dict[str, Any]:
    """``summary.json`` of a result folder."""
    return _read_json(Path(folder) / SUMMARY)


def differences(folder: Path, experiment: Mapping[str, Any], inputs: Mapping[str, str]) -> list[str]:
    """What differs between the run stored in ``folder`` and this one: dotted keys, changed files, version."""
    stored = load_config(folder)
    found = [
        f"{key} is {_shown(old)} there and {_shown(new)} here"
        for key, old, new in _changed(_comparable(stored["experiment"] or {}), _comparable(experiment))
    ]
    found += [f"{name} has changed since" for name, old, new in _changed(stored["inputs"], dict(inputs)) if old and new]
    there, here = stored["versions"].get("bloxopt"), versions().get("bloxopt")
    if there != here:
        found.append(f"bloxopt is {there} there and {here} here")
    return found


def _shown(value: Any) -> str:
    return "unset" if value is None else repr(value)


def _comparable(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an experiment that decides its numbers: not where they go, nor what they are compared with."""
    kept = {key: value for key, value in plain(experiment).items() if key not in ("output", "compare")}
    return _flat(kept)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            flat[f"{prefix}{key}"] = value
    return flat


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    keys = dict.fromkeys([*new, *old])
    return [(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ResultError(f"{path.parent}: not a complete result folder: {path.name} is missing") from error
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {reason(error)}") from error
    except ValueError as error:
        raise ResultError(f"{path}: corrupt: {error}") from error
    if not isinstance(document, dict):
        raise ResultError(f"{path}: corrupt: expected a JSON object")
    return document


def _read_table(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except FileNotFoundError as error:
        raise ResultError(f"{path.parent}: not a complete result folder: {path.name} is missing") from error
    except (OSError, ValueError) as error:  # pyarrow raises ArrowInvalid, a ValueError, for a damaged file
        first_line = (str(error).splitlines() or [""])[0]
        raise ResultError(f"{path}: corrupt or unreadable: {first_line}") from error


def _remove_stale_plots(folder: Path, kept: set[str]) -> None:
    """Plots of the run being overwritten must not stand beside the numbers of the new one."""
    from bloxopt.experiments.plots import PLOTS

    for name in PLOTS:
        for file in folder.glob(f"{name}.*"):
            if file.name not in kept:
                file.unlink()
