"""A solver that is watched: it runs in a process of its own, and nobody waits for it past its time limit.

One that is a little late, as solvers are, is left to finish and serves again: starting a process takes a second. One
that hangs is killed.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bloxopt.errors import BloxoptError, InputError
from bloxopt.jobs import FloatArray
from bloxopt.solvers.base import Capabilities, Solver, SolverOptions, SolverResult, Start, Termination
from bloxopt.solvers.check import Tolerance, checked
from bloxopt.solvers.presolve import Answer
from bloxopt.solvers.registry import get_solver
from bloxopt.solvers.worker_handle import WorkerError
from bloxopt.solvers.worker_pool import WorkerPool

if TYPE_CHECKING:
    from bloxopt.formulations.solving.standard_form import StandardForm

GRACE_SECONDS = 0.01
"""Seconds past its time limit for which a solver is waited for: what an answer may take to come over."""

_OWN_TOLERANCE = Tolerance(objective=1e-4, feasibility=1e-4)
"""What is asked of the answers of solvers that state no tolerance: small excesses are repaired later."""


class Watched:
    """A :class:`~bloxopt.solvers.base.Solver` around another, which cannot hang, crash or corrupt this process.

    A solver that is not done ``grace`` seconds after its time limit is not waited for (LIMIT_NO_SOLUTION), and killed
    if it is not done a second later either; one whose process dies or makes no sense has failed (ERROR). Without a time
    limit it may take as long as it likes. ``solver`` is a name, or an object that can be pickled; what the latter
    answers is checked as the answers of registered ones are. Workers are started ahead: one works, one waits to replace
    it. Safe to use from many threads, which then take turns.
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
        self.overruns = 0
        """How often it was not waited for any longer."""
        self._lock = threading.Lock()
        self._pool = WorkerPool(solver)

    @property
    def kills(self) -> int:
        """How many of its processes were killed because they hung."""
        return self._pool.kills

    @property
    def crashes(self) -> int:
        """How many of its processes died by themselves or made no sense."""
        return self._pool.crashes

    def start(self, spare: bool = True, wait: float = 0.0) -> None:
        """Start the workers, so that the first solve need not wait for one to come up.

        ``wait`` is for how many seconds at most the first of them is waited for. Where no process can be started, the
        first solve says so.
        """
        with self._lock:
            self._pool.wanted = max(self._pool.wanted, 2 if spare else 1)
            self._pool.fill_up()
            if wait > 0:
                with contextlib.suppress(OSError, WorkerError):
                    self._pool.free(time.monotonic() + wait)

    def close(self) -> None:
        """End the workers."""
        with self._lock:
            self._pool.close()

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

        With ``until`` (monotonic s), nothing is asked any more or waited for after that, instead of ``grace`` seconds
        after the time limit. ``meanwhile`` is called here once half of the time has passed without an answer.
        """
        started = time.monotonic()
        # Solvers of the plain protocol do not know of starts from earlier answers.
        arguments = (form, options, warm_start, *(() if start is None else (start,)))
        limit = options.time_limit
        deadline = started + limit + self.grace if limit is not None and until is None else until
        if until is not None and started >= until:
            return self._failed(Termination.LIMIT_NO_SOLUTION, started, "was not asked: no time was left")
        if not self._lock.acquire(timeout=-1 if deadline is None else max(deadline - started, 0.0)):
            return self._failed(Termination.LIMIT_NO_SOLUTION, started, "another solve took all of the time")
        try:
            answer = self._answer((self.solver, arguments), started, deadline, meanwhile)
        except TimeoutError as error:
            return self._failed(Termination.LIMIT_NO_SOLUTION, started, str(error))
        except WorkerError as error:
            return self._failed(Termination.ERROR, started, str(error))
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
        self, question: Any, started: float, deadline: float | None, meanwhile: Callable[[], None] | None
    ) -> Any:
        """Ask, wait, and make use of the time in which the solver works.

        Raises ``TimeoutError`` past ``deadline`` and :class:`WorkerError` for a process that dies or cannot be started.
        """
        pool = self._pool
        halfway = None if deadline is None else (started + deadline) / 2
        try:
            worker = pool.free(halfway)
            if worker is None:
                if meanwhile is not None:
                    meanwhile()
                worker = pool.free(deadline)
        except OSError as error:
            raise WorkerError(f"its process cannot be started ({error})") from error
        if worker is None:
            at_work = any(worker.ready for worker in pool.workers)
            raise TimeoutError("it is still at an earlier program" if at_work else "its process is still starting")
        try:
            worker.ask(question, deadline)
            pool.fill_up()
            if meanwhile is not None and halfway is not None and not worker.speaks(halfway):
                meanwhile()
            return worker.answer(deadline)
        except TimeoutError:
            self.overruns += 1
            raise TimeoutError(f"not done after {time.monotonic() - started:.3f} s") from None
        except WorkerError as error:
            raise WorkerError(pool.bury(worker, str(error), deadline)) from error
        except BaseException:
            # Interrupted in the middle of a message: the next one would not be understood.
            pool.dismiss(worker)
            raise

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
