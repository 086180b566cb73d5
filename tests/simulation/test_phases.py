"""Jobs whose rates change as they progress: phases end after given steps, wherever in a round that falls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.errors import ThroughputError
from bloxopt.formulations import EffectiveThroughput, MaxSum, Policy
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray, Job, JobTable
from bloxopt.phases import Phases
from bloxopt.simulation import SimulationOptions
from bloxopt.workloads.trace import Trace


class Stepwise:
    """Rate of one GPU by phase, times the GPUs; phases end after the given steps."""

    def __init__(self, ends: Sequence[float], rates: Sequence[float], broken: bool = False) -> None:
        self.ends, self.by_phase, self.broken = list(ends), np.array(rates), broken

    def phases(self, jobs: JobTable) -> Phases:
        count = len(self.ends) + 1
        return Phases(np.arange(len(jobs) + 1) * count, np.tile([*self.ends, np.inf], len(jobs)))

    def rates(self, jobs: JobTable, gpu_types: Sequence[str], num_gpus: IntArray) -> FloatArray:
        rate = self.by_phase[jobs.phase] * num_gpus
        if self.broken:
            rate = np.where(jobs.phase > 0, 0.0, rate)
        return np.repeat(rate[:, None], len(gpu_types), axis=1)


def _trace(oracle: object, *jobs: Job) -> Trace:
    return Trace(name="phased", jobs=JobTable.from_jobs(jobs), throughput=oracle)


def _seconds(steps: float, ends: Sequence[float], rates: Sequence[float]) -> float:
    """The plain sum over phases."""
    total, begin = 0.0, 0.0
    for end, rate in zip([*ends, np.inf], rates, strict=True):
        total += max(min(end, steps) - begin, 0.0) / rate
        begin = min(end, steps)
    return total


@given(
    st.lists(st.floats(1.0, 500.0), min_size=0, max_size=4),
    st.lists(st.floats(0.1, 10.0), min_size=5, max_size=5),
    st.floats(1.0, 2000.0),
    st.floats(5.0, 500.0),
)
def test_a_job_takes_the_sum_of_its_phases_whatever_the_rounds(
    stretches: list[float], rates: list[float], steps: float, round_seconds: float
) -> None:
    ends = np.cumsum(stretches).tolist()
    rates = rates[: len(ends) + 1]
    result = bx.simulate(
        _trace(Stepwise(ends, rates), Job(job_id="a", total_steps=steps)), "1xV100", "fifo", round_seconds=round_seconds
    )
    assert result.jobs["jct"][0] == pytest.approx(_seconds(steps, ends, rates), rel=1e-9)


def test_where_rounds_are_whole_the_next_phase_begins_with_the_next_round() -> None:
    oracle = Stepwise([100.0], [1.0, 10.0])
    options = SimulationOptions(round_seconds=60.0, progress="whole_rounds")
    result = bx.simulate(_trace(oracle, Job(job_id="a", total_steps=700.0)), "1xV100", "fifo", options=options)
    # 60 and 60 steps at 1 step/s, then 580 steps at 10 steps/s: one round of 600.
    assert result.jobs["finish"][0] == 180.0


def test_the_isolated_duration_covers_all_phases() -> None:
    oracle = Stepwise([100.0], [1.0, 10.0])
    result = bx.simulate(_trace(oracle, Job(job_id="a", total_steps=600.0)), "1xV100", "fifo")
    assert result.jobs["jct"][0] == pytest.approx(150.0)
    assert result.jobs["finish_time_ratio"][0] == pytest.approx(1.0)


def test_a_phase_that_ends_makes_the_policy_plan_again_with_the_new_rates() -> None:
    # Job a is faster than b in its first phase and slower in its second; most throughput means the faster one.
    class Both(Stepwise):
        def rates(self, jobs: JobTable, gpu_types: Sequence[str], num_gpus: IntArray) -> FloatArray:
            rate = super().rates(jobs, gpu_types, num_gpus)
            rate[jobs.job_id == "b"] = 2.0
            return rate

    policy = Policy(objective=MaxSum(EffectiveThroughput()))
    jobs = Job(job_id="a", total_steps=1000.0), Job(job_id="b", total_steps=1000.0)
    result = bx.simulate(_trace(Both([300.0], [3.0, 1.0]), *jobs), "1xV100", policy, round_seconds=100.0)
    assert result.jobs["finish"].tolist() == pytest.approx([100.0 + 500.0 + 700.0, 600.0])
    # At the start, after the first phase of a, after that of b (at 250 s), and when b is done.
    assert result.rounds["time"][result.rounds["solved"]].tolist() == [0.0, 100.0, 300.0, 600.0]


def test_a_space_shows_the_rates_of_each_jobs_own_phase() -> None:
    space = AllocationSpace.from_jobs(
        [Job(job_id="a", total_steps=10.0, min_gpus=1, max_gpus=2), Job(job_id="b", total_steps=10.0)],
        "2xV100",
        Stepwise([5.0], [1.0, 3.0]),
    )
    space.catalog.enter_phase(np.array([0]), np.array([1]))
    assert space.rate.tolist() == [3.0, 6.0, 1.0]
    assert space.requested_rate[:, 0].tolist() == [3.0, 1.0]
    assert space.jobs.phase.tolist() == [1, 0]
    assert space.catalog.best_requested_rate.tolist() == [3.0, 1.0]


def test_a_configuration_that_loses_its_rate_is_named() -> None:
    trace = _trace(Stepwise([5.0], [1.0, 3.0], broken=True), Job(job_id="a", total_steps=10.0))
    with pytest.raises(ThroughputError, match="'a' has no throughput on 1 x V100 in phase 1"):
        bx.simulate(trace, "1xV100", "fifo")


@pytest.mark.parametrize("ends", [[10.0, 5.0], [5.0, 5.0], [0.0], [float("nan")]])
def test_phases_that_do_not_come_one_after_the_other_are_refused(ends: list[float]) -> None:
    trace = _trace(Stepwise(ends, [1.0] * (len(ends) + 1)), Job(job_id="a", total_steps=10.0))
    with pytest.raises(ThroughputError, match="phases of job 'a'"):
        bx.simulate(trace, "1xV100", "fifo")
