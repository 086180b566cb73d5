"""The durable store: what a scheduler knows survives it. SQLite or PostgreSQL, one schema."""

from __future__ import annotations

from bloxopt.runtime.store.facts import (
    FINAL,
    Change,
    Event,
    Facts,
    JobRecord,
    NodeRecord,
    RunKey,
    RunRecord,
    TokenRecord,
)
from bloxopt.runtime.store.store import Store, backup, restore

__all__ = [
    "FINAL",
    "Change",
    "Event",
    "Facts",
    "JobRecord",
    "NodeRecord",
    "RunKey",
    "RunRecord",
    "Store",
    "TokenRecord",
    "backup",
    "restore",
]
