"""Gandiva's packing."""

from __future__ import annotations

from typing import Any

from bloxopt.formulations import Capacity, PairedShares, Policy, TimeShare
from bloxopt.formulations.systems.gandiva import RandomPairs


def gandiva(keep: float = 1.0, blindly: bool = True, seed: int = 0, **options: Any) -> Policy:
    """Equal time for all, in random pairs while GPUs are short; pairs that do not pay are taken apart (OSDI 2018)."""
    return Policy(
        objective=RandomPairs(keep, blindly, seed),
        **{
            "name": "gandiva",
            "source": "Gandiva (OSDI 2018); Gavel (OSDI 2020)",
            "description": "equal time for all jobs, put together in random pairs while GPUs are short",
            "constraints": (Capacity(), TimeShare(), PairedShares(threshold=0.0)),
            **options,
        },
    )
