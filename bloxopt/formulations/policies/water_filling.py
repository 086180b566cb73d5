"""Lexicographic max-min fairness."""

from __future__ import annotations

from typing import Any

from bloxopt.formulations import NormalizedThroughput, Policy, WaterFilling


def water_filling_max_min_fairness(**options: Any) -> Policy:
    """Raise the smallest normalised throughput, then the next smallest, and so on (Gavel's water filling)."""
    return Policy(
        objective=WaterFilling(NormalizedThroughput()),
        **{
            "name": "water_filling_max_min_fairness",
            "source": "Gavel (OSDI 2020)",
            "description": "leximin of the normalised throughputs",
            **options,
        },
    )
