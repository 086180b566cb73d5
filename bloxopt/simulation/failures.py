"""When nodes fail and come back: given outright, or drawn at random for a seed."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bloxopt.cluster import Cluster
from bloxopt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Outage:
    """A node that is down from ``start`` to ``end`` (absolute seconds; ``end`` inf: for good)."""

    node: str
    start: float
    end: float = float("inf")

    def __post_init__(self) -> None:
        if not (self.start >= 0 and self.end > self.start and np.isfinite(self.start)):
            raise ConfigError(
                f"outage of node {self.node!r}: start {self.start} and end {self.end} must be 0 <= start < end"
            )


@dataclass(frozen=True, slots=True)
class RandomFailures:
    """Every node fails and is repaired by itself, with exponential times of the given means (s)."""

    mean_seconds_between_failures: float
    mean_seconds_to_repair: float

    def __post_init__(self) -> None:
        for name in ("mean_seconds_between_failures", "mean_seconds_to_repair"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0):
                raise ConfigError(f"failures: {name} is {value!r}, must be a finite number of seconds > 0")


Failures = RandomFailures | Iterable[Outage] | None


class NodeEvents:
    """The node changes of a simulation in order of time."""

    def __init__(self, failures: Failures, cluster: Cluster, seed: int) -> None:
        # At equal times repairs come before failures (False sorts first), so that outages may touch.
        self._queue: list[tuple[float, bool, int]] = []
        self._random = failures if isinstance(failures, RandomFailures) else None
        self._generator = np.random.default_rng([seed, 0xFA11])
        if isinstance(failures, RandomFailures):
            first = self._generator.exponential(failures.mean_seconds_between_failures, len(cluster.nodes))
            self._queue = [(float(time), True, node) for node, time in enumerate(first)]
        elif failures is not None:
            number = {node.name: index for index, node in enumerate(cluster.nodes)}
            latest: dict[str, float] = {}
            for outage in sorted(failures, key=lambda outage: outage.start):
                if outage.node not in number:
                    some = ", ".join(node.name for node in cluster.nodes[:5])
                    more = ", …" if len(cluster.nodes) > 5 else ""
                    raise ConfigError(f"outage of unknown node {outage.node!r}: the nodes are {some}{more}")
                if outage.start < latest.get(outage.node, 0.0):
                    raise ConfigError(f"outages of node {outage.node!r} overlap at {outage.start} s")
                latest[outage.node] = outage.end
                self._queue.append((outage.start, True, number[outage.node]))
                if np.isfinite(outage.end):
                    self._queue.append((outage.end, False, number[outage.node]))
        heapq.heapify(self._queue)

    @property
    def next_time(self) -> float:
        """Time of the next change, inf if there is none."""
        return self._queue[0][0] if self._queue else float("inf")

    @property
    def next_repair(self) -> float:
        """Time of the next repair already known, inf if there is none."""
        return min((time for time, fails, _ in self._queue if not fails), default=float("inf"))

    def peek(self, end: float) -> list[tuple[float, int, bool]]:
        """The changes known so far up to ``end``, in order of time, left in place."""
        return [(time, node, not fails) for time, fails, node in sorted(self._queue) if time <= end]

    def until(self, end: float) -> list[tuple[float, int, bool]]:
        """Remove and return the changes up to ``end``, as (time, node number, is up afterwards)."""
        events = []
        while self._queue and self._queue[0][0] <= end:
            time, fails, node = heapq.heappop(self._queue)
            events.append((time, node, not fails))
            if self._random is not None:
                mean = self._random.mean_seconds_to_repair if fails else self._random.mean_seconds_between_failures
                heapq.heappush(self._queue, (time + float(self._generator.exponential(mean)), not fails, node))
        return events
