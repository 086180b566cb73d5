"""Exact placement: equal to an enumeration of every placement, always valid, never worse than where it starts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.errors import InputError, SolverError
from bloxopt.needs import PlacementNeeds
from bloxopt.placement import get_placement
from bloxopt.placement.exact import ExactPlacement, RoundPlacement
from bloxopt.placement.exact_instance import Gang, Instance, PlacementWeights, Profile
from bloxopt.placement.exact_program import solve_instance
from bloxopt.placement.passes import place_decision
from bloxopt.placement.rules import Rules
from bloxopt.placement.strategy import Changes, Offer, Requests
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment
from bloxopt.solvers.base import SolverOptions, Termination
from bloxopt.solvers.registry import get_solver

SOLVER = get_solver("highs")
PROVEN = SolverOptions(mip_gap=0.0)


# ---------------------------------------------------------------------------------------- against an enumeration


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    """A few small nodes in one or two racks, and up to four gangs, some of which run."""
    count = draw(st.integers(1, 4))
    total = np.array(draw(st.lists(st.integers(1, 4), min_size=count, max_size=count)))
    taken = np.array([draw(st.integers(0, int(gpus))) if draw(st.booleans()) else 0 for gpus in total])
    cpus = np.array([draw(st.sampled_from([np.inf, 4.0, 6.0])) for _ in range(count)])
    weights = PlacementWeights(
        node=draw(st.sampled_from([1.0, 2.5])),
        rack=draw(st.sampled_from([0.0, 1.0])),
        fragment=draw(st.sampled_from([0.0, 0.3])),
        unplaced=draw(st.sampled_from([1000.0, 1.7])),
    )
    profiles = [
        Profile(
            cpus=draw(st.sampled_from([0.0, 1.0, 2.0])),
            memory_gib=0.0,
            allowed=np.array([draw(st.integers(0, 5)) > 0 for _ in range(count)]),
            exclusive=draw(st.integers(0, 4)) == 0,
            group=draw(st.sampled_from([None, None, None, "a"])),
        )
        for _ in range(draw(st.integers(1, 2)))
    ]
    move_cost = draw(st.sampled_from([0.0, 0.6, 1.4, 3.0]))
    empty = Instance(
        total=total,
        free=total - taken,
        cpus=cpus,
        memory_gib=np.full(count, np.inf),
        rack=np.array([draw(st.integers(0, 1)) for _ in range(count)]),
        guests=(taken > 0).astype(int),
        claimed=np.zeros(count, dtype=bool),
        groups=[frozenset()] * count,
        profiles=profiles,
        gangs=[],
        weights=weights,
    )
    gangs: list[Gang] = []
    chosen: dict[int, dict[int, int]] = {}
    for number in range(draw(st.integers(1, 4))):
        gang = Gang(
            size=draw(st.integers(1, 5)),
            profile=draw(st.integers(0, len(profiles) - 1)),
            max_nodes=draw(st.sampled_from([None, None, 1, 2])),
            one_rack=draw(st.integers(0, 4)) == 0,
            rack_weight=weights.rack,
            move_cost=move_cost,
        )
        here = [
            where
            for where in options(empty, gang)
            if where is not None and fits(empty, [*gangs, gang], {**chosen, number: where})
        ]
        if here and draw(st.booleans()):
            chosen[number] = draw(st.sampled_from(here))
            gang = Gang(
                gang.size, gang.profile, gang.max_nodes, gang.one_rack, gang.rack_weight, move_cost, chosen[number]
            )
        gangs.append(gang)
    return Instance(**{**{name: getattr(empty, name) for name in empty.__dataclass_fields__}, "gangs": gangs})


def options(instance: Instance, gang: Gang) -> Iterator[dict[int, int] | None]:
    """Every way to place one gang alone, and not at all."""
    yield None
    for counts in product(*(range(int(free) + 1) for free in instance.free)):
        where = {node: count for node, count in enumerate(counts) if count}
        if sum(counts) != gang.size or not all(instance.profiles[gang.profile].allowed[node] for node in where):
            continue
        if gang.max_nodes is not None and len(where) > gang.max_nodes:
            continue
        if gang.one_rack and len({instance.rack[node] for node in where}) > 1:
            continue
        yield where


def fits(instance: Instance, gangs: list[Gang], placement: dict[int, dict[int, int] | None]) -> bool:
    """Whether placements fit together."""
    for node in range(len(instance.total)):
        here = [(gangs[number], where[node]) for number, where in placement.items() if where and node in where]
        profiles = [instance.profiles[gang.profile] for gang, _ in here]
        company = len(here) + int(instance.guests[node])
        if (
            sum(count for _, count in here) > instance.free[node]
            or sum(p.cpus * count for p, (_, count) in zip(profiles, here, strict=True)) > instance.cpus[node]
            or (company > 1 and any(p.exclusive for p in profiles))
            or sum(p.group == "a" for p in profiles) > 1
        ):
            return False
    return True


def price(instance: Instance, placement: dict[int, dict[int, int] | None]) -> float:
    """The objective, from its definition."""

    def fewest(sizes: list[int], need: int) -> int:
        return next(
            (k for k in range(1, len(sizes) + 1) if max(sum(c) for c in combinations(sizes, k)) >= need), len(sizes)
        )

    weights, cost = instance.weights, 0.0
    racks = [int(instance.total[instance.rack == rack].sum()) for rack in range(int(instance.rack.max()) + 1)]
    for number, gang in enumerate(instance.gangs):
        where = placement[number]
        if gang.held and where != gang.held:
            cost += gang.move_cost
        if where is None:
            cost += weights.unplaced * gang.size
        else:
            cost += weights.node * (len(where) - fewest(instance.total.tolist(), gang.size))
            cost += gang.rack_weight * (len({instance.rack[n] for n in where}) - fewest(racks, gang.size))
    for node, total in enumerate(instance.total):
        used = total - instance.free[node] + sum(where.get(node, 0) for where in placement.values() if where)
        cost += weights.fragment * (0 < used < total)
    return cost


def cheapest(instance: Instance) -> float:
    """The least price of any placement, by trying them all."""
    best = float("inf")
    for combination in product(
        *(list(options(instance, gang)) + ([gang.held] if gang.held else []) for gang in instance.gangs)
    ):
        placement = dict(enumerate(combination))
        if fits(instance, list(instance.gangs), placement):
            best = min(best, price(instance, placement))
    return best


@settings(max_examples=120, deadline=None)
@given(instances())
def test_exact_equals_the_best_of_all_placements(instance: Instance) -> None:
    start = {number: dict(gang.held) for number, gang in enumerate(instance.gangs) if gang.held}
    answer = solve_instance(instance, SOLVER, PROVEN, start)
    placement = {number: answer.placement.get(number) for number in range(len(instance.gangs))}
    assert fits(instance, list(instance.gangs), placement)
    for number, where in placement.items():
        assert where is None or sum(where.values()) == instance.gangs[number].size
    assert price(instance, placement) == pytest.approx(answer.objective)
    assert answer.objective == pytest.approx(cheapest(instance), abs=1e-6)
    assert answer.bound == pytest.approx(answer.objective, abs=1e-4)


# ---------------------------------------------------------------------------------------- whole rounds


def workspace_of(assignment: Assignment, cluster: bx.Cluster, jobs: bx.JobTable, placement: object) -> Workspace:
    strategy = get_placement(placement)  # type: ignore[arg-type]
    return Workspace(assignment, cluster, jobs, np.ones(len(cluster.nodes), bool), strategy, Rules.of(cluster, jobs))


def requests_of(jobs: bx.JobTable, rows: list[int], kind: int = 0) -> Requests:
    index = np.array(rows, dtype=np.int64)
    return Requests(index, np.full(len(rows), kind), jobs.num_gpus[index])


def decide(jobs: bx.JobTable, rows: list[int], assignment: Assignment, workspace: Workspace) -> Changes:
    asked = requests_of(jobs, rows)
    return place_decision(asked.row, asked.gpu_type, asked.num_gpus, assignment, workspace)


def gangs(*sizes: int, **common: object) -> bx.JobTable:
    return bx.JobTable.from_jobs(
        [bx.Job(job_id=f"job-{i}", duration=1.0, num_gpus=size, **common) for i, size in enumerate(sizes)]  # type: ignore[arg-type]
    )


needs = st.sampled_from(
    [
        PlacementNeeds(),
        PlacementNeeds(),
        PlacementNeeds(max_nodes=1),
        PlacementNeeds(same_rack="required"),
        PlacementNeeds(same_rack="preferred"),
        PlacementNeeds(exclusive_node=True),
        PlacementNeeds(anti_affinity="replicas"),
    ]
)
jobs_drawn = st.lists(
    st.builds(
        lambda size, share, cpus, need: (1, share, cpus, PlacementNeeds()) if share < 1 else (size, 1.0, cpus, need),
        st.sampled_from([1, 1, 2, 3, 4, 6]),
        st.sampled_from([1.0, 1.0, 1.0, 0.5]),
        st.sampled_from([0.0, 2.0, 5.0]),
        needs,
    ),
    min_size=2,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(jobs_drawn, st.lists(st.sets(st.integers(0, 7)), min_size=1, max_size=3), st.integers(1, 3))
def test_every_round_is_a_valid_assignment_within_the_rules(
    drawn: list[tuple[int, float, float, PlacementNeeds]], rounds: list[set[int]], racks: int
) -> None:
    cluster = bx.Cluster(
        tuple(bx.Node(name=f"n{i}", gpu_type="V100", num_gpus=4, cpus=12.0, rack=f"rack-{i % racks}") for i in range(4))
    )
    jobs = bx.JobTable.from_jobs(
        [
            bx.Job(job_id=f"job-{i}", duration=1.0, num_gpus=size, gpu_share=share, cpus_per_gpu=cpus, needs=need)
            for i, (size, share, cpus, need) in enumerate(drawn)
        ]
    )
    told: list[RoundPlacement] = []
    exact = ExactPlacement(time_limit=None, on_round=told.append)
    assignment = Assignment(cluster, jobs)
    for wanted in rounds:
        rows = sorted(row for row in wanted if row < len(jobs))
        changes = decide(jobs, rows, assignment, workspace_of(assignment, cluster, jobs, exact))
        assignment = assignment.change(*changes)  # checks GPUs, CPUs, gang sizes, shares, exclusive nodes and groups
        assert set(assignment) <= set(rows)
        last = told[-1]
        assert last.bound <= last.cost + 1e-6
        assert last.cost <= last.heuristic_cost + 1e-6
        assert set(last.unplaced) == {f"job-{row}" for row in rows if row not in assignment}
        for row, grant in assignment.items():
            need = jobs.need_kinds[jobs.needs[row]]
            spanned = {cluster.nodes[node].rack for node in grant.nodes}
            assert need.max_nodes is None or len(grant.nodes) <= need.max_nodes
            assert need.same_rack != "required" or len(spanned) == 1


def test_a_gang_moves_only_where_that_pays() -> None:
    cluster, jobs = bx.load_cluster("3x4xV100"), gangs(2, 2, 4, 4)
    running = Assignment(cluster, jobs)
    for row, node in ((0, 0), (1, 1)):
        placed = workspace_of(running, cluster, jobs, lambda offer, need, node=node: ((node,), (need,)))
        running = running.change(*decide(jobs, [*running, row], running, placed))
    assert [running[row].nodes for row in (0, 1)] == [(0,), (1,)]

    def place(weights: PlacementWeights) -> Assignment:
        exact = ExactPlacement(weights)
        space = workspace_of(running, cluster, jobs, exact)
        return running.change(*decide(jobs, [0, 1, 2, 3], running, space))

    # One gang of four finds an empty node; the other spans the two half-empty ones unless a gang of two moves.
    moved = place(PlacementWeights(node=1.0, migration=0.5))
    assert [len(moved[row].nodes) for row in (2, 3)] == [1, 1]
    stayed = place(PlacementWeights(node=1.0, migration=1.5))
    assert sorted(len(stayed[row].nodes) for row in (2, 3)) == [1, 2]
    assert [stayed[row] for row in (0, 1)] == [running[row] for row in (0, 1)]


def test_jobs_that_fit_nowhere_stay_unplaced_and_are_named() -> None:
    cluster, jobs = bx.load_cluster("2x4xV100"), gangs(3, 3, 3, needs=PlacementNeeds(max_nodes=1))
    assignment = Assignment(cluster, jobs)
    result = ExactPlacement().solve_round(
        requests_of(jobs, [0, 1, 2]), assignment, workspace_of(assignment, cluster, jobs, "exact")
    )
    assert len(result.changes[1]) == 2
    assert len(result.unplaced) == 1
    assert set(result.unplaced) < {"job-0", "job-1", "job-2"}
    assert result.gap < 0.02


def test_without_time_the_heuristic_answer_stands_and_the_gap_says_so() -> None:
    cluster, jobs = bx.load_cluster("3x4xV100"), gangs(3, 3, 3, 2)
    assignment = Assignment(cluster, jobs)
    result = ExactPlacement(time_limit=0.0).solve_round(
        requests_of(jobs, [0, 1, 2, 3]), assignment, workspace_of(assignment, cluster, jobs, "consolidated")
    )
    assert result.unplaced == ()
    assert result.cost == result.heuristic_cost > 0
    assert result.answers["V100"].termination is Termination.FEASIBLE
    assert result.bound == 0.0
    assert result.gap == pytest.approx(1.0)


def test_types_on_which_nothing_starts_are_left_alone_unless_told_to_defragment() -> None:
    cluster, jobs = bx.load_cluster("2x4xV100"), gangs(2, 2)
    split = Assignment(cluster, jobs)
    spread = workspace_of(split, cluster, jobs, lambda offer, need: ((0, 1), (1, 1)))
    split = split.change(*decide(jobs, [0, 1], split, spread))
    for defragment, nodes in ((False, 2), (True, 1)):
        exact = ExactPlacement(PlacementWeights(migration=0.1), defragment=defragment)
        space = workspace_of(split, cluster, jobs, exact)
        after = split.change(*decide(jobs, [0, 1], split, space))
        assert {len(after[row].nodes) for row in (0, 1)} == {nodes}


def test_a_simulation_places_by_name_and_finishes_every_job() -> None:
    trace = bx.load_trace("gavel-15")
    result = bx.simulate(trace, "2x4xV100+2x4xP100+2x4xK80", "max_min_fairness", placement="exact")
    assert result.summary()["finished"] == 15


def test_a_selector_with_a_queue_gets_the_heuristic_answer() -> None:
    trace = bx.load_trace("tiresias-60")
    results = [
        bx.simulate(trace, "4x4xP100", "fifo", preset="blox", placement=name).summary()["average_jct"]
        for name in ("exact", "consolidated")
    ]
    assert results[0] == results[1]


# ---------------------------------------------------------------------------------------- bad input


def test_a_solver_for_linear_programs_is_refused() -> None:
    cluster, jobs = bx.load_cluster("2x4xV100"), gangs(3, 3, 2)
    exact = ExactPlacement(solver="ortools:glop")
    assignment = Assignment(cluster, jobs)
    with pytest.raises(SolverError, match="exact placement needs a solver for integer programs"):
        decide(jobs, [0, 1, 2], assignment, workspace_of(assignment, cluster, jobs, exact))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "much", True])
def test_weights_must_be_numbers_from_0(value: object) -> None:
    with pytest.raises(InputError, match="placement weight migration"):
        PlacementWeights(migration=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["time_limit", "mip_gap"])
def test_limits_must_not_be_negative(name: str) -> None:
    with pytest.raises(InputError, match=f"exact placement: {name}"):
        ExactPlacement(**{name: -1.0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": {"rack": 1}}, "weights is {'rack': 1}, must be a PlacementWeights"),
        ({"weights": 5}, "weights is 5"),
        ({"solver": 5}, "solver is 5"),
        ({"solver": "hihgs"}, "unknown solver 'hihgs': did you mean 'highs'"),
        ({"time_limit": "2"}, "time_limit is '2', must be a number"),
        ({"time_limit": float("nan")}, "time_limit is nan"),
        ({"mip_gap": None}, "mip_gap is None, must be a number"),
        ({"defragment": "yes"}, "defragment is 'yes', must be true or false"),
        ({"heuristic": 5}, "exact placement: heuristic is 5: it must be a name of `bloxopt placements` or a function"),
        ({"heuristic": None}, "exact placement: heuristic is None"),
        ({"heuristic": "rack_awar"}, "did you mean 'rack_aware'"),
        ({"heuristic": ExactPlacement}, "heuristic is the class ExactPlacement: give an object of it"),
        ({"on_round": 5}, "on_round is 5, must be a function of a RoundPlacement"),
        ({"weight": None}, "unknown option 'weight': did you mean 'weights'"),
    ],
)
def test_options_of_another_kind_are_refused_when_it_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        ExactPlacement(**options)


def test_the_heuristic_may_be_a_name() -> None:
    assert ExactPlacement(heuristic="rack_aware").heuristic is get_placement("rack_aware")


TRACE = bx.Trace.from_jobs([bx.Job(job_id="a", duration=100.0, num_gpus=2)])


def test_what_a_users_heuristic_answers_is_checked() -> None:
    def mine(offer: Offer, need: int) -> Any:
        return [99], [need]

    # Selectors that make a queue ask for one gang at a time, which is the heuristic's.
    for selector in ("ranking", "priorities"):
        with pytest.raises(InputError, match=r"placement function .*mine answered .* there is no node 99"):
            bx.simulate(TRACE, "2x4xV100", "fifo", placement=ExactPlacement(heuristic=mine), selector=selector)


def test_an_on_round_that_raises_is_named() -> None:
    def told(placement: Any) -> None:
        raise KeyError("lost")

    with pytest.raises(InputError, match="exact placement: on_round raised KeyError: 'lost'"):
        bx.simulate(TRACE, "2x4xV100", "fifo", placement=ExactPlacement(on_round=told), selector="priorities")


def test_weights_may_be_numpy_numbers_and_must_fit_a_float() -> None:
    assert PlacementWeights(rack=np.int64(2), node=np.float32(0.5)) == PlacementWeights(rack=2.0, node=0.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="placement weight unplaced is 1000"):
        PlacementWeights(unplaced=10**400)
