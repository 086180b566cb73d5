"""What a placement strategy is: it is offered the nodes and answers with some of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bloxopt.jobs import IntArray

if TYPE_CHECKING:
    from bloxopt.placement.workspace import Workspace


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
