"""What the events of rounds and snapshots look like: :mod:`bloxopt.runtime.live.recording` says what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field

from bloxopt.anytime import Rung
from bloxopt.runtime.live.recording import SNAPSHOT
from bloxopt.solvers.base import Termination

# Not converted: "2" is no 2, and true no 1. There is no moment and no length that is not finite.
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Count = Annotated[int, Field(strict=True, ge=0)]
_Yes = Annotated[bool, Field(strict=True)]
_Gpus = Annotated[list[_Count], Field(min_length=1)]
_Placement = tuple[str, Annotated[dict[str, _Gpus], Field(min_length=1)]]
_Rates = dict[str, list[tuple[str, _Count, _Number]]]
_Values = Annotated[list[_Number | None], Field(min_length=3, max_length=6)]


class _Job(BaseModel):
    user: str
    submitted_at: _Number
    spec: dict[str, Any] = {}


class _Moved(BaseModel):
    progress: dict[str, _Values] = {}
    running: dict[str, _Placement | None] = {}


class _News(_Moved):
    number: _Count
    jobs: dict[str, _Job] = {}
    gone: list[str] = []
    nodes: list[tuple[_Count, str, str, str, list[_Count], _Yes, _Number | None, _Number | None]] = []
    rates: _Rates = {}


class _Plan(BaseModel):
    rung: Rung
    termination: Termination
    solver: str | None
    objective: _Number | None = None
    shares: list[tuple[str, str, _Count, _Number]] = []
    ranking: list[str] | None = None


class _Round(_News):
    now: _Number
    seconds: _Number = 0.0
    fresh: _Yes = False
    rebuilt: _Yes = False
    nodes_changed: _Yes = False
    active: list[str] = []
    submitted: list[str] = []
    ran: list[tuple[str, str, _Count, _Number]] = []
    finished: tuple[_Count, _Count] | None = None
    after: _Moved = _Moved()
    admitted: list[str] = []
    rejected: list[str] = []
    stopped: list[str] = []
    started: dict[str, _Placement] = {}
    not_started: list[str] = []
    plan: _Plan | None = None
    failed: str = ""
    while_deciding: _Yes = False


class _Snapshot(_News):
    config: dict[str, Any]
    versions: dict[str, str]
    memory: dict[str, Any] | None = None
    built_rates: _Rates = {}


def check_shape(kind: str, data: Mapping[str, Any]) -> None:
    """Raise :class:`pydantic.ValidationError` where the data of a round or a snapshot are not of their shape."""
    (_Snapshot if kind == SNAPSHOT else _Round).model_validate(data)
