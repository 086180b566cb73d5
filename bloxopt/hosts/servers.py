"""What is free of the nodes while a round's CPUs and memory are being divided."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bloxopt.hosts.rates import HostRates
from bloxopt.jobs import BoolArray

_ROUNDING = 1e-9
Places = tuple[tuple[int, int], ...]
"""Nodes of a gang and how many of its GPUs are on each."""


@dataclass(slots=True)
class Booking:
    """What a job holds: its places, and CPUs and GiB for each of its GPUs (None: the nodes' proportional share)."""

    row: int
    places: Places
    amounts: tuple[float, float] | None


class Servers:
    """Free GPUs, CPUs and GiB of every node, and the jobs booked on it in the order in which they came."""

    def __init__(self, rates: HostRates, node_up: BoolArray) -> None:
        self.rates = rates
        self.node_type: list[int] = rates.cluster.node_gpu_type.tolist()
        self.fair = list(zip(rates.fair_cpus.tolist(), rates.fair_memory_gib.tolist(), strict=True))
        self.gpus: list[int] = np.where(node_up, rates.cluster.node_gpus, 0).tolist()
        self.cpus: list[float] = rates.node_cpus.tolist()
        self.memory_gib: list[float] = rates.node_memory_gib.tolist()
        self.booked: list[list[Booking]] = [[] for _ in self.gpus]

    def amounts(self, booking: Booking, node: int) -> tuple[float, float]:
        """CPUs and GiB for each GPU that a booking has on a node."""
        return self.fair[node] if booking.amounts is None else booking.amounts

    def room(self, node: int, most: int, amounts: tuple[float, float] | None) -> int:
        """How many GPUs, at most ``most``, are free on a node with these CPUs and GiB for each (None: its share)."""
        cpus, memory = self.fair[node] if amounts is None else amounts
        fits = min(most, self.gpus[node])
        if cpus > 0:
            fits = min(fits, int(self.cpus[node] / cpus + _ROUNDING))
        if memory > 0:
            fits = min(fits, int(self.memory_gib[node] / memory + _ROUNDING))
        return max(fits, 0)

    def fit(self, places: Places, amounts: tuple[float, float] | None) -> bool:
        """Whether these CPUs and GiB for each GPU are free at the places of a gang."""
        return all(self.room(node, count, amounts) == count for node, count in places)

    def search(self, gpu_type: int, need: int, amounts: tuple[float, float] | None, consolidate: bool) -> Places | None:
        """Places for a gang with so much for each GPU: the first nodes of its type with room, in order.

        ``consolidate``: one node with room for the whole gang, or else the nodes with the fewest free GPUs first.
        """
        nodes = [node for node, kind in enumerate(self.node_type) if kind == gpu_type and self.gpus[node] > 0]
        if consolidate:
            nodes.sort(key=lambda node: self.gpus[node])
            for node in nodes if need > 1 else ():
                if self.room(node, need, amounts) == need:
                    return ((node, need),)
        places = []
        for node in nodes:
            count = self.room(node, need, amounts)
            if count:
                places.append((node, count))
                need -= count
                if not need:
                    return tuple(places)
        return None

    def book(self, booking: Booking) -> None:
        """Take what a booking holds."""
        self._change(booking, -1)
        for node, _ in booking.places:
            self.booked[node].append(booking)

    def cut(self, booking: Booking) -> None:
        """Bring a job down to the proportional share of its nodes."""
        self._change(booking, 1)
        booking.amounts = None
        self._change(booking, -1)

    def _change(self, booking: Booking, sign: int) -> None:
        for node, count in booking.places:
            cpus, memory = self.amounts(booking, node)
            self.gpus[node] += sign * count
            self.cpus[node] += sign * count * cpus
            self.memory_gib[node] += sign * count * memory
