"""Whatever happens between two rounds, an answer that begins from the last one is as good as one from nothing."""

from __future__ import annotations

import time

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from bloxopt.cluster import load_cluster
from bloxopt.formulations import (
    AllocationSpace,
    Capacity,
    MaxSum,
    NormalizedThroughput,
    Policy,
    TimeShare,
    WaterFilling,
)
from bloxopt.formulations.policies import get_policy
from bloxopt.formulations.solving.resuming import Resolver
from bloxopt.formulations.space import ConfigurationCatalog
from bloxopt.jobs import JobTable
from bloxopt.solvers import get_solver, prices
from bloxopt.solvers.base import Capabilities, SolverOptions
from bloxopt.state import JobLedger

KINDS = ("v100", "p100", "k80")
GPUS = 8
TOTAL = 90


class Drawn:
    """Steps/s drawn for every job and GPU type; more GPUs help less and less."""

    def __init__(self, rates: np.ndarray) -> None:
        self.table = rates

    def rates(self, jobs, gpu_types, num_gpus):
        row = np.array([int(name[4:]) for name in jobs.job_id])
        return self.table[row] * np.asarray(num_gpus)[:, None] ** 0.8


class Cluster:
    """A cluster of which any one thing can change at a time."""

    def __init__(self, seed: int, elastic: bool) -> None:
        self.random = np.random.default_rng(seed)
        sizes = {"min_gpus": np.ones(TOTAL, int), "max_gpus": np.full(TOTAL, 4)} if elastic else {}
        self.table = JobTable.from_columns(
            job_id=[f"job-{i}" for i in range(TOTAL)],
            arrival=np.sort(self.random.uniform(0, 5000, TOTAL)),
            num_gpus=self.random.choice([1, 1, 2, 4], TOTAL),
            total_steps=self.random.uniform(1e3, 1e5, TOTAL),
            weight=self.random.choice([1.0, 2.0], TOTAL),
            **sizes,
        )
        self.cluster = load_cluster("+".join(f"{GPUS}x{kind}" for kind in KINDS))
        self.rates = np.exp(self.random.normal(0.0, 1.0, TOTAL))[:, None] * self.random.uniform(0.3, 4.0, (TOTAL, 3))
        self.catalog = ConfigurationCatalog(self.table, self.cluster, Drawn(self.rates))
        self.ledger = JobLedger(self.table)
        self.ledger.isolated_seconds[:] = self.random.uniform(1.0, 1e4, TOTAL)
        self.active, self.coming, self.now = list(range(20)), list(range(20, TOTAL)), 5000.0
        self.capacity = self.cluster.capacity

    def nothing(self) -> None:
        """Time passes."""

    def arrivals(self) -> None:
        """Up to eight jobs come."""
        for _ in range(min(len(self.coming), int(self.random.integers(1, 9)))):
            self.active.append(self.coming.pop(0))

    def departures(self) -> None:
        """Up to half of the jobs go."""
        gone = self.random.choice(
            self.active, int(self.random.integers(1, max(2, len(self.active) // 2))), replace=False
        )
        self.active = [row for row in self.active if row not in gone]

    def failure(self) -> None:
        """GPUs of every type are gone, so that large gangs may have no configuration on it."""
        self.capacity = self.random.integers(1, GPUS, len(KINDS))

    def repair(self) -> None:
        """All GPUs are back."""
        self.capacity = self.cluster.capacity

    def new_rates(self) -> None:
        """A third of the jobs run at other rates from now on."""
        other = self.random.choice(TOTAL, TOTAL // 3, replace=False)
        self.rates = self.rates.copy()
        self.rates[other] *= self.random.uniform(0.2, 5.0, (len(other), 3))
        self.catalog = ConfigurationCatalog(self.table, self.cluster, Drawn(self.rates))

    def happens(self, event: str) -> None:
        getattr(self, event)()
        self.ledger.remaining_steps[self.active] *= self.random.uniform(0.8, 1.0, len(self.active))
        self.now += 360.0

    @property
    def space(self) -> AllocationSpace:
        rows = np.array(self.active)
        return AllocationSpace(self.catalog, self.ledger, rows, capacity=self.capacity, now=self.now)


EVENTS = ("nothing", "arrivals", "departures", "failure", "repair", "new_rates")
POLICIES = {
    "max_min_fairness": False,
    "max_sum_throughput": False,
    "finish_time_fairness": False,
    "min_makespan": False,
    "water_filling_max_min_fairness": False,
    "hierarchical": False,
    "sia": True,
}
CONSTRAINTS = [Capacity(), TimeShare()]


@pytest.fixture(autouse=True)
def prices_of_any_size(monkeypatch) -> None:
    monkeypatch.setattr(prices, "SMALL", 0)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("solver", ["auto", "highs"])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), events=st.lists(st.sampled_from(EVENTS), min_size=3, max_size=6))
def test_the_value_is_that_of_a_solve_from_nothing_whatever_happens(name, solver, seed, events) -> None:
    elastic = POLICIES[name]
    state, resolver = Cluster(seed, elastic), Resolver(least_entries=0)
    policy, chosen = get_policy(name), None if elastic else solver
    # A gap of a sum of powers -1/2 is up to two and a half times as large in their mean.
    tolerance = 3e-3 if elastic else 5e-6
    for event in ("nothing", *events):
        state.happens(event)
        cold = policy.allocate(state.space, solver=chosen)
        warm = policy.allocate(state.space, solver=chosen, resume=resolver)
        assert warm.objective == pytest.approx(cold.objective, rel=tolerance, abs=1e-8), event
        assert warm.termination == "optimal"
        warm.check(1e-6)
        if (proof := warm.certificate.verification) is not None:
            assert proof.verified
        if warm.bound is not None:
            assert warm.gap < tolerance


@pytest.mark.parametrize("solver", ["highs", "cvxpy:clarabel"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), events=st.lists(st.sampled_from(EVENTS), min_size=2, max_size=5))
def test_every_level_of_water_filling_is_that_of_a_solve_from_nothing(
    solver: str, seed: int, events: list[str]
) -> None:
    """Stages begin near where they ended in the round before, even where that is far too low or too high now."""
    state, resolver = Cluster(seed, elastic=False), Resolver(least_entries=0)
    policy = Policy(objective=WaterFilling(NormalizedThroughput()), constraints=CONSTRAINTS, solver=solver)
    for event in ("nothing", *events):
        state.happens(event)
        cold, warm = policy.allocate(state.space), policy.allocate(state.space, resume=resolver)
        assert cold.levels is not None
        assert warm.levels is not None
        assert np.sort(warm.levels) == pytest.approx(np.sort(cold.levels), rel=1e-4, abs=1e-7), event


class Slow:
    """HiGHS, after a while."""

    name = "slow"
    capabilities = Capabilities(duals=True, time_limit=True, incremental=True)

    def __init__(self) -> None:
        self.seconds = 0.0

    def solve(self, form, options=SolverOptions(), warm_start=None, start=None):
        time.sleep(self.seconds)
        return get_solver("highs").solve(form, SolverOptions(), warm_start, start)


@pytest.mark.parametrize("solves", [1, 2, 3])
def test_a_bound_holds_where_time_ran_out_while_a_stage_was_looked_for_too_low(solves: int) -> None:
    state, resolver, solver = Cluster(6, elastic=False), Resolver(least_entries=0), Slow()
    policy = get_policy("water_filling_max_min_fairness")
    state.failure()
    for _ in range(2):
        policy.allocate(state.space, solver=solver, resume=resolver)
    state.repair()
    best = policy.allocate(state.space, solver="highs").objective
    solver.seconds = 0.2
    limit = SolverOptions(time_limit=0.2 * solves - 0.1)
    late = policy.allocate(state.space, solver=solver, options=limit, resume=resolver)
    assert late.termination == "feasible"
    assert late.objective <= best * (1 + 1e-9)
    assert late.bound >= best * (1 - 1e-9)
    late.check(1e-6)


def test_a_round_in_which_nothing_changes_takes_the_fewest_solves() -> None:
    state, resolver = Cluster(3, elastic=False), Resolver(least_entries=0)
    policy = get_policy("water_filling_max_min_fairness")
    solves = [policy.allocate(state.space, solver="highs", resume=resolver).num_solves for _ in range(3)]
    assert solves[2] < solves[0]


def test_the_last_prices_may_prove_an_integer_answer_at_once() -> None:
    state, resolver = Cluster(4, elastic=True), Resolver(least_entries=0)
    policy = get_policy("sia", options=SolverOptions(mip_gap=1e-2))
    first = policy.allocate(state.space, resume=resolver)
    again = policy.allocate(state.space, resume=resolver)
    assert (first.resumed, again.resumed) == (0, 1)
    assert again.message == first.message == "by prices"
    assert again.gap <= 2.5e-2


def test_where_a_search_ended_is_kept_only_for_solvers_that_take_starts() -> None:
    state, resolver = Cluster(5, elastic=False), Resolver(least_entries=0)
    policy = get_policy("water_filling_max_min_fairness")
    solves = [policy.allocate(state.space, solver="cvxpy:clarabel", resume=resolver).num_solves for _ in range(2)]
    assert solves[0] == solves[1]
    value = Policy(objective=MaxSum(NormalizedThroughput()), constraints=CONSTRAINTS)
    assert value.allocate(state.space, solver="cvxpy:clarabel", resume=resolver).resumed == 0
