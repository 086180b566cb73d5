"""Which of two agents of a node started later, whatever becomes of their messages on the way."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from bloxopt.runtime.agent.files import Record

_LOGGER = logging.getLogger("bloxopt.agent")
_NAME = "generation"


def next_generation(folder: Path) -> int:
    """A number larger than all that this folder gave before, wherever the clock has been set since.

    It is the time in milliseconds if that is larger, so that an agent with a new folder follows the former one too.
    Where the disk fails that is all it is: the agent goes on without the file.
    """
    path, now = folder / _NAME, int(time.time() * 1000)
    record = Record(path)
    try:
        if not path.exists():
            record.create()
        number: int = max((record.read() or {}).get(_NAME, 0) + 1, now)
        record.write({_NAME: number})
    except OSError as error:
        _LOGGER.warning("the number of this start cannot be kept: %s", error)
        return now
    return number
