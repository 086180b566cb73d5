"""The HTTP application around a service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

import bloxopt
from bloxopt.errors import BloxoptError, StoreError
from bloxopt.runtime.live.faults import ConflictError, UnknownError
from bloxopt.runtime.messages import Problem
from bloxopt.runtime.service import admin_routes, job_routes, node_routes, whatif_routes
from bloxopt.runtime.service.config import ServiceConfig
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
    for routes in (job_routes, node_routes, admin_routes, whatif_routes):
        app.include_router(routes.router)
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


async def _malformed(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    text = str(first["msg"])
    return _problem(422, f"{where or 'the body'}: {text[:1].lower()}{text[1:]}")


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _problem(error.status_code, str(error.detail), dict(error.headers or {}))


async def _failed(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, StoreError):
        raise error  # for the gate, which keeps from the caller what the database says
    status = 404 if isinstance(error, UnknownError) else 409 if isinstance(error, ConflictError) else 400
    return _problem(status, str(error))
