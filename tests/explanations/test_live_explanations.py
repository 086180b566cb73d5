"""What people are told of live jobs: asked of a service whose rounds are taken one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from bloxopt.errors import ClusterError
from bloxopt.explanations.reasons import Explanation, Reason
from bloxopt.runtime.live.views import job_view
from tests.runtime.recorded_world import RecordedWorld


@pytest.fixture
def world(tmp_path: Path) -> RecordedWorld:
    world = RecordedWorld(tmp_path, policy="fifo")
    for name in ("a", "b"):
        world.add(name, 4)
    world.beat()
    return world


def _explained(world: RecordedWorld, job_id: str, remedies: bool = True) -> Explanation:
    record = world.live.jobs.get(job_id) or world.service.store.job(job_id)
    assert record is not None
    return world.service.loop.explain(record, remedies, 0.0)


def test_a_gang_larger_than_the_cluster_fits_nowhere_and_what_is_offered_makes_it_run(world: RecordedWorld) -> None:
    (wide,) = world.submit("ada", 12)
    world.rounds(1)
    answer = _explained(world, wide)
    assert (answer.reason, answer.blocks) == (Reason.FITS_NOWHERE, ("A100",))
    assert answer.detail.endswith("it needs 12 GPUs of one type, and the largest gang that fits is 8 x A100")
    # Also while a node is drained, which is not why.
    world.live.drain("b", True, "root")
    world.rounds(1)
    assert _explained(world, wide, remedies=False).reason is Reason.FITS_NOWHERE
    world.live.drain("b", False, "root")
    world.rounds(1)
    (more,) = _explained(world, wide).remedies
    assert (more.kind, more.subject, more.amount) == ("gpus", "A100", 4)
    world.add("fewer", 3)
    world.beat()
    world.rounds(1)
    assert _explained(world, wide, remedies=False).reason is Reason.FITS_NOWHERE
    world.add("last", 1)
    world.beat()
    world.rounds(1)
    assert _explained(world, wide).reason is Reason.RUNNING


def test_gpus_of_a_type_that_the_cluster_lacks_are_not_said_to_be_down(world: RecordedWorld) -> None:
    (picky,) = world.submit("ada", 1, gpu_types=["H100"])
    world.rounds(1)
    answer = _explained(world, picky)
    assert answer.reason is Reason.FITS_NOWHERE
    assert answer.detail == "no node of the cluster has GPUs that it can use: there are A100"
    assert answer.remedies == ()
    world.add("h", 1, "H100")
    world.beat()
    world.rounds(1)
    assert _explained(world, picky).reason is Reason.RUNNING


def test_where_drained_nodes_would_do_they_are_said_to_be_drained(world: RecordedWorld) -> None:
    world.live.drain("b", True, "root")
    (wide,) = world.submit("ada", 8)
    world.rounds(1)
    assert _explained(world, wide, remedies=False).reason is Reason.NODES_DOWN
    world.live.drain("b", False, "root")
    world.rounds(1)
    assert _explained(world, wide).reason is Reason.RUNNING


def test_what_became_of_a_job_is_a_sentence(tmp_path: Path) -> None:
    quota = {"name": "quota", "options": {"gpus": 2, "otherwise": "reject"}}
    world = RecordedWorld(tmp_path, admission=quota)
    world.add("a", 4)
    world.beat()
    done, cancelled, rejected = world.submit("ada", 1, 1, 3)
    world.rounds(1)
    world.live.cancel(cancelled, "ada")
    world.rounds(12)
    assert _explained(world, done).detail == "it has succeeded"
    assert _explained(world, cancelled).detail.startswith("it was cancelled")
    answer = _explained(world, rejected)
    assert answer.reason is Reason.REJECTED
    assert answer.detail.startswith("it was rejected: it asks for 3 GPUs")


def test_why_no_round_is_decided_is_said(tmp_path: Path) -> None:
    cells = {"virtual_clusters": {"eve": {"node:A100": 2}}}
    world = RecordedWorld(tmp_path, policy="fifo", placement={"name": "guaranteed_cells", "options": cells})
    service = world.service
    (waits,) = world.submit("ada", 1)
    world.rounds(1)
    answer = _explained(world, waits)
    assert (answer.reason, answer.detail) == (Reason.NO_ROUND, "no node has registered yet")
    world.add("a", 2)
    world.beat()
    # One node is fewer than is promised to eve.
    with pytest.raises(ClusterError, match="node:A100") as failure:
        world.rounds(1)
    service.loop.note_failure(failure.value)
    answer = _explained(world, waits)
    assert answer.reason is Reason.NO_ROUND
    assert answer.detail == f"the last round failed, and it is tried again: {failure.value}"
    shown = job_view(world.live, world.live.jobs[waits], service.loop.failure)
    assert shown.reason == f"rounds fail: {failure.value}"
    for name in ("b", "c"):
        world.add(name, 2)
    world.beat()
    world.rounds(1)
    assert _explained(world, waits).reason is Reason.RUNNING
    # After a start, nodes that were there before are waited for.
    world.kill()
    world.silent = {"c"}
    world.start()
    world.beat()
    world.rounds(1)
    answer = _explained(world, waits)
    assert answer.reason is Reason.RUNNING
    assert answer.detail == "it goes on as it is: no round is decided before nodes that were there are heard from: c"
    world.kill()
