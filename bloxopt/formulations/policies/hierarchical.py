"""Fairness among tenants on several levels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bloxopt.formulations import HierarchicalFairness, Policy


def hierarchical(entities: Mapping[str, Any] | None = None, default: str | None = None, **options: Any) -> Policy:
    """Water filling over a tree of weighted entities, with fairness or FIFO in its leaves (Gavel, OSDI 2020, §4.3).

    ``entities``: ``{"research": {"weight": 2, "children": {"vision": 1, "nlp": {"weight": 3, "policy": "fifo"}}}}``, or
    flat with ``parent``; None makes each tenant an entity of weight 1. ``default`` is the leaf of tenants not named.
    """
    return Policy(
        objective=HierarchicalFairness(entities, default),
        **{
            "name": "hierarchical",
            "source": "Gavel (OSDI 2020)",
            "description": "fair among weighted entities, then within each",
            **options,
        },
    )
