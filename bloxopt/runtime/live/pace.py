"""How soon nodes may tell news of their runs: at once, unless so many will have some that answers would be late.

A round may move jobs on a thousand nodes, which would all tell at once what has stopped and what has started; one
process answers a few hundred heartbeats a second.
"""

from __future__ import annotations

from bloxopt.runtime.messages import SOONEST_NEWS

MOST_A_SECOND = 250
"""Heartbeats with news, of all nodes together, in a second."""

_COUNTED_EVERY = 0.5
"""Seconds that a count of nodes holds."""


class Pace:
    """Knows on which nodes jobs have moved lately, and says how soon each may send its next heartbeat."""

    def __init__(self, lately: float) -> None:
        self._lately = lately
        self._moved: dict[str, float] = {}
        self._counted_at, self._count = -_COUNTED_EVERY, 0

    def moved(self, node: str, now: float) -> None:
        """A run on the node is to start or to stop (``now`` in monotonic s): there will be news for some time."""
        self._moved[node] = now

    def news_seconds(self, now: float) -> float:
        """Seconds after which a node whose heartbeat came ``now`` (monotonic s) may send news."""
        if now - self._counted_at >= _COUNTED_EVERY:
            self._moved = {node: at for node, at in self._moved.items() if now - at <= self._lately}
            self._counted_at, self._count = now, len(self._moved)
        return max(SOONEST_NEWS, self._count / MOST_A_SECOND)
