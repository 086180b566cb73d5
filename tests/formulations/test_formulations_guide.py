"""The Python in docs/formulations.md runs as it stands, and its blocks do what the guide says."""

import re
from pathlib import Path

import numpy as np
import pytest

import bloxopt as bx
from bloxopt import formulations
from bloxopt.formulations import AllocationSpace, Capacity, MaxSum, Policy, Priority, TimeShare
from bloxopt.jobs import Job

GUIDE = Path(__file__).parents[2] / "docs" / "formulations.md"


@pytest.fixture(scope="module")
def names():
    jobs = [Job(job_id=f"job-{i}", duration=100.0, num_gpus=1 + i, tenant="vision") for i in range(3)]
    known = {"bx": bx, "np": np, "space": AllocationSpace.from_jobs(jobs, "4xh100", now=3600.0)}
    known |= {name: getattr(formulations, name) for name in formulations.__all__}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)):
        exec(compile(block, f"{GUIDE.name}, block {number + 1}", "exec"), known)
    return known


def test_the_expression_of_the_guide_counts_time_on_new_gpus(names):
    allocation = Policy(objective=MaxSum(names["time_on_new_gpus"])).allocate(names["space"])
    assert allocation.objective == pytest.approx(1 + 1 + 1 / 3)


def test_the_constraint_of_the_guide_limits_the_night_alone(names):
    blocks = [Capacity(), TimeShare(), names["NightCap"](2)]
    policy = Policy(objective=MaxSum(formulations.GpusUsed()), constraints=blocks)
    assert policy.allocate(names["space"]).objective == pytest.approx(2)
    day = AllocationSpace.from_jobs(list(names["space"].jobs), "4xh100", now=12 * 3600.0)
    assert policy.allocate(day).objective == pytest.approx(4)


def test_the_order_of_the_guide_serves_large_jobs_first(names):
    assert Priority(names["LargestFirst"]()).rank(names["space"]).tolist() == [2, 1, 0]
    assert not Priority(names["LargestFirst"]()).progress_dependent


def test_the_selector_and_the_placement_of_the_guide_run_whole_simulations(names):
    selector, placement = names["LargestShareFirst"](), names["emptiest_first"]
    result = bx.simulate("gavel-15", "4xV100+4xP100", "fifo", selector=selector, placement=placement)
    assert result.jobs["finish"].notna().all()
