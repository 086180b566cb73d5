"""Finish-time fairness by auctions of leases."""

from __future__ import annotations

from typing import Any, Literal

from bloxopt.formulations import LeaseAuction, Policy


def themis(
    lease: float = 1200.0,
    lease_rounds: int | None = None,
    fairness: float = 0.8,
    method: Literal["program", "greedy"] = "program",
    **options: Any,
) -> Policy:
    """Auction GPUs whose lease ended among the ``1 − fairness`` of the jobs with the worst finish-time ratio (Themis).

    ``lease`` in seconds, or ``lease_rounds`` rounds; see :class:`~bloxopt.formulations.LeaseAuction`.
    Gavel's and Shockwave's "Themis" is the policy ``finish_time_fairness``.
    """
    return Policy(
        objective=LeaseAuction(lease, lease_rounds, fairness, method),
        **{
            "name": "themis",
            "source": "Themis (NSDI 2020)",
            "description": "auction leases among the jobs with the worst finish-time ratio",
            **options,
        },
    )
