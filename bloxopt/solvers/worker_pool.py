"""The processes of a watched solver: one works, one waits to replace it, those that hang or have died are replaced."""

from __future__ import annotations

import contextlib
import math
import signal
import time
import weakref

from bloxopt.solvers.base import Solver
from bloxopt.solvers.worker_handle import Worker, WorkerError

_DYING_SECONDS = 1.0
"""Seconds that a process which closed its connection is given to be gone, so that it is known how it ended."""


class WorkerPool:
    """Workers for one solver; not for several threads at once."""

    def __init__(self, solver: str | Solver) -> None:
        self.solver = solver
        self.kills = 0
        """How many workers were killed because they hung."""
        self.crashes = 0
        """How many died by themselves or made no sense."""
        self.wanted = 1
        self.workers: list[Worker] = []
        self._dying: list[Worker] = []
        self._finalizer = weakref.finalize(self, _end_all, self.workers, self._dying)

    def fill_up(self) -> None:
        """Start workers up to the number ``wanted``, as far as processes can be started."""
        for worker in self._dying:
            _ = worker.exit_code  # asking is what lets the system forget a process that has ended
        with contextlib.suppress(OSError):
            while len(self.workers) < self.wanted:
                self.workers.append(Worker(self.solver))

    def free(self, until: float | None) -> Worker | None:
        """A worker that can be asked by ``until`` (monotonic s; None: whenever one can), None if none can.

        Raises ``OSError`` where no process can be started, and :class:`WorkerError` for one that dies meanwhile.
        """
        while True:
            self._replace_lost()
            if not self.workers:
                self.workers.append(Worker(self.solver))
            worker = min(self.workers, key=lambda worker: (not worker.free, not worker.ready))
            # One that hangs is not waited for beyond that: the next one may be free.
            moment = min(math.inf if until is None else until, worker.given_up)
            try:
                if worker.wait_until_free(moment):
                    return worker
            except WorkerError as error:
                raise WorkerError(self.bury(worker, str(error), until)) from error
            if until is not None and time.monotonic() >= until:
                return None

    def bury(self, worker: Worker, reason: str, until: float | None) -> str:
        """Dismiss a worker that has failed, and say how, within a part of the time until ``until`` (monotonic s)."""
        patience = _DYING_SECONDS
        if until is not None:
            patience = min(patience, max(0.1 * (until - time.monotonic()), 0.01))
        code = worker.wait(patience)
        self.dismiss(worker)
        if code == -signal.SIGALRM:
            self.kills += 1
        else:
            self.crashes += 1
        return f"its process died ({reason if code is None else f'exit code {code}'})"

    def dismiss(self, worker: Worker) -> None:
        """Kill a worker; another takes over, and one is started in its place when there is time for it."""
        worker.kill()
        self.workers.remove(worker)
        self._dying.append(worker)

    def close(self) -> None:
        """End the workers."""
        _end_all(self.workers, self._dying)

    def _replace_lost(self) -> None:
        for worker in list(self.workers):
            try:
                worker.wait_until_free(0.0)
            except WorkerError as error:
                self.bury(worker, str(error), time.monotonic())
                continue
            if worker.hangs:
                self.dismiss(worker)
                self.kills += 1


def _end_all(workers: list[Worker], dying: list[Worker]) -> None:
    while workers:
        worker = workers.pop()
        worker.kill()
        dying.append(worker)
    while dying:
        worker = dying.pop()
        worker.wait()
        worker.tidy()
