"""The process of explanations: reads copies of the scheduler and questions from a socket, writes answers back.

Run as ``python -m bloxopt.runtime.service.explain_worker FD`` by :mod:`bloxopt.runtime.service.explaining`, never by
hand. It gives way to all else on the machine. The kernel ends it when a question has used up its processor time, or
when it takes too much memory; it ends itself with the scheduler, and when it has had nothing to do for a while.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import socket
import struct
import sys
import threading
import time
from typing import Any, NamedTuple

from bloxopt.solvers.worker import receive, send, step_back

LENGTH = struct.Struct("!Q")
"""What comes before a copy: its length in bytes."""

MEMORY_GIB = 4

_IDLE_SECONDS = 600.0
_NICENESS = 8


class Question(NamedTuple):
    """About which job, whether to try out what would make it run, how far to look ahead (s), after how long (s) to stop
    looking, and the processor time (s) that all of it may take."""

    job_id: str
    remedies: bool
    horizon: float
    patience: float
    seconds: float


def serve(connection: socket.socket) -> None:
    """Answer questions, each with whether another copy follows: an explanation, or a sentence why there is none."""
    from bloxopt.explanations.explain import explain
    from bloxopt.runtime.service.copies import opened

    copied: tuple[Any, ...] = ()
    while True:
        question, anew = receive(connection, time.monotonic() + _IDLE_SECONDS)
        _limit_processor_time(question.seconds)
        answer: Any
        try:
            if anew:
                copied = opened(receive(connection))
            scheduler, state = copied
            answer = explain(
                scheduler,
                state,
                question.job_id,
                remedies=question.remedies,
                horizon=question.horizon,
                patience=question.patience,
            )
        except Exception as error:
            answer = _said(error)
        send(connection, answer)


def _said(error: Exception) -> str:
    from bloxopt.errors import BloxoptError

    if isinstance(error, BloxoptError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"the explanation needs more than the {MEMORY_GIB} GiB of memory that it may use"
    return f"the explanation failed: {type(error).__name__}: {error}"


def _limit_processor_time(seconds: float) -> None:
    """Have the kernel end this process when it has used so many seconds more."""
    most = math.ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))


def _end_with(connection: socket.socket) -> None:
    """End this process, whatever it does, when nobody is there any more at the other end."""
    gone = select.poll()
    gone.register(connection, select.POLLRDHUP)
    gone.poll()
    os._exit(0)


def main() -> None:
    """Answer until nobody asks any more."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    step_back()
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_GIB * 2**30, MEMORY_GIB * 2**30))
    with contextlib.suppress(EOFError, OSError):
        serve(connection)


if __name__ == "__main__":
    main()
