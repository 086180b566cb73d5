"""Any admission with any policy with any placement, by name: every combination runs to its end, every round valid."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import bloxopt as bx
from bloxopt.admission import ADMISSIONS, get_admission
from bloxopt.errors import InputError
from bloxopt.experiments.reading import load_experiment
from bloxopt.experiments.run import run_experiment
from bloxopt.formulations.policies import POLICIES, get_policy
from bloxopt.placement import PLACEMENTS, get_placement
from bloxopt.placement.strategy import WholeRound

CLUSTER = "2x4xV100+1x4xP100"
EXAMPLES = Path(__file__).parents[2] / "examples"
OPTIONS = {"load_threshold": {"multiple": 0.8}, "quota": {"jobs": 2}}
"""Options with which an admission does something on so small a workload; the others take their defaults."""

CANNOT_PLACE_ALL = "blox_consolidated"
"""A published search that finds no nodes for some gangs even on an empty cluster."""

KEEPS_DEADLINES = {("elasticflow", "elasticflow"), ("deadline_feasible", "elasticflow")}
"""Admission and policy that promise together that no job which was let in misses its deadline."""


@cache
def workload():
    """Seven jobs of two tenants, rigid and elastic, most with deadlines, with Gavel's models, throughputs and pairs."""
    oracle = bx.load_trace("gavel-15").throughput
    models = ["ResNet-18 (batch size 128)", "ResNet-50 (batch size 64)", "LM (batch size 10)"]
    sizes = [(0, 3, 1, 1), (0, 4, 2, 4), (10, 3, 4, 4), (30, 2, 1, 2), (130, 5, 1, 4), (240, 3, 2, 2), (260, 2, 1, 1)]
    jobs = [
        bx.Job(
            job_id=f"j{i}", job_type=models[i % 3], arrival=float(arrival), num_gpus=low, min_gpus=low, max_gpus=high,
            total_steps=minutes * 60.0 * oracle.table[models[i % 3], "v100", low], tenant="ab"[i % 2],
            deadline=None if i == 3 else arrival + minutes * 60.0 * (1.1 + 0.5 * i), restart_cost=5.0,
        )
        for i, (arrival, minutes, low, high) in enumerate(sizes)
    ]  # fmt: skip
    return bx.Trace.from_jobs(jobs, oracle)


def run_and_check(admission, policy, placement):
    """From the result's tables alone: all jobs end, gangs are whole, no node is oversubscribed, promises are kept."""
    watched = Watched(get_admission(admission, **OPTIONS.get(admission, {})))
    made = get_policy(policy)
    pairs = made.pair_threshold is not None
    try:
        result = bx.simulate(workload(), CLUSTER, made, admission=watched, placement=placement, round_seconds=120.0)
    except InputError as error:
        stuck = placement == CANNOT_PLACE_ALL and "can never start" in str(error)
        # Pairs of jobs on the same GPUs are placed gang by gang: placements of whole rounds say that they cannot.
        no_pairs = pairs and isinstance(get_placement(placement), WholeRound) and "knows no pairs" in str(error)
        if stuck or no_pairs:
            return
        raise
    table, placed = result.jobs.set_index("job_id"), result.placements
    assert (table["finish"].notna() | table["rejected"]).all(), table[["start", "finish", "not_admitted"]]
    assert table.loc[table["rejected"], "not_admitted"].notna().all()
    assert not set(placed["job_id"]) & set(table.index[table["rejected"]])
    jobs = {job.job_id: job for job in workload().jobs}
    for (name, _), spell in placed.groupby(["job_id", "start"]):
        low, high = jobs[name].gpu_range
        assert low <= spell["gpus"].sum() <= high
        assert spell["gpu_type"].nunique() == 1
        assert spell["node"].is_unique
    size = {node.name: node.num_gpus for node in bx.load_cluster(CLUSTER).nodes}
    for moment in np.unique(placed["start"]):
        now = placed[(placed["start"] <= moment + 1e-9) & (placed["end"] > moment + 1e-6)]
        for node, used in now.groupby("node")["gpus"].sum().items():
            assert used <= size[node] * (2 if pairs else 1), (node, moment)
    if (admission, policy) in KEEPS_DEADLINES:
        due = table[~table["rejected"] & table["deadline"].notna()]
        assert len(due)
        assert (due["finish"] <= due["deadline"] + 1e-6).all()
    if admission == "quota":
        assert watched.most_jobs <= OPTIONS["quota"]["jobs"]


class Watched:
    """An admission, and the most jobs that a tenant had in the cluster when it decided."""

    def __init__(self, inner):
        self.inner = inner
        self.most_jobs = 0

    def decide(self, submitted, space):
        admit, reject = self.inner.decide(submitted, space)
        inside = np.concatenate([space.index, admit])
        self.most_jobs = max(self.most_jobs, int(np.bincount(space.catalog.table.tenant[inside]).max(initial=0)))
        return admit, reject


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_runs(policy):
    """Once each, with admissions and placements in turn."""
    number = list(POLICIES).index(policy)
    placements = [name for name in PLACEMENTS if name != CANNOT_PLACE_ALL]
    run_and_check(list(ADMISSIONS)[number % len(ADMISSIONS)], policy, placements[number % len(placements)])


@pytest.mark.parametrize("admission", ADMISSIONS)
def test_every_admission_runs_with_every_placement(admission):
    for placement in PLACEMENTS:
        run_and_check(admission, "fifo", placement)


@pytest.mark.parametrize("admission", ["elasticflow", "deadline_feasible"])
def test_deadlines_that_were_promised_are_kept_with_every_placement(admission):
    for placement in PLACEMENTS:
        if placement != CANNOT_PLACE_ALL:
            run_and_check(admission, "elasticflow", placement)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_every_combination_runs(policy):
    for admission, placement in itertools.product(ADMISSIONS, PLACEMENTS):
        run_and_check(admission, policy, placement)


def test_three_systems_in_one_file(tmp_path):
    """ElasticFlow's admission, Themis' policy and Tiresias' placement, by name."""
    experiment = load_experiment(EXAMPLES / "composed.toml", {"trace.jobs": 15})
    assert (experiment.admission.name, experiment.policy.name) == ("elasticflow", "themis")
    assert experiment.simulation.placement == "tiresias_skew"
    result = run_experiment(experiment)
    assert (result.jobs["finish"].notna() | result.jobs["rejected"]).all()
