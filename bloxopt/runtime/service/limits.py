"""How much one caller may ask for: requests per second, by token buckets."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

_MOST_CALLERS = 10_000
"""Buckets kept; that of whoever was away longest is dropped, and full when it comes back."""


class RateLimit:
    """Lets each caller make ``burst`` requests at once and ``rate`` a second from then on."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst = rate, float(burst)
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, caller: str) -> float:
        """Count a request; seconds until the caller may make it, 0 if now."""
        now = self._clock()
        with self._lock:
            left, at = self._buckets.pop(caller, (self.burst, now))
            left = min(self.burst, left + (now - at) * self.rate)
            allowed = left >= 1.0
            self._buckets[caller] = (left - 1.0 if allowed else left, now)
            if len(self._buckets) > _MOST_CALLERS:
                self._buckets.popitem(last=False)
        return 0.0 if allowed else (1.0 - left) / self.rate
