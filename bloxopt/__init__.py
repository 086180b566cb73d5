"""bloxopt: schedules deep-learning jobs on GPU clusters by optimisation.

>>> import bloxopt as bx
>>> result = bx.simulate("gavel-100", "8xV100+16xP100+24xK80", policy="max_min_fairness", preset="gavel")
>>> result.summary()["average_jct"]  # doctest: +SKIP

Everything below is imported when it is first used, so that ``import bloxopt`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS = {
    "AllocationSpace": "bloxopt.formulations.space",
    "BloxoptError": "bloxopt.errors",
    "Cluster": "bloxopt.cluster",
    "Job": "bloxopt.jobs",
    "JobTable": "bloxopt.jobs",
    "Node": "bloxopt.cluster",
    "Outage": "bloxopt.simulation.failures",
    "Policy": "bloxopt.formulations.policy",
    "RandomFailures": "bloxopt.simulation.failures",
    "SimulationOptions": "bloxopt.simulation.options",
    "SimulationResult": "bloxopt.simulation.result",
    "SolverOptions": "bloxopt.solvers.base",
    "TableThroughput": "bloxopt.throughput",
    "Trace": "bloxopt.workloads.trace",
    "generate_trace": "bloxopt.workloads",
    "get_policy": "bloxopt.formulations.policies",
    "load_cluster": "bloxopt.cluster",
    "load_trace": "bloxopt.workloads",
    "simulate": "bloxopt.simulation.simulate",
}

__all__ = [
    "AllocationSpace",
    "BloxoptError",
    "Cluster",
    "Job",
    "JobTable",
    "Node",
    "Outage",
    "Policy",
    "RandomFailures",
    "SimulationOptions",
    "SimulationResult",
    "SolverOptions",
    "TableThroughput",
    "Trace",
    "__version__",
    "generate_trace",
    "get_policy",
    "load_cluster",
    "load_trace",
    "simulate",
]

if TYPE_CHECKING:
    from bloxopt.cluster import Cluster, Node, load_cluster
    from bloxopt.errors import BloxoptError
    from bloxopt.formulations.policies import get_policy
    from bloxopt.formulations.policy import Policy
    from bloxopt.formulations.space import AllocationSpace
    from bloxopt.jobs import Job, JobTable
    from bloxopt.simulation.failures import Outage, RandomFailures
    from bloxopt.simulation.options import SimulationOptions
    from bloxopt.simulation.result import SimulationResult
    from bloxopt.simulation.simulate import simulate
    from bloxopt.solvers.base import SolverOptions
    from bloxopt.throughput import TableThroughput
    from bloxopt.workloads import generate_trace, load_trace
    from bloxopt.workloads.trace import Trace


_SUBMODULES = ("experiments", "formulations", "placement", "selection", "simulation", "solvers", "workloads")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"bloxopt.{name}")
    if name in _EXPORTS:
        value = getattr(importlib.import_module(_EXPORTS[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'bloxopt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBMODULES])
