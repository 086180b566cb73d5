"""Sensitivity profiles: what a job gains from CPUs and memory, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloxopt.errors import InputError, ThroughputError
from bloxopt.formulations.space import ConfigurationCatalog
from bloxopt.hosts import HostRates, SensitivityProfiles, as_profiles
from bloxopt.jobs import Job, JobTable
from bloxopt.throughput import DurationThroughput
from tests.hosts.servers import MODELS, PROFILES, running, servers


def test_the_shipped_profiles_give_every_measured_throughput() -> None:
    shipped = as_profiles("synergy")
    document = json.loads(json.dumps(PROFILES))
    cpus = [1, 2, 3, 4, 5, 6, 9, 12, 24]
    memory = [20.83, 62.5, 125, 187.5, 250]
    for key, entry in document.items():
        model, _, gpus = key.rpartition("_")
        profile = shipped.profile(model, int(gpus))
        values = np.array(entry["relative_throughput"])
        for i, j in np.argwhere(values > 0):
            size = memory[len(memory) - values.shape[1] + j]
            assert profile.rate(cpus[i], size) == values[i, j], (key, cpus[i], size)


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_demands_are_those_that_synergy_states(gpus: int) -> None:
    for model in MODELS:
        stated = PROFILES[f"{model}_{gpus}"]
        if stated["memory_gib_per_gpu"] * gpus > 500:
            continue  # m5 on 4 GPUs: more than a server has
        _, rates = running([(model, gpus)], servers(1))
        # Synergy says 20 GiB where its memory axis starts at 20.83.
        assert rates.demand(0, gpus, 0) == (stated["cpus_per_gpu"], max(stated["memory_gib_per_gpu"], 20.83))
        assert rates.best[0] == stated["speedup"]
        assert rates.proportional[0] == 1.0


@given(
    a=st.tuples(st.floats(0.5, 30), st.floats(10, 300)),
    b=st.tuples(st.floats(0, 10), st.floats(0, 100)),
    key=st.sampled_from(sorted(PROFILES)),
)
def test_more_cpus_and_memory_never_slow_a_job_down(a, b, key) -> None:
    model, _, gpus = key.rpartition("_")
    profile = as_profiles("synergy").profile(model, int(gpus))
    assert profile.rate(a[0] + b[0], a[1] + b[1]) >= profile.rate(*a)


def test_between_measured_points_the_best_one_within_counts() -> None:
    profile = SensitivityProfiles([1, 2, 4], [10, 20], {("m", 1): [[0.5, 0.6], [1.0, 0], [0, 3.0]]}).profile("m", 1)
    assert profile.rate(0.9, 20) == 0
    assert profile.rate(1, 9.9) == 0
    assert profile.rate(3.9, 19.9) == 1.0
    assert profile.rate(2, 20) == 1.0, "what was not measured is at least what less gives"
    assert profile.rate(100, 15) == 1.0
    assert profile.rate(4, 20) == 3.0
    assert profile.points.tolist() == [[1, 10, 0.5], [1, 20, 0.6], [2, 10, 1.0], [4, 20, 3.0]]


def test_a_demand_is_no_more_than_an_empty_node_has() -> None:
    profiles = SensitivityProfiles([1, 4, 8], [10], {("m", 2): [[0.5], [1.0], [2.0]], ("m", 4): [[0.5], [1.0], [2.0]]})
    _, rates = running([("m", 2)], servers(2, gpus=2, cpus=9), profiles)
    assert rates.demand(0, 2, 0) == (4.0, 10.0)
    # A gang of 4 has 2 GPUs on each node.
    _, rates = running([("m", 4)], servers(2, gpus=2, cpus=16), profiles)
    assert rates.demand(0, 4, 0) == (8.0, 10.0)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            ("bert-large", 1),
            "job 'job-0': Synergy's profiles: no profile of 'bert-large' on 1 GPUs: profiled are alexnet",
        ),
        (("alexnet", 8), "no profile of 'alexnet' on 8 GPUs: it was profiled on 1, 2, 4 GPUs"),
    ],
)
def test_a_job_without_a_profile_is_named(kind, message) -> None:
    with pytest.raises(ThroughputError, match=message):
        running([kind], servers(2))


def test_a_profile_that_does_not_reach_the_proportional_share_is_named() -> None:
    with pytest.raises(
        ThroughputError, match="'res18' on 1 GPUs does not cover the proportional share of node 'server-0'"
    ):
        running([("res18", 1)], servers(1, cpus=4))


def test_nodes_must_say_what_they_have() -> None:
    table = JobTable.from_jobs([Job(job_id="a", job_type="res18", duration=1.0)])
    from bloxopt.cluster import load_cluster

    catalog = ConfigurationCatalog(table, load_cluster("8xV100"), DurationThroughput())
    with pytest.raises(InputError, match="node 'node-0' does not say how many cpus it has"):
        HostRates(as_profiles("synergy"), catalog)


def test_jobs_that_share_gpus_are_refused_by_name() -> None:
    table = JobTable.from_jobs([Job(job_id="half", job_type="res18", duration=1.0, gpu_share=0.5)])
    catalog = ConfigurationCatalog(table, servers(1), DurationThroughput())
    with pytest.raises(InputError, match="job 'half' asks for part of a GPU"):
        HostRates(as_profiles("synergy"), catalog)


GOOD = {
    "cpu_axis": [1, 2],
    "memory_gib_axis": [10],
    "models": {"m_1": {"relative_throughput": [[0.5], [1.0]]}},
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cpu_axis": [2, 1]}, "the CPU axis is"),
        ({"cpu_axis": ["x", "y"]}, "the CPU axis is"),
        ({"memory_gib_axis": [0]}, "the memory axis is"),
        ({"models": {}}, "there is no profile in it"),
        ({"models": {"m": {"relative_throughput": [[1], [1]]}}}, "the model 'm' is not named <job type>_<GPUs>"),
        ({"models": {"m_1": {"relative_throughput": [[1]]}}}, "m on 1 GPUs: relative throughputs have the shape"),
        ({"models": {"m_1": {"relative_throughput": [[1], [1, 2]]}}}, "must be rows of equal length"),
        ({"models": {"m_1": {"relative_throughput": [[1], [-1]]}}}, "must be finite numbers >= 0"),
        ({"models": {"m_1": {"relative_throughput": [[0], [0]]}}}, "nothing was measured"),
        ({"models": {"m_1": {}}}, "KeyError: 'relative_throughput'"),
        ({"models": [1]}, "not a file of sensitivity profiles"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_name(tmp_path, change, message) -> None:
    path = tmp_path / "profiles.json"
    path.write_text(json.dumps(GOOD))
    assert as_profiles(path).profile("m", 1).rate(2, 10) == 1.0
    path.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(ThroughputError, match=message) as error:
        as_profiles(str(path))
    assert "profiles.json" in str(error.value)


def test_what_is_no_profile_is_refused(tmp_path) -> None:
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ThroughputError, match="not valid JSON"):
        as_profiles(tmp_path / "broken.json")
    with pytest.raises(ThroughputError, match=r"missing\.json"):
        as_profiles(tmp_path / "missing.json")
    with pytest.raises(ThroughputError, match="cannot make sensitivity profiles of int"):
        as_profiles(3)
