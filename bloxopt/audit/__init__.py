"""``bloxopt audit``: how often, and by how much, a policy breaks each property of fair and efficient sharing."""

from __future__ import annotations

from bloxopt.audit.auditor import Auditor, audit
from bloxopt.audit.properties import Property
from bloxopt.registry import Registry

_HERE = "bloxopt.audit"

PROPERTIES = Registry(
    "property",
    {
        "feasibility": f"{_HERE}.properties:FEASIBILITY",
        "sharing_incentive": f"{_HERE}.properties:SHARING_INCENTIVE",
        "envy_freeness": f"{_HERE}.properties:ENVY_FREENESS",
        "pareto_efficiency": f"{_HERE}.resolving:PARETO_EFFICIENCY",
        "resource_monotonicity": f"{_HERE}.resolving:RESOURCE_MONOTONICITY",
        "permutation_invariance": f"{_HERE}.resolving:PERMUTATION_INVARIANCE",
        "strategy_proofness": f"{_HERE}.resolving:STRATEGY_PROOFNESS",
    },
)

__all__ = ["PROPERTIES", "Auditor", "Property", "audit"]
