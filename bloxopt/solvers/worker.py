"""The worker process of a watched solver: reads programs from a socket, solves them, writes the answers back.

Run as ``python -m bloxopt.solvers.worker FD`` by :mod:`bloxopt.solvers.watchdog`, never by hand.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import sys
from typing import Any

from bloxopt.errors import BloxoptError

_LENGTH = struct.Struct("!Q")


def send(connection: socket.socket, message: Any) -> None:
    """Write one message; raises ``OSError`` when the other side is gone or the socket's timeout passes."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> Any:
    """Read one message; raises ``EOFError`` when the other side is gone, ``TimeoutError`` as the socket does."""
    return pickle.loads(_read(connection, _LENGTH.unpack(_read(connection, _LENGTH.size))[0]))


def _read(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(min(count - len(data), 1 << 20))
        if not part:
            raise EOFError("the connection was closed")
        data += part
    return bytes(data)


READY = "ready"
"""The first thing that a worker says: it has imported all that its solver needs."""


def prepare(solver: Any) -> None:
    """Have a registered solver import its packages, by letting it solve a program of one column.

    A user's own came here with its module; it is not asked for more than the user asks of it.
    """
    import numpy as np
    from scipy.sparse import csc_array

    from bloxopt.formulations.standard_form import StandardForm
    from bloxopt.solvers.base import SolverOptions
    from bloxopt.solvers.registry import get_solver

    if not isinstance(solver, str):
        return
    one = np.ones(1)
    for integer in (False, True):
        form = StandardForm(-one, csc_array(one[None, :]), -np.inf * one, one, 0 * one, one, np.array([integer]))
        with contextlib.suppress(Exception):  # what is wrong shows when it is asked for an answer
            get_solver(solver).solve(form, SolverOptions(time_limit=1.0))


def serve(connection: socket.socket) -> None:
    """Prepare a solver, then answer (solver, the arguments of ``solve``) with a result, or with what it raised."""
    from bloxopt.solvers.registry import get_solver

    try:
        prepare(receive(connection))
        send(connection, READY)
    except (EOFError, OSError):
        return
    while True:
        try:
            solver, arguments = receive(connection)
        except (EOFError, OSError):
            return
        answer: Any
        try:
            answer = get_solver(solver).solve(*arguments)
        except BloxoptError as error:
            answer = error
        except Exception as error:  # whatever a solver raises is its failure, not this process's
            answer = f"{type(error).__name__}: {error}"
        try:
            send(connection, answer)
        except OSError:
            return
        except Exception as error:
            send(connection, f"its answer cannot be passed on: {type(error).__name__}: {error}")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
