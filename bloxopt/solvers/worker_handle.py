"""A worker process, seen from the process that started it: questions go in, answers come out, it can be killed."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bloxopt.solvers.base import Solver
from bloxopt.solvers.worker import PATIENCE_SECONDS, receive, send

_LAST_LOOK = 0.01
"""Seconds for the rest of an answer that has begun to come."""


class WorkerError(Exception):
    """A worker that has died, or whose words make no sense."""


class Worker:
    """One process that solves programs one after the other until it is killed.

    It begins by importing what ``solver`` needs, while this process goes on. Questions are numbered, so that the answer
    to one that nobody waits for any more is not taken for another's. Raises ``OSError`` where no process can be
    started.
    """

    def __init__(self, solver: str | Solver) -> None:
        self._connection, theirs = socket.socketpair()
        self._asked, self._answered = 0, -1
        self._due = math.inf
        # Made by the process when it can be, removed here when it can no longer do that itself.
        self._folder = f"bloxopt-worker-{secrets.token_hex(8)}"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bloxopt.solvers.worker", str(theirs.fileno()), self._folder],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
            )
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()
        with contextlib.suppress(OSError):  # one that has died already is found out when it is asked
            send(self._connection, solver)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How the process ended, minus the signal if by one; None while it runs."""
        return self._process.poll()

    @property
    def ready(self) -> bool:
        """Whether it has imported what its solver needs, as far as has been heard."""
        return self._answered >= 0

    @property
    def free(self) -> bool:
        """Whether it is ready and has answered all it was asked, as far as has been heard."""
        return self._answered == self._asked

    @property
    def given_up(self) -> float:
        """When an answer that has not come is no longer expected (monotonic s); inf while it is asked nothing."""
        return self._due + PATIENCE_SECONDS if self.ready and not self.free else math.inf

    @property
    def hangs(self) -> bool:
        """Whether it is so late with an answer that none will come."""
        return time.monotonic() >= self.given_up

    def ask(self, question: Any, deadline: float | None) -> None:
        """Put a question that is to be answered by ``deadline`` (monotonic s).

        Raises :class:`WorkerError` if it has died or does not listen.
        """
        self._asked += 1
        self._due = math.inf if deadline is None else deadline
        try:
            send(self._connection, (self._asked, deadline, question), deadline)
        except OSError as error:
            raise WorkerError(str(error) or "it does not listen") from error

    def answer(self, deadline: float | None) -> Any:
        """The answer to the last question; raises ``TimeoutError`` past ``deadline`` and :class:`WorkerError`."""
        answer = None
        while self._answered < self._asked:
            if not self.speaks(deadline):
                raise TimeoutError
            answer = self._heard()
        return answer

    def wait_until_free(self, deadline: float | None) -> bool:
        """Whether it can be asked something by ``deadline`` (monotonic s; None: whenever it can).

        Raises :class:`WorkerError` if it has died instead.
        """
        while not self.free and self.speaks(deadline):
            self._heard()
        return self.free

    def speaks(self, deadline: float | None) -> bool:
        """Whether it says something, or has died, by ``deadline`` (monotonic s; None: whenever it does)."""
        try:
            left = None if deadline is None or deadline == math.inf else max(deadline - time.monotonic(), 0.0)
            self._connection.settimeout(left)
            self._connection.recv(1, socket.MSG_PEEK)
        except (TimeoutError, BlockingIOError):
            return False
        except OSError:
            return True
        return True

    def _heard(self) -> Any:
        try:
            number, answer = receive(self._connection, time.monotonic() + _LAST_LOOK)
            if not self._answered < number <= self._asked:
                raise ValueError(f"an answer to question {number} of {self._asked}")
            self._answered = number
        except TimeoutError:
            raise WorkerError("it stopped in the middle of an answer") from None
        except EOFError as error:
            raise WorkerError(str(error)) from error
        except Exception as error:  # unpickling what is no message can raise anything
            raise WorkerError(f"what it said makes no sense: {type(error).__name__}: {error}") from error
        return answer

    def kill(self) -> None:
        """End the process at once, whatever it does, and those that it started; does not wait until it is gone."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # one that has just been started is in no group of its own yet
        self._connection.close()

    def wait(self, timeout: float | None = None) -> int | None:
        """How it ended, None if it has not within ``timeout`` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def tidy(self) -> None:
        """Remove its temporary files, once it has ended. That may wait for the disk: nothing to do in a round."""
        with contextlib.suppress(OSError):  # on a full disk there is no folder for temporary files, nor one to remove
            shutil.rmtree(Path(tempfile.gettempdir()) / self._folder)


def _environment() -> dict[str, str]:
    """The environment with the folders from which this process imports, so that user modules are found too."""
    paths = [path or str(Path.cwd()) for path in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
