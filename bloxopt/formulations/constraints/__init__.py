"""Constraint blocks."""

from bloxopt.formulations.constraints.base import Constraint, Limit
from bloxopt.formulations.constraints.cluster import Capacity, OneConfiguration, PinRunning, TimeShare
from bloxopt.formulations.constraints.entitlements import Budget, Deadlines, MinimumShare, TenantQuota

__all__ = [
    "Budget",
    "Capacity",
    "Constraint",
    "Deadlines",
    "Limit",
    "MinimumShare",
    "OneConfiguration",
    "PinRunning",
    "TenantQuota",
    "TimeShare",
]
