"""What routes share: who asks, what they may see, and parameters."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, HTTPException, Path, Request

from bloxopt.runtime.live.faults import UnknownError
from bloxopt.runtime.messages import MAX_NAME, NAME_PATTERN, Problem
from bloxopt.runtime.service.service import Service
from bloxopt.runtime.service.tokens import Caller
from bloxopt.runtime.store import JobRecord

JobPath = Annotated[str, Path(max_length=MAX_NAME, pattern=NAME_PATTERN)]
NodePath = Annotated[str, Path(max_length=MAX_NAME, pattern=NAME_PATTERN)]

LARGEST_INTEGER = 2**31 - 1
"""Larger numbers are refused, before a database does."""

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in (
        (400, "Something about the request cannot be"),
        (401, "No valid token"),
        (403, "The token is of another role"),
        (404, "There is no such thing, or not for this token"),
        (405, "The path has no such method"),
        (409, "It cannot be done in the present state"),
        (410, "It is no longer kept"),
        (413, "The body is too large"),
        (422, "The request is malformed"),
        (429, "Too many requests"),
        (503, "The service does not work at present"),
    )
}
"""The errors that any route may answer with."""


# Dependencies are coroutines, so that none of them costs a trip to another thread.


async def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _caller(request: Request) -> Caller:
    caller: Caller | None = request.scope["state"]["caller"]
    if caller is None:
        raise HTTPException(401, "a token is missing: send it as a bearer token")
    return caller


async def _admin(request: Request) -> Caller:
    caller = _caller(request)
    if not caller.is_admin:
        raise HTTPException(403, "only admins may do this")
    return caller


async def _person(request: Request) -> Caller:
    caller = _caller(request)
    if caller.role == "node":
        raise HTTPException(403, "a node's token is only for its own heartbeats and output")
    return caller


def is_own_node(caller: Caller | None, name: str) -> bool:
    """Whether the caller speaks for the node of this name."""
    return caller is not None and caller.role == "node" and caller.subject == name


async def _node(request: Request, name: NodePath) -> Caller:
    caller = _caller(request)
    if not is_own_node(caller, name):
        raise HTTPException(403, f"only the token of node {name!r} may do this")
    return caller


TheService = Annotated[Service, Depends(service_of)]
Admin = Annotated[Caller, Depends(_admin)]
Person = Annotated[Caller, Depends(_person)]
OwnNode = Annotated[Caller, Depends(_node)]


def own_job(service: Service, caller: Caller, job_id: str) -> JobRecord:
    """The job, if the caller may see it; that of another user is as if there were none."""
    job = service.live.find(job_id)
    if not caller.is_admin and job.user != caller.subject:
        raise UnknownError(f"there is no job {job_id!r}")
    return job
