"""Answers that are written ready made say what the models of the API say, to the last field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from bloxopt.runtime.live import answer
from bloxopt.runtime.live.views import job_view, node_view, nodes_json
from bloxopt.runtime.messages import GpuInfo, Heartbeat, NodeView
from bloxopt.runtime.service.job_routes import JobPage
from tests.runtime.service_world import World, running

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


def test_their_schema_is_that_of_the_models(world: World) -> None:
    paths = world.client.get("/openapi.json").json()["paths"]
    page = paths["/v1/jobs"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert page == {"$ref": "#/components/schemas/JobPage"}
    nodes = paths["/v1/nodes"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert (nodes["type"], nodes["items"]) == ("array", {"$ref": "#/components/schemas/NodeView"})
