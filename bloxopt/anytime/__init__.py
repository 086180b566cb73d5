"""Rounds that always finish: a ladder of ways to an allocation, from the solver down to a greedy that needs none."""

from __future__ import annotations

from bloxopt.anytime.ladder import Ladder, Rung

__all__ = ["Ladder", "Rung"]
