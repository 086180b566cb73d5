"""Placement functions of users: what they answer is checked, and what is wrong is said with the function's name."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import bloxopt as bx
from bloxopt.errors import InputError, ThroughputError
from bloxopt.placement import Found, get_placement
from bloxopt.placement.exact import ExactPlacement
from bloxopt.placement.fragmentation import TargetWorkload, fragmentation
from bloxopt.placement.fragmentation_gradient import FragmentationGradient
from bloxopt.placement.slowdown import as_slowdown
from bloxopt.placement.strategy import Offer, Requests, WholeRound
from bloxopt.placement.tiresias_skew import TiresiasSkew
from bloxopt.placement.user_strategy import trusted
from bloxopt.runtime.assignment import Assignment

JOBS = bx.Trace.from_jobs([bx.Job(job_id="a", duration=500.0, num_gpus=3), bx.Job(job_id="b", duration=500.0)])
CLUSTER = "2x4xV100"


def run(placement: Any) -> bx.SimulationResult:
    return bx.simulate(JOBS, CLUSTER, "fifo", placement=placement)


WRONG: dict[str, Any] = {
    "nothing": [],
    "one list": ([0, 1, 2],),
    "not a pair": 3,
    "four": ([0], [3], None, None),
    "no such node": ([99], [3]),
    "negative node": ([-1], [3]),
    "text": ("x", [1]),
    "text nodes": (["0"], [3]),
    "nan": (np.nan, [3]),
    "nan counts": ([0], [np.nan]),
    "fractions": ([0], [3.0]),
    "truth values": ([True], [3]),
    "too few": ([0], [1]),
    "too many": ([0], [4]),
    "more than are free": ([0], [9]),
    "negative count": ([0, 1], [4, -1]),
    "a node twice": ([0, 0], [1, 2]),
    "lengths differ": ([0, 1], [3]),
    "one dimension more": ([[0]], [[3]]),
    "GPUs of another node": ([0], [3], [5, 6, 7]),
    "too few GPUs": ([0], [3], [0, 1]),
    "a GPU twice": ([0], [3], [0, 0, 1]),
    "no such GPU": ([0], [3], [0, 1, 99]),
    "another kind": {"nodes": [0], "counts": [3]},
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
def test_an_answer_that_is_no_place_for_the_gang_is_refused(answer: Any) -> None:
    def mine(offer: Offer, need: int) -> Any:
        return answer

    with pytest.raises(InputError, match=r"placement function .*mine answered .* for job 'a', which needs 3 GPUs: .*"):
        run(mine)


def test_the_message_says_what_to_return() -> None:
    with pytest.raises(InputError, match=r"returns None if the gang does not fit, else \(nodes, counts\)"):
        run(lambda offer, need: ([0], [1]))


@pytest.mark.parametrize("placement", [lambda: None, lambda offer: None, lambda offer, need, more: None])
def test_a_function_of_other_arguments_is_named(placement: Any) -> None:
    with pytest.raises(InputError, match=r"placement function .*lambda.* raised TypeError"):
        run(placement)


def test_a_function_that_raises_is_named_with_the_line() -> None:
    def mine(offer: Offer, need: int) -> Any:
        raise RuntimeError("no luck")

    with pytest.raises(InputError, match=r"placement function .*mine raised RuntimeError: no luck .*line \d+") as error:
        run(mine)
    assert isinstance(error.value.__cause__, RuntimeError)


class LastNodes:
    """Nodes from the last one on, as an object."""

    def __call__(self, offer: Offer, need: int) -> Any:
        nodes, counts = [], []
        for node in reversed(range(len(offer.available))):
            if need and offer.available[node]:
                nodes.append(node)
                counts.append(min(need, int(offer.available[node])))
                need -= counts[-1]
        return None if need else (np.array(nodes), counts)


def last_nodes(direction: int, offer: Offer, need: int) -> Any:
    return LastNodes()(offer, need)


@pytest.mark.parametrize("placement", [LastNodes(), functools.partial(last_nodes, 1), LastNodes().__call__])
def test_functions_objects_and_partials_with_arrays_or_lists_work(placement: Any) -> None:
    result = run(placement)
    assert set(result.placements["node"]) == {"node-1"}


def test_gpus_may_be_chosen_too() -> None:
    def last_gpus(offer: Offer, need: int) -> Any:
        free = offer.workspace.able_gpus(1000).nonzero()[0]
        node = 1
        mine = free[free // 4 == node][-need:]
        return Found((node,), (need,), tuple(mine.tolist())) if len(mine) == need else None

    assert run(last_gpus).jobs["finish"].notna().all()


@pytest.mark.parametrize("answer", [3, None, [], ([0], 3), ("x", {}), ([0.5], {}), ([], {0: 3}), ([], {"x": None})])
def test_a_placement_of_whole_rounds_that_answers_something_else_is_named(answer: Any) -> None:
    class Mine(WholeRound):
        def place_round(self, *arguments: Any) -> Any:
            return answer

    with pytest.raises(InputError, match=r"placement .*Mine: place_round answered .* must return \(stop, start\)"):
        run(Mine())


def test_a_placement_of_whole_rounds_that_raises_or_lacks_its_method_is_named() -> None:
    class Mine(WholeRound):
        def place_round(self, *arguments: Any) -> Any:
            raise RuntimeError("no luck")

    with pytest.raises(InputError, match=r"Mine: place_round raised RuntimeError: no luck .*line"):
        run(Mine())
    with pytest.raises(InputError, match="override place_round"):
        run(type("Empty", (WholeRound,), {})())


def test_a_placement_of_whole_rounds_of_the_user_works() -> None:
    class Mine(WholeRound):
        def place_round(self, requests: Requests, assignment: Any, workspace: Any) -> Any:
            running = set(assignment.grants)
            wanted = zip(requests.row.tolist(), requests.num_gpus.tolist(), strict=True)
            return [], {row: workspace.grant(row, 0, Found((row,), (n,))) for row, n in wanted if row not in running}

    assert run(Mine()).jobs["finish"].notna().all()


def test_strategies_that_come_with_bloxopt_are_not_wrapped() -> None:
    for name in ("first_fit", "consolidated", "rack_aware", "exact", "tiresias_skew"):
        strategy = get_placement(name)
        assert trusted(strategy) is strategy
    mine = trusted(LastNodes())
    assert trusted(mine) is mine


@pytest.mark.parametrize("kind", [ExactPlacement, TiresiasSkew])
def test_a_class_in_place_of_an_object_of_it_is_refused(kind: type) -> None:
    with pytest.raises(InputError, match=f"placement is the class {kind.__name__}: give an object of it"):
        run(kind)


@pytest.mark.parametrize("skewed", [5, None, "vgg*", [5], [""]])
def test_skewed_models_are_a_list_of_patterns(skewed: Any) -> None:
    with pytest.raises(InputError, match=r"tiresias_skew: skewed is .*, must be a list of job type patterns"):
        TiresiasSkew(skewed)


@pytest.mark.parametrize("workload", [5, "gpus", TargetWorkload])
def test_the_fragmentation_gradient_takes_a_target_workload(workload: Any) -> None:
    with pytest.raises(InputError, match=r"workload is .*, must be a TargetWorkload"):
        FragmentationGradient(workload)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"jobs": [bx.Job(job_id="a", duration=1.0)]}, "jobs is .*, must be a JobTable"),
        ({"cluster": CLUSTER}, "cluster is '2x4xV100', must be a Cluster"),
        ({"weigh": "jobs"}, "weigh is 'jobs', must be 'gpus' or 'tasks'"),
    ],
)
def test_a_target_workload_is_made_of_a_job_table_and_a_cluster(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TargetWorkload.of(**{"jobs": JOBS.jobs, "cluster": bx.load_cluster(CLUSTER), **arguments})


@pytest.mark.parametrize("other", ["4xV100+4xK80", "8xK80"])
def test_a_target_workload_of_other_gpu_types_is_refused(other: str) -> None:
    workload = TargetWorkload.of(JOBS.jobs, bx.load_cluster(other))
    with pytest.raises(InputError, match=r"was made for a cluster with GPU types .*, this one has V100"):
        run(FragmentationGradient(workload))
    cluster = bx.load_cluster(CLUSTER)
    with pytest.raises(InputError, match="was made for a cluster"):
        fragmentation(Assignment(cluster, JOBS.jobs).free, cluster, workload)


def test_a_slowdown_function_that_raises_is_named() -> None:
    with pytest.raises(ThroughputError, match="the slowdown function for 3 GPUs on 2 nodes raised ZeroDivisionError"):
        as_slowdown(lambda nodes, gpus: 1 / 0).factors(
            JOBS.jobs, "V100", np.array([3, 3]), np.array([2, 2]), np.array([1, 1])
        )
    with pytest.raises(ThroughputError, match="raised ZeroDivisionError"):
        bx.simulate(JOBS, CLUSTER, "fifo", placement="spread", slowdown=lambda nodes, gpus: 1 / 0)
