"""When nodes send heartbeats: regularly, news of their runs sooner, and never so many at once that answers are late.

One process answers a few hundred heartbeats a second. A round may move jobs on a thousand nodes, which would all tell
at once what has stopped and what has started; and whatever holds up the answers for a moment has the nodes that waited
for them keep step with each other from then on, if nothing brings them out of it.
"""

from __future__ import annotations

from collections import Counter

from bloxopt.runtime.messages import SOONEST_NEWS

MOST_A_SECOND = 100
"""Heartbeats with news, of all nodes together, in a second: beside the regular ones of a thousand nodes."""

_COUNTED_EVERY = 0.5
"""Seconds that a count of nodes holds."""

_PARTS = 50
"""Parts of the time between two heartbeats of a node: in each of them about as many are to come."""

_EARLIER = 5
"""Parts by which a heartbeat may be asked for sooner than it would be due, or later, to where fewer come."""


class Pace:
    """Says when each node is to send its next heartbeat.

    ``interval`` (s) lies about between two heartbeats of a node. There is news of a node on which jobs have moved until
    the heartbeat after the one that told it of the move.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._moved: dict[str, float] = {}
        self._counted_at, self._count = -_COUNTED_EVERY, 0
        self._expected = Counter[int]()
        self._part = 0

    def moved(self, node: str, now: float) -> None:
        """A run on the node is to start or to stop (``now`` in monotonic s): there will be news for some time."""
        self._moved[node] = now

    def news_seconds(self, now: float) -> float:
        """Seconds after which a node whose heartbeat came ``now`` (monotonic s) may send news."""
        if now - self._counted_at >= _COUNTED_EVERY:
            self._moved = {node: at for node, at in self._moved.items() if now - at <= 2 * self._interval}
            self._counted_at, self._count = now, len(self._moved)
        return max(SOONEST_NEWS, self._count / MOST_A_SECOND)

    def heartbeat_seconds(self, now: float) -> float:
        """Seconds after which the next heartbeat is due of a node whose last one came ``now`` (monotonic s)."""
        length = self._interval / _PARTS
        part = int(now / length)
        if part > self._part:
            for passed in [one for one in self._expected if one < part]:
                del self._expected[passed]
            self._part = part
        due = part + _PARTS
        nearest = sorted(range(due - _EARLIER, due + _EARLIER + 1), key=lambda other: abs(other - due))
        chosen = min(nearest, key=self._expected.__getitem__)
        self._expected[chosen] += 1
        return self._interval + (chosen - due) * length
