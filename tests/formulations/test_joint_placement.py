"""Joint allocation and placement: consolidated gangs fit onto nodes, and what is promised can be placed."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.errors import FormulationError
from bloxopt.formulations import (
    AllocationSpace,
    Capacity,
    ColumnValue,
    MaxMin,
    MaxSum,
    NodeCapacity,
    NormalizedThroughput,
    OneConfiguration,
    PinRunning,
    Policy,
    SpreadPenalty,
    TimeFraction,
    TimeShare,
)
from bloxopt.placement import Found, Offer
from bloxopt.placement.consolidated import consolidated
from bloxopt.placement.exact import ExactPlacement
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment
from bloxopt.selection.base import Decision, Plan
from bloxopt.solvers.base import SolverOptions

PROVEN = SolverOptions(mip_gap=0.0)


def jobs_of(*gpus: int, **common: object) -> list[bx.Job]:
    return [bx.Job(job_id=f"job-{i}", duration=1000.0, num_gpus=n, **common) for i, n in enumerate(gpus)]  # type: ignore[arg-type]


def half(nodes: int, gpus: int) -> float:
    """Any gang on more than one node runs at half its rate (multi-node gangs are told apart by the fewest)."""
    return 0.5


def together(values: np.ndarray | None = None) -> Policy:
    objective = MaxSum(TimeFraction()) if values is None else MaxSum(ColumnValue(values))
    blocks = [Capacity(), OneConfiguration(), NodeCapacity(whole_nodes=True)]
    return Policy(objective=objective, constraints=blocks, options=PROVEN)


# ---------------------------------------------------------------------------------------- NodeCapacity


def test_gangs_that_do_not_divide_a_node_do_not_fill_it() -> None:
    space = AllocationSpace.from_jobs(jobs_of(5, 5, 5), "2x8xV100")
    shares = Policy(objective=MaxSum(TimeFraction()), constraints=[Capacity(), TimeShare(), NodeCapacity()])
    ignoring = Policy(objective=MaxSum(TimeFraction()), constraints=[Capacity(), TimeShare()])
    assert ignoring.allocate(space).objective == pytest.approx(3.0)
    assert shares.allocate(space).objective == pytest.approx(2.0)


def test_a_gang_of_several_nodes_takes_whole_ones_and_a_part() -> None:
    # 12 GPUs are a whole node and half of one, which leaves a gang of 4 but not one of 5 on the other half.
    for other, fits in ((4, 2.0), (5, 1.0)):
        space = AllocationSpace.from_jobs(jobs_of(12, other), "2x8xV100")
        assert together().allocate(space).objective == pytest.approx(fits)


def packable(nodes: tuple[int, ...], gangs: tuple[int, ...]) -> bool:
    """Whether gangs, each on one node, fit, by trying all."""
    return any(
        all(sum(gang for gang, at in zip(gangs, where, strict=True) if at == n) <= size for n, size in enumerate(nodes))
        for where in product(range(len(nodes)), repeat=len(gangs))
    )


sizes = st.lists(st.integers(1, 6), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([2, 4, 5, 8]), min_size=1, max_size=4), sizes, st.integers(0, 10_000))
def test_whole_nodes_choose_the_best_gangs_that_can_be_packed(nodes: list[int], gangs: list[int], seed: int) -> None:
    gangs = [min(gang, max(nodes)) for gang in gangs]
    space = AllocationSpace.from_jobs(jobs_of(*gangs), "+".join(f"{size}xV100" for size in nodes))
    value = np.random.default_rng(seed).integers(1, 9, len(gangs)).astype(float)
    best = max(
        float(value @ chosen)
        for chosen in product((0, 1), repeat=len(gangs))
        if packable(tuple(nodes), tuple(gang for gang, yes in zip(gangs, chosen, strict=True) if yes))
    )
    assert together(value).allocate(space).objective == pytest.approx(best)
    shares = Policy(
        objective=MaxSum(ColumnValue(value)), constraints=[Capacity(), TimeShare(), NodeCapacity()]
    ).allocate(space)
    ignoring = Policy(objective=MaxSum(ColumnValue(value)), constraints=[Capacity(), TimeShare()]).allocate(space)
    assert best - 1e-6 <= shares.objective <= ignoring.objective + 1e-6


@given(sizes)
@settings(max_examples=60, deadline=None)
def test_violations_tell_packable_gangs_from_others(gangs: list[int]) -> None:
    space = AllocationSpace.from_jobs(jobs_of(*gangs), "2x6xV100")
    short = NodeCapacity().violations(space, np.ones(len(gangs)))
    if packable((6, 6), tuple(gangs)):
        assert short == pytest.approx(0.0)
    elif sum(gangs) > 12:
        assert short[0] > 0.01


def test_nodes_that_are_down_hold_nothing() -> None:
    space = AllocationSpace.from_jobs(jobs_of(4, 4), "2x4xV100")
    down = AllocationSpace(space.catalog, space.ledger, space.index, node_up=np.array([True, False]))
    assert together().allocate(space).objective == pytest.approx(2.0)
    assert together().allocate(down).objective == pytest.approx(1.0)


# ---------------------------------------------------------------------------------------- spread columns


def test_a_gang_that_spreading_slows_down_has_a_column_for_each() -> None:
    space = AllocationSpace.from_jobs(jobs_of(4, 1), "2x4xV100", slowdown=half)
    frame = space.to_pandas()
    assert frame.job_id.tolist() == ["job-0", "job-0", "job-1"]
    assert frame.spread.tolist() == [0, 1, 0]
    assert frame.steps_per_second.tolist() == [1.0, 0.5, 1.0]


def test_without_slowdown_columns_stay_as_they_are() -> None:
    space = AllocationSpace.from_jobs(jobs_of(4, 1), "2x4xV100")
    assert space.num_columns == 2
    assert not space.spread.any()
    assert not space.has_twin.any()
    assert "spread" not in space.to_pandas()


def test_a_gang_that_spreading_does_not_slow_down_is_free_to_spread() -> None:
    # Only job-0 fits the node of 4: the others share the small nodes, which costs them nothing.
    space = AllocationSpace.from_jobs(jobs_of(4, 4), "4xV100+4x1xV100", slowdown=lambda nodes, gpus: 1.0)
    assert space.spread.tolist() == [1, 1]
    assert together().allocate(space).objective == pytest.approx(2.0)


def test_the_program_decides_who_is_consolidated() -> None:
    def keen(nodes: int, gpus: int) -> float:
        return 0.9 if gpus == 3 else 0.2

    space = AllocationSpace.from_jobs(jobs_of(4, 3), "4xV100+3x1xV100", slowdown=keen)
    policy = Policy(
        objective=MaxSum(NormalizedThroughput(reference="fastest", scale_by_gpus=False)),
        constraints=[Capacity(), OneConfiguration(), NodeCapacity(whole_nodes=True)],
        options=PROVEN,
    )
    allocation = policy.allocate(space)
    chosen = allocation.to_pandas().query("time_share > 0.5").set_index("job_id").spread
    assert chosen.to_dict() == {"job-0": 0, "job-1": 1}
    assert allocation.objective == pytest.approx(1.9)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), min_size=1, max_size=8),
    st.lists(st.sampled_from([2, 4, 8]), min_size=2, max_size=5),
)
def test_what_the_program_promises_the_exact_placement_delivers(gangs: list[int], nodes: list[int]) -> None:
    cluster = bx.load_cluster("+".join(f"{size}xV100" for size in nodes))
    gangs = [min(gang, sum(nodes)) for gang in gangs]
    space = AllocationSpace.from_jobs(jobs_of(*gangs), cluster, slowdown=half)
    blocks = [Capacity(), OneConfiguration(), NodeCapacity(whole_nodes=True)]
    allocation = Policy(objective=MaxSum(NormalizedThroughput()), constraints=blocks, options=PROVEN).allocate(space)
    chosen = (allocation.x > 0.5).nonzero()[0]
    promised = space.has_twin[chosen] & (space.spread[chosen] == 0)
    decision = Decision(space.index[space.job[chosen]], space.gpu_type[chosen], space.num_gpus[chosen], promised)
    assignment = Assignment(cluster, space.catalog.table)
    up = np.ones(len(nodes), dtype=bool)
    workspace = Workspace(assignment, cluster, space.catalog.table, up, ExactPlacement(time_limit=None, mip_gap=0.0))
    after = assignment.change(*decision.place(assignment, workspace))
    assert decision.unmet(after, space.catalog).size == 0


def test_a_running_gang_is_pinned_to_the_column_of_the_nodes_it_has() -> None:
    for nodes, share in ((1, [1.0, 0.0]), (2, [0.0, 1.0])):
        space = AllocationSpace.from_jobs(jobs_of(4), "2x4xV100", slowdown=half, gpu_type=[0], gpus=[4], nodes=[nodes])
        assert space.is_current.tolist() == [bool(part) for part in share]
        policy = Policy(objective=MaxSum(TimeFraction()), constraints=[Capacity(), TimeShare(), PinRunning()])
        assert policy.allocate(space).x.tolist() == share


# ---------------------------------------------------------------------------------------- SpreadPenalty


def test_the_penalty_is_the_gpus_of_spread_gangs() -> None:
    space = AllocationSpace.from_jobs(jobs_of(4, 2), "4x4xV100", slowdown=half)
    x = np.where(space.spread == 1, 0.5, 0.0)
    assert SpreadPenalty().utility(space, x) == pytest.approx(0.5 * (4 + 2))
    assert SpreadPenalty({"v100": 2.0}).utility(space, x) == pytest.approx(6.0)
    with pytest.raises(FormulationError, match="SpreadPenalty: weight of GPU type 'k80', which the cluster does not"):
        SpreadPenalty({"k80": 2.0}).utility(space, x)


def test_a_high_enough_penalty_leaves_gangs_waiting_rather_than_spread() -> None:
    space = AllocationSpace.from_jobs(jobs_of(4, 4), "4xV100+4x1xV100", slowdown=half)
    blocks = [Capacity(), OneConfiguration(), NodeCapacity(whole_nodes=True)]
    throughput = MaxSum(NormalizedThroughput(reference="fastest", scale_by_gpus=False))
    for penalty, expected in ((0.0, 1.5), (0.1, 1.1), (0.2, 1.0)):
        policy = Policy(objective=throughput - penalty * SpreadPenalty(), constraints=blocks, options=PROVEN)
        assert policy.uses_spread
        assert policy.allocate(space).objective == pytest.approx(expected)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), {"v100": -1.0}, "much"])
def test_weights_below_0_are_refused(weight: object) -> None:
    with pytest.raises(FormulationError, match="SpreadPenalty"):
        SpreadPenalty(weight)  # type: ignore[arg-type]


def test_nodes_with_too_many_patterns_are_refused_with_the_way_out() -> None:
    space = AllocationSpace.from_jobs(jobs_of(*range(1, 65)), "4x64xV100")
    policy = Policy(objective=MaxSum(TimeFraction()), constraints=[Capacity(), TimeShare(), NodeCapacity()])
    with pytest.raises(FormulationError, match="place in two stages"):
        policy.allocate(space)


# ---------------------------------------------------------------------------------------- rounds


def test_a_plan_counts_both_columns_as_one_and_remembers_the_promise() -> None:
    space = AllocationSpace.from_jobs(jobs_of(4, 4, 1), "4xV100+5x1xV100", slowdown=half)
    policy = Policy(
        objective=MaxMin(NormalizedThroughput(reference="fastest", scale_by_gpus=False)),
        constraints=[Capacity(), TimeShare(), NodeCapacity()],
    )
    allocation = policy.allocate(space)
    plan = Plan(allocation, 0.0)
    assert plan.row.tolist() == [0, 1, 2]
    by_job = np.bincount(space.job, weights=allocation.x)
    np.testing.assert_allclose(plan.share, by_job)
    assert plan.promised is not None
    assert not plan.promised[2]


def test_gpus_of_a_gang_without_a_place_go_to_others_when_the_round_is_selected_again() -> None:
    trace = bx.Trace.from_jobs(
        [
            bx.Job(job_id="picky", duration=10_000.0, num_gpus=2),
            bx.Job(job_id="easy", duration=3_600.0, num_gpus=1),
        ]
    )

    def no_pairs(offer: Offer, need: int) -> Found | None:
        return consolidated(offer, need) if need == 1 else None

    def finish(retries: int) -> float:
        options = bx.SimulationOptions(placement_retries=retries)
        result = bx.simulate(trace, "2xV100", "max_min_fairness", placement=no_pairs, options=options, max_rounds=12)
        return float(result.jobs.set_index("job_id").finish["easy"])

    assert finish(1) == 3_600.0
    assert not finish(0) <= 3_600.0


def test_a_joint_policy_runs_a_whole_simulation() -> None:
    policy = Policy(
        objective=MaxMin(NormalizedThroughput()), constraints=[Capacity(), TimeShare(), NodeCapacity()], name="joint"
    )
    options = bx.SimulationOptions(placement_retries=2)
    result = bx.simulate(
        bx.load_trace("gavel-15"), "1x4xV100+2x2xV100+2x4xP100+2x4xK80", policy, slowdown="gavel", options=options
    )
    assert result.summary()["finished"] == 15


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_whole_nodes_is_true_or_false(value: object) -> None:
    with pytest.raises(FormulationError, match=r"NodeCapacity: whole_nodes is .*, must be True or False"):
        NodeCapacity(whole_nodes=value)  # type: ignore[arg-type]
