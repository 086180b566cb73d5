"""Partitioned (MIG) GPUs: only instances that NVIDIA's geometry allows, and all of those."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.errors import CheckError, ClusterError
from bloxopt.placement import get_placement
from bloxopt.placement.mig import COMPUTE_SLICES, MIG_PROFILES, MigProfile, mig_share
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.resources import Grant

NAMES = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb")
PROFILES = {entry.name: entry for entry in MIG_PROFILES["A100-40GB"]}


def cluster(mig_gpus: int = 1, whole_gpus: int = 0) -> bx.Cluster:
    nodes = [bx.Node(name="mig", gpu_type="A100", num_gpus=mig_gpus, labels={"mig": "A100-40GB"})]
    if whole_gpus:
        nodes.append(bx.Node(name="whole", gpu_type="A100", num_gpus=whole_gpus))
    return bx.Cluster(tuple(nodes))


def jobs_of(*shares: float) -> bx.JobTable:
    return bx.JobTable.from_jobs([bx.Job(job_id=str(i), duration=1.0, gpu_share=s) for i, s in enumerate(shares)])


def workspace_of(hardware: bx.Cluster, jobs: bx.JobTable, name: str = "consolidated") -> Workspace:
    up = np.ones(len(hardware.nodes), dtype=bool)
    return Workspace(Assignment(hardware, jobs), hardware, jobs, up, get_placement(name))


def start_slots(profile: MigProfile) -> list[set[int]]:
    """Memory slices of every place, as sets: written anew from NVIDIA's table."""
    return [set(range(start, start + profile.memory)) for start in profile.starts]


def possible(profiles: list[MigProfile], used: frozenset[int] = frozenset()) -> bool:
    """Whether some arrangement holds all these instances on one GPU: by trying all."""
    if not profiles:
        return True
    return any(possible(profiles[1:], used | slots) for slots in start_slots(profiles[0]) if not slots & used)


def slots_of(slices: int) -> set[int]:
    return {bit for bit in range(8) if slices >> bit & 1}


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=10), st.data())
def test_no_sequence_of_starts_and_stops_gives_an_impossible_geometry(names: list[str], data: st.DataObject) -> None:
    hardware, jobs = cluster(2), jobs_of(*(mig_share(name) for name in names))
    assignment = Assignment(hardware, jobs)
    for row, name in enumerate(names):
        if assignment.grants and data.draw(st.booleans()):
            assignment = assignment.change([data.draw(st.sampled_from(sorted(assignment.grants)))], {})
        workspace = Workspace(assignment, hardware, jobs, np.ones(1, dtype=bool), get_placement("consolidated"))
        grant = workspace.find(row, 0, 1)
        if grant is not None:
            assert slots_of(grant.slices) in start_slots(PROFILES[name])
            assignment = assignment.change([], {row: grant})
        for gpu in range(2):
            here = [grant for grant in assignment.values() if grant.gpus == (gpu,)]
            assert all(not a.slices & b.slices for a, b in combinations(here, 2))
            assert sum(PROFILES[names[r]].compute for r, g in assignment.items() if g.gpus == (gpu,)) <= COMPUTE_SLICES


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=7))
def test_what_one_gpu_can_hold_is_found_when_large_instances_come_first(names: list[str]) -> None:
    names = sorted(names, key=lambda name: -PROFILES[name].compute)
    workspace = workspace_of(cluster(1), jobs_of(*(mig_share(name) for name in names)))
    placed = []
    for row, name in enumerate(names):
        grant = workspace.find(row, 0, 1)
        assert (grant is not None) == possible([PROFILES[n] for n in [*placed, name]])
        if grant is not None:
            workspace.take(row, grant)
            placed.append(name)


def test_two_3g_instances_leave_nothing_for_a_1g_one_though_its_share_is_free() -> None:
    workspace = workspace_of(cluster(1), jobs_of(mig_share("3g.20gb"), mig_share("3g.20gb"), mig_share("1g.5gb")))
    for row in (0, 1):
        grant = workspace.find(row, 0, 1)
        assert grant is not None
        workspace.take(row, grant)
    assert workspace.free.milli[0] >= 142
    assert workspace.find(2, 0, 1) is None


def test_a_1g_instance_starts_where_it_does_not_block_the_large_ones() -> None:
    workspace = workspace_of(cluster(1), jobs_of(mig_share("1g.5gb"), mig_share("4g.20gb")))
    first = workspace.find(0, 0, 1)
    assert first is not None
    workspace.take(0, first)
    assert workspace.find(1, 0, 1) is not None


def test_a_share_between_profiles_gets_the_next_larger_instance() -> None:
    grant = workspace_of(cluster(1), jobs_of(0.3)).find(0, 0, 1)
    assert grant is not None
    assert slots_of(grant.slices) in start_slots(PROFILES["3g.20gb"])
    assert workspace_of(cluster(1), jobs_of(3 / 7)).find(0, 0, 1).slices == grant.slices  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["first_fit", "best_fit", "bandwidth_aware", "fragmentation_gradient", "exact"])
def test_partitioned_and_whole_gpus_side_by_side(name: str) -> None:
    shares = [mig_share("3g.20gb")] * 2 + [0.25, 1.0, 0.142, 0.6]
    trace = bx.Trace.from_jobs(
        [bx.Job(job_id=str(i), duration=300.0, gpu_share=share) for i, share in enumerate(shares * 3)]
    )
    result = bx.simulate(trace, cluster(1, 2), "fifo", placement=name)
    assert np.isfinite(result.jobs["finish"]).all()


@pytest.mark.parametrize(
    ("grant", "message"),
    [
        (Grant(0, (0,), (1,), (0,), 428, 0b00111100), "has no instance of the profile for 428/1000"),
        (Grant(0, (0,), (1,), (0,), 428, 0), "has no instance of the profile"),
        (Grant(0, (0,), (1,), (0,), 428, 0b00001111), "has some of these memory slices in use"),
        (Grant(0, (1,), (1,), (1,), 428, 0b11110000), "is not partitioned"),
    ],
)
def test_a_grant_that_breaks_the_geometry_is_refused(grant: Grant, message: str) -> None:
    hardware, jobs = cluster(1, 1), jobs_of(mig_share("3g.20gb"), mig_share("3g.20gb"))
    held = Assignment(hardware, jobs).change([], {0: Grant(0, (0,), (1,), (0,), 428, 0b00001111)})
    with pytest.raises(CheckError, match=message):
        held.change([], {1: grant})


@pytest.mark.parametrize("model", ["A100", "B100", "a100-40gb"])
def test_a_label_that_is_no_known_model_is_refused_when_the_node_is_made(model: str) -> None:
    with pytest.raises(ClusterError, match=f"node 'n': label mig is '{model}', must be one of A100-40GB"):
        bx.Node(name="n", gpu_type="A100", num_gpus=1, labels={"mig": model})


@pytest.mark.parametrize(
    ("gpu_type", "model"), [("V100", "A100-40GB"), ("A100-80GB", "A100-40GB"), ("H100", "A100-80GB")]
)
def test_a_label_of_another_model_than_the_nodes_gpus_is_refused(gpu_type: str, model: str) -> None:
    with pytest.raises(ClusterError, match=f"label mig is '{model}', but its GPUs are {gpu_type}"):
        bx.Node(name="n", gpu_type=gpu_type, num_gpus=1, labels={"mig": model})


@pytest.mark.parametrize(
    ("gpu_type", "model"),
    [("a100", "A100-80GB"), ("A100-SXM4-40GB", "A100-40GB"), ("a100_80gb", "A100-80GB"), ("H100", "H100-80GB")],
)
def test_a_label_fits_every_way_to_write_its_gpu_type(gpu_type: str, model: str) -> None:
    assert bx.Node(name="n", gpu_type=gpu_type, num_gpus=1, labels={"mig": model}).labels == (("mig", model),)


@pytest.mark.parametrize("profile", ["5g.20gb", "1g.20gb", "1g.5gb+me", 5, None])
def test_a_profile_that_is_not_modelled_is_refused_with_those_that_are(profile: object) -> None:
    with pytest.raises(ClusterError, match=r"is no MIG profile that is modelled: choose one of A100-40GB: 1g\.5gb"):
        mig_share(profile)  # type: ignore[arg-type]


def test_a_profile_is_refused_for_a_model_that_does_not_have_it() -> None:
    assert mig_share("3g.40gb", "A100-80GB") == mig_share("3g.20gb", "A100-40GB")
    for profile in ("3g.40gb", "1g.10gb"):
        with pytest.raises(ClusterError, match=r"choose one of A100-40GB: 1g\.5gb, 2g\.10gb, 3g\.20gb, 4g\.20gb"):
            mig_share(profile, "A100-40GB")
    with pytest.raises(ClusterError, match="MIG model is 'B100', must be one of A100-40GB"):
        mig_share("3g.40gb", "B100")
