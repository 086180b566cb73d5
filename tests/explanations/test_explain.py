"""Why a job waits: each reason on a cluster made for it, and every claim tried out by acting on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bloxopt as bx
from bloxopt.cli import run as run_cli
from bloxopt.cluster import Cluster, Node
from bloxopt.errors import BloxoptError, InputError, ResultError
from bloxopt.experiments import load_result, save_result
from bloxopt.explanations import Explanation, Reason, explain
from bloxopt.explanations.remedies import with_node as with_node_like
from bloxopt.explanations.results import explain_result
from bloxopt.formulations import (
    Capacity,
    EffectiveThroughput,
    MaxSum,
    OneConfiguration,
    Policy,
    RestartPenalty,
    TenantQuota,
    TimeShare,
)
from bloxopt.formulations.policies import get_policy
from bloxopt.jobs import Job
from bloxopt.needs import PlacementNeeds
from bloxopt.simulation import Outage, SimulationOptions
from bloxopt.workloads.trace import Trace


class _StopError(Exception):
    pass


def _explained(
    jobs: list[Job], cluster: Any, policy: Any, job_id: str, at: float = 0.0, **simulation: Any
) -> Explanation:
    """The explanation in the first round at or after ``at``."""
    answers: list[Explanation] = []

    def look(scheduler, state) -> None:
        if state.now >= at:
            answers.append(explain(scheduler, state, job_id))
            raise _StopError

    with pytest.raises(_StopError):
        bx.simulate(Trace.from_jobs(jobs), cluster, policy, before_round=look, **simulation)
    return answers[0]


def _start(jobs: list[Job], cluster: Any, policy: Any, job_id: str, **simulation: Any) -> float:
    result = bx.simulate(Trace.from_jobs(jobs), cluster, policy, **simulation)
    return float(result.jobs.set_index("job_id")["start"][job_id])


def with_node(cluster: Cluster, gpu_type: str, num_gpus: int) -> Cluster:
    """The cluster with a node of so many GPUs more, like its first one of the type."""
    return with_node_like(cluster, next(node for node in cluster.nodes if node.gpu_type == gpu_type), num_gpus)


def _jobs(*gpus: int, duration: float = 1000.0, **more: Any) -> list[Job]:
    return [Job(job_id=f"j{k}", duration=duration, num_gpus=count, **more) for k, count in enumerate(gpus)]


def test_a_job_that_runs_is_said_to_run_and_where() -> None:
    answer = _explained(_jobs(2, 2), "2x4xV100", "fifo", "j0")
    assert answer.reason is Reason.RUNNING
    assert "starts now on 2 x V100 of node-0" in answer.detail
    assert "runs on 2 x V100" in _explained(_jobs(2, 2), "2x4xV100", "fifo", "j0", at=1.0).detail


def test_the_first_that_waits_waits_for_capacity() -> None:
    jobs = _jobs(3, 2, 1)
    answer = _explained(jobs, "4xV100", "fifo", "j1")
    assert (answer.reason, answer.ahead) == (Reason.CAPACITY, 0)
    # One GPU is free and it needs two: one more makes it run, and so says the remedy.
    [remedy] = answer.remedies
    assert (remedy.kind, remedy.subject, remedy.amount) == ("gpus", "V100", 1.0)
    assert _start(jobs, with_node(bx.load_cluster("4xV100"), "V100", 1), "fifo", "j1") == 0.0
    assert answer.expected_start == _start(jobs, "4xV100", "fifo", "j1")


def test_those_behind_it_wait_for_those_before_them() -> None:
    jobs = _jobs(3, 2, 2, 1)
    answer = _explained(jobs, "4xV100", "fifo", "j3")
    assert (answer.reason, answer.ahead) == (Reason.LOWER_PRIORITY, 2)
    [remedy] = answer.remedies
    assert _start(jobs, with_node(bx.load_cluster("4xV100"), "V100", int(remedy.amount)), "fifo", "j3") == 0.0
    # One fewer would not do.
    assert _start(jobs, with_node(bx.load_cluster("4xV100"), "V100", int(remedy.amount) - 1), "fifo", "j3") > 0.0
    assert answer.expected_start == _start(jobs, "4xV100", "fifo", "j3")


def test_gpus_enough_in_too_many_places_are_no_place() -> None:
    jobs = [*_jobs(3, 3), Job(job_id="pair", duration=1000.0, num_gpus=2, needs=PlacementNeeds(max_nodes=1))]
    answer = _explained(jobs, "2x4xV100", "fifo", "pair")
    assert (answer.reason, answer.blocks) == (Reason.NO_PLACE, ("V100",))
    assert "2 x V100 are free" in answer.detail
    [remedy] = answer.remedies
    assert remedy.amount == 2.0
    assert _start(jobs, with_node(bx.load_cluster("2x4xV100"), "V100", 2), "fifo", "pair") == 0.0


def test_free_gpus_of_a_type_that_the_plan_does_not_give_it_are_not_what_it_finds_no_place_on() -> None:
    # Both are to run on B, which is faster; the gang fills the one node of it that has no taint.
    nodes = (
        Node(name="a", gpu_type="A", num_gpus=8),
        Node(name="b-tainted", gpu_type="B", num_gpus=8, taints=("hot",)),
        Node(name="b", gpu_type="B", num_gpus=8),
    )
    jobs = [Job(job_id="gang", duration=1000.0, num_gpus=8), Job(job_id="single", duration=9000.0)]
    speed = {("generic", kind, gpus): rate * gpus for kind, rate in (("A", 1.0), ("B", 2.0)) for gpus in (1, 8)}
    answer = _explained(jobs, Cluster(nodes), "srtf", "single", throughput=speed)
    assert (answer.reason, answer.blocks) == (Reason.NO_PLACE, ("B",))
    assert "8 x B are free" in answer.detail
    # One more like the node that it may use makes it run, one like the other does not.
    more = {remedy.subject: remedy for remedy in answer.remedies}["B"]
    assert more.text == "1 more B on one node like b would let it run now"
    for like, runs in ((nodes[2], True), (nodes[1], False)):
        larger = with_node_like(Cluster(nodes), like, 1)
        assert (_start(jobs, larger, "srtf", "single", throughput=speed) == 0.0) == runs


def test_nodes_that_are_down_count_as_the_job_needs_them() -> None:
    # Eight GPUs are up, but not on one node: no order of jobs could let it run.
    jobs = [Job(job_id="wide", duration=1000.0, num_gpus=8, needs=PlacementNeeds(max_nodes=1)), *_jobs(1)]
    cluster = Cluster(
        (
            Node(name="large", gpu_type="V100", num_gpus=8),
            *(Node(name=f"small-{k}", gpu_type="V100", num_gpus=4) for k in (0, 1)),
        )
    )
    answer = _explained(jobs, cluster, "fifo", "wide", failures=[Outage("large", 0.0, 5000.0)])
    assert answer.reason is Reason.NODES_DOWN
    assert _explained(jobs, cluster, "fifo", "wide", failures=[Outage("small-0", 0.0, 5000.0)]).reason is Reason.RUNNING


def test_where_a_new_plan_alone_would_do_no_gpus_are_asked_for() -> None:
    # The plan made at 360 s gives the large job nothing; when others finish, one made now would.
    jobs = [
        Job(job_id="first", arrival=0.0, duration=100.0),
        *[Job(job_id=f"short-{k}", arrival=300.0, duration=500.0, num_gpus=2) for k in (0, 1)],
        Job(job_id="wide", arrival=300.0, duration=3000.0, num_gpus=4),
    ]
    options = SimulationOptions(solve_interval=3000.0)
    answer = _explained(jobs, "4xV100", "fifo", "wide", at=1080.0, options=options)
    assert answer.reason is Reason.WAITING_FOR_PLAN
    assert answer.detail.startswith("a plan made now would run it")
    assert [(remedy.kind, remedy.text) for remedy in answer.remedies] == [("plan", "a plan made now would let it run")]
    assert answer.expected_start == _start(jobs, "4xV100", "fifo", "wide", options=options)


def test_a_quota_without_room_is_named_and_without_it_the_job_runs() -> None:
    jobs = _jobs(1, 1, 1, tenant="vision")
    quota = TenantQuota({"vision": 2})
    policy = Policy(objective=get_policy("fifo").objective, constraints=[Capacity(), TimeShare(), quota])
    answer = _explained(jobs, "8xV100", policy, "j2")
    assert (answer.reason, answer.blocks) == (Reason.LIMIT, ("TenantQuota",))
    assert ("limit", "TenantQuota") in {(remedy.kind, remedy.subject) for remedy in answer.remedies}
    without = Policy(objective=policy.objective, constraints=[Capacity(), TimeShare()])
    assert _start(jobs, "8xV100", policy, "j2") > 0.0
    assert _start(jobs, "8xV100", without, "j2") == 0.0


def test_a_quota_is_named_also_where_there_would_be_no_place_without_it() -> None:
    # The plan counts the four GPUs that are tainted, so the quota alone keeps the second job out of it; without the
    # quota it would still find nothing free on the one node that it may use.
    nodes = (
        Node(name="b", gpu_type="V100", num_gpus=4),
        Node(name="b-tainted", gpu_type="V100", num_gpus=4, taints=("hot",)),
    )
    jobs = _jobs(4, 4, tenant="vision")
    policy = get_policy("fifo", constraints=[Capacity(), TimeShare(), TenantQuota({"vision": 4})])
    answer = _explained(jobs, Cluster(nodes), policy, "j1")
    assert (answer.reason, answer.blocks) == (Reason.LIMIT, ("TenantQuota",))
    assert answer.detail.endswith("without TenantQuota it would find no place among the others")
    assert not [remedy for remedy in answer.remedies if remedy.kind == "limit"]
    without = get_policy("fifo", constraints=[Capacity(), TimeShare()])
    assert _start(jobs, Cluster(nodes), without, "j1") > 0.0


def test_nodes_that_are_down_are_said_to_be_down() -> None:
    outages = [Outage("node-1", 0.0, 5000.0)]
    answer = _explained(_jobs(8), "2x4xV100", "fifo", "j0", failures=outages)
    assert answer.reason is Reason.NODES_DOWN
    assert "8 GPUs" in answer.detail
    assert _explained(_jobs(8), "2x4xV100", "fifo", "j0").reason is Reason.RUNNING


def test_a_restart_that_is_not_worth_it() -> None:
    # The newcomer would do more steps, but less than stopping the other would cost.
    table = {("slow", "V100", 1): 1.0, ("fast", "V100", 1): 1.2}
    jobs = [
        Job(job_id="old", job_type="slow", total_steps=5000.0, restart_cost=300.0),
        Job(job_id="new", job_type="fast", total_steps=5000.0, arrival=100.0, restart_cost=300.0),
    ]
    trace = Trace.from_jobs(jobs)
    policy = Policy(
        objective=MaxSum(EffectiveThroughput()) - RestartPenalty(), constraints=[Capacity(), OneConfiguration()]
    )
    answers: list[Explanation] = []

    def look(scheduler, state) -> None:
        if state.now >= 100.0:
            answers.append(explain(scheduler, state, "new"))
            raise _StopError

    with pytest.raises(_StopError):
        bx.simulate(trace, "1xV100", policy, throughput=table, before_round=look)
    assert answers[0].reason is Reason.RESTART_NOT_WORTH
    free = bx.simulate(
        trace, "1xV100", Policy(objective=MaxSum(EffectiveThroughput()), constraints=policy.blocks), throughput=table
    )
    assert free.jobs["start"][1] == 360.0


def test_a_job_that_came_after_the_plan_waits_for_the_next() -> None:
    jobs = [*_jobs(1, duration=5000.0), Job(job_id="late", arrival=400.0, duration=1000.0, num_gpus=2)]
    options = SimulationOptions(solve_interval=2000.0)
    first = Job(job_id="first", arrival=0.0, duration=50_000.0)
    answer = _explained(
        [
            first,
            *[Job(job_id=j.job_id, arrival=j.arrival + 360, duration=j.duration, num_gpus=j.num_gpus) for j in jobs],
        ],
        "4xV100",
        "max_min_fairness",
        "late",
        at=1000.0,
        options=options,
    )
    assert answer.reason is Reason.WAITING_FOR_PLAN
    assert answer.expected_start is not None


def test_a_job_with_a_share_of_the_time_is_told_when_its_turn_comes() -> None:
    jobs = _jobs(1, 1, duration=5000.0)
    answer = _explained(jobs, "1xV100", "max_min_fairness", "j1")
    assert answer.reason is Reason.ITS_TURN_LATER
    assert "50%" in answer.detail
    assert answer.expected_start == _start(jobs, "1xV100", "max_min_fairness", "j1")
    assert answer.prices is not None
    assert answer.prices["V100"] > 0


def test_the_price_of_a_gpu_is_what_one_more_is_worth() -> None:
    jobs = _jobs(1, 1, 1, 1, 1, duration=5000.0)
    answer = _explained(jobs, "2xV100", "max_min_fairness", "j4")
    assert answer.prices is not None
    space = {
        gpus: get_policy("max_min_fairness").allocate(bx.AllocationSpace.from_jobs(jobs, f"{gpus}xV100")).objective
        for gpus in (2, 3)
    }
    assert answer.prices["V100"] == pytest.approx(space[3] - space[2], rel=1e-6)


def test_a_deadline_that_is_out_of_reach() -> None:
    jobs = [*_jobs(1, duration=3000.0), Job(job_id="late", duration=5000.0, deadline=4000.0)]
    answer = _explained(jobs, "1xV100", "elasticflow", "late")
    assert answer.reason is Reason.DEADLINE_IMPOSSIBLE
    assert "5000 s" in answer.detail


@pytest.mark.parametrize("policy", ["fifo", "max_min_fairness", "themis"])
def test_a_lost_deadline_is_told_but_no_reason_to_wait_where_the_policy_does_not_look_at_deadlines(policy) -> None:
    jobs = [*_jobs(1, duration=3000.0), Job(job_id="late", duration=5000.0, deadline=4000.0)]
    answer = _explained(jobs, "1xV100", policy, "late")
    assert answer.reason in (Reason.CAPACITY, Reason.ITS_TURN_LATER, Reason.LOWER_PRIORITY)
    assert answer.detail.endswith("its deadline is at 4000 s")


def test_what_is_not_admitted_says_why() -> None:
    jobs = _jobs(1, 1, 1, tenant="a")
    answer = _explained(jobs, "1xV100", "fifo", "j2", admission=bx.admission.get_admission("quota", jobs=1))
    assert answer.reason is Reason.NOT_ADMITTED
    assert "tenant 'a'" in answer.detail


def test_what_has_not_come_or_is_over_is_said() -> None:
    jobs = [*_jobs(1), Job(job_id="later", arrival=5000.0, duration=10.0)]
    assert _explained(jobs, "1xV100", "fifo", "later").reason is Reason.NOT_SUBMITTED
    assert _explained(jobs, "1xV100", "fifo", "j0", at=2000.0).reason is Reason.FINISHED


def test_an_unknown_job_is_refused_with_the_ids_that_there_are() -> None:
    with pytest.raises(InputError, match="j0"):
        _explained(_jobs(1), "1xV100", "fifo", "nobody")


@pytest.mark.parametrize("policy", ["fifo", "srtf", "las", "max_min_fairness", "min_makespan", "isolated"])
def test_what_is_expected_to_start_starts_then_and_remedies_work(policy: str) -> None:
    """Every job that waits, on a real trace in which all jobs come at once."""
    trace, cluster = bx.load_trace("gavel-100").head(14), bx.load_cluster("2xV100+2xP100+4xK80")
    answers: list[Explanation] = []

    def look(scheduler, state) -> None:
        ids = [str(job) for job in trace.jobs.job_id]
        answers.extend(explain(scheduler, state, job, remedies=job in ids[:4]) for job in ids[::3])
        raise _StopError

    with pytest.raises(_StopError):
        bx.simulate(trace, cluster, policy, before_round=look)
    start = bx.simulate(trace, cluster, policy).jobs.set_index("job_id")["start"]
    for answer in answers:
        assert answer.expected_start == start[answer.job_id]
        assert (answer.reason is Reason.RUNNING) == (start[answer.job_id] == 0.0)
        for remedy in answer.remedies:
            more = with_node(cluster, remedy.subject, int(remedy.amount))
            assert (
                bx.simulate(trace, more, policy, max_rounds=1).jobs.set_index("job_id")["start"][answer.job_id] == 0.0
            )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "fifo"
    command = ["simulate", "--trace", "gavel-100", "--first", "20", "--cluster", "2xV100+2xP100+8xK80"]
    assert run_cli([*command, "--policy", "fifo", "-o", str(folder), "--no-plots"]) == 0
    return folder


class TestResultsOnDisk:
    def test_the_first_round_in_which_it_waited_is_explained(self, folder) -> None:
        result = load_result(folder)
        waited = result.jobs[result.jobs["queueing_delay"] > 0].iloc[0]
        answer = explain_result(folder, waited["job_id"])
        assert answer.time == 0.0
        assert answer.expected_start == waited["start"]

    def test_any_moment_can_be_asked_about(self, folder) -> None:
        result = load_result(folder)
        job = result.jobs[result.jobs["queueing_delay"] > 7200].iloc[0]
        assert explain_result(folder, job["job_id"], at=3600.0).time == 3600.0
        assert explain_result(folder, job["job_id"], at=job["start"] + 360).reason in (Reason.RUNNING, Reason.FINISHED)

    def test_the_command_answers_in_words_and_in_json(self, folder, capsys) -> None:
        result = load_result(folder)
        job = result.jobs[result.jobs["queueing_delay"] > 0].iloc[0]["job_id"]
        assert run_cli(["explain", str(folder), job]) == 0
        assert "expected to start" in capsys.readouterr().out
        assert run_cli(["explain", str(folder), job, "--json", "--no-remedies"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["job_id"] == job
        assert document["remedies"] == []

    @pytest.mark.parametrize(
        "arguments",
        [
            ["nowhere", "1"],
            ["{folder}", "no-such-job"],
            ["{folder}", "1", "--at", "1e12"],
            ["{folder}", "1", "--at", "-1"],
        ],
    )
    def test_what_cannot_be_explained_is_an_error_of_one_line(self, folder, arguments: list[str], capsys) -> None:
        assert run_cli(["explain", *(part.format(folder=folder) for part in arguments)]) == 2
        assert capsys.readouterr().err.startswith("error: ")


class TestResultsThatCannotBeRunAgain:
    """What is explained is the run in the folder, or nothing."""

    @pytest.fixture
    def own(self, tmp_path):
        lines = [f"a{k},{100 * k},{3000 + 100 * k},{1 + k % 3}" for k in range(8)]
        trace, folder = tmp_path / "jobs.csv", tmp_path / "result"
        trace.write_text("\n".join(["job_id,arrival,duration,num_gpus", *lines]) + "\n")
        command = ["simulate", "--trace", str(trace), "--cluster", "4xV100", "--policy", "fifo", "-o", str(folder)]
        assert run_cli([*command, "--no-plots"]) == 0
        return trace, folder

    def test_a_trace_that_has_changed_since(self, own) -> None:
        trace, folder = own
        assert explain_result(folder, "a4").reason is Reason.LOWER_PRIORITY
        trace.write_text(trace.read_text().replace("a0,0,3000", "a0,0,9000"))
        with pytest.raises(ResultError, match=r"jobs\.csv has changed since"):
            explain_result(folder, "a4")

    def test_a_trace_that_has_gone(self, own) -> None:
        trace, folder = own
        trace.unlink()
        with pytest.raises(BloxoptError, match=r"jobs\.csv"):
            explain_result(folder, "a4")

    def test_a_run_that_went_another_way(self, own) -> None:
        # As with a round budget on a busy machine: the same experiment, but another job was done earlier.
        _, folder = own
        jobs = pd.read_parquet(folder / "jobs.parquet")
        jobs.loc[0, "finish"] -= 500.0
        jobs.to_parquet(folder / "jobs.parquet")
        assert explain_result(folder, "a4", at=720.0).reason is Reason.LOWER_PRIORITY
        with pytest.raises(ResultError, match="differs in the finish of job 'a0'"):
            explain_result(folder, "a7", at=7200.0)

    def test_a_result_without_its_experiment(self, tmp_path) -> None:
        result = bx.simulate(Trace.from_jobs(_jobs(1, 1)), "1xV100", "fifo")
        save_result(result, tmp_path / "result")
        with pytest.raises(ResultError, match="saved without its experiment"):
            explain_result(tmp_path / "result", "j1")

    @pytest.mark.parametrize("experiment", ["[]", '"x"', "{}", '{"trace": {"name": "nope"}}'])
    def test_an_experiment_that_cannot_be_read(self, own, experiment: str, capsys) -> None:
        _, folder = own
        config = json.loads((folder / "config.json").read_text())
        config["experiment"] = json.loads(experiment)
        (folder / "config.json").write_text(json.dumps(config))
        assert run_cli(["explain", str(folder), "a4"]) == 2
        assert capsys.readouterr().err.startswith("error: ")

    def test_a_table_without_a_column(self, own) -> None:
        _, folder = own
        pd.read_parquet(folder / "jobs.parquet").drop(columns="arrival").to_parquet(folder / "jobs.parquet")
        with pytest.raises(ResultError, match="'arrival' is missing"):
            explain_result(folder, "a4")

    def test_folders_that_are_not_what_is_asked_for_say_what_is(self, own, tmp_path, capsys) -> None:
        _, folder = own
        assert run_cli(["explain", str(folder)]) == 2
        assert "name a job of it" in capsys.readouterr().err
        (tmp_path / "comparison.json").write_text("{}")
        assert run_cli(["explain", str(tmp_path), "a4"]) == 2
        assert f"such as {folder}" in capsys.readouterr().err


def test_asking_changes_nothing() -> None:
    trace, cluster = bx.load_trace("gavel-100").head(14), "2xV100+2xP100+4xK80"
    ask: Callable[..., None] = lambda scheduler, state: explain(  # noqa: E731
        scheduler, state, str(trace.jobs.job_id[9]), remedies=False, horizon=0.0
    )
    plain = bx.simulate(trace, cluster, "finish_time_fairness")
    asked = bx.simulate(trace, cluster, "finish_time_fairness", before_round=ask)
    assert asked.jobs.equals(plain.jobs)
    assert np.array_equal(asked.rounds["gpus_used"], plain.rounds["gpus_used"])
