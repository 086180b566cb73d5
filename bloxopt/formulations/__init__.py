"""Scheduling as mathematical programs: expressions, objective and constraint blocks, policies."""

from bloxopt.formulations.affine import Affine, Reciprocal
from bloxopt.formulations.allocation import Allocation
from bloxopt.formulations.constraints import (
    Budget,
    Capacity,
    Constraint,
    Deadlines,
    Limit,
    MinimumShare,
    NodeCapacity,
    NodeShapes,
    OneConfiguration,
    PairedShares,
    PinRunning,
    ScaleUpLimit,
    TenantQuota,
    TimeShare,
)
from bloxopt.formulations.expressions import Expression, per_job
from bloxopt.formulations.goodput import AfterRestart, Speedup
from bloxopt.formulations.hierarchical_fairness import HierarchicalFairness
from bloxopt.formulations.isolated_share import IsolatedShare
from bloxopt.formulations.lexicographic import Lexicographic
from bloxopt.formulations.measures import (
    ColumnValue,
    Cost,
    EffectiveThroughput,
    FinishTimeRatio,
    GpusUsed,
    NormalizedThroughput,
    RemainingTime,
    Restarts,
    TimeFraction,
    Total,
)
from bloxopt.formulations.objectives import MaxMin, MaxSum, MinMax, Objective, RestartPenalty, WeightedSum
from bloxopt.formulations.order_keys import Arrival, AttainedService, OrderKey, ShortestRemaining
from bloxopt.formulations.policy import Policy
from bloxopt.formulations.power_mean import PowerMean
from bloxopt.formulations.priority import Priority
from bloxopt.formulations.program import Program
from bloxopt.formulations.proportional_fairness import ProportionalFairness
from bloxopt.formulations.session import Outcome, Session
from bloxopt.formulations.space import AllocationSpace, ConfigurationCatalog
from bloxopt.formulations.spread import SpreadPenalty
from bloxopt.formulations.standard_form import StandardForm
from bloxopt.formulations.water_filling import WaterFilling

__all__ = [
    "Affine",
    "AfterRestart",
    "Allocation",
    "AllocationSpace",
    "Arrival",
    "AttainedService",
    "Budget",
    "Capacity",
    "ColumnValue",
    "ConfigurationCatalog",
    "Constraint",
    "Cost",
    "Deadlines",
    "EffectiveThroughput",
    "Expression",
    "FinishTimeRatio",
    "GpusUsed",
    "HierarchicalFairness",
    "IsolatedShare",
    "Lexicographic",
    "Limit",
    "MaxMin",
    "MaxSum",
    "MinMax",
    "MinimumShare",
    "NodeCapacity",
    "NodeShapes",
    "NormalizedThroughput",
    "Objective",
    "OneConfiguration",
    "OrderKey",
    "Outcome",
    "PairedShares",
    "PinRunning",
    "Policy",
    "PowerMean",
    "Priority",
    "Program",
    "ProportionalFairness",
    "Reciprocal",
    "RemainingTime",
    "RestartPenalty",
    "Restarts",
    "ScaleUpLimit",
    "Session",
    "ShortestRemaining",
    "Speedup",
    "SpreadPenalty",
    "StandardForm",
    "TenantQuota",
    "TimeFraction",
    "TimeShare",
    "Total",
    "WaterFilling",
    "WeightedSum",
    "per_job",
]
