"""Proportional fairness that rewards the truth."""

from __future__ import annotations

from typing import Any, Literal

from bloxopt.formulations import PartialAllocation, Policy


def strategy_proof(discount: Literal["auto", "exact", "prices"] = "auto", **options: Any) -> Policy:
    """The partial allocation mechanism (Cole, Gkatzelis & Goel, EC 2013): no job gains by misreporting its throughputs.

    ``discount`` is worked out exactly (one program a job) or from the prices of one program; see
    :class:`~bloxopt.formulations.systems.partial_allocation.PartialAllocation`.
    """
    return Policy(
        objective=PartialAllocation(discount),
        **{
            "name": "strategy_proof",
            "source": "Cole, Gkatzelis & Goel (EC 2013); Gavel (OSDI 2020)",
            "description": "proportional fairness, discounted so that false throughputs gain nothing",
            **options,
        },
    )
