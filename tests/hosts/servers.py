"""Synergy's servers and models, for the tests of host allocations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

import bloxopt as bx
from bloxopt.cluster import Cluster, Node
from bloxopt.formulations.space import ConfigurationCatalog
from bloxopt.hosts import HostRates, SensitivityProfiles, as_profiles
from bloxopt.jobs import Job, JobTable
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.resources import Grant
from bloxopt.throughput import DurationThroughput
from bloxopt.workloads.shipped import data_path

PROFILES: dict[str, dict[str, Any]] = json.loads(data_path("synergy/sensitivity.json").read_text())["models"]
MODELS = ("alexnet", "res18", "res50", "mobilenet", "shufflenet", "gnmt", "deepspeech", "transformer", "lstm", "m5")


def servers(count: int, gpus: int = 8, cpus: float = 24, memory_gib: float = 500) -> Cluster:
    return Cluster(
        tuple(
            Node(name=f"server-{i}", gpu_type="V100", num_gpus=gpus, cpus=cpus, memory_gib=memory_gib)
            for i in range(count)
        )
    )


def running(
    kinds: Sequence[tuple[str, int]], cluster: Cluster, profiles: SensitivityProfiles | None = None
) -> tuple[Assignment, HostRates]:
    """Jobs of (model, GPUs) that run on the first GPUs free, one after the other."""
    table = JobTable.from_jobs(
        [
            Job(job_id=f"job-{i}", job_type=model, duration=3600.0, num_gpus=gpus)
            for i, (model, gpus) in enumerate(kinds)
        ]
    )
    catalog = ConfigurationCatalog(table, cluster, DurationThroughput())
    rates = HostRates(as_profiles("synergy") if profiles is None else profiles, catalog)
    grants: dict[int, Grant] = {}
    first = 0
    for row, (_, gpus) in enumerate(kinds):
        chosen = range(first, first + gpus)
        nodes = [int(cluster.gpu_node[gpu]) for gpu in chosen]
        distinct = sorted(set(nodes))
        grants[row] = Grant(0, tuple(distinct), tuple(nodes.count(node) for node in distinct), tuple(chosen))
        first += gpus
    return Assignment(cluster, table).change([], grants), rates


def up(cluster: Cluster) -> np.ndarray:
    return np.ones(len(cluster.nodes), dtype=bool)


def simulate(trace: Any, policy: Any, **options: Any) -> bx.SimulationResult:
    return bx.simulate(trace, options.pop("cluster", servers(4)), policy, preset="synergy", **options)
