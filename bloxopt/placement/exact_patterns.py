"""Ways to fill a node and ways to split a gang, enumerated: the columns of the exact placement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

Counts = tuple[int, ...]


class Piece(NamedTuple):
    """Part of a gang on one node: ``gpus`` GPUs for a gang of a ``profile``, in a ``zone`` (rack, or all nodes)."""

    zone: int
    profile: int
    gpus: int


class Demand(NamedTuple):
    """What one of a node's candidates takes of it; see :class:`~bloxopt.placement.exact_instance.Profile`."""

    gpus: int
    cpus: float
    memory_gib: float
    exclusive: bool
    group: str | None


class Room(NamedTuple):
    """What a node has to give; ``occupied`` if a job runs there already, ``claimed`` if that job wants it alone."""

    gpus: int
    cpus: float
    memory_gib: float
    occupied: bool
    claimed: bool
    groups: frozenset[str]


class TooManyPatternsError(Exception):
    """The enumeration was cut off at its limit."""


def fillings(room: Room, candidates: Sequence[tuple[Demand, int]], limit: int) -> Iterator[Counts]:
    """How many of each candidate (at most as often as stated) fit together, every such combination once."""
    found = 0
    # Depth first over candidates with an explicit stack: (next candidate, counts so far, room left).
    stack: list[tuple[int, Counts, Room]] = [(0, (), room)]
    while stack:
        at, counts, left = stack.pop()
        if at == len(candidates):
            found += 1
            if found > limit:
                raise TooManyPatternsError
            yield counts
            continue
        demand, most = candidates[at]
        number = 0
        after: Room | None = left
        while after is not None:
            stack.append((at + 1, (*counts, number), after))
            number += 1
            after = _take(after, demand) if number <= most else None


def _take(room: Room, demand: Demand) -> Room | None:
    """The room after one more candidate, None if it does not fit."""
    if room.claimed or (demand.exclusive and room.occupied) or room.gpus < demand.gpus:
        return None
    if demand.group is not None and demand.group in room.groups:
        return None
    cpus, memory = room.cpus - demand.cpus, room.memory_gib - demand.memory_gib
    if cpus < -1e-9 or memory < -1e-9:
        return None
    groups = room.groups if demand.group is None else room.groups | {demand.group}
    return Room(room.gpus - demand.gpus, cpus, memory, True, demand.exclusive, groups)


def splits(
    size: int, pieces: Sequence[Piece], max_pieces: int | None, one_zone: bool, limit: int
) -> list[tuple[Piece, ...]] | None:
    """Every multiset of pieces that adds up to ``size``; None if there are more than ``limit``."""
    ordered = sorted(pieces, key=lambda piece: (-piece.gpus, piece.zone))
    found: list[tuple[Piece, ...]] = []
    stack: list[tuple[int, int, tuple[Piece, ...]]] = [(0, size, ())]
    steps = 0
    while stack:
        first, left, chosen = stack.pop()
        steps += 1
        if steps > 20 * limit:
            return None
        if left == 0:
            found.append(chosen)
            if len(found) > limit:
                return None
            continue
        if max_pieces is not None and len(chosen) == max_pieces:
            continue
        for at in range(first, len(ordered)):
            piece = ordered[at]
            if piece.gpus <= left and not (one_zone and chosen and chosen[0].zone != piece.zone):
                stack.append((at, left - piece.gpus, (*chosen, piece)))
    return found
