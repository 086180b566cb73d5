"""Shortest remaining time first."""

from __future__ import annotations

from typing import Any

from bloxopt.formulations import Policy, Priority, ShortestRemaining


def srtf(backfill: bool = False, **options: Any) -> Policy:
    """Jobs with the least left to do first (preemptive); optimal for the mean completion time on one machine."""
    return Policy(
        objective=Priority(ShortestRemaining(), backfill=backfill),
        **{
            "name": "srtf",
            "source": "Blox (EuroSys 2024)",
            "description": "serve jobs in order of remaining time",
            **options,
        },
    )
