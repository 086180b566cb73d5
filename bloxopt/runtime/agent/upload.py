"""Output of ranks on its way to the scheduler: in pieces, from where the scheduler is, a bounded amount at a time."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from bloxopt.runtime.agent.files import write_file
from bloxopt.runtime.agent.logs import read_log
from bloxopt.runtime.agent.runs import LocalRun, RunKey

CHUNK = 1 << 18
"""Bytes in one request."""


class LogRefusedError(Exception):
    """The scheduler does not want this log: it does not know the run, say."""


class LogSink(Protocol):
    """Where logs go: one request to the scheduler."""

    def send_log(self, key: RunKey, rank: int, offset: int, data: bytes) -> int:
        """How much the scheduler has then. Raises LogRefusedError, or OSError where it cannot be reached."""
        ...


class LogUploader:
    """Sends what is new in the logs of all runs, a little of each in turn.

    What was dropped before it could be sent is told in the log itself; offsets here and there differ by that from then
    on, and the difference is kept with the run.
    """

    def __init__(self, sink: LogSink) -> None:
        self._sink = sink
        self._offsets: dict[tuple[RunKey, int], int] = {}
        self._refused: set[tuple[RunKey, int]] = set()
        self._turn = 0

    def upload(self, runs: Iterable[LocalRun], most_bytes: int, seconds: float) -> None:
        """Send up to ``most_bytes`` of output within about ``seconds``. Raises OSError at the first failure."""
        give_up = time.monotonic() + seconds
        waiting = [(run, rank) for run in runs for rank in run.order.ranks if (run.key, rank) not in self._refused]
        # Whoever was cut off by the limits is first the next time.
        waiting = waiting[self._turn % max(len(waiting), 1) :] + waiting[: self._turn % max(len(waiting), 1)]
        left = most_bytes
        while waiting and left > 0:
            again = []
            for run, rank in waiting:
                if left <= 0 or time.monotonic() >= give_up:
                    return
                self._turn += 1
                sent = self._send_some(run, rank, min(left, CHUNK))
                left -= sent
                if sent:
                    again.append((run, rank))
            waiting = again

    def is_complete(self, run: LocalRun) -> bool:
        """Whether the scheduler has all that there will be of a run that has ended."""
        return all(self._is_complete(run, rank) for rank in run.order.ranks)

    def drop(self, run: LocalRun) -> None:
        """Forget what is known of a run that is removed."""
        for rank in run.order.ranks:
            self._offsets.pop((run.key, rank), None)
            self._refused.discard((run.key, rank))

    def _is_complete(self, run: LocalRun, rank: int) -> bool:
        if (run.key, rank) in self._refused:
            return True
        if (run.key, rank) not in self._offsets:
            return not read_log(run.logs, rank, 0, 1)[1]
        return not read_log(run.logs, rank, self._offsets[run.key, rank] + Shifts(run.folder).get(rank), 1)[1]

    def _send_some(self, run: LocalRun, rank: int, size: int) -> int:
        """The number of bytes of output that went, 0 if there was nothing new."""
        key = (run.key, rank)
        try:
            if key not in self._offsets:
                if not read_log(run.logs, rank, 0, 1)[1]:
                    return 0
                # Nothing sent: only to learn how much an earlier agent has sent.
                self._offsets[key] = self._sink.send_log(run.key, rank, 0, b"")
            offset, shifts = self._offsets[key], Shifts(run.folder)
            wanted = offset + shifts.get(rank)
            start, data = read_log(run.logs, rank, wanted, size)
            if not data:
                return 0
            if start > wanted:
                notice = f"\n[bloxopt: {start - wanted} bytes of output were dropped here before they could be sent]\n"
                shifts.set(rank, start - offset - len(notice))
                data = notice.encode() + data
            self._offsets[key] = self._sink.send_log(run.key, rank, offset, data)
        except LogRefusedError:
            self._refused.add(key)
            return 0
        return max(self._offsets[key] - offset, 0)


class Shifts:
    """By how much the offsets of a rank's log differ here and at the scheduler: what was dropped before it was sent."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "shifts.json"
        try:
            self._by_rank: dict[str, int] = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            self._by_rank = {}

    def get(self, rank: int) -> int:
        return self._by_rank.get(str(rank), 0)

    def set(self, rank: int, shift: int) -> None:
        self._by_rank[str(rank)] = shift
        with contextlib.suppress(OSError):
            write_file(self._path, json.dumps(self._by_rank).encode())
