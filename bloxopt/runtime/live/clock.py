"""The scheduler's clock: seconds since the epoch for people, and seconds that only ever pass for leases."""

from __future__ import annotations

import threading
import time


class Clock:
    """Moments and lengths of time.

    :meth:`now` is read off the computer's clock once, and goes on from there as time passes: a clock that is set
    while the scheduler runs changes nothing, and what it notes is never earlier than what was noted before.
    """

    def __init__(self) -> None:
        self._epoch = self.read()
        self._start = self.monotonic()

    def read(self) -> float:
        """What the computer's clock says, in seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since some moment in the past."""
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Sleep until ``event`` is set, ``seconds`` at most; whether it was set."""
        return event.wait(seconds)

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._epoch + (self.monotonic() - self._start)

    def not_before(self, moment: float) -> None:
        """Go on from ``moment`` (s) if the clock is behind it."""
        self._epoch += max(moment - self.now(), 0.0)
