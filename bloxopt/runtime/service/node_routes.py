"""Routes of nodes: heartbeats and output from agents; looking at nodes and draining them for people."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool

from bloxopt.runtime.live.faults import UnknownError
from bloxopt.runtime.live.views import node_view, nodes_json
from bloxopt.runtime.messages import DesiredState, Heartbeat, NodeView
from bloxopt.runtime.service.routes import (
    LARGEST_INTEGER,
    PROBLEMS,
    Admin,
    JobPath,
    NodePath,
    OwnNode,
    Person,
    TheService,
    is_own_node,
)
from bloxopt.runtime.service.service import Service
from bloxopt.runtime.store import RunKey, RunRecord

router = APIRouter(prefix="/v1/nodes", tags=["nodes"], responses=PROBLEMS)


class LogOffset(BaseModel):
    """How many bytes of a rank's output the scheduler has: where the agent goes on."""

    offset: int


@router.get("", response_model=list[NodeView])
def list_nodes(service: TheService, caller: Person) -> Response:
    """Every node, in the order in which they came."""
    return Response(nodes_json(service.live, caller.is_admin), media_type="application/json")


@router.get("/{name}")
def view(service: TheService, caller: Person, name: NodePath) -> NodeView:
    """One node."""
    node = service.live.nodes.get(name)
    if node is None:
        raise UnknownError(f"there is no node {name!r}")
    return node_view(service.live, node, caller.is_admin)


@router.post("/{name}/drain")
def drain(service: TheService, caller: Admin, name: NodePath) -> NodeView:
    """Move the jobs of a node elsewhere, and give it no new ones."""
    return node_view(service.live, service.live.drain(name, True, caller.subject), True)


@router.post("/{name}/undrain")
def undrain(service: TheService, caller: Admin, name: NodePath) -> NodeView:
    """Put a node back into service."""
    return node_view(service.live, service.live.drain(name, False, caller.subject), True)


class HeartbeatRoute(APIRoute):
    """A route that a thousand nodes ask all the time: what is as it should be is answered without FastAPI's ways of
    finding out what it is. Anything else goes these ways, which say what is wrong with it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        thorough = super().get_route_handler()

        async def answer(request: Request) -> Response:
            caller, name = request.scope["state"]["caller"], request.path_params["name"]
            if is_own_node(caller, name) and request.headers.get("content-type") == "application/json":
                try:
                    report = Heartbeat.model_validate_json(await request.body())
                except ValidationError:
                    pass
                else:
                    return await heartbeat(request.app.state.service, caller, name, report)
            return await thorough(request)

        return answer


async def heartbeat(service: TheService, caller: OwnNode, name: NodePath, report: Heartbeat) -> Response:
    """What an agent sees; the answer is what should run on its node."""
    if report.node != name:
        raise HTTPException(422, f"the heartbeat is of node {report.node!r}, and was sent as one of {name!r}")
    desired = await asyncio.wrap_future(service.reception.receive(report))
    return Response(desired.model_dump_json(), media_type="application/json")


router.add_api_route(
    "/{name}/heartbeat",
    heartbeat,
    response_model=DesiredState,
    methods=["POST"],
    route_class_override=HeartbeatRoute,
)


@router.post(
    "/{name}/logs/{job_id}/{attempt}/{rank}",
    openapi_extra={
        "requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def append_log(
    request: Request,
    service: TheService,
    caller: OwnNode,
    name: NodePath,
    job_id: JobPath,
    attempt: Annotated[int, Path(ge=1, le=LARGEST_INTEGER)],
    rank: Annotated[int, Path(ge=0, le=LARGEST_INTEGER)],
    offset: Annotated[int, Query(ge=0, le=2**62)],
) -> LogOffset:
    """Output of a rank from ``offset`` on, as raw bytes; the answer says from where to go on."""
    await run_in_threadpool(_check_rank, service, RunKey(job_id, attempt, name), rank)
    data = await request.body()
    end = await run_in_threadpool(service.logs.append, job_id, attempt, rank, offset, data)
    return LogOffset(offset=end)


def _check_rank(service: Service, key: RunKey, rank: int) -> None:
    run = _run(service, key)
    ranks = len(run.gpus) if service.live.find(key.job_id).spec.processes == "per_gpu" else 1
    if not run.first_rank <= rank < run.first_rank + ranks:
        raise UnknownError(f"rank {rank} of job {key.job_id!r} was not on node {key.node!r}")
    if service.logs.is_pruned(key.job_id):
        raise HTTPException(410, f"the output of job {key.job_id!r} was pruned")


def _run(service: Service, key: RunKey) -> RunRecord:
    """The run, ended or not, if the agent of its node was told of it."""
    with service.live.lock:
        run = next((run for run in service.live.runs_on(key.node) if run.key == key), None)
    if run is None:
        run = next((run for run in service.store.runs(key.job_id) if run.key == key), None)
    if run is None or not run.told:
        raise UnknownError(f"attempt {key.attempt} of job {key.job_id!r} was not on node {key.node!r}")
    return run
