"""What a placement strategy is."""

from __future__ import annotations

from collections.abc import Callable

from bloxopt.jobs import IntArray

NodeCounts = tuple[tuple[int, ...], tuple[int, ...]]
"""Node numbers and the GPUs taken on each."""

Strategy = Callable[[IntArray, int], NodeCounts | None]
"""``(available, need)``: GPUs usable on each node (nodes,) and the gang's size; None if it does not fit."""
