"""How soon nodes may tell news of their runs: at once, unless so many have some that answers would be late."""

from __future__ import annotations

from bloxopt.runtime.messages import SOONEST_NEWS

MOST_A_SECOND = 250
"""Heartbeats in a second beyond which nodes keep their news for longer: a round may move jobs on all of them at once,
and one process answers a few hundred a second."""


class Pace:
    """Counts heartbeats by the second, and says how soon each node may send its next one."""

    def __init__(self) -> None:
        self._second, self._count, self._before = 0, 0, 0

    def news_seconds(self, now: float, nodes: int) -> float:
        """Seconds after which one of so many ``nodes``, whose heartbeat came ``now`` (monotonic s), may send news."""
        second = int(now)
        if second != self._second:
            self._before = self._count if second == self._second + 1 else 0
            self._second, self._count = second, 0
        self._count += 1
        if max(self._before, self._count) <= MOST_A_SECOND:
            return SOONEST_NEWS
        return max(SOONEST_NEWS, nodes / MOST_A_SECOND)
