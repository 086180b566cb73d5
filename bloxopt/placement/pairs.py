"""One pass over the jobs of a round in which pairs of jobs share GPUs: both of a pair get the same GPUs, or none."""

from __future__ import annotations

from typing import NamedTuple

from bloxopt.errors import InputError
from bloxopt.jobs import IntArray
from bloxopt.placement.strategy import Changes, Requests, WholeRound
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.resources import HALF_GPU, WHOLE_GPU, Grant


class _Unit(NamedTuple):
    """One job, or two that share GPUs: ``num_gpus`` of ``gpu_type``."""

    rows: tuple[int, ...]
    gpu_type: int
    num_gpus: int

    def partner(self, row: int) -> int:
        return -1 if len(self.rows) == 1 else self.rows[0] if row == self.rows[1] else self.rows[1]

    def grants(self, place: Grant) -> dict[int, Grant]:
        """The same GPUs for each of its jobs."""
        if len(self.rows) == 1:
            return {self.rows[0]: place}
        return {row: place._replace(milli=HALF_GPU, partner=self.partner(row)) for row in self.rows}


def place_pairs(requests: Requests, partner: IntArray, assignment: Assignment, workspace: Workspace) -> Changes:
    """Run exactly the requested jobs, ``partner`` (gangs,) being who shares whose GPUs (-1: nobody).

    GPUs that a job holds and keeps the type and number of stay with it, whether it was alone there, is alone now or has
    another partner; where two that shared GPUs part, one of them moves. The others are placed largest gang first.
    Raises :class:`~bloxopt.errors.InputError` for a strategy that places whole rounds itself: it knows no pairs.
    """
    check_places_pairs(workspace)
    grants, jobs = assignment.grants, workspace.jobs
    units = _units(requests, partner)
    kept = _who_stays(units, assignment, jobs.gpu_milli)
    after: dict[int, Grant] = {}
    for unit, place in kept.items():
        alone = place._replace(milli=jobs.gpu_milli[unit.rows[0]], partner=-1)
        after.update(unit.grants(alone))
    stop = [row for row, grant in grants.items() if after.get(row) != grant]
    for row in stop:
        workspace.give_back(row, grants[row])
    start: dict[int, Grant] = {}
    homeless = [unit for unit in units if unit not in kept]

    def take(unit: _Unit, place: Grant) -> None:
        for row, grant in unit.grants(place).items():
            start[row] = grant
            workspace.take(row, grant)

    for unit, place in kept.items():
        if all(after[row] == grants.get(row) for row in unit.rows):
            continue
        newcomers = tuple(row for row in unit.rows if after[row] != grants.get(row))
        if workspace.has_host_room(place.nodes, place.counts, newcomers):
            take(unit, place._replace(milli=jobs.gpu_milli[unit.rows[0]], partner=-1))
        else:
            homeless.append(unit)
    for unit in sorted(homeless, key=lambda unit: -unit.num_gpus * jobs.gpu_milli[unit.rows[0]]):
        beside = unit.rows[1] if len(unit.rows) == 2 else None
        found = workspace.find(unit.rows[0], unit.gpu_type, unit.num_gpus, beside)
        if found is not None:
            take(unit, found)
    return stop, start


def check_places_pairs(workspace: Workspace) -> None:
    """Raise :class:`~bloxopt.errors.InputError` where the placement cannot give two jobs the same GPUs."""
    if isinstance(workspace.strategy, WholeRound):
        raise InputError(
            f"placement {type(workspace.strategy).__name__} places all gangs of a round at once and knows no pairs of "
            "jobs on the same GPUs: use 'consolidated' or 'first_fit', or a policy that does not pack"
        )


def _units(requests: Requests, partner: IntArray) -> list[_Unit]:
    gangs = zip(
        requests.row.tolist(), requests.gpu_type.tolist(), requests.num_gpus.tolist(), partner.tolist(), strict=True
    )
    return [
        _Unit((row,) if other < 0 else (row, other), kind, count)
        for row, kind, count, other in gangs
        if other < 0 or row < other
    ]


def _who_stays(units: list[_Unit], assignment: Assignment, milli: list[int]) -> dict[_Unit, Grant]:
    """Units that stay on GPUs which one of their jobs holds, with that job's grant; those that change nothing first."""
    grants = assignment.grants
    kept: dict[_Unit, Grant] = {}
    claimed: set[int] = set()

    def changes(unit: _Unit) -> bool:
        return any(row not in grants or grants[row].partner != unit.partner(row) for row in unit.rows)

    for unit in sorted(units, key=changes):
        for row in unit.rows:
            grant = grants.get(row)
            if grant is None or (grant.gpu_type, grant.num_gpus) != (unit.gpu_type, unit.num_gpus):
                continue
            # Jobs that take part of a GPU share it with others of their like, not with a partner.
            if milli[row] == WHOLE_GPU:
                if not claimed.isdisjoint(grant.gpus):
                    continue
                claimed.update(grant.gpus)
            kept[unit] = grant
            break
    return kept
