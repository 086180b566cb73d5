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
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bloxopt.errors import BloxoptError, InputError
from bloxopt.jobs import FloatArray
from bloxopt.solvers.base import Capabilities, Solver, SolverOptions, SolverResult, Start, Termination
from bloxopt.solvers.check import Tolerance, checked
from bloxopt.solvers.presolve import Answer
from bloxopt.solvers.registry import get_solver
from bloxopt.solvers.worker import receive, send

if TYPE_CHECKING:
    from bloxopt.formulations.standard_form import StandardForm

GRACE_SECONDS = 0.01
"""Seconds past its time limit after which a solver is taken to hang: what an answer may take to come over."""

_LAST_LOOK = 0.001
"""Seconds for an answer that came while this process was busy with something else."""

_DYING_SECONDS = 0.01
"""Seconds that a process which closed its connection is given to tell how it ended."""

_OWN_TOLERANCE = Tolerance(objective=1e-4, feasibility=1e-4)
"""What is asked of the answers of solvers that state no tolerance: small excesses are repaired later."""


class WorkerError(Exception):
    """A worker that has died, or whose words make no sense."""


class StartingError(Exception):
    """A worker that has not finished importing its solver."""


class Worker:
    """One process that solves programs one after the other until it is killed.

    It begins by importing what ``solver`` needs, while this process goes on. Raises ``OSError`` where no process can
    be started.
    """

    def __init__(self, solver: str | Solver) -> None:
        self._connection, theirs = socket.socketpair()
        self._ready = False
        self._asked = 0
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

    def ask(self, question: Any, deadline: float | None) -> None:
        """Put a question; the answer to one that was never fetched is forgotten.

        Raises ``TimeoutError`` past ``deadline`` (monotonic s), :class:`StartingError` if the worker is still importing
        then, which is no reason to kill it, and :class:`WorkerError` if it has died.
        """
        if not self.wait_until_ready(deadline):
            raise StartingError
        self._asked += 1
        try:
            send(self._connection, (self._asked, question), deadline)
        except TimeoutError:
            raise
        except OSError as error:
            raise WorkerError(str(error)) from error

    def answer(self, deadline: float | None) -> Any:
        """The answer to the last question; raises as :meth:`ask` does."""
        while True:
            number, answer = self._next(deadline)
            if number == self._asked:
                return answer

    def wait_until_ready(self, deadline: float | None) -> bool:
        """Whether it has imported what its solver needs, by ``deadline`` (monotonic s; None: whenever it has).

        Raises :class:`WorkerError` if it has died instead.
        """
        if not self._ready:
            if not self.speaks(deadline):
                return False
            self._next(time.monotonic() + _LAST_LOOK)
            self._ready = True
        return True

    def speaks(self, deadline: float | None) -> bool:
        """Whether it says something, or has died, by ``deadline`` (monotonic s; None: whenever it does)."""
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        try:
            self._connection.settimeout(left)
            self._connection.recv(1, socket.MSG_PEEK)
        except (TimeoutError, BlockingIOError):
            return False
        except OSError:
            return True
        return True

    def _next(self, deadline: float | None) -> tuple[int, Any]:
        try:
            number, answer = receive(self._connection, deadline)
        except TimeoutError:
            raise
        except EOFError as error:
            raise WorkerError(str(error)) from error
        except Exception as error:  # unpickling what is no message can raise anything
            raise WorkerError(f"what it said makes no sense: {type(error).__name__}: {error}") from error
        return number, answer

    def kill(self) -> None:
        """End the process at once, whatever it does, and those that it started; does not wait until it is gone."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._connection.close()

    def wait(self, timeout: float | None = None) -> int | None:
        """How it ended, None if it has not within ``timeout`` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None


class Watched:
    """A :class:`~bloxopt.solvers.base.Solver` around another, which cannot hang, crash or corrupt this process.

    A solver that is not done ``grace`` seconds after its time limit is killed (LIMIT_NO_SOLUTION); one whose process
    dies or makes no sense has failed (ERROR). Without a time limit it may take as long as it likes. ``solver`` is a
    name, or an object that can be pickled; what the latter answers is checked as the answers of registered ones are.
    Workers are started ahead: one works, one waits to replace it. Safe to use from many threads, which then take turns.
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
        self.tolerance: Tolerance = getattr(inner, "tolerance", _OWN_TOLERANCE)
        self.grace = grace
        self.kills = 0
        """How often a solver was killed because it overran."""
        self.crashes = 0
        """How often a solver's process died by itself or made no sense."""
        self._lock = threading.Lock()
        self._wanted = 1
        self._workers: list[Worker] = []
        self._dying: list[Worker] = []
        self._finalizer = weakref.finalize(self, _end_all, self._workers, self._dying)

    def start(self, spare: bool = True, wait: float = 0.0) -> None:
        """Start the workers, so that the first solve need not wait for one to come up.

        ``wait`` is for how many seconds at most the first of them is waited for. Where no process can be started, the
        first solve says so.
        """
        with self._lock:
            self._wanted = max(self._wanted, 2 if spare else 1)
            self._fill_up()
            if wait > 0 and self._workers:
                with contextlib.suppress(WorkerError, TimeoutError):
                    self._workers[0].wait_until_ready(time.monotonic() + wait)

    def close(self) -> None:
        """End the workers."""
        with self._lock:
            _end_all(self._workers, self._dying)

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
        *,
        until: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> SolverResult:
        """Minimise the form within ``options.time_limit``; see :class:`bloxopt.solvers.base.IncrementalSolver`.

        After ``until`` (monotonic s) nothing is asked any more, and ``grace`` seconds later nothing is waited for.
        ``meanwhile`` is called here once half of the time has passed without an answer.
        """
        started = time.monotonic()
        # Solvers of the plain protocol do not know of starts from earlier answers.
        arguments = (form, options, warm_start, *(() if start is None else (start,)))
        limit = options.time_limit
        ends = [end for end in (until, None if limit is None else started + limit) if end is not None]
        deadline = min(ends) + self.grace if ends else None
        if until is not None and started >= until:
            return self._failed(Termination.LIMIT_NO_SOLUTION, started, "was not asked: no time was left")
        if not self._lock.acquire(timeout=-1 if deadline is None else max(deadline - started, 0.0)):
            return self._failed(Termination.LIMIT_NO_SOLUTION, started, "another solve took all of the time")
        try:
            try:
                if not self._workers:
                    self._workers.append(Worker(self.solver))
            except OSError as error:
                return self._failed(Termination.ERROR, started, f"its process cannot be started ({error})")
            worker = self._workers[0]
            try:
                answer = self._answer(worker, (self.solver, arguments), started, deadline, meanwhile)
            except StartingError:
                return self._failed(Termination.LIMIT_NO_SOLUTION, started, "its process is still starting")
            except TimeoutError:
                self._dismiss(worker)
                self.kills += 1
                given = 0.0 if deadline is None else deadline - self.grace - started
                overrun = f"killed {time.monotonic() - started:.3f} s after it was given {given:.3f} s"
                return self._failed(Termination.LIMIT_NO_SOLUTION, started, overrun)
            except WorkerError as error:
                code = worker.wait(_DYING_SECONDS)
                self._dismiss(worker)
                self.crashes += 1
                reason = str(error) if code is None else f"exit code {code}"
                return self._failed(Termination.ERROR, started, f"its process died ({reason})")
            except BaseException:
                # Interrupted in the middle of a message: the next one would not be understood.
                self._dismiss(worker)
                raise
        finally:
            self._lock.release()
        if isinstance(answer, BloxoptError):
            raise answer
        if isinstance(answer, str):
            return self._failed(Termination.ERROR, started, answer)
        if not isinstance(answer, SolverResult):
            return self._failed(Termination.ERROR, started, f"returned a {type(answer).__name__}")
        return answer if isinstance(self.solver, str) else _examined(form, answer, self.tolerance, options)

    def _answer(
        self,
        worker: Worker,
        question: Any,
        started: float,
        deadline: float | None,
        meanwhile: Callable[[], None] | None,
    ) -> Any:
        """Ask, wait, and make use of the time in which the solver works."""
        halfway = None if deadline is None else (started + deadline) / 2
        busy = meanwhile is not None and halfway is not None
        if busy and not worker.wait_until_ready(halfway):
            assert meanwhile is not None
            meanwhile()
            busy = False
        worker.ask(question, deadline)
        self._fill_up()
        if busy and not worker.speaks(halfway):
            assert meanwhile is not None
            meanwhile()
        if deadline is not None:
            deadline = max(deadline, time.monotonic() + _LAST_LOOK)
        return worker.answer(deadline)

    def _dismiss(self, worker: Worker) -> None:
        """Kill a worker; the spare takes over, and another one is started when there is time for it."""
        worker.kill()
        self._workers.remove(worker)
        self._dying.append(worker)

    def _fill_up(self) -> None:
        """Forget the dead and start workers for those that are missing, if processes can be started."""
        self._dying[:] = [worker for worker in self._dying if worker.exit_code is None]
        with contextlib.suppress(OSError):
            while len(self._workers) < self._wanted:
                self._workers.append(Worker(self.solver))

    def _failed(self, termination: Termination, started: float, message: str) -> SolverResult:
        return SolverResult(
            termination, solve_seconds=time.monotonic() - started, solver=self.name, message=f"{self.name}: {message}"
        )


def _examined(form: StandardForm, result: SolverResult, tolerance: Tolerance, options: SolverOptions) -> SolverResult:
    """An answer with what it claims checked: points that break a row are rejected, values worked out again."""
    bound = None if result.bound is None else result.bound - form.constant
    claim = Answer(result.termination, None, result.row_duals, bound, result.message)
    try:
        x = None if result.x is None else np.asarray(result.x, dtype=np.float64)
        answer = checked(form, replace(claim, x=x), tolerance, options.mip_gap)
    except Exception as error:  # an answer that is of the wrong kind throughout
        answer = Answer(Termination.ERROR, message=f"its answer cannot be checked: {type(error).__name__}: {error}")
    value, said, message = None, result.objective, answer.message
    if answer.x is not None:
        value = form.objective(answer.x)
        if said is not None and not _agree(said, value, form, answer.x, tolerance):
            answer = replace(answer, bound=None, row_duals=None, termination=Termination.FEASIBLE)
            message = f"it claims a value of {said:.9g} for a point that is worth {value:.9g}"
    return replace(
        result,
        termination=answer.termination,
        x=answer.x,
        objective=value,
        bound=None if answer.bound is None else answer.bound + form.constant,
        row_duals=answer.row_duals,
        reduced_costs=None if answer.row_duals is None else form.cost - form.matrix.T @ answer.row_duals,
        message=message,
    )


def _agree(said: float, value: float, form: StandardForm, x: FloatArray, tolerance: Tolerance) -> bool:
    """Whether two values of the objective at ``x`` are the same but for rounding."""
    terms = float((np.abs(form.cost) * np.abs(x)).sum()) + abs(form.constant)
    return abs(said - value) <= 10 * tolerance.objective * max(terms, abs(value), 1e-9)


def _environment() -> dict[str, str]:
    """The environment with the folders from which this process imports, so that user modules are found too."""
    paths = [path or str(Path.cwd()) for path in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _end_all(workers: list[Worker], dying: list[Worker]) -> None:
    while workers:
        worker = workers.pop()
        worker.kill()
        dying.append(worker)
    while dying:
        dying.pop().wait()
