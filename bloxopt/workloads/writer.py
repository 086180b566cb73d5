"""Writes jobs in our own format: CSV or Parquet, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bloxopt.errors import ResultError, TraceError

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".csv.gz", ".parquet")


def write_trace(frame: pd.DataFrame, path: Path) -> None:
    """Write the frame beside ``path`` and move it into place, so that a full disk leaves no half file."""
    suffix = next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), None)
    if suffix is None:
        raise TraceError(f"{path}: cannot tell the format to write: end the name with {', '.join(SUFFIXES)}")
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=suffix)
        os.close(handle)
        temporary = Path(name)
        if suffix == ".parquet":
            frame.to_parquet(temporary, index=False)
        else:
            # Floats go out in full (repr), so that reading gives back the same bits.
            frame.to_csv(temporary, index=False, lineterminator="\n")
        # mkstemp makes files for their owner alone; a result is as readable as any other file.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except OSError as error:
        raise ResultError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
