"""Earliest deadline first."""

from __future__ import annotations

from typing import Any

from bloxopt.formulations.objectives.priority import Priority
from bloxopt.formulations.orders.deadline_order import EarliestDeadline
from bloxopt.formulations.orders.order_keys import Arrival
from bloxopt.formulations.policy import Policy


def edf(backfill: bool = False, **options: Any) -> Policy:
    """Jobs in the order of their deadlines, those without one last, in order of arrival."""
    return Policy(
        objective=Priority([EarliestDeadline(), Arrival()], backfill=backfill),
        **{
            "name": "edf",
            "source": "Liu and Layland (1973); a baseline of ElasticFlow (ASPLOS 2023)",
            "description": "serve jobs in order of their deadlines",
            **options,
        },
    )
