"""Placement constraints hold in whatever is simulated; those that nothing can meet are refused up front."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.cluster import Cluster, Node
from bloxopt.errors import CheckError, ClusterError, TraceError
from bloxopt.needs import NO_NEEDS, PlacementNeeds
from bloxopt.placement import get_placement
from bloxopt.placement.passes import place_decision, place_queue
from bloxopt.placement.rules import Rules
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.resources import Grant

needs_of_jobs = st.builds(
    PlacementNeeds,
    same_rack=st.sampled_from(["any", "any", "preferred", "required"]),
    max_nodes=st.sampled_from([None, None, 1, 2]),
    exclusive_node=st.sampled_from([False, False, True]),
    anti_affinity=st.sampled_from([None, None, "one", "two"]),
    node_selector=st.sampled_from([{}, {}, {"zone": "a"}, {"gpu_type": "V100"}]),
    tolerations=st.sampled_from([(), ("slow",)]),
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Two to seven nodes; what the needs name always exists."""
    plain = Node(name="plain", gpu_type="V100", num_gpus=4, labels={"zone": "a"})
    slow = Node(name="slow", gpu_type="V100", num_gpus=4, taints=("slow",))
    others = [
        Node(
            name=f"n{i}",
            gpu_type=draw(st.sampled_from(["V100", "T4"])),
            num_gpus=draw(st.sampled_from([2, 4, 8])),
            rack=f"rack-{draw(st.integers(0, 2))}",
            labels={"zone": draw(st.sampled_from(["a", "b"]))},
            taints=draw(st.sampled_from([(), (), ("slow",)])),
            reserved_for=draw(st.sampled_from([None, None, "vision"])),
            drained=draw(st.sampled_from([False, False, False, True])),
        )
        for i in range(draw(st.integers(0, 5)))
    ]
    return Cluster((plain, slow, *others))


@st.composite
def workloads(draw: st.DrawFn) -> bx.Trace:
    jobs = [bx.Job(job_id="first", duration=100.0, tenant="vision")]
    for i in range(draw(st.integers(1, 10))):
        share = draw(st.sampled_from([1.0, 1.0, 1.0, 0.5]))
        jobs.append(
            bx.Job(
                job_id=f"job-{i}",
                arrival=draw(st.sampled_from([0.0, 0.0, 400.0, 900.0])),
                duration=draw(st.sampled_from([100.0, 500.0, 1500.0])),
                num_gpus=1 if share < 1 else draw(st.sampled_from([1, 2, 4, 6])),
                gpu_share=share,
                tenant=draw(st.sampled_from(["vision", "speech"])),
                needs=draw(needs_of_jobs),
            )
        )
    return bx.Trace.from_jobs(jobs)


def simulated(trace: bx.Trace, *arguments: object, **options: object) -> bx.SimulationResult | None:
    """The simulation, None where the needs of some job can be met nowhere, which the generated ones may not."""
    try:
        return bx.simulate(trace, *arguments, **options)
    except TraceError as error:
        if "needs" in str(error):
            return None
        raise


def audit(placements: pd.DataFrame, trace: bx.Trace, cluster: Cluster) -> None:
    """Check every spell against the needs and conditions, from the result's table alone."""
    nodes = {node.name: node for node in cluster.nodes}
    jobs = {job.job_id: job for job in trace.jobs}
    spells = placements[placements["end"] > placements["start"]]
    for (job_id, _), spell in spells.groupby(["job_id", "start"]):
        job, used = jobs[job_id], [nodes[name] for name in spell["node"]]
        needs = job.needs
        assert not any(node.drained for node in used)
        assert all(node.reserved_for in (None, job.tenant) for node in used)
        assert all(set(node.taints) <= set(needs.tolerations) for node in used)
        for name, value in needs.node_selector:
            assert all({"gpu_type": node.gpu_type, **dict(node.labels)}[name] == value for node in used)
        assert needs.max_nodes is None or len(used) <= needs.max_nodes
        assert needs.same_rack != "required" or len({node.rack for node in used}) == 1
    for _, on_node in spells.groupby("node"):
        rows = list(on_node.itertuples())
        for i, one in enumerate(rows):
            for other in rows[i + 1 :]:
                if min(one.end, other.end) <= max(one.start, other.start) + 1e-9:
                    continue
                first, second = jobs[one.job_id].needs, jobs[other.job_id].needs
                assert not first.exclusive_node
                assert not second.exclusive_node
                assert first.anti_affinity is None or first.anti_affinity != second.anti_affinity


@pytest.mark.parametrize(
    ("policy", "preset", "placement"),
    [
        ("fifo", "blox", "first_fit"),
        ("las", "blox", "spread"),
        ("max_min_fairness", "default", "consolidated"),
        ("max_min_fairness", "default", "rack_aware"),
        ("fifo", "default", "bandwidth_aware"),
        ("las", "default", "fragmentation_gradient"),
        ("fifo", "default", "exact"),
    ],
)
@settings(max_examples=25, deadline=None)
@given(cluster=clusters(), trace=workloads(), data=st.data())
def test_no_spell_of_a_simulation_breaks_a_rule(
    policy: str, preset: str, placement: str, cluster: Cluster, trace: bx.Trace, data: st.DataObject
) -> None:
    outages = data.draw(
        st.lists(
            st.builds(
                lambda node, start, length: bx.Outage(node.name, start, start + length),
                st.sampled_from(cluster.nodes),
                st.sampled_from([50.0, 350.0, 1000.0]),
                st.sampled_from([100.0, 700.0]),
            ),
            max_size=2,
            unique_by=lambda outage: outage.node,
        )
    )
    result = simulated(trace, cluster, policy, preset=preset, placement=placement, failures=outages, max_rounds=40)
    if result is not None:
        assert len(result.placements)
        audit(result.placements, trace, cluster)


@settings(max_examples=60, deadline=None)
@given(cluster=clusters(), trace=workloads())
def test_every_job_that_is_not_refused_finishes(cluster: Cluster, trace: bx.Trace) -> None:
    result = simulated(trace, cluster, "fifo", preset="blox", placement="consolidated", max_rounds=500)
    assert result is None or result.jobs["finish"].notna().all()


def workspace(
    cluster: Cluster, jobs: bx.JobTable, assignment: Assignment, placement: str = "consolidated"
) -> Workspace:
    up = np.ones(len(cluster.nodes), dtype=bool)
    return Workspace(assignment, cluster, jobs, up, get_placement(placement), Rules.of(cluster, jobs))


def run_one(cluster: Cluster, *jobs: bx.Job, placement: str = "consolidated") -> dict[str, list[str]]:
    """Nodes of each job after one round that asks for all of them."""
    table = bx.JobTable.from_jobs(jobs)
    assignment = Assignment(cluster, table)
    kinds = np.zeros(len(table), dtype=np.int64)
    stop, start = place_decision(
        np.arange(len(table)), kinds, table.num_gpus, assignment, workspace(cluster, table, assignment, placement)
    )
    placed = assignment.change(stop, start)
    return {table.job_id[row]: [cluster.nodes[n].name for n in sorted(placed[row].nodes)] for row in placed}


def job(job_id: str = "a", num_gpus: int = 1, **needs: object) -> bx.Job:
    return bx.Job(job_id=job_id, duration=100.0, num_gpus=num_gpus, needs=PlacementNeeds(**needs))


RACKS = Cluster(
    (
        *(Node(name=f"{rack}{i}", gpu_type="V100", num_gpus=4, rack=rack) for rack in "ab" for i in range(3)),
        Node(name="c0", gpu_type="V100", num_gpus=8, rack="c"),
    )
)


def test_no_rules_are_kept_where_nothing_is_asked() -> None:
    assert Rules.of(RACKS, bx.JobTable.from_jobs([job()])) is None
    assert Rules.of(RACKS, bx.JobTable.from_jobs([job(max_nodes=1)])) is not None


def test_one_rack_is_chosen_by_fewest_nodes_then_least_free() -> None:
    assert run_one(RACKS, job(num_gpus=8, same_rack="required"))["a"] == ["c0"]
    assert run_one(RACKS, job(num_gpus=12, same_rack="required"))["a"] == ["a0", "a1", "a2"]
    taken = job("b", 4, node_selector={"rack": "b"})
    assert run_one(RACKS, taken, job(num_gpus=4, same_rack="required"))["a"][0].startswith("b")


def test_preferred_crosses_racks_only_if_it_must() -> None:
    assert run_one(RACKS, job(num_gpus=12, same_rack="preferred"), placement="first_fit")["a"] == ["a0", "a1", "a2"]
    assert len(run_one(RACKS, job(num_gpus=16, same_rack="preferred"), placement="first_fit")["a"]) == 4
    assert "a" not in run_one(RACKS, job(num_gpus=16, same_rack="required"))


@pytest.mark.parametrize("placement", ["first_fit", "consolidated", "spread", "rack_aware"])
def test_few_nodes_are_found_where_the_strategy_would_spread(placement: str) -> None:
    assert run_one(RACKS, job(num_gpus=8, max_nodes=1), placement=placement)["a"] == ["c0"]
    assert len(run_one(RACKS, job(num_gpus=12, max_nodes=2), placement=placement)["a"]) == 2
    assert "a" not in run_one(RACKS, job(num_gpus=12, max_nodes=1), placement=placement)


def test_exclusive_nodes_are_empty_and_stay_so() -> None:
    placed = run_one(RACKS, job("big", 2), job("alone", 1, exclusive_node=True), *(job(f"j{i}", 1) for i in range(30)))
    company = Counter(node for nodes in placed.values() for node in nodes)
    assert company[placed["alone"][0]] == 1
    assert len(placed) > 20


def test_a_job_with_little_choice_goes_before_one_that_fits_anywhere() -> None:
    cluster = Cluster(RACKS.nodes[:2])
    placed = run_one(cluster, job("anywhere", 4), job("picky", 2, node_selector={"node": "a0"}), placement="first_fit")
    assert placed["picky"] == ["a0"]
    placed = run_one(cluster, job("big", 4), job("alone", 1, exclusive_node=True))
    assert len(placed) == 2


def test_replicas_never_share_a_node() -> None:
    placed = run_one(RACKS, *(job(f"r{i}", 1, anti_affinity="web") for i in range(10)))
    assert len(placed) == 7, "one a node"
    assert len({nodes[0] for nodes in placed.values()}) == 7


@settings(max_examples=150, deadline=None)
@given(
    free=st.lists(st.integers(0, 4), min_size=6, max_size=6),
    need=st.integers(1, 12),
    max_nodes=st.none() | st.integers(1, 4),
    same_rack=st.sampled_from(["any", "preferred", "required"]),
)
def test_a_place_within_the_rules_is_found_whenever_there_is_one(
    free: list[int], need: int, max_nodes: int | None, same_rack: str
) -> None:
    cluster = Cluster(RACKS.nodes[:6])
    fillers = [bx.Job(job_id=f"f{n}", duration=1.0, num_gpus=4 - gpus) for n, gpus in enumerate(free) if gpus < 4]
    table = bx.JobTable.from_jobs([*fillers, job("x", need, max_nodes=max_nodes, same_rack=same_rack)])
    grants = {}
    for row, filler in enumerate(fillers):
        node = int(filler.job_id[1:])
        gpus = tuple(range(4 * node, 4 * node + filler.num_gpus))
        grants[row] = Grant(0, (node,), (len(gpus),), gpus)
    space = workspace(cluster, table, Assignment(cluster, table).change([], grants))
    found = space.find(len(fillers), 0, need)
    pools = [free[:3], free[3:]] if same_rack == "required" else [free]
    possible = any(sum(sorted(pool, reverse=True)[:max_nodes]) >= need for pool in pools)
    assert (found is not None) == possible
    if found is not None and same_rack == "preferred":
        within = any(sum(sorted(pool, reverse=True)[:max_nodes]) >= need for pool in (free[:3], free[3:]))
        assert within == (len({node // 3 for node in found.nodes}) == 1)


def test_jobs_on_drained_nodes_stay_and_no_new_ones_come() -> None:
    cluster = Cluster(
        (Node(name="old", gpu_type="V100", num_gpus=4, drained=True), Node(name="new", gpu_type="V100", num_gpus=4))
    )
    table = bx.JobTable.from_jobs([job("runs", 2), job("comes", 2), job("waits", 4)])
    assignment = Assignment(cluster, table).change([], {0: Grant(0, (0,), (2,), (0, 1))})
    stop, start = place_decision(
        np.arange(3), np.zeros(3, int), table.num_gpus, assignment, workspace(cluster, table, assignment)
    )
    assert stop == []
    assert {row: grant.nodes for row, grant in start.items()} == {2: (1,)}


def test_no_one_is_evicted_for_a_job_that_still_could_not_start() -> None:
    cluster = Cluster(
        (Node(name="a", gpu_type="V100", num_gpus=4, labels={"zone": "a"}), Node(name="b", gpu_type="V100", num_gpus=4))
    )
    table = bx.JobTable.from_jobs(
        [job("first", 4), job("picky", 4, node_selector={"zone": "a"}), job("runs", 2), job("comes", 2)]
    )
    running = {0: Grant(0, (0,), (4,), (0, 1, 2, 3)), 2: Grant(0, (1,), (2,), (4, 5))}
    assignment = Assignment(cluster, table).change([], running)
    stop, start = place_queue(
        np.arange(4), table.num_gpus.tolist(), [[0]] * 4, assignment, workspace(cluster, table, assignment)
    )
    assert (stop, list(start)) == ([], [3])


def test_an_assignment_with_unwanted_company_cannot_be_built() -> None:
    table = bx.JobTable.from_jobs(
        [job("alone", exclusive_node=True), job("x"), job("r0", anti_affinity="web"), job("r1", anti_affinity="web")]
    )
    empty = Assignment(RACKS, table)
    with pytest.raises(CheckError, match="node 'a0' has 2 jobs with job 'x', and one of them wants it for itself"):
        empty.change([], {0: Grant(0, (0,), (1,), (0,))}).change([], {1: Grant(0, (0,), (1,), (1,))})
    with pytest.raises(CheckError, match="2 jobs of the anti-affinity group 'web'"):
        empty.change([], {2: Grant(0, (0,), (1,), (0,)), 3: Grant(0, (0,), (1,), (1,))})


NODES = Cluster(
    (
        *(
            Node(
                name=f"n{i}", gpu_type="V100", num_gpus=4, rack=f"rack-{i // 2}", labels={"zone": "ab"[i // 4]}, cpus=16
            )
            for i in range(6)
        ),
        Node(name="tainted", gpu_type="K80", num_gpus=8, taints=("slow",), rack="rack-3"),
        Node(name="theirs", gpu_type="P100", num_gpus=16, reserved_for="vision", rack="rack-4"),
        Node(name="old", gpu_type="P100", num_gpus=2, drained=True, rack="rack-4"),
    )
)


@pytest.mark.parametrize(
    ("gpus", "needs", "message"),
    [
        (
            12,
            {"same_rack": "required"},
            "12 .* in one rack; the largest rack, 'rack-0', has 8: use same_rack='preferred', or ask for at most 8",
        ),
        (12, {"max_nodes": 2}, "on at most 2 nodes; the largest 2 have 8: use max_nodes=3, or ask for at most 8 GPUs"),
        (8, {"max_nodes": 1, "same_rack": "required"}, "on at most 1 nodes; the largest 1 have 4: use max_nodes=2"),
        (
            12,
            {"node_selector": {"zone": "b"}},
            "on nodes with zone=b, which have 8: select other nodes, or ask for at most 8",
        ),
        (
            4,
            {"node_selector": {"gpu_type": "K80"}},
            r"on nodes whose taints it tolerates, which have 0: add tolerations \(slow\)",
        ),
        (
            4,
            {"node_selector": {"node": "theirs"}},
            "on nodes that tenant 'default' may use, which have 0: reserve fewer",
        ),
        (2, {"node_selector": {"node": "old"}}, "on nodes that are not drained, which have 0: put drained nodes back"),
        (1, {"node_selector": {"zone": "c"}}, "asks for zone 'c', which no node has; there are a, b"),
        (1, {"node_selector": {"zon": "a"}}, "asks for label 'zon', which no node has: did you mean 'zone'"),
        (1, {"node_selector": {"node": "n9"}}, "asks for node 'n9', which no node has"),
        (1, {"node_selector": {"rack": "rack-9"}}, "asks for rack 'rack-9', which no node has"),
        (1, {"tolerations": ("slw",)}, "tolerations has taint 'slw', which no node has: did you mean 'slow'"),
    ],
)
def test_needs_that_nothing_can_meet_are_refused_with_the_level_that_fails(
    gpus: int, needs: dict, message: str
) -> None:
    trace = bx.Trace.from_jobs([job("a", gpus, **needs), bx.Job(job_id="v", duration=1.0, tenant="vision")])
    with pytest.raises(TraceError, match=f"job 'a'.*{message}"):
        bx.simulate(trace, NODES, "fifo")


def test_cpus_and_memory_count_at_every_level() -> None:
    hungry = bx.Job(job_id="h", duration=1.0, num_gpus=8, cpus_per_gpu=5.0, needs=PlacementNeeds(same_rack="required"))
    trace = bx.Trace.from_jobs([hungry, bx.Job(job_id="v", duration=1.0, tenant="vision")])
    with pytest.raises(TraceError, match="in one rack; the largest rack, 'rack-0', has 6"):
        bx.simulate(trace, NODES, "fifo")


def test_a_reservation_for_nobody_is_refused() -> None:
    with pytest.raises(
        ClusterError, match="node 'theirs' is reserved for tenant 'vision', which no job has; there are default"
    ):
        bx.simulate(bx.Trace.from_jobs([job()]), NODES, "fifo")


def test_a_program_has_no_column_for_a_gpu_type_that_the_needs_rule_out() -> None:
    jobs = [job("a", 4, node_selector={"zone": "a"}), job("e", 1), bx.Job(job_id="v", duration=1.0, tenant="vision")]
    space = bx.AllocationSpace.from_jobs(jobs, NODES)
    types = {name: {NODES.gpu_types[k] for k in space.gpu_type[space.job == i]} for i, name in enumerate("aev")}
    assert types == {"a": {"V100"}, "e": {"V100"}, "v": {"V100", "P100"}}


def test_drained_gpus_are_no_capacity() -> None:
    cluster = Cluster(
        (Node(name="a", gpu_type="V100", num_gpus=4), Node(name="b", gpu_type="V100", num_gpus=4, drained=True))
    )
    result = bx.simulate(bx.Trace.from_jobs([job(str(i), 4) for i in range(3)]), cluster, "max_min_fairness")
    assert set(result.rounds["gpus_up"]) == {4}
    assert set(result.placements["node"]) == {"a"}


def test_stating_no_needs_changes_nothing() -> None:
    trace = bx.load_trace("gavel-15")
    plain = bx.simulate(trace, "8xV100+16xP100+24xK80", "fifo")
    assert trace.jobs.need_kinds == (NO_NEEDS,)
    racks = Cluster(
        tuple(
            Node(name=f"node-{i}", gpu_type=n.gpu_type, num_gpus=n.num_gpus, rack=f"r{i}")
            for i, n in enumerate(bx.load_cluster("8xV100+16xP100+24xK80").nodes)
        )
    )
    pd.testing.assert_frame_equal(plain.jobs, bx.simulate(trace, racks, "fifo").jobs)


@pytest.mark.parametrize(
    "needs",
    [
        {"same_rack": "must"},
        {"same_rack": None},
        {"max_nodes": 0},
        {"max_nodes": True},
        {"max_nodes": 1.5},
        {"exclusive_node": 1},
        {"anti_affinity": ""},
        {"anti_affinity": 3},
        {"node_selector": "zone"},
        {"node_selector": None},
        {"node_selector": ("ab",)},
        {"node_selector": {"a;b": "c"}},
        {"node_selector": {"a": 1}},
        {"node_selector": (("a", "b"), ("a", "c"))},
        {"tolerations": "slow"},
        {"tolerations": None},
        {"tolerations": ("a;b",)},
    ],
    ids=str,
)
def test_a_value_that_is_no_need_is_refused_by_the_name_of_its_field(needs: dict) -> None:
    with pytest.raises(TraceError, match=next(iter(needs))):
        PlacementNeeds(**needs)
