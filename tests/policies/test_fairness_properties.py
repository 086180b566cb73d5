"""Which policy keeps which fairness property: claims that are tested, and a counterexample for each that is not made.

A line of ``CLAIMS`` has an entry per property of ``fairness_properties``:

- ``ALWAYS``: on every instance;
- ``ALONE(seed)``: on one GPU type with jobs of one GPU each, and ``instance(seed)`` shows that it fails elsewhere;
- ``NEVER(seed, why)``: not even there; ``instance(seed)`` shows it.

To add a policy, add a line; a missing entry fails ``test_every_property_has_an_entry``.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from fairness_properties import PROPERTIES
from hypothesis import given, settings
from hypothesis import strategies as st


class Claim(NamedTuple):
    general: bool
    one_type: bool
    counterexample: int | None = None
    why: str = ""


ALWAYS = Claim(True, True)


def ALONE(seed: int, why: str = "") -> Claim:  # noqa: N802
    return Claim(False, True, seed, why)


def NEVER(seed: int, why: str) -> Claim:  # noqa: N802
    return Claim(False, False, seed, why)


ORDER = "an order serves some jobs fully and others not at all"
SUM = "a sum may starve slow jobs"
LARGEST = "only the worst value is optimised: what others get is whatever the solver returns"
FINISH = "jobs that are behind get more now"


def line(pareto, incentive, envy, monotone=ALWAYS, permutation=ALWAYS) -> dict[str, Claim]:
    return {
        "capacity_and_time": ALWAYS,
        "pareto_efficiency": pareto,
        "sharing_incentive": incentive,
        "envy_freeness": envy,
        "monotonicity": monotone,
        "permutation_invariance": permutation,
    }


CLAIMS: dict[str, dict[str, Claim]] = {
    "fifo": line(
        ALONE(2, "GPUs of which nobody fits into the rest stay idle for the round"),
        NEVER(0, ORDER),
        NEVER(0, ORDER),
        permutation=ALONE(2, "ties go in order of admission"),
    ),
    "srtf": line(ALONE(2), NEVER(0, ORDER), NEVER(0, ORDER)),
    "isolated": line(ALONE(0, "time on GPUs that a job can make little of is not traded"), ALWAYS, ALWAYS),
    "max_min_fairness": line(ALONE(0, LARGEST), ALONE(1, LARGEST), ALONE(0, LARGEST)),
    "max_min_fairness_agnostic": line(ALONE(1, LARGEST), ALONE(0, LARGEST), ALONE(0, LARGEST)),
    "water_filling_max_min_fairness": line(
        ALWAYS,
        ALONE(345, "levels are equal in average GPUs, not in each job's own isolated throughput"),
        ALONE(0, "equal levels give GPUs to those who can make little of them"),
    ),
    "min_makespan": line(NEVER(0, LARGEST), NEVER(0, "long jobs get more"), NEVER(0, "long jobs get more")),
    "finish_time_fairness": line(
        NEVER(0, LARGEST),
        NEVER(0, FINISH),
        NEVER(0, FINISH),
        monotone=NEVER(2, "with more GPUs the isolated share that it is measured by grows as well"),
    ),
    "max_sum_throughput": line(ALWAYS, NEVER(0, SUM), NEVER(0, SUM)),
    "max_sum_throughput_raw": line(ALWAYS, NEVER(0, SUM), NEVER(0, SUM)),
    "hierarchical": line(
        ALWAYS, NEVER(2, "a tenant with many jobs gets no more"), NEVER(0, "a tenant with many jobs gets no more")
    ),
    "min_cost": line(ALONE(1, "a job gives up speed for cheaper GPUs"), NEVER(0, SUM), NEVER(0, SUM)),
    "min_cost_slos": line(ALONE(1, "a job gives up speed for cheaper GPUs"), NEVER(0, SUM), NEVER(0, SUM)),
    "strategy_proof": line(
        NEVER(0, "GPUs given up for the sake of truth stay idle"), NEVER(0, "discounts of up to 1 − 1/e"), ALONE(0)
    ),
    "allox": line(ALONE(0, "a job may wait for a better GPU"), NEVER(0, ORDER), NEVER(0, ORDER)),
    "themis": line(
        ALONE(0, "bidders take their fastest configuration"),
        NEVER(0, "GPUs are won for a lease"),
        NEVER(0, "GPUs are won for a lease"),
        monotone=NEVER(10, "ratios are relative to an isolated share that grows as well"),
    ),
    "gandiva_fair": line(
        ALONE(0, "trades are between users, at one price a pair"),
        NEVER(0, "fair among tenants, not jobs"),
        NEVER(0, "fair among tenants, not jobs"),
    ),
}

TOLERANCE = 1e-4
BROKEN = 1e-3

_EVERY = [(policy, name, claim) for policy, claims in CLAIMS.items() for name, claim in claims.items()]
_CLAIMED = [(policy, name) for policy, name, claim in _EVERY if claim.general]
_CLAIMED_ALONE = [(policy, name) for policy, name, claim in _EVERY if claim.one_type and not claim.general]
_REFUTED = [(policy, name, claim.counterexample) for policy, name, claim in _EVERY if not claim.general]


@pytest.mark.parametrize("policy", CLAIMS)
def test_every_property_has_an_entry(policy):
    assert set(CLAIMS[policy]) == set(PROPERTIES)


@pytest.mark.parametrize(("policy", "name"), _CLAIMED)
def test_what_is_claimed_holds(policy, name):
    @settings(max_examples=4, deadline=None, database=None)
    @given(st.integers(0, 2**20))
    def holds(seed):
        assert PROPERTIES[name](policy, seed) <= TOLERANCE

    holds()


@pytest.mark.parametrize(("policy", "name"), _CLAIMED_ALONE)
def test_what_is_claimed_for_one_gpu_type_holds_there(policy, name):
    @settings(max_examples=3, deadline=None, database=None)
    @given(st.integers(0, 2**20))
    def holds(seed):
        assert PROPERTIES[name](policy, seed, one_type=True, single=True) <= TOLERANCE

    holds()


@pytest.mark.parametrize(("policy", "name", "seed"), _REFUTED)
def test_what_is_not_claimed_fails_somewhere(policy, name, seed):
    assert PROPERTIES[name](policy, seed) > BROKEN
