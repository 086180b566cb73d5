"""Finish-time fairness as an order."""

from __future__ import annotations

from typing import Any

from bloxopt.formulations import Policy, Priority
from bloxopt.formulations.orders.finish_time_order import EstimatedFinishTimeRatio


def finish_time_order(backfill: bool = False, largest_first: bool = True, **options: Any) -> Policy:
    """Jobs in order of their estimated finish-time ratio: the largest first, or the smallest as in Synergy's code."""
    return Policy(
        objective=Priority(EstimatedFinishTimeRatio(largest_first), backfill=backfill),
        **{
            "name": "finish_time_order",
            "source": "Themis (NSDI 2020), as in Synergy's simulator (OSDI 2022)",
            "description": "serve jobs in order of their estimated finish-time ratio",
            **options,
        },
    )
