"""Answers that are written ready made say what the models of the API say, to the last field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from bloxopt.runtime.answers import EventView, JobPage
from bloxopt.runtime.live import answer
from bloxopt.runtime.live.views import job_view, node_view, nodes_json
from bloxopt.runtime.messages import GpuInfo, Heartbeat, JobView, NodeView
from tests.runtime.service_world import JOB, World, running

MEASURED: dict[str, Any] = {
    "gpu_type": "A100",
    "memory_gib": 79.15,
    "utilisation": 1e-9,
    "processes": [4711, 4712],
    "links": {1: 12},
    "pcie": {1: '"processes":[7]', 2: "processes"},
    "throttled": ["power", '"processes":[8]'],
    "message": 'says "processes":[9], and \\"processes\\":[10] – é \x07',
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A service with two nodes, one without processes on its GPUs, and some jobs."""
    with running(tmp_path_factory.mktemp("ready")) as world:
        measured = [GpuInfo.model_validate({**MEASURED, "index": k, "uuid": f"GPU-{k}"}) for k in range(3)]
        for name, gpus in (("n1", measured), ("n2", [measured[0].model_copy(update={"processes": []})])):
            fields = {"node": name, "instance": "i", "sequence": 1, "address": "127.0.0.1", "message": 'a "b" ü'}
            answer(world.service.live, Heartbeat.model_validate({**fields, "gpus": gpus}))
        for name in ("one", "two", "three"):
            world.submit(name=name, environment={"GREETING": 'grüß "Gott"\n'})
        yield world


@pytest.mark.parametrize("processes", [True, False])
def test_nodes(world: World, processes: bool) -> None:
    live = world.service.live
    views = [node_view(live, node, processes) for node in live.nodes.values()]
    text = nodes_json(live, processes)
    assert json.loads(text) == TypeAdapter(list[NodeView]).dump_python(views, mode="json")
    assert TypeAdapter(list[NodeView]).validate_json(text) == views


def test_pages_of_jobs(world: World) -> None:
    service = world.service
    found = world.call("root", "GET", "/v1/jobs?limit=2")
    assert found.headers["content-type"] == "application/json"
    page = JobPage.model_validate_json(found.content)
    jobs = service.store.jobs(None, [], 2, None)
    views = [job_view(service.live, service.live.jobs[job.job_id], service.loop.failure) for job in jobs]
    assert [job.spec for job in page.jobs] == [view.spec for view in views]
    assert found.json()["jobs"][0].keys() == views[0].model_dump().keys()
    rest = world.call("root", "GET", f"/v1/jobs?limit=2&before={page.next}").json()
    assert len(rest["jobs"]) == 1
    assert rest["next"] is None
    assert world.call("ada", "GET", "/v1/jobs?user=bob").json() == {"jobs": [], "next": None}


def test_jobs_submitted_together_and_what_happened_to_one(world: World) -> None:
    answer = world.call("ada", "POST", "/v1/jobs/batch", json=[JOB, JOB | {"name": "other", "deadline_seconds": 1e9}])
    assert (answer.status_code, answer.headers["content-type"]) == (201, "application/json")
    views = TypeAdapter(list[JobView]).validate_json(answer.content)
    assert [view.spec.name for view in views] == ["job", "other"]
    assert answer.json() == TypeAdapter(list[JobView]).dump_python(views, mode="json")
    history = world.call("ada", "GET", f"/v1/jobs/{views[1].job_id}/history")
    events = TypeAdapter(list[EventView]).validate_json(history.content)
    assert events[0].kind == "job.submitted"
    assert history.json() == TypeAdapter(list[EventView]).dump_python(events, mode="json")


def test_their_schema_is_that_of_the_models(world: World) -> None:
    paths = world.client.get("/openapi.json").json()["paths"]
    page = paths["/v1/jobs"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert page == {"$ref": "#/components/schemas/JobPage"}
    batch = paths["/v1/jobs/batch"]["post"]["responses"]["201"]["content"]["application/json"]["schema"]
    assert (batch["type"], batch["items"]) == ("array", {"$ref": "#/components/schemas/JobView"})
    history = paths["/v1/jobs/{job_id}/history"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert (history["type"], history["items"]) == ("array", {"$ref": "#/components/schemas/EventView"})
    nodes = paths["/v1/nodes"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert (nodes["type"], nodes["items"]) == ("array", {"$ref": "#/components/schemas/NodeView"})
