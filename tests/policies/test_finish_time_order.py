"""The order by estimated finish-time ratio, and what CPUs and memory do to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloxopt.errors import FormulationError
from bloxopt.formulations import AllocationSpace, EstimatedFinishTimeRatio
from bloxopt.formulations.policies import get_policy
from bloxopt.jobs import Job

JOBS = [
    Job(job_id="new", arrival=950.0, duration=1000.0),
    Job(job_id="late", arrival=0.0, duration=500.0),
    Job(job_id="long", arrival=0.0, duration=10_000.0, num_gpus=2),
]


def _space(jobs=JOBS, **state) -> AllocationSpace:
    return AllocationSpace.from_jobs(jobs, "2xV100", now=1000.0, **state)


def test_the_ratio_is_time_so_far_and_to_come_over_the_jobs_own_length() -> None:
    space = _space(remaining_steps=[500.0, 10_000.0, 1000.0])  # in order of arrival: late, long, new
    assert space.job_ids.tolist() == ["late", "long", "new"]
    expected = [(1000 + 500) / 500, (1000 + 10_000) / 10_000, (50 + 1000) / 1000]
    assert EstimatedFinishTimeRatio(largest_first=False).key(space) == pytest.approx(expected)
    assert EstimatedFinishTimeRatio().key(space) == pytest.approx([-value for value in expected])


def test_the_job_treated_worst_goes_first_or_the_one_treated_best() -> None:
    space = _space()
    assert get_policy("finish_time_order").rank(space).tolist() == [0, 1, 2]
    served = get_policy("finish_time_order").allocate(space)
    assert served.time_share.sum(axis=1).tolist() == [1, 0, 0], "the gang of 2 does not fit behind and stops the pass"
    served = get_policy("finish_time_order", backfill=True).allocate(space)
    assert served.time_share.sum(axis=1).tolist() == [1, 0, 1]
    served = get_policy("finish_time_order", largest_first=False).allocate(space)
    assert served.time_share.sum(axis=1).tolist() == [0, 0, 1]


def test_what_cpus_and_memory_give_counts_for_the_time_that_remains() -> None:
    space = _space()
    space.ledger.host_factor = np.array([2.0, 1.0, 1.0])
    assert EstimatedFinishTimeRatio(largest_first=False).key(space)[0] == pytest.approx((1000 + 250) / 500)


@given(st.permutations(range(4)), st.lists(st.floats(1, 1e5), min_size=4, max_size=4))
def test_the_order_does_not_depend_on_how_jobs_are_listed(order, durations) -> None:
    jobs = [Job(job_id=str(i), arrival=float(i), duration=seconds) for i, seconds in enumerate(durations)]
    key = EstimatedFinishTimeRatio().key(_space(jobs))
    assert EstimatedFinishTimeRatio().key(_space([jobs[i] for i in order])).tolist() == key.tolist()


def test_options_that_are_no_flags_are_refused() -> None:
    with pytest.raises(FormulationError, match="largest_first"):
        get_policy("finish_time_order", largest_first="yes")
