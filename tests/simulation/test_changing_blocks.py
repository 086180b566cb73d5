"""Blocks that look at the time are asked in every round; shares of time hold although the plan is made anew."""

from __future__ import annotations

import pytest

import bloxopt as bx
from bloxopt.formulations import (
    Capacity,
    Constraint,
    GpusUsed,
    Limit,
    MaxMin,
    NormalizedThroughput,
    Policy,
    TimeFraction,
    TimeShare,
)
from bloxopt.formulations.space import AllocationSpace


class NightCap(Constraint):
    """At most so many GPUs in use at night: the example of docs/formulations.md."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus

    def limits(self, space: AllocationSpace) -> list[Limit]:
        night = (space.now / 3600) % 24 < 6
        return [Limit(GpusUsed(), upper=self.gpus)] if night else []


def fair(*blocks: Constraint) -> Policy:
    return Policy(objective=MaxMin(NormalizedThroughput()), constraints=[Capacity(), TimeShare(), *blocks])


@pytest.mark.parametrize("selector", ["priorities", "exact"])
def test_a_limit_for_the_night_holds_at_night_and_only_then(selector: str) -> None:
    jobs = bx.Trace.from_jobs([bx.Job(job_id=f"job-{i}", duration=16 * 3600.0) for i in range(4)])
    rounds = bx.simulate(jobs, "4xV100", fair(NightCap(2)), selector=selector).rounds
    night = (rounds["time"] / 3600) % 24 < 6
    busy = rounds["active_jobs"] == 4
    assert (rounds["gpus_used"][night & busy] == 2).all()
    assert (rounds["gpus_used"][~night & busy] == 4).all()
    assert rounds["solved"].all()


@pytest.mark.parametrize("policy", [fair(NightCap(1)), fair(NightCap(0))])
@pytest.mark.parametrize("selector", ["priorities", "exact"])
def test_a_gang_too_large_for_the_night_waits_for_the_day(policy: Policy, selector: str) -> None:
    jobs = bx.Trace.from_jobs([bx.Job(job_id="gang", duration=3600.0, num_gpus=4)])
    result = bx.simulate(jobs, "4xV100", policy, selector=selector)
    assert result.jobs["start"].tolist() == [6 * 3600.0]
    assert result.jobs["finish"].tolist() == [7 * 3600.0]


class Unchanging(Constraint):
    """Asks for nothing, and does not say that it never will."""

    def limits(self, space: AllocationSpace) -> list[Limit]:
        return [Limit(TimeFraction(), upper=2.0)]


@pytest.mark.parametrize("selector", ["priorities", "exact"])
def test_a_plan_made_anew_in_every_round_gives_each_job_its_turn(selector: str) -> None:
    jobs = bx.Trace.from_jobs([bx.Job(job_id=f"job-{i}", duration=18_000.0, weight=1.0 + i) for i in range(3)])
    once, always = (bx.simulate(jobs, "1xV100", fair(*blocks), selector=selector) for blocks in ((), (Unchanging(),)))
    assert once.rounds["solved"].sum() == 3
    assert always.rounds["solved"].all()
    assert always.jobs["finish"].tolist() == once.jobs["finish"].tolist()
