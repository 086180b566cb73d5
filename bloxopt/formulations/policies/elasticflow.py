"""ElasticFlow: deadlines guaranteed by minimum satisfactory shares, elastic scaling of the rest."""

from __future__ import annotations

from typing import Any

from bloxopt.formulations.policy import Policy
from bloxopt.formulations.systems.satisfactory_shares import SatisfactoryShares


def elasticflow(**options: Any) -> Policy:
    """Minimum satisfactory shares first, then the GPUs where they save most GPU time; use it with its admission."""
    return Policy(
        objective=SatisfactoryShares(),
        **{
            "name": "elasticflow",
            "source": "ElasticFlow (ASPLOS 2023)",
            "description": "keep every deadline with the fewest GPUs, scale jobs with the rest",
            **options,
        },
    )
