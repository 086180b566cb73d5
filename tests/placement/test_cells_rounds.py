"""Virtual clusters in the round loop: who runs guaranteed, who makes way, and that the promise always holds."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bloxopt as bx
from bloxopt.cluster import Cluster, Node
from bloxopt.errors import CheckError, ClusterError, InputError
from bloxopt.formulations import Capacity, TenantQuota, TimeShare
from bloxopt.jobs import Job, JobTable
from bloxopt.needs import PlacementNeeds
from bloxopt.placement.cells import GuaranteedCells
from bloxopt.placement.passes import place_decision, place_queue
from bloxopt.placement.rules import Rules
from bloxopt.placement.strategy import Changes, Offer, Strategy, WholeQueue
from bloxopt.placement.workspace import Workspace
from bloxopt.runtime.assignment import Assignment
from tests.placement.cells_oracle import can_have_all, shape, tree

CLUSTER = Cluster(
    tuple(
        Node(name=f"n{i}", gpu_type="V100", num_gpus=4, island_gpus=2, rack=f"r{i // 2}", cpus=16.0) for i in range(4)
    )
)
PROMISED = {"vision": {"node:V100": 1, "island:V100": 1}, "language": {"rack:V100": 1, "gpu:V100": 2}}
NODE = shape(tree(CLUSTER, "V100")[0][0][0])
RACK = shape(tree(CLUSTER, "V100")[0][0])
IN_ORACLE_WORDS = {
    "vision": {(2, NODE): 1, (3, ("gpu", "gpu")): 1},
    "language": {(1, RACK): 1, (4, "gpu"): 2},
}


class Rounds:
    """The round loop without clock and policy: jobs are told to arrive, finish and rank as a test likes."""

    def __init__(self, cluster: Cluster, jobs: list[Job], placement: Strategy) -> None:
        self.cluster, self.placement = cluster, placement
        self.table = JobTable.from_jobs(jobs)
        self.assignment = Assignment(cluster, self.table)
        self.up = np.ones(len(cluster.nodes), dtype=bool)
        self.rules = Rules.of(cluster, self.table)

    def queue(self, order: list[int]) -> tuple[list[int], dict]:
        sizes = self.table.num_gpus.tolist()
        kinds = [[0]] * len(self.table)
        changes = place_queue(np.array(order, dtype=np.int64), sizes, kinds, self.assignment, self._workspace())
        self.assignment = self.assignment.change(*changes)
        return changes

    def decide(self, rows: list[int]) -> tuple[list[int], dict]:
        row = np.array(rows, dtype=np.int64)
        changes = place_decision(row, np.zeros_like(row), self.table.num_gpus[row], self.assignment, self._workspace())
        self.assignment = self.assignment.change(*changes)
        return changes

    def finish(self, rows: list[int]) -> None:
        self.assignment = self.assignment.change([row for row in rows if row in self.assignment.grants], {})

    def fail(self, node: int) -> None:
        self.up[node] = False
        self.finish([row for row, grant in self.assignment.grants.items() if node in grant.nodes])

    def _workspace(self) -> Workspace:
        return Workspace(self.assignment, self.cluster, self.table, self.up, self.placement, self.rules)

    def held(self) -> dict[int, str]:
        """GPUs of guaranteed gangs, as the assignment has them."""
        assert isinstance(self.placement, GuaranteedCells)
        assert self.placement.cells is not None
        return {
            gpu: self.table.tenants[self.table.tenant[row]]
            for row in self.placement.cells.gangs
            if row in self.assignment.grants
            for gpu in self.assignment.grants[row].gpus
        }


jobs = st.builds(
    lambda tenant, gpus, cpus, share, need: {
        "tenant": tenant,
        "num_gpus": 1 if share < 1 else gpus,
        "cpus_per_gpu": cpus,
        "gpu_share": share,
        "needs": need,
    },
    st.sampled_from(["vision", "language", "guest"]),
    st.integers(1, 8),
    st.sampled_from([0.0, 0.0, 4.0, 6.0]),
    st.sampled_from([1.0, 1.0, 1.0, 0.5]),
    st.sampled_from(
        [PlacementNeeds()] * 3
        + [PlacementNeeds(max_nodes=1), PlacementNeeds(exclusive_node=True), PlacementNeeds(anti_affinity="replica")]
    ),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["queue", "queue", "queue", "decide", "fail", "repair"]), st.randoms(use_true_random=False)
    ),
    min_size=2,
    max_size=10,
)


@settings(max_examples=200, deadline=None)
@given(described=st.lists(jobs, min_size=3, max_size=16), steps=steps)
def test_no_sequence_of_arrivals_departures_and_failures_breaks_the_promise(described: list[dict], steps: list) -> None:
    listed = [Job(job_id=f"j{i}", duration=1.0, **job) for i, job in enumerate(described)]
    listed += [Job(job_id=f"t-{tenant}", duration=1.0, tenant=tenant) for tenant in PROMISED]
    rounds = Rounds(CLUSTER, listed, GuaranteedCells(PROMISED, strategy="first_fit"))
    cells = rounds.placement.cells
    tenant_of = rounds.table.tenant.tolist()
    for kind, draw in steps:
        rounds.finish([row for row in rounds.assignment.grants if draw.random() < 0.25])
        if kind == "fail":
            rounds.fail(draw.randrange(4))
        if kind == "repair":
            rounds.up[:] = True
        active = [row for row in range(len(listed)) if row in rounds.assignment.grants or draw.random() < 0.6]
        draw.shuffle(active)
        before = set() if cells is None else set(cells.gangs) & set(rounds.assignment.grants)
        stop, start = (rounds.decide if kind == "decide" else rounds.queue)(active)
        cells = rounds.placement.cells
        assert set(cells.gangs) <= set(rounds.assignment.grants)
        assert all(rounds.assignment.grants[row].gpus == gang.gpus for row, gang in cells.gangs.items())
        assert can_have_all(CLUSTER, "V100", IN_ORACLE_WORDS, rounds.held())
        for row in before & set(stop):
            # A guaranteed gang makes way only for one of its own tenant that is ranked before it.
            assert kind != "decide" or row not in active
            assert kind == "decide" or any(
                tenant_of[other] == tenant_of[row] and active.index(other) < active.index(row)
                for other in set(start) & set(cells.gangs)
            )
        if rounds.up.all():
            for row in set(active) - set(rounds.assignment.grants):
                job = rounds.table.job(row)
                plain = job.gpu_share == 1 and job.cpus_per_gpu <= 4 and job.needs == PlacementNeeds()
                # On a private cluster of its own, such a gang would be running.
                assert not plain or job.num_gpus > cells.room(job.tenant, 0) or _company(rounds, cells)


def _company(rounds: Rounds, cells: object) -> bool:
    """Whether some guaranteed gang refuses company, and so keeps others of its tenant off its node."""
    return any(rounds.table.job(row).needs.exclusive_node for row in cells.gangs)


def test_opportunistic_jobs_use_what_is_idle_and_make_way() -> None:
    listed = [Job(job_id=f"g{i}", duration=1.0, tenant="guest") for i in range(16)]
    listed += [Job(job_id="v", duration=1.0, tenant="vision", num_gpus=4)]
    listed += [Job(job_id="l", duration=1.0, tenant="language", num_gpus=8)]
    rounds = Rounds(CLUSTER, listed, GuaranteedCells(PROMISED))
    rounds.queue(list(range(16)))
    assert len(rounds.assignment) == 16
    # Although they are last in order, the guaranteed gangs run; of the others those that are first in order.
    rounds.queue(list(range(18)))
    assert set(rounds.assignment.grants) == {0, 1, 2, 3, 16, 17}
    assert len(rounds.assignment.grants[16].nodes) == 1
    assert {CLUSTER.nodes[node].rack for node in rounds.assignment.grants[17].nodes} in ({"r0"}, {"r1"})


def test_who_makes_way_is_ranked_last_where_that_is_as_good() -> None:
    listed = [Job(job_id=f"g{i}", duration=1.0, tenant="guest") for i in range(16)]
    listed += [
        Job(job_id="v", duration=1.0, tenant="vision", num_gpus=4),
        Job(job_id="l", duration=1.0, tenant="language"),
    ]
    rounds = Rounds(CLUSTER, listed, GuaranteedCells(PROMISED, strategy="first_fit"))
    rounds.queue(list(range(16)))
    stop, _ = rounds.queue(list(range(17)))
    assert sorted(stop) == [12, 13, 14, 15]


def test_jobs_beyond_a_guarantee_run_opportunistically_and_their_next_start_is_guaranteed() -> None:
    listed = [Job(job_id=f"v{i}", duration=1.0, tenant="vision", num_gpus=4) for i in range(2)]
    listed += [Job(job_id="l", duration=1.0, tenant="language", num_gpus=8)]
    listed += [Job(job_id=f"g{i}", duration=1.0, tenant="guest", num_gpus=4) for i in range(1)]
    rounds = Rounds(CLUSTER, listed, GuaranteedCells(PROMISED))
    rounds.queue([0, 1, 3])
    assert set(rounds.assignment.grants) == {0, 1, 3}
    assert set(rounds.placement.cells.gangs) == {0}
    rounds.finish([0])
    # Vision's second job has lost its place to language's rack, or keeps it; it runs either way, guest does not matter.
    rounds.queue([3, 1, 2])
    assert {1, 2} <= set(rounds.assignment.grants)
    assert can_have_all(CLUSTER, "V100", IN_ORACLE_WORDS, rounds.held())


def test_within_its_tenant_the_ranking_decides() -> None:
    listed = [Job(job_id=f"v{i}", duration=1.0, tenant="vision", num_gpus=4) for i in range(2)]
    listed += [Job(job_id=f"l{i}", duration=1.0, tenant="language", num_gpus=4) for i in range(2)]
    listed += [Job(job_id="g", duration=1.0, tenant="guest", num_gpus=4)]
    rounds = Rounds(CLUSTER, listed, GuaranteedCells(PROMISED))
    rounds.queue([0, 2, 3, 4])
    stop, start = rounds.queue([4, 1, 0, 2, 3])
    assert (stop, set(start)) == ([0], {1})


def test_nobody_is_stopped_for_a_better_ranked_gang_that_can_run_on_idle_gpus() -> None:
    listed = [Job(job_id=f"v{i}", duration=1.0, tenant="vision", num_gpus=4) for i in range(2)]
    listed += [Job(job_id="l", duration=1.0, tenant="language")]
    rounds = Rounds(CLUSTER, listed, GuaranteedCells(PROMISED))
    rounds.queue([0])
    stop, start = rounds.queue([1, 0])
    assert (stop, set(start)) == ([], {1})


QUOTA = {"vision": {"node:V100": 1}, "language": {"gpu:V100": 4}}


@pytest.mark.parametrize(
    ("placement", "kept"), [("consolidated", False), ("first_fit", False), (GuaranteedCells(QUOTA), True)]
)
def test_a_quota_of_gpus_does_not_promise_a_node_and_cells_do(placement: Strategy | str, kept: bool) -> None:
    """Each of two tenants stays within its four of eight GPUs; still small jobs come to lie on both nodes."""
    cluster = bx.load_cluster("2x4xV100")
    whole_node = PlacementNeeds(max_nodes=1)
    trace = bx.Trace.from_jobs(
        [
            *(Job(job_id=f"v{i}", tenant="vision", arrival=i, duration=150.0 + i) for i in range(2)),
            *(Job(job_id=f"l{i}", tenant="language", arrival=10 + i, duration=9000.0) for i in range(2)),
            *(Job(job_id=f"w{i}", tenant="vision", arrival=20 + i, duration=140.0) for i in range(2)),
            *(Job(job_id=f"m{i}", tenant="language", arrival=30 + i, duration=9000.0) for i in range(2)),
            Job(job_id="gang", tenant="vision", arrival=1000.0, duration=60.0, num_gpus=4, needs=whole_node),
        ]
    )
    result = bx.simulate(trace, cluster, "fifo", placement=placement, selector="ranking", round_seconds=10)
    gang = result.jobs.set_index("job_id").loc["gang"]
    used = result.placements
    at_once = {
        tenant: used[used["job_id"].isin(names)]
        for tenant, names in {"vision": ["v0", "v1", "w0", "w1", "gang"], "language": ["l0", "l1", "m0", "m1"]}.items()
    }
    for spells in at_once.values():
        for moment in spells["start"]:
            running = spells[(spells["start"] <= moment) & (spells["end"] > moment)]
            assert running["gpus"].sum() <= 4
    assert (gang["start"] <= 1010) == kept
    if not kept:
        assert gang["start"] > 9000


@pytest.mark.parametrize("selector", ["ranking", "priorities", "exact"])
def test_every_job_of_a_simulation_finishes_with_every_selector(selector: str) -> None:
    draw = np.random.default_rng(3)
    trace = bx.Trace.from_jobs(
        [
            Job(
                job_id=f"j{i}",
                tenant=["vision", "language", "guest"][i % 3],
                arrival=float(draw.uniform(0, 5000)),
                duration=float(draw.uniform(100, 3000)),
                num_gpus=int(draw.choice([1, 2, 4, 8])),
            )
            for i in range(60)
        ]
    )
    placement = GuaranteedCells(PROMISED)
    policy = "fifo" if selector == "ranking" else "max_min_fairness"
    failures = [bx.Outage("n1", 2000.0, 4000.0)]
    one, two = (
        bx.simulate(trace, CLUSTER, policy, placement=placement, selector=selector, failures=failures) for _ in range(2)
    )
    assert one.summary()["finished"] == 60
    # The same placement object serves the next run, which ends the same.
    assert one.jobs.equals(two.jobs)


def test_a_guarantee_of_one_gpu_type_is_found_when_the_preferred_type_has_none() -> None:
    trace = bx.Trace.from_jobs(
        [
            *(Job(job_id=f"g{i}", tenant="guest", duration=9000.0) for i in range(16)),
            Job(job_id="vision", tenant="vision", arrival=100.0, duration=50.0, num_gpus=4),
            Job(job_id="language", tenant="language", arrival=100.0, duration=50.0, num_gpus=8),
        ]
    )
    cells = {"vision": {"node:V100": 1}, "language": {"node:K80": 2}}
    result = bx.simulate(
        trace, "2x4xV100+2x4xK80", "fifo", placement=GuaranteedCells(cells), selector="ranking", round_seconds=10
    )
    where = result.placements.groupby("job_id")["gpu_type"].unique()
    assert list(where["vision"]) == ["V100"]
    assert list(where["language"]) == ["K80"]
    assert (result.jobs.set_index("job_id").loc[["vision", "language"], "start"] <= 110).all()


def test_a_tenant_without_jobs_is_named_before_anything_runs() -> None:
    trace = bx.Trace.from_jobs([Job(job_id="a", tenant="vision", duration=10.0)])
    with pytest.raises(ClusterError, match=r"'visoin': no job has this tenant; did you mean 'vision'\?"):
        bx.simulate(trace, CLUSTER, "fifo", placement=GuaranteedCells({"visoin": {"gpu:V100": 1}}))


def test_cells_that_the_cluster_lacks_are_named_before_anything_runs() -> None:
    trace = bx.Trace.from_jobs([Job(job_id="a", tenant="vision", duration=10.0)])
    with pytest.raises(ClusterError, match=r"ask for 3 cells rack:V100 \(vision 3\).*has 2"):
        bx.simulate(trace, CLUSTER, "fifo", placement=GuaranteedCells({"vision": {"rack:V100": 3}}))


@pytest.mark.slow
def test_a_round_of_a_thousand_jobs_on_ten_thousand_gpus_takes_a_tenth_of_a_second() -> None:
    cluster = Cluster(tuple(Node(name=f"n{i}", gpu_type="A100", num_gpus=8, rack=f"r{i // 25}") for i in range(1250)))
    draw = np.random.default_rng(0)
    listed = [
        Job(job_id=f"j{i}", duration=1.0, tenant=f"t{i % 5}", num_gpus=int(draw.choice([1, 2, 4, 8, 16])))
        for i in range(2000)
    ]
    promised = {f"t{i}": {"rack:A100": 2, "node:A100": 100, "gpu:A100": 200} for i in range(4)}
    rounds = Rounds(cluster, listed, GuaranteedCells(promised))
    begin = time.process_time()
    rounds.queue(list(range(1000)))
    whole = time.process_time() - begin
    rounds.finish(list(range(10)))
    begin = time.process_time()
    rounds.queue(list(range(10, 1010)))
    change = time.process_time() - begin
    print(f"first round {whole * 1e3:.0f} ms, a round in which 1 % change {change * 1e3:.0f} ms")
    assert whole < 0.5
    assert change < 0.05


@pytest.mark.parametrize("quota", [{"guest": 2}, {"guest": 1, "vision": 1}])
def test_rounds_with_a_quota_end_with_a_guaranteed_and_an_opportunistic_job(quota: dict[str, int]) -> None:
    """Shorter jobs of both tenants come later and rank first: where a quota bars the running ones, those stop."""
    trace = bx.Trace.from_jobs(
        [
            *(Job(job_id=f"{tenant}-long", tenant=tenant, duration=500.0) for tenant in ("vision", "guest")),
            *(
                Job(job_id=f"{tenant}-short", tenant=tenant, arrival=100, duration=50.0)
                for tenant in ("vision", "guest")
            ),
        ]
    )
    policy = replace(bx.get_policy("srtf"), constraints=[Capacity(), TimeShare(), TenantQuota(quota)])
    placement = GuaranteedCells({"vision": {"gpu:V100": 1}})
    result = bx.simulate(trace, "4xV100", policy, placement=placement, selector="ranking", round_seconds=60)
    assert np.isfinite(result.jobs["finish"]).all()
    used = result.placements
    for moment in used["start"]:
        running = used[(used["start"] <= moment) & (used["end"] > moment)]
        for tenant, most in quota.items():
            assert running.loc[running["job_id"].str.startswith(tenant), "gpus"].sum() <= most


class StopsEverything(WholeQueue):
    def __call__(self, offer: Offer, need: int) -> None:
        return None

    def place_queue(self, order, num_gpus, preference, assignment, workspace) -> Changes:  # type: ignore[no-untyped-def]
        return list(assignment.grants), {}


def test_a_strategy_that_stops_guaranteed_gangs_again_and_again_is_named() -> None:
    listed = [Job(job_id="v", duration=1.0, tenant="vision"), Job(job_id="l", duration=1.0, tenant="language")]
    rounds = Rounds(CLUSTER, listed, GuaranteedCells(PROMISED, strategy=StopsEverything()))
    with pytest.raises(CheckError, match="the strategy StopsEverything stops jobs in guaranteed cells"):
        rounds.queue([0, 1])


@pytest.mark.parametrize(
    ("strategy", "message"), [(5, "strategy is 5"), ("first_fitt", "first_fit"), (GuaranteedCells, "is the class")]
)
def test_a_strategy_that_is_none_is_refused(strategy: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        GuaranteedCells(PROMISED, strategy=strategy)


def test_what_a_users_strategy_answers_is_checked() -> None:
    def mine(offer: Offer, need: int) -> Any:
        return [99], [need]

    rounds = Rounds(
        CLUSTER,
        [Job(job_id=t, duration=1.0, tenant=t) for t in ("vision", "language", "guest")],
        GuaranteedCells(PROMISED, strategy=mine),
    )
    with pytest.raises(InputError, match=r"placement function .*mine answered .* there is no node 99"):
        rounds.queue([0, 1, 2])
