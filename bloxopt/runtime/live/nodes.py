"""Nodes as they are now: when they were heard from, which GPUs may be used, and what the cluster looks like."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bloxopt.cluster import Cluster, Node
from bloxopt.jobs import BoolArray
from bloxopt.runtime.messages import GpuHealth, GpuInfo, Heartbeat, NodeState
from bloxopt.runtime.store import NodeRecord

DEAF = "its heartbeats come, but the scheduler's answers do not reach it"
"""Why a node is not usable whose agent takes no answers."""

_KNOWN_INSTANCES = 64
"""Former agents of a node that are remembered, so that what they sent late is known for what it is."""


@dataclass(slots=True)
class Contact:
    """What is known of a node since the scheduler started, and is not worth storing.

    ``heard`` (monotonic s) when it was last heard from, None for not yet. ``infos`` its GPUs as last measured.
    ``strays`` are runs alive on it that nobody wants and that are not known to have been there. ``unconfirmed``
    (monotonic s) when the first of the answers was given that its agent has not shown to have taken; ``deaf`` whether
    that had been for too long when it last said so.
    """

    heard: float | None = None
    heartbeat_at: float | None = None
    instance: str = ""
    generation: int | None = None
    sequence: int = -1
    taken: int = -1
    unconfirmed: float | None = None
    deaf: bool = False
    healthy: bool = True
    message: str = ""
    infos: list[GpuInfo] = field(default_factory=list)
    former: deque[str] = field(default_factory=lambda: deque(maxlen=_KNOWN_INSTANCES))
    strays: frozenset[tuple[str, int]] = frozenset()
    state: NodeState = NodeState.LOST

    def is_late(self, heartbeat: Heartbeat) -> bool:
        """Whether the heartbeat is one that came before, or overtaken by another one of the same agent."""
        return heartbeat.instance == self.instance and heartbeat.sequence <= self.sequence

    def is_stale(self, heartbeat: Heartbeat, now: float, lease_seconds: float) -> bool:
        """Whether the heartbeat is of an agent that another one has taken over from, at ``now`` (monotonic s).

        Of two agents that tell, the one that started later is the present one, whichever is read first. The earlier
        one is believed again when a lease has passed without a word of the later: an agent may have lost its folder
        while its clock was wrong.
        """
        if heartbeat.instance == self.instance:
            return False
        ours, theirs = self.generation, heartbeat.generation
        if ours is None or theirs is None or ours == theirs:
            return heartbeat.instance in self.former
        return theirs < ours and self.heard is not None and now - self.heard <= lease_seconds

    def take(self, heartbeat: Heartbeat, now: float, lost_seconds: float) -> None:
        """Note what a new heartbeat says of the node, at ``now`` (monotonic s)."""
        another = heartbeat.instance != self.instance
        if another:
            if self.instance:
                self.former.append(self.instance)
            self.instance, self.generation = heartbeat.instance, heartbeat.generation
        if another or heartbeat.taken is None or heartbeat.taken > self.taken:
            self.unconfirmed = None
        self.taken = -1 if heartbeat.taken is None else heartbeat.taken
        self.deaf = self.unconfirmed is not None and now - self.unconfirmed > lost_seconds
        self.sequence = heartbeat.sequence
        self.healthy = heartbeat.healthy
        self.message = "; ".join(filter(None, (heartbeat.message, DEAF if self.deaf else "")))
        if heartbeat.healthy or heartbeat.gpus:
            self.infos = heartbeat.gpus

    def answered(self, heartbeat: Heartbeat, now: float) -> None:
        """Note that the heartbeat is being answered, at ``now`` (monotonic s)."""
        present = (heartbeat.instance, heartbeat.sequence) == (self.instance, self.sequence)
        if present and self.unconfirmed is None:
            self.unconfirmed = now

    def state_at(self, now: float, lost_seconds: float, drained: bool) -> NodeState:
        """The state of the node at ``now`` (monotonic s)."""
        if self.heard is None or now - self.heard > lost_seconds:
            return NodeState.LOST
        if drained:
            return NodeState.DRAINED
        return NodeState.UP if self.healthy and not self.deaf else NodeState.DEGRADED


class Slot(NamedTuple):
    """The GPUs of one type of one node: what is a node to a policy. ``gpus`` are indices on the node."""

    node: str
    gpu_type: str
    gpus: tuple[int, ...]
    up: bool


class Layout(NamedTuple):
    """The cluster that a policy sees, and what its nodes and GPUs really are."""

    cluster: Cluster
    slots: tuple[Slot, ...]
    node_up: BoolArray
    position: Mapping[tuple[str, str], int]
    """Place of each (node, GPU type) in the cluster."""


def usable_gpus(record: NodeRecord, state: NodeState) -> set[int]:
    """Indices of the GPUs on which something may start."""
    if state is not NodeState.UP:
        return set()
    return {gpu.index for gpu in record.gpus if gpu.health is not GpuHealth.FAILED}


class _Part(NamedTuple):
    """What one node is in a layout: its slots, each with its place for good; and what they were made of."""

    made_of: tuple[object, ...]
    slots: tuple[tuple[int, Slot, Node], ...]


class LayoutMaker:
    """Makes layouts, anew only what has changed since the last: a thousand nodes are looked at every second."""

    def __init__(self) -> None:
        self._parts: dict[str, _Part] = {}
        self._last: tuple[list[_Part], Layout | None] = ([], None)

    def layout_of(
        self,
        records: Iterable[NodeRecord],
        states: Mapping[str, NodeState],
        held: Mapping[str, Mapping[int, str]],
        stuck: Mapping[str, Collection[int]],
    ) -> Layout | None:
        """The cluster of all registered nodes; None while there is none. The same object while nothing has changed.

        A node offers what is usable and what jobs ``held`` already, so that they can stay where they are; not what is
        ``stuck`` in runs that do not end. Nodes of several GPU types are one node for each. They keep their order, and
        what offers nothing is down.
        """
        nothing: Mapping[int, str] = {}
        parts = []
        for record in records:
            name = record.name
            state, kept, bad = states[name], held.get(name, nothing), frozenset(stuck.get(name, ()))
            known = self._parts.get(name)
            if known is None or not _is_still(known, record, state, kept, bad):
                known = self._parts[name] = _part(record, state, dict(kept), bad)
            parts.append(known)
        before, layout = self._last
        if len(parts) != len(before) or any(one is not other for one, other in zip(parts, before, strict=True)):
            layout = _joined([slot for part in parts for slot in part.slots])
            self._last = (parts, layout)
        return layout


def _is_still(
    part: _Part, record: NodeRecord, state: NodeState, kept: Mapping[int, str], stuck: frozenset[int]
) -> bool:
    """Whether a part made before is what would be made now."""
    gpus, slots, cpus, memory, before, held, bad, whole = part.made_of
    if gpus is not record.gpus or slots is not record.slots or (cpus, memory) != (record.cpus, record.memory_gib):
        return False
    if state is not before or stuck != bad:
        return False
    # Where everything is offered anyway, and is of one type, it does not matter what jobs have.
    return (isinstance(whole, frozenset) and kept.keys() <= whole) or kept == held


def _part(record: NodeRecord, state: NodeState, kept: dict[int, str], stuck: frozenset[int]) -> _Part:
    usable = usable_gpus(record, state)
    offered = (usable - stuck) | kept.keys()
    # A GPU that a job holds is there for it under the type it was given as, whatever the node says by now.
    types = {gpu.index: gpu.gpu_type for gpu in record.gpus} | kept
    total = max(len(types), 1)
    slots = []
    for gpu_type, place in record.slots.items():
        every = sorted(index for index, kind in types.items() if kind == gpu_type)
        open_now = [index for index in every if index in offered]
        gpus = tuple(open_now or every or (0,))
        part = max(len(every), 1) / total
        node = Node(
            name=record.name if len(record.slots) == 1 else f"{record.name}/{gpu_type}",
            gpu_type=gpu_type,
            num_gpus=len(gpus),
            cpus=None if record.cpus is None else record.cpus * part,
            memory_gib=None if record.memory_gib is None else record.memory_gib * part,
        )
        slots.append((place, Slot(record.name, gpu_type, gpus, bool(open_now)), node))
    whole = not stuck and len(record.slots) == 1 and usable == {gpu.index for gpu in record.gpus} == types.keys()
    made_of = (
        record.gpus,
        record.slots,
        record.cpus,
        record.memory_gib,
        state,
        kept,
        stuck,
        frozenset(usable) if whole else None,
    )
    return _Part(made_of, tuple(slots))


def _joined(slots: list[tuple[int, Slot, Node]]) -> Layout | None:
    if not slots:
        return None
    slots.sort(key=lambda entry: entry[0])
    chosen = tuple(slot for _, slot, _ in slots)
    return Layout(
        Cluster(tuple(node for _, _, node in slots)),
        chosen,
        np.array([slot.up for slot in chosen], dtype=bool),
        {(slot.node, slot.gpu_type): place for place, slot in enumerate(chosen)},
    )
