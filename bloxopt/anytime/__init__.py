"""Rounds that always finish: a ladder of ways to an allocation, from the solver down to a greedy that needs none."""

from __future__ import annotations

from bloxopt.anytime.ladder import Ladder, Rung, collection_put_off

__all__ = ["Ladder", "Rung", "collection_put_off"]
