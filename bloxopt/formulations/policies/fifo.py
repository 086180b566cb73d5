"""First in, first out."""

from __future__ import annotations

from typing import Any

from bloxopt.formulations import Arrival, Policy, Priority


def fifo(backfill: bool = False, **options: Any) -> Policy:
    """Jobs in order of arrival, each on the fastest GPUs that are left; the first that does not fit stops the pass."""
    return Policy(
        objective=Priority(Arrival(), backfill=backfill),
        **{
            "name": "fifo",
            "source": "Gavel (OSDI 2020); Blox (EuroSys 2024)",
            "description": "serve jobs in order of arrival",
            **options,
        },
    )
