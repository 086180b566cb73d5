"""Explanations of waiting jobs, worked out in a process beside the scheduler that keeps its last copy."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from bloxopt.errors import BloxoptError
from bloxopt.explanations.reasons import Explanation
from bloxopt.runtime.live.faults import ConflictError
from bloxopt.runtime.service.copies import BusyError, Copy
from bloxopt.runtime.service.explain_worker import LENGTH, MEMORY_GIB, Question
from bloxopt.solvers.worker import receive, send

MOST_SECONDS = 60.0
"""Seconds of processor time that one explanation may take."""

PATIENCE = 20.0
"""Seconds after which a job's start is no longer looked for: people wait for the rest of the answer."""

_WAITING, _STARTING = 2.0, 20.0
"""Seconds of waiting for each second of processor time, as others use the machine too, and for a process to start."""

_MOST_WAITING = 8
"""Questions that may wait for the one that is being worked out: each holds a thread of the service."""

_LONGEST_WAIT = 20.0
"""Seconds that each of them waits."""


class Explainer:
    """Answers one question at a time.

    The process is started when it is first needed, ends when nobody has asked for a while or when the scheduler ends,
    and is made again after that. One copy of the scheduler serves any number of questions.
    """

    def __init__(self, seconds: float = MOST_SECONDS, patience: float = PATIENCE) -> None:
        self.seconds, self.patience = seconds, patience
        self._places = threading.BoundedSemaphore(1 + _MOST_WAITING)
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def answer(
        self, make: Callable[[], Copy | None], job_id: str, remedies: bool, horizon: float
    ) -> Explanation | None:
        """Why a job waits, for the scheduler that ``make`` copies when it is its turn; None if that gives none.

        Raises :class:`~bloxopt.runtime.service.copies.BusyError` if others are asking too much,
        :class:`~bloxopt.runtime.live.faults.ConflictError` for what takes longer than it may, and a
        :class:`~bloxopt.errors.BloxoptError` for what cannot be worked out.
        """
        with contextlib.ExitStack() as held:
            for part, seconds in ((self._places, 0.0), (self._lock, _LONGEST_WAIT)):
                if not part.acquire(timeout=seconds):
                    raise BusyError("other explanations are being worked out: try again when they are done")
                held.callback(part.release)
            copied = make()
            if copied is None:
                return None
            return self._asked(copied, Question(job_id, remedies, horizon, self.patience, self.seconds))

    def close(self) -> None:
        """End the process, whatever it does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _asked(self, copied: Copy, question: Question) -> Explanation:
        if self._process is None or self._process.ended:
            self.close()
            try:
                self._process = _Process()
            except OSError as error:
                raise ConflictError(f"no process can be started to work it out in: {error.strerror}") from None
        process = self._process
        try:
            answer = process.ask(copied, question, time.monotonic() + _STARTING + _WAITING * self.seconds)
        except (OSError, EOFError) as error:  # a timeout too
            process.kill()
            late = isinstance(error, TimeoutError) or process.exit_code == -signal.SIGXCPU
            raise ConflictError(_too_long(question) if late else _died(process)) from None
        if isinstance(answer, str):
            raise BloxoptError(answer)
        return answer


def _too_long(question: Question) -> str:
    less = ["ask without what would make it run now"] if question.remedies else []
    less += ["ask for a shorter horizon (0: the present round alone)"] if question.horizon else []
    advice = f": {', or '.join(less)}" if less else ""
    return f"the explanation took more than {question.seconds:g} s of processor time{advice}"


def _died(process: _Process) -> str:
    return (
        f"the process that worked out the explanation ended (exit code {process.exit_code}): it may have needed more "
        f"than the {MEMORY_GIB} GiB of memory that it may use, or the machine has none left; try again"
    )


class _Process:
    """The process, seen from the scheduler."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair()
        self._copied: Copy | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bloxopt.runtime.service.explain_worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # It gives way: one thread is enough for it, and their memory would count.
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """How it ended, minus the signal if by one."""
        return self._process.poll()

    def ask(self, copied: Copy, question: Question, deadline: float) -> Explanation | str:
        """The answer, or why there is none, by ``deadline`` (monotonic s).

        Raises ``TimeoutError`` past it, and ``OSError`` or ``EOFError`` if the process ends first.
        """
        anew = copied is not self._copied
        send(self._connection, (question, anew), deadline)
        if anew:
            # As it is: put into another message it would be copied, and held by this process, twice more.
            self._connection.sendall(LENGTH.pack(len(copied.message)))
            self._connection.sendall(copied.message)
            self._copied = copied
        answer: Explanation | str = receive(self._connection, deadline)
        if isinstance(answer, str):
            # It may not have been able to open the copy, and have another one still.
            self._copied = None
        return answer

    def kill(self) -> None:
        """End it, and what it started, if it has not ended; afterwards there is an exit code."""
        self._connection.close()
        try:
            # One that has hit a limit is about to end: how says more than that it was killed here.
            self._process.wait(_LAST_WORD)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()


_LAST_WORD = 0.5
"""Seconds that a process has to end by itself once nobody listens to it."""
