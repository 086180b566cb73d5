"""Scheduling as mathematical programs: expressions, objective and constraint blocks, policies."""

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
from bloxopt.formulations.objectives.base import MaxMin, MaxSum, MinMax, Objective, RestartPenalty, WeightedSum
from bloxopt.formulations.objectives.deadlines_first import DeadlinesFirst, UnmetDeadline, unmet_deadlines
from bloxopt.formulations.objectives.isolated_share import IsolatedShare
from bloxopt.formulations.objectives.lexicographic import Lexicographic
from bloxopt.formulations.objectives.power_mean import PowerMean
from bloxopt.formulations.objectives.priority import Priority
from bloxopt.formulations.objectives.proportional_fairness import ProportionalFairness
from bloxopt.formulations.objectives.spread import SpreadPenalty
from bloxopt.formulations.objectives.water_filling import WaterFilling
from bloxopt.formulations.orders.deadline_order import EarliestDeadline
from bloxopt.formulations.orders.duration_distribution import DurationDistribution
from bloxopt.formulations.orders.finish_time_order import EstimatedFinishTimeRatio
from bloxopt.formulations.orders.gittins import ExpectedRemaining, GittinsIndex, TiresiasGittinsRank
from bloxopt.formulations.orders.order_keys import Arrival, AttainedService, OrderKey, ShortestRemaining, ShortestTotal
from bloxopt.formulations.orders.service_queues import FirstStart, QueuePosition, ServiceQueue
from bloxopt.formulations.policy import Policy
from bloxopt.formulations.solving.affine import Affine, Reciprocal
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import Outcome, Session
from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.formulations.space import AllocationSpace, ConfigurationCatalog
from bloxopt.formulations.systems.completion_matching import CompletionMatching
from bloxopt.formulations.systems.future_share import FutureShare
from bloxopt.formulations.systems.gandiva import RandomPairs
from bloxopt.formulations.systems.generation_trading import GenerationTrading
from bloxopt.formulations.systems.goodput import AfterRestart, Otherwise, Speedup
from bloxopt.formulations.systems.guaranteed_first import GuaranteedFirst
from bloxopt.formulations.systems.guarantees import BoundedSlowdown, GuaranteedGpus
from bloxopt.formulations.systems.hierarchical_fairness import HierarchicalFairness
from bloxopt.formulations.systems.lease_auction import LeaseAuction
from bloxopt.formulations.systems.least_remaining_time import LeastRemainingTime
from bloxopt.formulations.systems.marginal_gain import MarginalGain
from bloxopt.formulations.systems.nash_window import NashWelfareWindow
from bloxopt.formulations.systems.partial_allocation import PartialAllocation
from bloxopt.formulations.systems.remaining_estimates import AsMeasured, AtPresentRate, RemainingEstimate
from bloxopt.formulations.systems.satisfactory_shares import SatisfactoryShares

__all__ = [
    "Affine",
    "AfterRestart",
    "Allocation",
    "AllocationSpace",
    "Arrival",
    "AsMeasured",
    "AtPresentRate",
    "AttainedService",
    "BoundedSlowdown",
    "Budget",
    "Capacity",
    "ColumnValue",
    "CompletionMatching",
    "ConfigurationCatalog",
    "Constraint",
    "Cost",
    "Deadlines",
    "DeadlinesFirst",
    "DurationDistribution",
    "EarliestDeadline",
    "EffectiveThroughput",
    "EstimatedFinishTimeRatio",
    "ExpectedRemaining",
    "Expression",
    "FinishTimeRatio",
    "FirstStart",
    "FutureShare",
    "GenerationTrading",
    "GittinsIndex",
    "GpusUsed",
    "GuaranteedFirst",
    "GuaranteedGpus",
    "HierarchicalFairness",
    "IsolatedShare",
    "LeaseAuction",
    "LeastRemainingTime",
    "Lexicographic",
    "Limit",
    "MarginalGain",
    "MaxMin",
    "MaxSum",
    "MinMax",
    "MinimumShare",
    "NashWelfareWindow",
    "NodeCapacity",
    "NodeShapes",
    "NormalizedThroughput",
    "Objective",
    "OneConfiguration",
    "OrderKey",
    "Otherwise",
    "Outcome",
    "PairedShares",
    "PartialAllocation",
    "PinRunning",
    "Policy",
    "PowerMean",
    "Priority",
    "Program",
    "ProportionalFairness",
    "QueuePosition",
    "RandomPairs",
    "Reciprocal",
    "RemainingEstimate",
    "RemainingTime",
    "RestartPenalty",
    "Restarts",
    "SatisfactoryShares",
    "ScaleUpLimit",
    "ServiceQueue",
    "Session",
    "ShortestRemaining",
    "ShortestTotal",
    "Speedup",
    "SpreadPenalty",
    "StandardForm",
    "TenantQuota",
    "TimeFraction",
    "TimeShare",
    "TiresiasGittinsRank",
    "Total",
    "UnmetDeadline",
    "WaterFilling",
    "WeightedSum",
    "per_job",
    "unmet_deadlines",
]
