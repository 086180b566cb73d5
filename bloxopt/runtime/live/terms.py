"""Lengths of time that leases and rounds go by, and what is known of runs and not stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from bloxopt.formulations.space import EVERY_COUNT_UP_TO

LOST = "its node was not heard from for longer than its lease"
"""Why a run ended whose lease is over."""


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """Lengths of time, all in seconds.

    A run may go on ``lease_seconds`` after the last answer to its node; it has ended for sure ``margin_seconds`` and
    its own grace after that. A node not heard from for ``lost_seconds`` gets no new runs.
    """

    lease_seconds: float = 600.0
    heartbeat_seconds: float = 5.0
    margin_seconds: float = 10.0
    lost_seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class Rounds:
    """How rounds go by. ``end`` ``next_event``: a round ends early, though not before ``shortest`` (s), when
    something changed and GPUs are idle; ``fixed``: it lasts ``seconds`` (s) always. ``tick`` (s) is how often leases
    and nodes are looked at."""

    seconds: float = 60.0
    end: Literal["next_event", "fixed"] = "next_event"
    shortest: float = 1.0
    tick: float = 1.0
    every_gpu_count_up_to: int = EVERY_COUNT_UP_TO


@dataclass(slots=True)
class Watch:
    """What is known of a run since the scheduler started, and is not stored.

    ``renewed`` (monotonic s) when its lease was renewed at the latest. ``told`` the agent and its last heartbeat that
    was answered with the run. ``stopping`` (monotonic s) since when it is not wanted.
    """

    renewed: float
    told: tuple[str, int] | None = None
    steps: float | None = None
    steps_per_second: float | None = None
    stopping: float | None = None


class Spell(NamedTuple):
    """Time that a job had GPUs: ``seconds`` on ``num_gpus`` of one type."""

    job_id: str
    gpu_type: str
    num_gpus: int
    seconds: float
