"""A solver that is watched: it runs in a process of its own, which is killed when it overruns its time limit."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bloxopt.errors import BloxoptError, InputError
from bloxopt.jobs import FloatArray
from bloxopt.solvers.base import Capabilities, Solver, SolverOptions, SolverResult, Start, Termination
from bloxopt.solvers.registry import get_solver
from bloxopt.solvers.worker import receive, send

if TYPE_CHECKING:
    from bloxopt.formulations.standard_form import StandardForm

GRACE_SECONDS = 0.01
"""Seconds past its time limit after which a solver is taken to hang: what an answer may take to come over."""


class Worker:
    """One process that solves programs one after the other until it is killed.

    It begins by importing what ``solver`` needs, while this process goes on.
    """

    def __init__(self, solver: str | Solver) -> None:
        self._connection, theirs = socket.socketpair()
        self._ready = False
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bloxopt.solvers.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=_environment(),
            )
        finally:
            theirs.close()
        send(self._connection, solver)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How the process ended, minus the signal if by one; None while it runs."""
        return self._process.poll()

    def ask(self, message: Any, deadline: float | None) -> Any:
        """The answer to a message; raises ``TimeoutError`` past ``deadline`` (monotonic s), ``EOFError`` if it dies.

        Raises :class:`StartingError` if it is still importing at the deadline: that is no reason to kill it.
        """
        try:
            if not self.wait_until_ready(deadline):
                raise StartingError
            self._connection.settimeout(_left(deadline))
            send(self._connection, message)
            self._connection.settimeout(_left(deadline))
            return receive(self._connection)
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError(str(error)) from error

    def wait_until_ready(self, deadline: float | None) -> bool:
        """Whether it has imported what its solver needs, by ``deadline`` (monotonic s; None: whenever it has)."""
        if not self._ready:
            self._connection.settimeout(_left(deadline))
            try:
                receive(self._connection)
            except TimeoutError:
                return False
            self._ready = True
        return True

    def kill(self) -> None:
        """End the process at once, whatever it does, and those that it started."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()


class StartingError(Exception):
    """A worker that has not finished importing its solver."""


class Watched:
    """A :class:`~bloxopt.solvers.base.Solver` around another, which cannot hang, crash or corrupt this process.

    A solver that is not done ``grace`` seconds after its time limit is killed (LIMIT_NO_SOLUTION); one whose process
    dies has failed (ERROR). Without a time limit it may take as long as it likes. ``solver`` is a name, or an object
    that can be pickled. Workers are started ahead: one works, one waits to replace it. Safe to use from many threads,
    which then take turns.
    """

    def __init__(self, solver: str | Solver = "auto", grace: float = GRACE_SECONDS) -> None:
        inner = get_solver(solver)
        try:
            pickle.dumps(solver)
        except Exception as error:
            raise InputError(
                f"solver {getattr(inner, 'name', inner)!r} cannot be watched in a process of its own, because it "
                f"cannot be pickled ({error}): define its class at the top of a module"
            ) from None
        self.solver = solver
        self.name = str(getattr(inner, "name", type(inner).__name__))
        self.capabilities: Capabilities = getattr(inner, "capabilities", Capabilities())
        self.grace = grace
        self.kills = 0
        """How often a solver was killed because it overran."""
        self.crashes = 0
        """How often a solver's process died by itself."""
        self._lock = threading.Lock()
        self._workers: list[Worker] = []
        self._finalizer = weakref.finalize(self, _kill_all, self._workers)

    def start(self, spare: bool = True, wait: float = 0.0) -> None:
        """Start the workers, so that the first solve need not wait for one to come up.

        ``wait`` is for how many seconds at most the first of them is waited for.
        """
        with self._lock:
            while len(self._workers) < (2 if spare else 1):
                self._workers.append(Worker(self.solver))
            if wait > 0:
                self._workers[0].wait_until_ready(time.monotonic() + wait)

    def close(self) -> None:
        """End the workers."""
        with self._lock:
            _kill_all(self._workers)

    def __enter__(self) -> Watched:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def solve(
        self,
        form: StandardForm,
        options: SolverOptions = SolverOptions(),
        warm_start: FloatArray | None = None,
        start: Start | None = None,
    ) -> SolverResult:
        """Minimise the form within ``options.time_limit``; see :class:`bloxopt.solvers.base.IncrementalSolver`."""
        started = time.monotonic()
        # Solvers of the plain protocol do not know of starts from earlier answers.
        arguments = (form, options, warm_start, *(() if start is None else (start,)))
        limit = options.time_limit
        deadline = None if limit is None else started + limit + self.grace
        if not self._lock.acquire(timeout=-1 if limit is None else limit + self.grace):
            return self._failed(Termination.LIMIT_NO_SOLUTION, started, "another solve took all of the time")
        try:
            if not self._workers:
                self._workers.append(Worker(self.solver))
            worker = self._workers[0]
            try:
                answer = worker.ask((self.solver, arguments), deadline)
            except StartingError:
                return self._failed(Termination.LIMIT_NO_SOLUTION, started, "its process is still starting")
            except TimeoutError:
                self._replace(worker)
                self.kills += 1
                overrun = f"killed {time.monotonic() - started:.3f} s after it was given {limit:g} s"
                return self._failed(Termination.LIMIT_NO_SOLUTION, started, overrun)
            except (EOFError, pickle.UnpicklingError) as error:
                self._replace(worker)
                self.crashes += 1
                return self._failed(Termination.ERROR, started, f"its process died ({_death(worker, error)})")
        finally:
            self._lock.release()
        if isinstance(answer, BloxoptError):
            raise answer
        if isinstance(answer, str):
            return self._failed(Termination.ERROR, started, answer)
        if not isinstance(answer, SolverResult):
            return self._failed(Termination.ERROR, started, f"returned a {type(answer).__name__}")
        return answer

    def _replace(self, worker: Worker) -> None:
        """The spare worker takes over, and another one is started to stand by."""
        worker.kill()
        self._workers.remove(worker)
        self._workers.append(Worker(self.solver))

    def _failed(self, termination: Termination, started: float, message: str) -> SolverResult:
        return SolverResult(
            termination, solve_seconds=time.monotonic() - started, solver=self.name, message=f"{self.name}: {message}"
        )


def _left(deadline: float | None) -> float | None:
    """Seconds to wait at most; a socket takes 0 to mean not at all, and None for ever."""
    return None if deadline is None else max(deadline - time.monotonic(), 1e-4)


def _death(worker: Worker, error: Exception) -> str:
    code = worker.exit_code
    return f"exit code {code}" if code is not None else str(error) or type(error).__name__


def _environment() -> dict[str, str]:
    """The environment with the folders from which this process imports, so that user modules are found too."""
    paths = [path or str(Path.cwd()) for path in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _kill_all(workers: list[Worker]) -> None:
    while workers:
        workers.pop().kill()
