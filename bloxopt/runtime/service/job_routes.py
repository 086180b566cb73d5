"""Routes of jobs: submit, list, look at, cancel, read the output, ask why one waits."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Annotated

from fastapi import APIRouter, Body, Header, HTTPException, Query, Request, Response
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from bloxopt.runtime.answers import EventView, ExplanationView, JobPage
from bloxopt.runtime.live.faults import ConflictError
from bloxopt.runtime.live.table import check_spec
from bloxopt.runtime.live.views import job_view
from bloxopt.runtime.messages import SUBMISSION_KEY_PATTERN, JobSpec, JobStatus, JobView, Name
from bloxopt.runtime.service.ranks import check_rank
from bloxopt.runtime.service.routes import LARGEST_INTEGER, PROBLEMS, JobPath, Person, TheService, own_job
from bloxopt.runtime.service.service import Service
from bloxopt.runtime.service.tokens import Caller

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=PROBLEMS)

_CURSOR = re.compile(r"^(\d{1,12}\.\d{1,9})_([A-Za-z0-9][A-Za-z0-9._-]*)$")
_LOOK_AGAIN = 0.25
"""Seconds between two looks for more output."""

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=SUBMISSION_KEY_PATTERN,
        description="Submitting again under the same key gives the same jobs.",
    ),
]


_VIEWS, _EVENTS = TypeAdapter(list[JobView]), TypeAdapter(list[EventView])


def _submit(service: Service, caller: Caller, specs: list[JobSpec], key: str | None) -> list[JobView]:
    for spec in specs:
        check_spec(spec)
    limit = service.config.limits.jobs_per_user
    with service.live.lock:
        mine = sum(job.user == caller.subject for job in service.live.jobs.values()) if limit < 100_000 else 0
    if mine + len(specs) > limit:
        raise ConflictError(f"user {caller.subject!r} has {mine} jobs that are not over, and {limit} are allowed")
    jobs = service.live.submit(caller.subject, specs, key)
    return [job_view(service.live, job, service.loop.failure) for job in jobs]


@router.post("", status_code=201)
def submit(service: TheService, caller: Person, spec: JobSpec, key: Key = None) -> JobView:
    """Submit a job."""
    return _submit(service, caller, [spec], key)[0]


@router.post("/batch", status_code=201, response_model=list[JobView])
def submit_many(
    service: TheService,
    caller: Person,
    specs: Annotated[list[JobSpec], Body(min_length=1, max_length=10_000)],
    key: Key = None,
) -> Response:
    """Submit many jobs, all or none."""
    if len(specs) > service.config.limits.jobs_per_request:
        raise HTTPException(413, f"at most {service.config.limits.jobs_per_request} jobs can be submitted at once")
    return _ready(_VIEWS.dump_json(_submit(service, caller, specs, key)), status=201)


@router.get("", response_model=JobPage)
def list_jobs(
    service: TheService,
    caller: Person,
    status: Annotated[list[JobStatus], Query(max_length=8)] = [],  # noqa: B006 - FastAPI copies it
    user: Annotated[Name | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[str | None, Query(max_length=128)] = None,
) -> Response:
    """Jobs, the latest first: one's own, or those of everyone for admins."""
    if not caller.is_admin:
        if user not in (None, caller.subject):
            return _ready(JobPage(jobs=[]).model_dump_json().encode())
        user = caller.subject
    cursor = None
    if before is not None:
        match = _CURSOR.match(before)
        if match is None:
            raise HTTPException(422, "before is not what a former page gave as next")
        cursor = (float(match[1]), match[2])
    found = service.store.jobs(user, status, limit, cursor)
    # What is not over is shown as it is now, which may be a moment ahead of the store.
    jobs = [service.live.jobs.get(job.job_id, job) for job in found]
    last = found[-1] if len(found) == limit else None
    views = [job_view(service.live, job, service.loop.failure) for job in jobs]
    page = JobPage(jobs=views, next=None if last is None else f"{last.submitted_at:.9f}_{last.job_id}")
    return _ready(page.model_dump_json().encode())


def _ready(text: bytes, status: int = 200) -> Response:
    """The answer as it goes out: as objects, thousands of jobs or events would be validated and copied once more."""
    return Response(text, status, media_type="application/json")


@router.get("/{job_id}")
def view(service: TheService, caller: Person, job_id: JobPath) -> JobView:
    """One job."""
    return job_view(service.live, own_job(service, caller, job_id), service.loop.failure)


@router.post("/{job_id}/cancel")
def cancel(service: TheService, caller: Person, job_id: JobPath) -> JobView:
    """Stop a job for good; one that is over stays as it is."""
    own_job(service, caller, job_id)
    return job_view(service.live, service.live.cancel(job_id, caller.subject))


@router.get("/{job_id}/history", response_model=list[EventView])
def history(
    service: TheService,
    caller: Person,
    job_id: JobPath,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> Response:
    """What happened to a job, in order."""
    own_job(service, caller, job_id)
    events = service.store.events(job_id, after, limit)
    return _ready(_EVENTS.dump_json([EventView(number=number, **event._asdict()) for number, event in events]))


@router.get("/{job_id}/explain")
def explain(
    service: TheService,
    caller: Person,
    job_id: JobPath,
    remedies: bool = False,
    horizon: Annotated[float, Query(ge=0, le=31 * 86_400, allow_inf_nan=False)] = 0.0,
) -> ExplanationView:
    """Why a job waits. ``remedies``: what would make it run now; ``horizon`` (s): how far to look for its start."""
    answer = service.loop.explain(own_job(service, caller, job_id), remedies, horizon)
    return ExplanationView.model_validate(answer.to_dict())


@router.get(
    "/{job_id}/logs",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "The output"}},
)
async def logs(
    request: Request,
    service: TheService,
    caller: Person,
    job_id: JobPath,
    attempt: Annotated[int, Query(ge=0, le=LARGEST_INTEGER, description="0: the last")] = 0,
    rank: Annotated[int, Query(ge=0, le=LARGEST_INTEGER)] = 0,
    offset: Annotated[int, Query(ge=-(2**62), le=2**62, description="below 0: from the end")] = 0,
    limit: Annotated[int, Query(ge=1, le=2**20)] = 2**18,
    wait: Annotated[float, Query(ge=0, le=3600, allow_inf_nan=False, description="seconds to wait for more")] = 0.0,
) -> Response:
    """The output of one rank, from a byte offset on.

    Headers say what came: ``Bloxopt-Offset`` where it begins, ``Bloxopt-Next-Offset`` where to go on,
    ``Bloxopt-Attempt`` and, in ``Bloxopt-Complete``, whether nothing can follow (``true`` or ``false``).
    """
    job = await run_in_threadpool(own_job, service, caller, job_id)
    await run_in_threadpool(check_rank, service, job, attempt, rank)
    end = time.monotonic() + min(wait, service.config.limits.long_poll_seconds)
    while True:
        number = attempt or job.attempt
        # Whether more can come is asked first, so that nothing comes between the two answers.
        complete = job.final or number < job.attempt
        piece = await run_in_threadpool(service.logs.read, job_id, number, rank, offset, limit)
        if piece.data or complete or time.monotonic() >= end or request.app.state.ending:
            break
        await asyncio.sleep(_LOOK_AGAIN)
        job = await run_in_threadpool(service.live.find, job_id)
    if piece.end == 0 and await run_in_threadpool(service.logs.is_pruned, job_id):
        raise HTTPException(410, f"the output of job {job_id!r} was pruned: it is kept for a time after a job's end")
    headers = {
        "Bloxopt-Offset": str(piece.offset),
        "Bloxopt-Next-Offset": str(piece.offset + len(piece.data)),
        "Bloxopt-Attempt": str(number),
        "Bloxopt-Complete": "true" if complete and piece.offset + len(piece.data) >= piece.end else "false",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(piece.data, media_type="text/plain; charset=utf-8", headers=headers)
