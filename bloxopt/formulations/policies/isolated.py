"""An equal part of the cluster for every job."""

from __future__ import annotations

from typing import Any

from bloxopt.formulations import IsolatedShare, Policy


def isolated(**options: Any) -> Policy:
    """Every job gets ``c_j / (m s_i)`` of each GPU type, as on a partition of its own (Gavel's isolated)."""
    return Policy(
        objective=IsolatedShare(),
        **{
            "name": "isolated",
            "source": "Gavel (OSDI 2020)",
            "description": "an equal share of every GPU type for every job",
            "heterogeneity_aware": False,
            **options,
        },
    )
