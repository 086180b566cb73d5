"""Why a job does not run, as data: one reason, what it would take to run now, and when it is expected to start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Reason(StrEnum):
    """What a job is waiting for, or what became of it."""

    RUNNING = "running"
    """It runs, or starts in this round."""
    NOT_SUBMITTED = "not_submitted"
    """It has not arrived yet."""
    FINISHED = "finished"
    NO_ROUND = "no_round"
    """No round is decided: the last one failed, or the nodes are not there yet."""
    REJECTED = "rejected"
    """The admission turned it away for good."""
    NOT_ADMITTED = "not_admitted"
    """The admission has not let it in yet."""
    FITS_NOWHERE = "fits_nowhere"
    """No nodes of the cluster, up or not, have what it asks for: it waits for others to come."""
    NODES_DOWN = "nodes_down"
    """The GPUs that are up could not hold its gang within its needs even if all of them were free."""
    LIMIT = "limit"
    """A quota or another upper limit has no room for it."""
    NO_PLACE = "no_place"
    """Enough GPUs are free, but not in one place where its gang and its needs fit."""
    CAPACITY = "capacity"
    """Nobody who waits is before it, and too few GPUs are free."""
    LOWER_PRIORITY = "lower_priority"
    """The policy puts other jobs before it."""
    ITS_TURN_LATER = "its_turn_later"
    """The plan gives it a share of the time, and this round is not part of it."""
    WAITING_FOR_PLAN = "waiting_for_plan"
    """It came after the last plan was made, and the next one is not due yet."""
    RESTART_NOT_WORTH = "restart_not_worth"
    """It would run if starting and moving jobs cost nothing."""
    DEADLINE_IMPOSSIBLE = "deadline_impossible"
    """It cannot meet its deadline any more; it would run if it could."""


@dataclass(frozen=True)
class Remedy:
    """Something that makes the job run in this very round, tried out on a copy of the cluster.

    ``kind`` ``gpus``: ``amount`` more GPUs of type ``subject``, on one node of their own (one fewer would not do);
    ``limit``: without the constraint block ``subject``; ``plan``: planning again before the interval between two plans
    has passed. Each was tried with a plan made at once.
    """

    kind: str
    subject: str
    amount: float
    text: str


@dataclass(frozen=True)
class Explanation:
    """Why a job does not run in the round at ``time`` (s).

    ``detail`` is a sentence for people. ``blocks`` the constraint blocks or GPU types that stand in its way. ``ahead``
    how many waiting jobs the policy puts before it (None: it has no order). ``prices`` what one GPU more of each type
    would be worth to the policy's objective, from the duals (empty where there are none). ``remedies`` what would make
    it run now. ``expected_start`` (s) when it is expected to run if no other job comes, None if not within the horizon.
    """

    job_id: str
    time: float
    reason: Reason
    detail: str
    blocks: tuple[str, ...] = ()
    ahead: int | None = None
    prices: Mapping[str, float] | None = None
    remedies: tuple[Remedy, ...] = ()
    expected_start: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {**asdict(self), "reason": str(self.reason)}
