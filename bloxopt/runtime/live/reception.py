"""Where heartbeats come in: those that come while others are stored are stored together.

A thousand nodes send hundreds of heartbeats a second, and a disk has only so many transactions. Nothing waits for
company: the first heartbeat is read at once, and the next group is whatever has come meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from bloxopt.errors import StoreError
from bloxopt.runtime.live.cluster import LiveCluster
from bloxopt.runtime.live.heartbeats import answer_together
from bloxopt.runtime.messages import DesiredState, Heartbeat

MOST_TOGETHER = 64
"""Heartbeats in one transaction: so many that the disk is no limit, so few that nobody waits long for the cluster."""


class Reception:
    """Takes heartbeats from any thread, and answers them from one of its own once they are stored."""

    def __init__(self, live: LiveCluster, most_together: int = MOST_TOGETHER) -> None:
        self._live, self._most = live, most_together
        self._waiting: deque[tuple[Heartbeat, Future[DesiredState]]] = deque()
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(1, "heartbeats")
        self._working = False

    def receive(self, heartbeat: Heartbeat) -> Future[DesiredState]:
        """The answer to come; its errors are those of :func:`~bloxopt.runtime.live.heartbeats.answer`."""
        answered: Future[DesiredState] = Future()
        with self._lock:
            self._waiting.append((heartbeat, answered))
            if not self._working:
                self._worker.submit(self._work)
                self._working = True
        return answered

    def close(self) -> None:
        """Answer what has come, and take nothing more."""
        self._worker.shutdown()

    def _work(self) -> None:
        while True:
            with self._lock:
                count = min(len(self._waiting), self._most)
                group = [self._waiting.popleft() for _ in range(count)]
                if not group:
                    self._working = False
                    return
            # Whoever does not wait for the answer any more has given up on the heartbeat too.
            self._answer([entry for entry in group if entry[1].set_running_or_notify_cancel()])

    def _answer(self, group: list[tuple[Heartbeat, Future[DesiredState]]]) -> None:
        try:
            answers = answer_together(self._live, [heartbeat for heartbeat, _ in group])
        except Exception as error:
            for _, answered in group:
                # An exception of its own for each, which whoever waits adds its traceback to.
                answered.set_exception(StoreError(str(error)) if isinstance(error, StoreError) else error)
            return
        for (_, answered), found in zip(group, answers, strict=True):
            if isinstance(found, DesiredState):
                answered.set_result(found)
            else:
                answered.set_exception(found)
