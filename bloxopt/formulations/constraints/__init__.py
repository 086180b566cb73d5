"""Constraint blocks."""

from bloxopt.formulations.constraints.base import Constraint, Limit
from bloxopt.formulations.constraints.cluster import Capacity, OneConfiguration, PinRunning, TimeShare
from bloxopt.formulations.constraints.configurations import NodeShapes, ScaleUpLimit
from bloxopt.formulations.constraints.entitlements import Budget, Deadlines, MinimumShare, TenantQuota
from bloxopt.formulations.constraints.node_capacity import NodeCapacity
from bloxopt.formulations.constraints.sharing import PairedShares

__all__ = [
    "Budget",
    "Capacity",
    "Constraint",
    "Deadlines",
    "Limit",
    "MinimumShare",
    "NodeCapacity",
    "NodeShapes",
    "OneConfiguration",
    "PairedShares",
    "PinRunning",
    "ScaleUpLimit",
    "TenantQuota",
    "TimeShare",
]
