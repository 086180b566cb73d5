"""The running scheduler as it goes into another process, to be asked there while rounds go on here."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pandas as pd

from bloxopt.formulations.allocation import Allocation
from bloxopt.formulations.solving.resuming import Resolver
from bloxopt.formulations.space import AllocationSpace, ConfigurationCatalog
from bloxopt.rounds import Scheduler
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.backend import Backend, ClusterState
from bloxopt.runtime.live.faults import ConflictError
from bloxopt.runtime.resources import Grant
from bloxopt.simulation.options import SimulationOptions
from bloxopt.state import JobLedger

_CAPACITY = "Capacity"
"""The block whose prices are told: what a GPU more is worth."""


class BusyError(ConflictError):
    """Other questions are being worked out."""


@dataclass(frozen=True, eq=False)
class Copy:
    """``scheduler`` and what it saw at ``made_at`` (s), as a ``message`` for another process.

    ``position`` has the jobs that are in it, by id.
    """

    scheduler: Scheduler
    made_at: float
    position: Mapping[str, int]
    message: bytes

    @classmethod
    def of(cls, scheduler: Scheduler, state: ClusterState) -> Copy:
        """The copy of a scheduler that would decide for ``state`` now; only while no round goes on.

        Raises :class:`~bloxopt.runtime.live.faults.ConflictError` where a part of it cannot go into another process.
        """
        # As plain tuples: thousands of named ones would take longer than all the rest.
        grants = {row: tuple(grant) for row, grant in state.assignment.grants.items()}
        try:
            message = pickle.dumps((_portable(scheduler, state), state.now, state.node_up, grants), protocol=5)
        except Exception as error:  # whatever a part may hold
            raise ConflictError(f"the scheduler cannot be copied into another process: {error}") from None
        return cls(scheduler, state.now, scheduler.backend.catalog.position, message)


def opened(message: bytes | tuple[Any, ...]) -> tuple[Scheduler, ClusterState]:
    """A scheduler to make forks of, and what it sees, from the message of a :class:`Copy` or what is in it."""
    parts = pickle.loads(message) if isinstance(message, bytes) else message
    scheduler, now, node_up, grants = parts
    catalog = scheduler.backend.catalog
    nothing = Assignment(catalog.cluster, catalog.table)
    assignment = nothing.change((), {row: Grant(*grant) for row, grant in grants.items()})
    return scheduler, ClusterState(now, np.zeros(0, dtype=np.int64), assignment, node_up, False)


@dataclass(frozen=True, eq=False)
class _Standing:
    """A backend as it stands: there to be forked, it runs no rounds."""

    catalog: ConfigurationCatalog
    ledger: JobLedger
    options: SimulationOptions
    round_seconds: float


def _portable(scheduler: Scheduler, state: ClusterState) -> Scheduler:
    """The scheduler over a backend that stands, without what is only of use in this process.

    Its parts go without the deadline of the last round, and without the processes of solvers for it.
    """
    own, backend = copy.copy(scheduler), scheduler.backend
    options = getattr(backend, "options", SimulationOptions(round_seconds=backend.round_seconds))
    own.backend = cast(Backend, _Standing(backend.catalog, backend.ledger, options, backend.round_seconds))
    own.inspect = own.before_round = own.ladder = None
    own.resolver = None if scheduler.resolver is None else Resolver(scheduler.resolver.least_entries)
    for name in ("selector", "placement"):
        part = getattr(scheduler, name)
        if hasattr(part, "deadline"):
            part = copy.copy(part)
            part.deadline = math.inf
            if hasattr(part, "ladder"):
                part.ladder = None
            setattr(own, name, part)
    memory = scheduler.remembered()
    if memory.plan is not None:
        plan = copy.copy(memory.plan)
        plan.allocation = _told(plan.allocation, backend)
        own.recall(memory._replace(plan=plan), state.node_up)
    return own


def _told(allocation: Allocation, backend: Backend) -> Allocation:
    """What a plan in force needs of its allocation: not the program, which has functions in it, nor all its columns."""
    nobody = np.zeros(0, dtype=np.int64)
    space = AllocationSpace(backend.catalog, backend.ledger, nobody)
    told = replace(allocation, space=space, x=np.zeros(0), program=None, prices=None)
    prices = _gpu_prices(allocation)
    if prices is not None:
        vars(told)["duals"] = {_CAPACITY: prices}
    return told


def _gpu_prices(allocation: Allocation) -> pd.Series[float] | None:
    """That part of the allocation's duals alone: labels for every job would take longer than all the rest."""
    program, prices = allocation.program, allocation.prices
    if prices is None or program is None:
        duals = allocation.duals or {}
        return duals.get(_CAPACITY)
    families = [family for family in program.families if family.name == _CAPACITY]
    if not families:
        return None
    labels = [label for family in families for label in family.row_labels()]
    values = np.concatenate([prices[family.start : family.stop] for family in families])
    return pd.Series(values, index=labels, name=_CAPACITY)
