"""Host allocations: nobody below its proportional share, the greedy as published, the optimum as by enumeration."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloxopt.cluster import Cluster
from bloxopt.errors import ConfigError, InputError, SolverError
from bloxopt.hosts import HOST_ALLOCATIONS, Hosts, get_host_allocation
from bloxopt.hosts.base import per_gpu
from bloxopt.hosts.optimal import Optimal, throughput_bound, total_throughput
from bloxopt.hosts.proportional import Proportional
from bloxopt.hosts.tuned import Tuned
from bloxopt.runtime.assignment import Assignment
from tests.hosts.servers import MODELS, running, servers, up

KINDS = st.lists(st.tuples(st.sampled_from(MODELS), st.sampled_from([1, 1, 1, 2, 4])), min_size=1, max_size=24).map(
    lambda kinds: [kind for i, kind in enumerate(kinds) if sum(gpus for _, gpus in kinds[: i + 1]) <= 24]
)

ALL = [
    Proportional(),
    Tuned(),
    Tuned(repack=True),
    Tuned(repack=True, consolidate=True),
    Optimal(),
    Optimal(repack=True),
    Optimal(repack=True, split=True),
]


def throughputs(assignment: Assignment, rates) -> dict[int, float]:
    result = {}
    for row, share in (assignment.hosts or {}).items():
        gpus, cpus, memory = per_gpu(assignment.grants[row], share)
        result[row] = float(rates.profile(row, gpus).rate(cpus, memory))
    return result


@settings(max_examples=8)
@given(KINDS, st.randoms(use_true_random=False))
def test_nobody_falls_below_its_proportional_share_and_the_optimum_is_the_best(kinds, random) -> None:
    if not kinds:
        return
    cluster = servers(3)
    assignment, rates = running(kinds, cluster)
    order = list(range(len(kinds)))
    random.shuffle(order)
    total = []
    for allocation in ALL:
        after = allocation.allocate(assignment, order, rates, up(cluster))
        assert after.grants.keys() == assignment.grants.keys()
        assert [after.grants[row].num_gpus for row in order] == [kinds[row][1] for row in order]
        reached = throughputs(after, rates)
        assert all(value >= rates.proportional[row] - 1e-9 for row, value in reached.items())
        assert total_throughput(after, rates) == pytest.approx(sum(reached.values()))
        total.append(total_throughput(after, rates))
    proportional, tuned, repacked, consolidated, given_places, whole, best = total
    bound = throughput_bound(assignment, rates)
    assert proportional <= min(tuned, repacked, consolidated) + 1e-9
    assert tuned <= given_places + 1e-9
    assert max(repacked, consolidated) <= best * (1 + 1e-3) + 1e-9
    assert repacked <= best + 1e-9
    assert given_places <= whole * (1 + 1e-3)
    assert whole <= best * (1 + 1e-3)
    assert max(given_places, whole, best) <= bound * (1 + 1e-6)
    assert bound <= throughput_bound(assignment, rates, relaxed=True) * (1 + 1e-6)


def enumerated(kinds, cluster, rates, places_of, floor) -> float:
    """The highest total throughput, by trying all places and all measured points of all jobs.

    Each is at or above the proportional throughput of its slowest node (``floor`` min) or of all its nodes (max).
    """
    nodes = len(cluster.nodes)
    best = 0.0
    choices = []
    fair = list(zip(cluster.node_cpus / cluster.node_gpus, cluster.node_memory_gib / cluster.node_gpus, strict=True))
    for row, (_, gpus) in enumerate(kinds):
        profile = rates.profile(row, gpus)
        choices.append(
            [
                (counts, point)
                for counts, point in itertools.product(places_of(row), profile.points.tolist())
                if point[2] >= floor(profile.rate(*fair[node]) for node, count in enumerate(counts) if count) - 1e-9
            ]
        )
    for chosen in itertools.product(*choices):
        used = np.zeros((3, nodes))
        for counts, (cpus, memory, _) in chosen:
            used += np.outer([1, cpus, memory], counts)
        if (
            (used[0] <= cluster.node_gpus).all()
            and (used[1] <= cluster.node_cpus + 1e-9).all()
            and (used[2] <= cluster.node_memory_gib + 1e-9).all()
        ):
            best = max(best, sum(point[2] for _, point in chosen))
    return best


@settings(max_examples=12)
@given(
    st.lists(st.sampled_from(MODELS), min_size=3, max_size=3),
    st.sampled_from([(1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 2)]),
    st.sampled_from([6, 8, 12, 15, 20]),
    st.sampled_from([125, 160, 250, 400]),
    st.sampled_from([1.0, 1.0, 1.5]),
)
def test_the_optimum_is_that_of_enumeration(models, gpus, cpus, memory, other) -> None:
    kinds = list(zip(models, gpus, strict=True))
    first, second = (servers(1, gpus=2, cpus=scale * cpus, memory_gib=memory).nodes[0] for scale in (1.0, other))
    cluster = Cluster((first, replace(second, name="server-1")))
    assignment, rates = running(kinds, cluster)
    order = [0, 1, 2]

    def given_places(row):
        counts = [0, 0]
        for node, count in zip(assignment.grants[row].nodes, assignment.grants[row].counts, strict=True):
            counts[node] = count
        return [counts]

    def any_places(row):
        whole = [[kinds[row][1], 0], [0, kinds[row][1]]]
        # A gang that spans nodes may go on doing so; one that is on one node stays on one.
        return [*whole, [1, 1]] if len(assignment.grants[row].nodes) > 1 else whole

    def split_places(row):
        return [*any_places(row), *([[1, 1]] if kinds[row][1] > 1 else [])]

    for repack, split, places_of, floor in (
        (False, False, given_places, min),
        (True, False, any_places, max),
        (True, True, split_places, max),
    ):
        after = Optimal(repack=repack, split=split, mip_gap=0.0).allocate(assignment, order, rates, up(cluster))
        assert total_throughput(after, rates) == pytest.approx(enumerated(kinds, cluster, rates, places_of, floor))
    if other == 1.0:
        pooled = servers(1, gpus=4, cpus=2 * cpus, memory_gib=2 * memory)
        best = enumerated(kinds, pooled, rates, lambda row: [[kinds[row][1]]], min)
        assert throughput_bound(assignment, rates) == pytest.approx(best)


def test_the_greedy_gives_demands_in_order_and_then_proportional_shares() -> None:
    # 24 CPUs: 12 for alexnet, 9 for res18, 3 are left for the second res18, which asks for 9.
    assignment, rates = running([("alexnet", 1), ("res18", 1), ("res18", 1)], servers(1))
    after = Tuned().allocate(assignment, [0, 1, 2], rates, up(rates.cluster))
    assert [share.cpus for share in (after.hosts or {}).values()] == [(12.0,), (9.0,), (3.0,)]
    after = Tuned().allocate(assignment, [2, 1, 0], rates, up(rates.cluster))
    assert after.hosts
    assert [after.hosts[row].cpus for row in range(3)] == [(3.0,), (9.0,), (9.0,)]


def test_the_greedy_takes_back_from_who_has_most_beyond_its_share() -> None:
    # alexnet 12 + res18 9 leave 3 CPUs; the third gets them, and the fourth what alexnet has to give back.
    kinds = [("alexnet", 1), ("res18", 1), ("deepspeech", 1), ("deepspeech", 1)]
    assignment, rates = running(kinds, servers(1))
    after = Tuned().allocate(assignment, [0, 1, 2, 3], rates, up(rates.cluster))
    assert after.hosts
    assert [after.hosts[row].cpus for row in range(4)] == [(3.0,), (9.0,), (3.0,), (3.0,)]
    # What no job needs is left over for those that come: language models give up 2 of their 3 CPUs.
    assignment, rates = running([("gnmt", 1), ("lstm", 1), ("alexnet", 1)], servers(1, cpus=24))
    after = Tuned().allocate(assignment, [0, 1, 2], rates, up(rates.cluster))
    assert after.hosts
    assert [after.hosts[row].cpus for row in range(3)] == [(1.0,), (1.0,), (12.0,)]


def test_repacking_moves_jobs_to_where_their_demands_fit_and_only_those() -> None:
    # Two alexnets (12 CPUs each) and a res18 (9) on one server: the res18 moves to the idle one.
    cluster = servers(2)
    assignment, rates = running([("alexnet", 1), ("alexnet", 1), ("res18", 1)], cluster)
    for allocation in (Tuned(repack=True), Optimal(repack=True)):
        after = allocation.allocate(assignment, [0, 1, 2], rates, up(cluster))
        assert total_throughput(after, rates) == pytest.approx(2 * 2.94 + 2.4)
        stayed = [row for row in range(3) if after.grants[row] is assignment.grants[row]]
        assert len(stayed) == 2
        assert all(after.grants[row].nodes == (1,) for row in range(3) if row not in stayed)
    down = np.array([True, False])
    for allocation in (Tuned(repack=True), Optimal(repack=True)):
        after = allocation.allocate(assignment, [0, 1, 2], rates, down)
        assert all(grant.nodes == (0,) for grant in after.grants.values())


def test_jobs_of_one_kind_get_the_better_share_by_their_claim() -> None:
    assignment, rates = running([("res18", 1)] * 3 + [("alexnet", 1)], servers(1, cpus=24))
    for order in ([0, 1, 2, 3], [2, 1, 0, 3]):
        after = Optimal().allocate(assignment, order, rates, up(rates.cluster))
        reached = throughputs(after, rates)
        ranked = [reached[row] for row in order[:3]]
        assert ranked == sorted(ranked, reverse=True)


def test_a_division_stands_while_nothing_changes() -> None:
    cluster = servers(2)
    assignment, rates = running([("alexnet", 1), ("res18", 1)], cluster)
    hosts = Hosts(Optimal(), rates)
    first = hosts.allocate(assignment, [0, 1], up(cluster))
    assert hosts.allocate(first, [0, 1], up(cluster)) is first
    assert hosts.allocate(first, [1, 0], up(cluster)) is not first
    fewer = first.change([0], {})
    assert set(hosts.allocate(fewer, [1], up(cluster)).hosts or {}) == {1}


def test_no_answer_within_the_limit_leaves_the_greedys() -> None:
    class Silent:
        name = "silent"
        from bloxopt.solvers.base import Capabilities

        capabilities = Capabilities(mip=True)

        def solve(self, form, options=None, warm_start=None):
            from bloxopt.solvers.base import SolverResult, Termination

            return SolverResult(Termination.LIMIT_NO_SOLUTION, solver="silent")

    assignment, rates = running([("alexnet", 1), ("res18", 1), ("res18", 1)], servers(1))
    after = Optimal(solver=Silent()).allocate(assignment, [0, 1, 2], rates, up(rates.cluster))
    greedy = Tuned().allocate(assignment, [0, 1, 2], rates, up(rates.cluster))
    assert after.hosts == greedy.hosts
    with pytest.raises(SolverError, match="limit_no_solution"):
        throughput_bound(assignment, rates, solver=Silent())


def test_a_solver_without_integers_is_refused_by_name() -> None:
    assignment, rates = running([("alexnet", 1)], servers(1))
    with pytest.raises(SolverError, match="ortools:glop does not solve"):
        Optimal(solver="ortools:glop").allocate(assignment, [0], rates, up(rates.cluster))


@pytest.mark.parametrize("name", HOST_ALLOCATIONS)
def test_every_registered_allocation_can_be_made_and_refuses_options_it_does_not_know(name) -> None:
    assert callable(get_host_allocation(name).allocate)
    with pytest.raises(ConfigError, match=f"host allocation '{name}': unknown option 'repak'"):
        get_host_allocation(name, repak=True)


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="set repack=True as well"):
        get_host_allocation("tuned", consolidate=True)
    with pytest.raises(ConfigError, match="set repack=True as well"):
        get_host_allocation("optimal", split=True)
    with pytest.raises(InputError, match="mip_gap"):
        get_host_allocation("optimal", mip_gap=-1.0)


def test_jobs_that_share_gpus_with_others_are_refused_by_name() -> None:
    assignment, rates = running([("res18", 1), ("alexnet", 1)], servers(1))
    assignment.grants[1] = assignment.grants[1]._replace(milli=500)
    with pytest.raises(InputError, match="job 'job-1' shares its GPUs with another"):
        Hosts(Tuned(), rates).allocate(assignment, [0, 1], up(rates.cluster))
