"""Reading input files: regular files only, since a pipe or a device may never end."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from bloxopt.errors import BloxoptError, InputError


def read_input(path: str | Path, error: type[BloxoptError] = InputError) -> bytes:
    """The bytes of a regular file; raises ``error`` naming the path for anything else.

    A named pipe, a device or ``/dev/stdin`` could make the reader wait, or fill the memory, for ever.
    """
    path = Path(path)
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise error(f"{path}: cannot be read: Is a directory")
        if not stat.S_ISREG(mode):
            raise error(f"{path}: not a regular file (a pipe or a device): write the data to a file and name that one")
        return path.read_bytes()
    except (OSError, ValueError) as cause:
        if isinstance(cause, BloxoptError):
            raise
        reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else cause
        raise error(f"{path}: cannot be read: {reason}") from cause
