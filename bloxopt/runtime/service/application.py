"""The HTTP application around a service."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, get_args, get_origin

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

import bloxopt
from bloxopt.errors import BloxoptError, StoreError
from bloxopt.runtime.live.faults import ConflictError, UnknownError
from bloxopt.runtime.messages import Problem
from bloxopt.runtime.problems import said, unknown
from bloxopt.runtime.service import admin_routes, job_routes, node_routes, whatif_routes
from bloxopt.runtime.service.config import ServiceConfig
from bloxopt.runtime.service.copies import BusyError
from bloxopt.runtime.service.gate import PUBLIC, Gate
from bloxopt.runtime.service.service import Service


def create_app(config: ServiceConfig | Service) -> FastAPI:
    """The application of a scheduler; it begins to decide rounds when the application starts, and ends with it.

    Raises a :class:`~bloxopt.errors.BloxoptError` for a configuration or a database that cannot be used.
    """
    service = config if isinstance(config, Service) else Service(config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(service.start)
        try:
            yield
        finally:
            await run_in_threadpool(service.stop)

    app = FastAPI(
        title="bloxopt scheduler",
        version=bloxopt.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.state.ending = False  # once it is set, requests that wait for something are answered with what there is
    for routes in (job_routes, node_routes, admin_routes, whatif_routes):
        # Not as routers within the application's: each request would look for its route twice.
        app.router.routes.extend(routes.router.routes)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(BloxoptError, _failed)
    app.add_middleware(
        Gate,
        tokens=service.tokens,
        rates=service.rates,
        metrics=service.metrics,
        most_bytes=service.config.limits.request_bytes,
        public=PUBLIC | ({"/metrics"} if service.config.server.public_metrics else frozenset()),
    )
    return app


def _problem(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(Problem(detail=detail).model_dump(), status, headers)


async def _malformed(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _problem(422, f"the body is not JSON: {first['ctx']['error']} at character {first['loc'][-1]}")
    if isinstance(error.body, bytes):
        return _problem(422, "the body is not read as JSON: send it with the header Content-Type: application/json")
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    return _problem(422, f"{where or 'the body'}: {_said(first, request)}")


def _said(problem: Mapping[str, Any], request: Request) -> str:
    value, place = problem.get("input"), problem["loc"]
    if place[0] == "body" and isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number: JSON has no NaN and no Infinity"
    if problem["type"] == "extra_forbidden" and (known := _keys_at(request, place[1:-1])):
        return unknown(str(place[-1]), known)
    return said(problem)


def _keys_at(request: Request, place: Sequence[int | str]) -> list[str]:
    """The keys of the body of a request, or of one of a list of such; none for what is further down."""
    field = request.scope["route"].body_field
    model = field.field_info.annotation
    if place and get_origin(model) is list:
        (model,), place = get_args(model), place[1:]
    return list(model.model_fields) if not place and issubclass(model, BaseModel) else []


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _problem(error.status_code, str(error.detail), dict(error.headers or {}))


async def _failed(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, StoreError):
        raise error  # for the gate, which keeps from the caller what the database says
    if isinstance(error, BusyError):
        return _problem(429, str(error), {"retry-after": "5"})
    status = 404 if isinstance(error, UnknownError) else 409 if isinstance(error, ConflictError) else 400
    return _problem(status, str(error))
