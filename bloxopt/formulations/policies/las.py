"""Least attained service."""

from __future__ import annotations

from typing import Any

from bloxopt.formulations import AttainedService, Policy, Priority


def las(backfill: bool = False, gpu_weighted: bool = False, **options: Any) -> Policy:
    """Jobs that have run least first: seconds run as in Blox, or GPU-seconds (``gpu_weighted``) as in Tiresias."""
    return Policy(
        objective=Priority(AttainedService(gpu_weighted), backfill=backfill),
        **{
            "name": "las",
            "source": "Tiresias (NSDI 2019); Blox (EuroSys 2024)",
            "description": "serve jobs in order of attained service",
            **options,
        },
    )
