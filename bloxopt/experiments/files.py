"""Files that appear whole or not at all, and plain data as JSON and TOML."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bloxopt.errors import ResultError

_PARTIAL = ".partial-"


def reason(error: OSError) -> str:
    """Why a file operation failed, in the system's words without the error number."""
    text = error.strerror or str(error) or type(error).__name__
    # PyArrow wraps the system's words: "Error writing bytes to file. Detail: [errno 28] No space left on device".
    quoted = re.search(r"\[errno \d+\] (.+)", text)
    return quoted[1] if quoted else text


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file next to ``path``, then rename it.

    ``path`` holds either its old content or all of the new one. Raises
    :class:`~bloxopt.errors.ResultError` with the path and the reason; no temporary file is left.
    """
    temporary = path.with_name(f"{_PARTIAL}{os.getpid()}-{path.name}")
    try:
        write(temporary)
        _flush(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise ResultError(f"{path}: cannot be written: {reason(error)}") from error
    finally:
        with _ignore_missing():
            temporary.unlink()


@contextmanager
def staged(folder: Path, last: str) -> Iterator[Path]:
    """A temporary folder inside ``folder`` whose files move into it, ``last`` at the end, if all goes well.

    On any failure ``folder`` is what it was before (removed again if it was made here). Raises
    :class:`~bloxopt.errors.ResultError` with the path and the reason.
    """
    created = make_folder(folder)
    stage: Path | None = None
    try:
        for left_behind in folder.glob(f"{_PARTIAL}*"):  # by a run that was killed
            shutil.rmtree(left_behind, ignore_errors=True)
        stage = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=folder))
        yield stage
        names = sorted((file.name for file in stage.iterdir()), key=lambda name: name == last)
        for name in names:
            _flush(stage / name)
        # Without its last file a folder counts as incomplete, so a crash between the renames shows.
        with _ignore_missing():
            (folder / last).unlink()
        for name in names:
            os.replace(stage / name, folder / name)
        created = None
    except ResultError as error:
        raise ResultError(str(error).replace(str(stage), str(folder))) from error
    except OSError as error:
        raise ResultError(f"{folder}: results cannot be written: {reason(error)}") from error
    finally:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)
        if created is not None:
            _remove_empty(folder, created)


def make_folder(folder: Path) -> Path | None:
    """Make ``folder``; the topmost folder that had to be made, None if it was there."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultError(f"{folder}: the folder cannot be made: {reason(error)}") from error
    return missing[-1] if missing else None


def check_writable(folder: Path) -> None:
    """Raise :class:`~bloxopt.errors.ResultError` unless files can be made in ``folder``, before work is spent."""
    created = make_folder(folder)
    try:
        os.rmdir(tempfile.mkdtemp(prefix=_PARTIAL, dir=folder))
    except OSError as error:
        raise ResultError(f"{folder}: results cannot be written: {reason(error)}") from error
    finally:
        if created is not None:
            _remove_empty(folder, created)


def check_file(path: Path) -> None:
    """Raise :class:`~bloxopt.errors.ResultError` unless ``path`` can be written, before work is spent."""
    if path.exists() and not path.is_file():
        raise ResultError(f"{path}: cannot be written: it is {'a folder' if path.is_dir() else 'no regular file'}")
    check_writable(path.absolute().parent)
    if path.exists() and not os.access(path, os.W_OK):
        raise ResultError(f"{path}: cannot be written: Permission denied")


def plain(value: Any) -> Any:
    """``value`` as JSON knows it: str, int, float, bool, None, list, dict; NaN and infinities become None."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, np.ndarray)):
        return [plain(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def json_text(value: Any) -> str:
    """``value`` as indented, strictly valid JSON."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def toml_text(document: Mapping[str, Any]) -> str:
    """A TOML document of tables of scalars, lists and tables; None values are left out."""
    lines: list[str] = []
    _toml_table(document, (), lines)
    return "\n".join(lines).strip() + "\n"


def _toml_table(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    entries = {key: value for key, value in table.items() if value is not None}
    scalars = {key: value for key, value in entries.items() if not isinstance(value, Mapping)}
    if path and (scalars or not entries):
        lines.extend(["", f"[{'.'.join(_toml_key(part) for part in path)}]"])
    lines.extend(f"{_toml_key(key)} = {_toml_value(value)}" for key, value in scalars.items())
    for key, value in entries.items():
        if isinstance(value, Mapping):
            _toml_table(value, (*path, key), lines)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml_value(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_value(entry) for entry in value) + "]"
    if isinstance(value, (int, float)):
        return repr(value)
    raise TypeError(f"TOML cannot hold {type(value).__name__}")


def _flush(file: Path) -> None:
    """Onto the disk before the rename: some file systems find out that they are full only now."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _remove_empty(folder: Path, topmost: Path) -> None:
    for place in (folder, *folder.parents):
        try:
            place.rmdir()
        except OSError:
            return
        if place == topmost:
            return


@contextmanager
def _ignore_missing() -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        return
