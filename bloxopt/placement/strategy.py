"""What a placement strategy is: it is offered the nodes and answers with some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from bloxopt.jobs import BoolArray, IntArray

if TYPE_CHECKING:
    from bloxopt.placement.workspace import Workspace
    from bloxopt.runtime.assignment import Assignment
    from bloxopt.runtime.resources import Grant


@dataclass(slots=True)
class Offer:
    """What job ``row`` may use.

    ``available`` (nodes,) GPUs of ``gpu_type`` on each node that are free for this job: up, not ruled out by
    its needs, with enough CPUs and memory; for a job that shares a GPU, those with enough of it left.
    ``workspace`` has everything else: topology, free resources, the job's own row.
    """

    available: IntArray
    row: int
    gpu_type: int
    workspace: Workspace


class Found(NamedTuple):
    """Node numbers and GPUs taken on each; ``gpus`` their numbers if the strategy chose those too."""

    nodes: tuple[int, ...]
    counts: tuple[int, ...]
    gpus: tuple[int, ...] | None = None


Strategy = Callable[[Offer, int], Found | None]
"""``(offer, need)``: an answer for a gang of ``need`` GPUs, None if it does not fit."""


class Requests(NamedTuple):
    """What is to run in a round: job ``row``, ``gpu_type`` and ``num_gpus`` of each gang, all (gangs,).

    ``promised`` marks gangs that the plan counts on to get the fewest nodes, None for none. ``rank`` is each gang's
    place in the policy's order, the smallest served first; None for policies that have no order.
    """

    row: IntArray
    gpu_type: IntArray
    num_gpus: IntArray
    promised: BoolArray | None = None
    rank: IntArray | None = None


Changes: TypeAlias = "tuple[list[int], dict[int, Grant]]"
"""Rows that stop, and the grants of those that start; a row in both is moved or restarted."""


class WholeRound:
    """Base of placements that decide on all gangs of a round together.

    As a strategy (called with one offer) it answers for searches that can only ask for one gang at a time.
    """

    def __call__(self, offer: Offer, need: int) -> Found | None:
        raise NotImplementedError(f"{type(self).__name__} must answer for a single gang: override __call__")

    def place_round(self, requests: Requests, assignment: Assignment, workspace: Workspace) -> Changes:
        """Where the gangs of ``requests`` run, given what runs now; jobs that are not requested stop."""
        raise NotImplementedError(f"{type(self).__name__} must place a round: override place_round")


class WholeQueue(WholeRound):
    """Base of placements that also settle who runs where a selector only ranks the jobs."""

    def place_queue(
        self,
        order: IntArray,
        num_gpus: Sequence[int],
        preference: Sequence[Sequence[int]],
        assignment: Assignment,
        workspace: Workspace,
    ) -> Changes:
        """Which jobs of a queue run, and where: see :func:`bloxopt.placement.passes.place_queue`."""
        raise NotImplementedError(f"{type(self).__name__} must place a queue: override place_queue")
