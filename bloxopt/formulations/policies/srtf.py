"""Orders by the size of jobs: by time or by service, in all or what is left."""

from __future__ import annotations

from typing import Any

from bloxopt.formulations import Policy, Priority, ShortestRemaining, ShortestTotal


def srtf(backfill: bool = False, estimate_error: float = 0.0, seed: int = 0, **options: Any) -> Policy:
    """Jobs with the least left to do first (preemptive); optimal for the mean completion time on one machine.

    ``estimate_error`` σ: what jobs take is not known but estimated, off by a factor ``exp(σ z)`` drawn from ``seed``.
    """
    return Policy(
        objective=Priority(ShortestRemaining(False, estimate_error, seed), backfill=backfill),
        **{
            "name": "srtf",
            "source": "Blox (EuroSys 2024)",
            "description": "serve jobs in order of remaining time",
            **options,
        },
    )


def shortest(backfill: bool = True, **options: Any) -> Policy:
    """:func:`srtf` where jobs that fit go ahead of those that do not: ``shortest`` of Tiresias' simulator."""
    named = {"name": "shortest", "source": "Tiresias (NSDI 2019), its simulator"}
    return srtf(backfill, **{**named, **options})


def srsf(backfill: bool = True, estimate_error: float = 0.0, seed: int = 0, **options: Any) -> Policy:
    """Jobs with the least service left first, remaining time times GPUs (``shortest-gpu`` of Tiresias' simulator)."""
    return Policy(
        objective=Priority(ShortestRemaining(True, estimate_error, seed), backfill=backfill),
        **{
            "name": "srsf",
            "source": "Tiresias (NSDI 2019)",
            "description": "serve jobs in order of remaining GPU time",
            **options,
        },
    )


def sjf(backfill: bool = True, estimate_error: float = 0.0, seed: int = 0, **options: Any) -> Policy:
    """Shortest job first: jobs in order of the time they take in all, whatever they have done of it."""
    return Policy(
        objective=Priority(ShortestTotal(False, estimate_error, seed), backfill=backfill),
        **{
            "name": "sjf",
            "source": "textbook baseline",
            "description": "serve jobs in order of total time",
            **options,
        },
    )


def ssf(backfill: bool = True, estimate_error: float = 0.0, seed: int = 0, **options: Any) -> Policy:
    """Shortest service first: jobs in order of the GPU time they take in all."""
    return Policy(
        objective=Priority(ShortestTotal(True, estimate_error, seed), backfill=backfill),
        **{
            "name": "ssf",
            "source": "Tiresias (NSDI 2019), its size-based baseline",
            "description": "serve jobs in order of total GPU time",
            **options,
        },
    )
