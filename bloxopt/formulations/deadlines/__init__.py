"""Deadlines that are kept: which GPUs in which rounds, by progressive filling and by programs (ElasticFlow)."""

from __future__ import annotations

from bloxopt.formulations.deadlines.filling import fill_in_order, satisfactory_profile
from bloxopt.formulations.deadlines.jobs import PlannedJob, Profile, Sizes, planned_jobs
from bloxopt.formulations.deadlines.plan import DeadlinePlan, deadline_plan
from bloxopt.formulations.deadlines.program import fewest_gpu_seconds, proven_impossible

__all__ = [
    "DeadlinePlan",
    "PlannedJob",
    "Profile",
    "Sizes",
    "deadline_plan",
    "fewest_gpu_seconds",
    "fill_in_order",
    "planned_jobs",
    "proven_impossible",
    "satisfactory_profile",
]
