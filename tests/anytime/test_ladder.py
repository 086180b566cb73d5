"""An allocation by a deadline, whatever the solver does; which rung gave it is said, and it is always valid."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest
from faulty_solvers import FAULTS, HANGING, Faulty, Slow
from hypothesis import given, settings
from hypothesis import strategies as st

from bloxopt.anytime import Ladder, Rung
from bloxopt.anytime.greedy import carried_over, greedy_shares
from bloxopt.anytime.ladder import SOLVE_PART
from bloxopt.errors import InputError
from bloxopt.formulations import (
    Capacity,
    EffectiveThroughput,
    MaxMin,
    MaxSum,
    MinimumShare,
    NormalizedThroughput,
    OneConfiguration,
    PinRunning,
    Policy,
    TenantQuota,
    TimeShare,
)
from bloxopt.formulations.allocation import Allocation
from bloxopt.formulations.constraints.base import name_blocks
from bloxopt.formulations.policies import get_policy
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import Job
from bloxopt.selection.base import Plan

CLUSTER = "4xV100+4xP100+6xK80"


def _space(count: int = 12, seed: int = 0, **state: object) -> AllocationSpace:
    random = np.random.default_rng(seed)
    jobs = [
        Job(
            job_id=f"j{k}",
            job_type=f"t{k}",
            total_steps=1e5,
            num_gpus=int(random.choice([1, 2, 4])),
            tenant=str(random.choice(["a", "b"])),
            weight=float(random.choice([1.0, 2.0])),
        )
        for k in range(count)
    ]
    table = {
        (job.job_type, kind, job.num_gpus): float(random.uniform(0.5, 1.5) * speed)
        for job in jobs
        for kind, speed in (("V100", 3.0), ("P100", 2.0), ("K80", 1.0))
    }
    return AllocationSpace.from_jobs(jobs, CLUSTER, table, **state)


def _valid(allocation: Allocation) -> bool:
    """No type over capacity, no job over its time, worked out from the shares alone."""
    space, x = allocation.space, allocation.x
    used = np.bincount(space.gpu_type, weights=x * space.num_gpus, minlength=len(space.gpu_types))
    time_share = np.bincount(space.job, weights=x, minlength=space.num_jobs)
    return bool((used <= space.capacity + 1e-6).all() and (time_share <= 1 + 1e-6).all() and (x >= -1e-9).all())


@pytest.fixture(scope="module")
def faulty() -> Faulty:
    """One for all tests: what it is told goes to its process with every question."""
    return Faulty("")


@pytest.fixture(scope="module")
def ladder(faulty: Faulty):
    ladder = Ladder(budget=30.0)
    ladder.start("highs", wait=60.0)
    ladder.start(faulty, wait=60.0)
    yield ladder
    ladder.close()


def test_a_solver_that_works_is_the_first_rung(ladder: Ladder) -> None:
    space = _space()
    policy = Policy(objective=MaxMin(NormalizedThroughput()), solver="highs")
    allocation = ladder.allocate(policy, space)
    assert allocation.rung == Rung.SOLVED
    assert allocation.objective == pytest.approx(policy.allocate(space).objective)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_a_solver_leaves_a_valid_allocation_in_time(ladder: Ladder, faulty: Faulty, fault: str) -> None:
    space = _space()
    policy = Policy(objective=MaxMin(NormalizedThroughput()))
    faulty.fault = fault
    ladder.start(faulty, wait=60.0)
    deadline = time.monotonic() + 3.0
    allocation = ladder.allocate(policy, space, solver=faulty, deadline=deadline)
    # benchmarks/anytime.py measures how late; here it must not be waited for.
    assert time.monotonic() < deadline + 1.0
    assert _valid(allocation)
    assert "solved: " in allocation.message, "what became of the first rung is said"
    if fault not in HANGING:
        assert allocation.rung == Rung.OTHER_SOLVER
        assert allocation.objective == pytest.approx(policy.allocate(space).objective, rel=1e-5)


@pytest.mark.parametrize("about", ["value", "optimality", "optimality, with prices"])
def test_a_solver_that_lies_about_how_good_its_answer_is_is_caught_where_that_shows(
    ladder: Ladder, faulty: Faulty, about: str
) -> None:
    space = _space()
    policy = Policy(objective=MaxMin(NormalizedThroughput()))
    faulty.fault = f"lies: {about}"
    allocation = ladder.allocate(policy, space, solver=faulty)
    truth = policy.objective.utility(allocation.space, allocation.x)
    assert _valid(allocation)
    assert allocation.objective == pytest.approx(truth, abs=1e-9), "reported at what it is worth"
    if about == "value":
        assert allocation.rung == Rung.INCUMBENT
        assert allocation.bound is None
        assert "claims a value" in allocation.message
    elif about == "optimality, with prices":
        assert allocation.rung == Rung.INCUMBENT
        assert "its duals prove only" in allocation.message
    assert not allocation.certificate.verification.verified


def test_an_answer_that_comes_at_the_deadline_counts_or_does_not_and_disturbs_no_other() -> None:
    policy, space = get_policy("max_min_fairness"), _space()
    best = policy.allocate(space).objective
    ladder, solver = Ladder(budget=1.0), Slow(0.1)
    ladder.start(solver, wait=60.0)
    for around in np.linspace(-0.02, 0.05, 15):
        deadline = time.monotonic() + (0.1 + around) / SOLVE_PART
        allocation = ladder.allocate(policy, space, deadline=deadline, solver=solver)
        assert _valid(allocation)
        if allocation.rung == Rung.SOLVED:
            assert allocation.objective == pytest.approx(best)
        space = space.without(space.index[:1]) if space.num_jobs > 4 else _space()
        best = policy.allocate(space).objective
    ladder.close()


def test_a_space_that_is_too_full_for_temporary_files_leaves_a_valid_allocation() -> None:
    # A file that may not grow fails as one on a full disk does, and processes inherit that.
    made = _in_a_process_of_its_own(
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
        "ladder.start('pulp:cbc', wait=60.0)",
        "show(ladder.allocate(policy, space, solver='pulp:cbc'))",
    )
    assert made["rung"] == "other_solver"
    assert made["message"].startswith("solved: ")


@pytest.mark.parametrize("limit", ["resource.RLIMIT_NOFILE, (4, 4)", "resource.RLIMIT_NPROC, (1, 1)"])
def test_where_no_process_can_be_started_the_last_rung_decides(limit: str) -> None:
    made = _in_a_process_of_its_own(
        "if os.geteuid() == 0: os.setuid(65534)  # no limit on processes binds root",
        f"resource.setrlimit({limit})",
        "ladder.start('highs', wait=60.0)",
        "show(ladder.allocate(policy, space, solver='highs'))",
    )
    assert made["rung"] == "greedy"
    assert "its process cannot be started" in made["message"]


def _in_a_process_of_its_own(*lines: str) -> dict[str, object]:
    program = """
import json, os, resource
import numpy as np
from bloxopt.anytime import Ladder
from bloxopt.formulations.policies import get_policy
from bloxopt.formulations.space import AllocationSpace
from bloxopt.solvers import get_solver

def show(made):
    used = np.bincount(made.space.gpu_type, weights=made.x * made.space.num_gpus)
    assert (used <= made.space.capacity + 1e-6).all() and made.x.sum() > 0
    print(json.dumps({"rung": made.rung, "message": made.message}))

policy, ladder = get_policy("max_min_fairness"), Ladder(budget=10.0)
space = AllocationSpace.from_jobs("gavel-15", "2xV100+2xP100+2xK80")
Ladder(budget=1.0).allocate(policy, space, deadline=0.0)
get_solver("highs"), get_solver("pulp:cbc")
"""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([program, *lines])], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_hanging_solver_costs_its_part_of_the_budget_only() -> None:
    ladder = Ladder(budget=1.0)
    solver = Faulty("hang")
    ladder.start(solver, wait=60.0)
    started = time.monotonic()
    allocation = ladder.allocate(Policy(objective=MaxMin(NormalizedThroughput())), _space(), solver=solver)
    assert time.monotonic() - started < 2.0
    assert allocation.rung in (Rung.OTHER_SOLVER, Rung.GREEDY)
    ladder.close()


def test_without_time_the_plan_before_is_carried_over_and_filled_up() -> None:
    policy = get_policy("max_min_fairness")
    before = _space(8)
    plan = Plan(policy.allocate(before), 0.0)
    allocation = Ladder(budget=1.0).allocate(policy, before, plan, deadline=time.monotonic() - 1.0)
    assert allocation.rung == Rung.CARRIED_OVER
    assert _valid(allocation)
    assert (allocation.x >= plan.share - 1e-6).all(), "what still fits stays"


def test_a_plan_that_no_longer_fits_is_cut_down() -> None:
    policy = get_policy("max_sum_throughput")
    space = _space(10)
    plan = Plan(policy.allocate(space), 0.0)
    smaller = AllocationSpace(space.catalog, space.ledger, space.index[2:], capacity=np.array([4, 0, 3]), now=9.0)
    allocation = Ladder(budget=1.0).allocate(policy, smaller, plan, deadline=0.0)
    assert allocation.rung == Rung.CARRIED_OVER
    assert _valid(allocation)
    assert allocation.x.sum() > 0


def test_the_last_rung_needs_neither_solver_nor_plan_and_wastes_nothing() -> None:
    allocation = Ladder(budget=1.0).allocate(get_policy("max_min_fairness"), _space(40), deadline=0.0)
    assert allocation.rung == Rung.GREEDY
    assert _valid(allocation)
    used = np.bincount(allocation.space.gpu_type, weights=allocation.x * allocation.space.num_gpus)
    assert used == pytest.approx(allocation.space.capacity), "there is work for every GPU"


def test_the_greedy_serves_jobs_in_the_order_of_the_policy() -> None:
    jobs = [Job(job_id=f"j{k}", arrival=10.0 - k, duration=100.0 * (k + 1)) for k in range(4)]
    space = AllocationSpace.from_jobs(jobs, "2xV100")
    for name, first in (("fifo", {"j3", "j2"}), ("srtf", {"j0", "j1"})):
        allocation = Ladder(budget=1.0).allocate(get_policy(name), space, deadline=0.0)
        assert {str(job) for job in space.job_ids[allocation.time_share[:, 0] > 0.5]} == first


def test_without_an_order_those_that_received_least_for_their_weight_come_first() -> None:
    jobs = [Job(job_id=f"j{k}", duration=100.0, weight=1.0 + (k == 0)) for k in range(3)]
    space = AllocationSpace.from_jobs(jobs, "1xV100", attained_service=[50.0, 40.0, 60.0])
    allocation = Ladder(budget=1.0).allocate(get_policy("max_min_fairness"), space, deadline=0.0)
    assert allocation.time_share[:, 0].tolist() == [1.0, 0.0, 0.0]


def test_upper_limits_hold_on_every_rung_and_lower_limits_are_served_first() -> None:
    space = _space(30, seed=3)
    blocks = [Capacity(), TimeShare(), TenantQuota({"a": 3}), MinimumShare({"b": 0.4}, of="gpus")]
    policy = Policy(objective=MaxSum(EffectiveThroughput()), constraints=blocks)
    allocation = Ladder(budget=1.0).allocate(policy, space, deadline=0.0)
    assert {name: float(rows.max()) for name, rows in allocation.violations.items() if rows.max() > 1e-6} == {}


def test_lower_limits_that_cannot_be_kept_are_named() -> None:
    space = _space(30, seed=3)
    blocks = [Capacity(), TimeShare(), MinimumShare({"a": 0.9, "b": 0.9}, of="gpus")]
    policy = Policy(objective=MaxSum(EffectiveThroughput()), constraints=blocks)
    allocation = Ladder(budget=5.0).allocate(policy, space)
    assert _valid(allocation)
    assert "not kept: MinimumShare" in allocation.message


def test_what_runs_keeps_running_where_a_block_says_so() -> None:
    space = _space(12, gpu_type=[0] + [-1] * 11)
    policy = Policy(objective=MaxSum(EffectiveThroughput()), constraints=[Capacity(), TimeShare(), PinRunning()])
    allocation = Ladder(budget=1.0).allocate(policy, space, deadline=0.0)
    assert allocation.x[space.is_current].tolist() == [1.0]
    assert allocation.violations["PinRunning"].max() <= 1e-6


@settings(max_examples=60)
@given(
    count=st.integers(1, 30),
    seed=st.integers(0, 10_000),
    integer=st.booleans(),
    capacity=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    share=st.floats(0, 1),
)
def test_the_greedy_is_valid_for_any_state_and_start(
    count: int, seed: int, integer: bool, capacity: list[int], share: float
) -> None:
    space = _space(count, seed=seed)
    space = AllocationSpace(space.catalog, space.ledger, space.index, capacity=np.array(capacity))
    blocks = [Capacity(), OneConfiguration() if integer else TimeShare()]
    policy = Policy(objective=MaxSum(EffectiveThroughput()), constraints=blocks)
    program = Program(space)
    for name, block in name_blocks(policy.blocks).items():
        program.block = name
        block.build(space, program)
    most = np.random.default_rng(seed).uniform(0, share, space.num_columns) if share > 0.3 else None
    x = greedy_shares(policy, space, program, most)
    used = np.bincount(space.gpu_type, weights=x * space.num_gpus, minlength=3)
    assert (used <= space.capacity + 1e-9).all()
    assert (np.bincount(space.job, weights=x, minlength=space.num_jobs) <= 1 + 1e-9).all()
    if integer:
        assert set(np.unique(x)) <= {0.0, 1.0}
    again = greedy_shares(policy, space, program, most)
    assert np.array_equal(x, again)
    # Nothing more fits: every job that could still use a GPU has all of its time.
    free = space.capacity - used
    idle = np.bincount(space.job, weights=x, minlength=space.num_jobs) < 1 - 1e-6
    room = free[space.gpu_type] >= (space.num_gpus if integer else 1e-6)
    assert not (idle[space.job] & room & (x < 1)).any()


def test_carrying_over_finds_the_columns_that_are_left() -> None:
    policy = get_policy("max_min_fairness")
    space = _space(6)
    plan = Plan(policy.allocate(space), 0.0)
    fewer = space.without(space.index[:3])
    assert carried_over(fewer, plan) == pytest.approx(plan.share[space.job >= 3])


@pytest.mark.parametrize("budget", [0, -1.0, float("nan"), float("inf"), True, "fast"])
def test_a_budget_that_is_no_time_is_refused(budget: object) -> None:
    with pytest.raises(InputError, match="budget"):
        Ladder(budget)  # type: ignore[arg-type]


def test_a_slow_solver_with_an_answer_at_hand_is_an_incumbent_or_better() -> None:
    ladder = Ladder(budget=30.0)
    solver = Slow(0.2)
    ladder.start(solver, wait=60.0)
    allocation = ladder.allocate(get_policy("max_min_fairness"), _space(), solver=solver)
    assert allocation.rung == Rung.SOLVED
    ladder.close()
