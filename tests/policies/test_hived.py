"""HiveD: a tenant's jobs within its guaranteed cells go first; others run on the rest and give way."""

from __future__ import annotations

import numpy as np
import pytest

import bloxopt as bx
from bloxopt.errors import ClusterError, FormulationError
from bloxopt.experiments.reading import load_experiment
from bloxopt.formulations import AllocationSpace, Capacity, GuaranteedFirst, MinimumShare, Policy
from bloxopt.formulations.policies import get_policy
from bloxopt.jobs import Job
from bloxopt.placement import get_placement

CELLS = {"vision": {"node:V100": 1}, "language": {"gpu:V100": 2}}


def space(*jobs, cluster="2x4xV100", **state):
    """Jobs of (tenant, GPUs) in order of arrival."""
    made = [
        Job(job_id=f"j{i}", arrival=float(i), duration=600.0, num_gpus=gpus, tenant=tenant)
        for i, (tenant, gpus) in enumerate(jobs)
    ]
    return AllocationSpace.from_jobs(made, cluster, **state)


def running(space, **options):
    allocation = get_policy("hived", virtual_clusters=CELLS, **options).allocate(space)
    return sorted(space.job[allocation.x > 0.5].tolist())


def test_jobs_within_the_guarantee_go_ahead_of_those_that_came_before():
    jobs = [("guests", 4), ("guests", 4), ("vision", 4), ("language", 2)]
    problem = space(*jobs)
    assert running(problem) == [2, 3]
    assert get_policy("hived", virtual_clusters=CELLS).rank(problem).tolist() == [2, 3, 0, 1]


def test_what_exceeds_a_guarantee_is_opportunistic_and_smaller_jobs_of_the_tenant_may_use_it():
    # vision: 3 of its 4 GPUs, then 2 that do not fit, then 1 that does; guests came before the 2.
    problem = space(("vision", 3), ("guests", 3), ("vision", 2), ("vision", 1), ("language", 1))
    policy = get_policy("hived", virtual_clusters=CELLS)
    assert policy.rank(problem).tolist() == [0, 3, 4, 1, 2]
    assert policy.allocate(problem).objective == 3


def test_the_inner_order_may_be_another():
    problem = space(("vision", 4), ("vision", 4), ("language", 2), attained_service=[900.0, 0.0, 0.0])
    assert get_policy("hived", virtual_clusters=CELLS).rank(problem).tolist() == [0, 2, 1]
    assert get_policy("hived", virtual_clusters=CELLS, order="las").rank(problem).tolist() == [1, 2, 0]
    assert get_policy("hived", virtual_clusters=CELLS, order="las").progress_dependent
    assert not get_policy("hived", virtual_clusters=CELLS).progress_dependent


def test_a_guarantee_is_for_the_gpu_type_it_names():
    cells = {"vision": {"node:P100": 1}}
    jobs = [
        Job(job_id="g", duration=600.0, num_gpus=4, tenant="guests"),
        Job(job_id="v", arrival=1.0, duration=600.0, num_gpus=4, tenant="vision"),
    ]
    problem = AllocationSpace.from_jobs(jobs, "1x4xV100+1x4xP100")
    allocation = get_policy("hived", virtual_clusters=cells).allocate(problem)
    chosen = allocation.x > 0.5
    assert dict(zip(problem.job[chosen].tolist(), problem.gpu_type[chosen].tolist(), strict=True)) == {0: 0, 1: 1}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("selector", ["priorities", "ranking"])
def test_guaranteed_jobs_never_wait_longer_than_on_a_cluster_of_their_own(seed, selector):
    """One-GPU jobs, so that the order of start is the order of arrival: the first start of each is not later."""
    draw = np.random.default_rng(seed)
    jobs = [
        Job(
            job_id=f"{tenant}{i}", tenant=tenant, arrival=float(draw.uniform(0, 3000)),
            duration=float(draw.uniform(100, 1500)),
        )
        for tenant, count in (("vision", 20), ("guests", 30))
        for i in range(count)
    ]  # fmt: skip
    trace = bx.Trace.from_jobs(jobs)
    cells = {"vision": {"node:V100": 1}}
    shared = bx.simulate(
        trace, "2x4xV100", get_policy("hived", virtual_clusters=cells), round_seconds=60.0, selector=selector,
        placement=get_placement("guaranteed_cells", virtual_clusters=cells),
    )  # fmt: skip
    alone = bx.simulate(trace.where(tenant="vision"), "1x4xV100", "fifo", round_seconds=60.0, selector=selector)
    own = shared.jobs[shared.jobs["tenant"] == "vision"].set_index("job_id")
    private = alone.jobs.set_index("job_id").loc[own.index]
    assert (own["start"] <= private["start"] + 1e-9).all()
    assert own["finish"].mean() <= private["finish"].mean()
    guests = shared.jobs[shared.jobs["tenant"] == "guests"]
    assert guests["finish"].notna().all()


def test_bad_input_is_named():
    with pytest.raises(FormulationError, match="order is 'random', must be 'fifo' or 'las' or 'srtf'"):
        get_policy("hived", order="random")
    with pytest.raises(ClusterError, match="must be a whole number of cells"):
        get_policy("hived", virtual_clusters={"vision": {"node:V100": 1.5}})
    with pytest.raises(
        ClusterError, match=r"virtual cluster 'visoin': no job has this tenant; did you mean 'vision'\?"
    ):
        get_policy("hived", virtual_clusters={"visoin": {"node:V100": 1}}).allocate(space(("vision", 1)))
    with pytest.raises(ClusterError, match="has 2"):
        get_policy("hived", virtual_clusters={"vision": {"node:V100": 3}}).allocate(space(("vision", 1)))
    promising = Policy(objective=GuaranteedFirst(), constraints=[Capacity(), MinimumShare(0.5)])
    with pytest.raises(FormulationError, match="upper limits"):
        promising.allocate(space(("vision", 1), cluster="4xV100+4xP100"))
    with pytest.raises(FormulationError, match="must be an order key"):
        GuaranteedFirst(order="fifo")


def test_without_virtual_clusters_it_is_its_inner_order():
    problem = space(("a", 4), ("b", 4), ("a", 4))
    allocation = get_policy("hived").allocate(problem)
    assert sorted(problem.job[allocation.x > 0.5].tolist()) == [0, 1]


def test_a_whole_experiment_is_one_file():
    from pathlib import Path

    from bloxopt.experiments.run import run_experiment

    file = Path(__file__).parents[2] / "examples" / "hived.toml"
    result = run_experiment(load_experiment(file, {"generate.num_jobs": 25, "generate.durations": 2400.0}))
    assert result.summary()["finished"] == 25
    assert result.config["options"]["placement_options"]["virtual_clusters"]["vision"] == {"node:V100": 2}
