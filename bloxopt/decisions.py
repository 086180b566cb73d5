"""What one round comes to: its decision, its record, and figures of what it runs and moves."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from bloxopt.formulations.allocation import Allocation
from bloxopt.formulations.space import AllocationSpace, ConfigurationCatalog
from bloxopt.pairing import ALONE
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.resources import WHOLE_GPU


@dataclass(frozen=True, slots=True)
class Round:
    """What happened in one round; times in seconds, ``allocation`` None if the plan was kept.

    ``retries`` is how often the round was selected again because some gangs found no place. ``decide_seconds`` of real
    time passed from observing to applying, ``late_seconds`` of them after the deadline, if there is one.
    """

    time: float
    admitted: int
    active: int
    running: int
    started: int
    stopped: int
    gpus_used: float
    gpus_up: int
    allocation: Allocation | None
    retries: int = 0
    decide_seconds: float = 0.0
    late_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Decided:
    """A round that has been decided and not yet applied.

    ``space`` the active jobs, ``allocation`` the plan made now (None: the old one was kept), ``assignment`` what is to
    run, with the jobs that start and stop, and the tries that placing took.
    """

    admitted: int
    space: AllocationSpace
    allocation: Allocation | None
    assignment: Assignment
    started: int = 0
    stopped: int = 0
    retries: int = 0


def delivered(assignment: Assignment, catalog: ConfigurationCatalog) -> float:
    """GPUs in use, those of a gang that its placement slows down counted by what is left of its rate."""
    grants = assignment.grants.values()
    row = np.fromiter(assignment.grants, dtype=np.int64, count=len(assignment))
    kind = np.array([grant.gpu_type for grant in grants], dtype=np.int64)
    gpus = np.array([grant.num_gpus for grant in grants], dtype=np.int64)
    nodes = np.array([len(grant.nodes) for grant in grants], dtype=np.int64)
    share = np.array([grant.milli for grant in grants], dtype=np.int64) / WHOLE_GPU
    return float((gpus * share) @ catalog.placement_factors(row, kind, gpus, nodes))


def moves(
    before: Assignment, after: Assignment, start: Collection[int], stop: Collection[int], catalog: ConfigurationCatalog
) -> tuple[int, int]:
    """How many jobs start and how many stop, not counting those that only change who they share their GPUs with."""
    if catalog.pairing is None:
        return len(start), len(stop)
    there = {row for row in start if row in before and before[row].gpus == after[row].gpus}
    return len(start) - len(there), len(stop) - len(there)


def running(assignment: Assignment, catalog: ConfigurationCatalog) -> Iterator[tuple[int, int, int, int]]:
    """Row, GPU type, GPUs and kind of the partner of every job that runs."""
    kind = None if catalog.pairing is None else catalog.pairing.kind
    for row, grant in assignment.grants.items():
        beside = ALONE if kind is None or grant.partner < 0 else int(kind[grant.partner])
        yield row, grant.gpu_type, grant.num_gpus, beside
