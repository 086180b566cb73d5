"""What a scheduler remembers between rounds, as plain data and back, so that a replay can begin in its midst."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bloxopt.formulations.allocation import Allocation
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import BoolArray, IntArray
from bloxopt.rounds import Memory, Scheduler
from bloxopt.runtime.backend import ClusterState
from bloxopt.selection import Plan
from bloxopt.solvers.base import Termination
from bloxopt.state import JobStatus

_BY_JOB = {"isolated_seconds": 0.0, "nodes": 1}
"""Columns of the ledger that the backend does not write anew in every round, and what they begin with."""


def memory_data(scheduler: Scheduler, state: ClusterState) -> dict[str, Any] | None:
    """What ``scheduler`` remembers when it is about to decide for ``state``.

    None where that is not only numbers: for selectors and placements that say that they remember more than the ledger
    has, and for policies that keep objects in it.
    """
    if any(getattr(part, "remembers", False) for part in (scheduler.selector, scheduler.placement)):
        return None
    ledger, memory = scheduler.backend.ledger, scheduler.remembered(state.rows)
    ids = ledger.table.job_id.tolist()
    arrays: dict[str, Any] = {}
    for name, (array, fill) in ledger.memories().items():
        if array.dtype == object and any(value is not None for value in array.tolist()):
            return None
        arrays[name] = _sparse(array, fill, ids)
    return {
        "plan": None if memory.plan is None else _plan_data(memory.plan, ids),
        "pending": [ids[row] for row in memory.pending.tolist()],
        "stale": memory.stale,
        "ran_nothing": memory.ran_nothing,
        "finished": memory.finished,
        "active": [ids[row] for row in ledger.active.tolist()],
        "rejected": [ids[row] for row in np.flatnonzero(ledger.status == JobStatus.REJECTED).tolist()],
        "columns": {name: _sparse(getattr(ledger, name), fill, ids) for name, fill in _BY_JOB.items()},
        "arrays": arrays,
        "notes": {name: _text(value) for name, value in ledger.notes.items()},
        "refusals": {ids[row]: reason for row, reason in ledger.refusals.items()},
    }


def restore(scheduler: Scheduler, data: Mapping[str, Any], node_up: BoolArray) -> None:
    """Have a new ``scheduler`` remember what :func:`memory_data` told, in the rows of its backend's table."""
    backend = scheduler.backend
    ledger, position = backend.ledger, backend.catalog.position
    rows = np.array([position[job_id] for job_id in data["active"]], dtype=np.int64)
    ledger.admit(rows)
    ledger.status[[position[job_id] for job_id in data["rejected"]]] = JobStatus.REJECTED
    for name, column in data["columns"].items():
        getattr(ledger, name)[:] = _dense(column, position)
    for name, column in data["arrays"].items():
        array = _dense(column, position)
        ledger.memory(name, _number(column["fill"]), *array.shape[1:])[:] = array
    ledger.notes = {name: float(_number(value)) for name, value in data["notes"].items()}
    ledger.refusals = {position[job_id]: reason for job_id, reason in data["refusals"].items()}
    scheduler.recall(
        Memory(
            None if data["plan"] is None else _plan(scheduler, data["plan"]),
            np.array([position[job_id] for job_id in data["pending"]], dtype=np.int64),
            data["stale"],
            data["ran_nothing"],
            data["finished"],
        ),
        node_up,
    )


def _plan_data(plan: Plan, ids: Sequence[str]) -> dict[str, Any]:
    columns = {name: getattr(plan, name) for name in Plan.COLUMNS[1:]}
    return {
        "made_at": plan.made_at,
        "work_conserving": plan.allocation.work_conserving,
        "jobs": [ids[row] for row in plan.row.tolist()],
        "ranked": None if plan.ranked is None else [ids[row] for row in plan.ranked.tolist()],
        "columns": {
            name: None if column is None else {"type": str(column.dtype), "values": column.tolist()}
            for name, column in columns.items()
        },
    }


def _plan(scheduler: Scheduler, data: Mapping[str, Any]) -> Plan:
    catalog, ledger = scheduler.backend.catalog, scheduler.backend.ledger

    def rows(ids: Sequence[str]) -> IntArray:
        return np.array([catalog.position[job_id] for job_id in ids], dtype=np.int64)

    columns = {
        name: None if column is None else np.array(column["values"], dtype=column["type"])
        for name, column in data["columns"].items()
    }
    nothing = np.zeros(0)
    allocation = Allocation(
        space=AllocationSpace(catalog, ledger, rows([])),
        x=nothing,
        objective=math.nan,
        bound=None,
        termination=Termination.FEASIBLE,
        solver="none",
        solve_seconds=0.0,
        build_seconds=0.0,
        num_solves=0,
        constraints={},
        work_conserving=data["work_conserving"],
    )
    ranked = None if data["ranked"] is None else rows(data["ranked"])
    return Plan.restored(allocation, data["made_at"], {"row": rows(data["jobs"]), **columns}, ranked)


def _sparse(array: NDArray[Any], fill: Any, ids: Sequence[str]) -> dict[str, Any]:
    """An array with a row for each job: those rows that are not as they were made."""
    apart = np.zeros(array.shape, dtype=bool) if array.dtype == object else ~((array == fill) | (array != array))
    if array.dtype.kind == "f" and not (isinstance(fill, float) and math.isnan(fill)):
        apart |= np.isnan(array)
    told = np.flatnonzero(apart.any(axis=tuple(range(1, apart.ndim)))).tolist()
    return {
        "type": str(array.dtype),
        "shape": list(array.shape[1:]),
        "fill": _text(fill),
        "rows": {ids[row]: [_text(value) for value in array[row].ravel().tolist()] for row in told},
    }


def _dense(data: Mapping[str, Any], position: Mapping[str, int]) -> NDArray[Any]:
    array: NDArray[Any] = np.full((len(position), *data["shape"]), _number(data["fill"]), dtype=data["type"])
    for job_id, values in data["rows"].items():
        array[position[job_id]] = np.array([_number(value) for value in values], dtype=data["type"]).reshape(
            array.shape[1:]
        )
    return array


def _text(value: Any) -> Any:
    """A number for JSON, as text where JSON has none like it."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value
