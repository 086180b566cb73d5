"""The worker process of a watched solver: reads programs from a socket, solves them, writes the answers back.

Run as ``python -m bloxopt.solvers.worker FD NAME`` by :mod:`bloxopt.solvers.watchdog`, never by hand.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bloxopt.errors import BloxoptError

_LENGTH = struct.Struct("!Q")

_LEAST_WAIT = 1e-4
"""Seconds; 0 would make a socket one that never waits."""


def send(connection: socket.socket, message: Any, deadline: float | None = None) -> None:
    """Write one message; raises ``TimeoutError`` past ``deadline`` (monotonic s), ``OSError`` if no one is there."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    connection.settimeout(None if deadline is None else max(deadline - time.monotonic(), _LEAST_WAIT))
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket, deadline: float | None = None) -> Any:
    """Read one message; raises ``TimeoutError`` past ``deadline`` (monotonic s), ``EOFError`` if no one is there."""
    return pickle.loads(_read(connection, _LENGTH.unpack(_read(connection, _LENGTH.size, deadline))[0], deadline))


def _read(connection: socket.socket, count: int, deadline: float | None) -> bytes:
    data = bytearray()
    while len(data) < count:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:  # also for one that never stops sending
            raise TimeoutError
        connection.settimeout(left)
        try:
            part = connection.recv(min(count - len(data), 1 << 20))
        except ConnectionError as error:
            raise EOFError(str(error)) from error
        if not part:
            raise EOFError("the connection was closed")
        data += part
    return bytes(data)


PATIENCE_SECONDS = 1.0
"""Seconds past its deadline after which a solver is taken to hang, and its process ends itself."""

_NICENESS = 2
"""Enough for the process that waits with a deadline to get a processor first, and not to starve beside others."""

READY = "ready"
"""The first thing that a worker says: it has imported all that its solver needs."""


def prepare(solver: Any) -> None:
    """Have a registered solver import its packages, by letting it solve a program of one column.

    A user's own came here with its module; it is not asked for more than the user asks of it.
    """
    import numpy as np
    from scipy.sparse import csc_array

    from bloxopt.formulations.solving.standard_form import StandardForm
    from bloxopt.solvers.base import SolverOptions
    from bloxopt.solvers.registry import get_solver

    if not isinstance(solver, str):
        return
    one = np.ones(1)
    for integer in (False, True):
        form = StandardForm(-one, csc_array(one[None, :]), -np.inf * one, one, 0 * one, one, np.array([integer]))
        with contextlib.suppress(Exception):  # what is wrong shows when it is asked for an answer
            get_solver(solver).solve(form, SolverOptions(time_limit=1.0))


@contextlib.contextmanager
def temporary_folder(name: str) -> Iterator[None]:
    """Have solvers put their temporary files into a folder of that name; whoever started this process knows it too."""
    folder = ""
    with contextlib.suppress(OSError):  # a solver that needs one where there is no space will say so
        made = os.path.join(tempfile.gettempdir(), name)
        os.mkdir(made, mode=0o700)
        folder = tempfile.tempdir = made
    try:
        yield
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def step_back() -> None:
    """Let this process give way: to the one that waits for it with a deadline, and where memory runs out.

    It gets a session of its own here, to be killed with all that it starts, and not from the beginning: sessions share
    the processors, and until the program is loaded, the one that waits with a deadline waits for it.
    """
    with contextlib.suppress(OSError):  # run by hand, it may lead a group already
        os.setsid()
    os.nice(_NICENESS)
    with contextlib.suppress(OSError):  # Linux only
        Path("/proc/self/oom_score_adj").write_text("1000")
        # Where sessions share the processors equally, niceness counts within this session only.
        Path("/proc/self/autogroup").write_text(str(_NICENESS))


@contextlib.contextmanager
def _ending_with(deadline: float | None) -> Iterator[None]:
    """Have the kernel end this process if what is done within hangs, whatever it does and whoever is left."""
    if deadline is not None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, max(deadline + PATIENCE_SECONDS - time.monotonic(), 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def serve(connection: socket.socket) -> None:
    """Prepare a solver, then answer questions (number, deadline, (solver, the arguments of ``solve``)).

    An answer is (number, result), or with what the solver raised in place of a result. Deadlines are monotonic s.
    """
    from bloxopt.solvers.registry import get_solver

    try:
        prepare(receive(connection))
        send(connection, (0, READY))
    except (EOFError, OSError):
        return
    while True:
        try:
            number, deadline, (solver, arguments) = receive(connection)
        except (EOFError, OSError):
            return
        answer: Any
        try:
            with _ending_with(deadline):
                answer = get_solver(solver).solve(*arguments)
        except BloxoptError as error:
            answer = error
        except Exception as error:  # whatever a solver raises is its failure, not this process's
            answer = f"{type(error).__name__}: {error}"
        try:
            send(connection, (number, answer))
        except OSError:
            return
        except Exception as error:
            send(connection, (number, f"its answer cannot be passed on: {type(error).__name__}: {error}"))


if __name__ == "__main__":
    step_back()
    with temporary_folder(sys.argv[2]):
        serve(socket.socket(fileno=int(sys.argv[1])))
