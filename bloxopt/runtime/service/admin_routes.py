"""Routes of tokens and of the whole history, for admins, and the two that monitoring asks."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from bloxopt.runtime.answers import EventView, NewToken, TokenView
from bloxopt.runtime.messages import MAX_NAME, Name, Problem
from bloxopt.runtime.service.routes import PROBLEMS, Admin, TheService
from bloxopt.runtime.store import TokenRecord

router = APIRouter(responses=PROBLEMS)

_PAGE_BYTES, _EVENTS_AT_ONCE = 4 * 2**20, 50
"""Size from which a page of events is not made longer, and how many are read together: rounds can be large."""

_YEARS = 100 * 366 * 86_400.0


class TokenRequest(BaseModel):
    """A token to be made. ``subject`` the user or node it is for; it holds for ``lifetime`` seconds, None: for good."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["admin", "user", "node"]
    subject: Name
    lifetime: Annotated[float, Field(gt=0, le=_YEARS, allow_inf_nan=False)] | None = None


def _view(service: TheService, record: TokenRecord) -> TokenView:
    shown = {name: getattr(record, name) for name in TokenView.model_fields if name != "valid"}
    return TokenView(**shown, valid=service.tokens.is_valid(record))


@router.get("/v1/tokens", tags=["tokens"])
def list_tokens(service: TheService, caller: Admin) -> list[TokenView]:
    """Every token that holds, or did until lately, without its secret."""
    return [_view(service, record) for record in service.tokens.listed()]


@router.post("/v1/tokens", tags=["tokens"], status_code=201)
def create_token(service: TheService, caller: Admin, request: TokenRequest) -> NewToken:
    """Make a token."""
    token, record = service.tokens.create(request.role, request.subject, request.lifetime)
    with service.live.change():
        service.live.note("token.created", record.token_id, role=record.role, holder=record.subject, by=caller.subject)
    return NewToken(token=token, **_view(service, record).model_dump())


@router.post("/v1/tokens/{token_id}/revoke", tags=["tokens"])
def revoke_token(service: TheService, caller: Admin, token_id: Annotated[str, Path(max_length=MAX_NAME)]) -> TokenView:
    """Have a token hold no longer, from now on."""
    if token_id == caller.token_id:
        raise HTTPException(409, "this is the token of the request itself: revoke it with another one")
    record = service.tokens.revoke(token_id)
    with service.live.change():
        service.live.note("token.revoked", token_id, by=caller.subject)
    return _view(service, record)


@router.get("/v1/events", tags=["history"], response_model=list[EventView])
def events(
    service: TheService,
    caller: Admin,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    subject: Annotated[Name | None, Query()] = None,
    kind: Annotated[list[str], Query(max_length=32)] = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    """Everything that was observed and decided, in order, after the event of number ``after``.

    A page of some megabytes is not made longer: what follows it is asked for after its last event. The last page is
    empty.
    """
    kinds = [text.replace("\0", "") for text in kind]
    texts: list[str] = []
    size, last = 0, after
    while len(texts) < limit and size < _PAGE_BYTES:
        wanted = min(_EVENTS_AT_ONCE, limit - len(texts))
        found = service.store.events(subject, last, wanted, kinds)
        for number, event in found:
            texts.append(EventView(number=number, **event._asdict()).model_dump_json())
            size, last = size + len(texts[-1]), number
        if len(found) < wanted:
            break
    return Response(f"[{','.join(texts)}]", media_type="application/json")


class Health(BaseModel):
    """The service works."""

    status: Literal["ok"] = "ok"


@router.get("/healthz", tags=["monitoring"], responses={503: {"model": Problem}})
def health(service: TheService) -> Health:
    """Whether rounds are decided and the store works."""
    fault = service.fault()
    if fault:
        raise HTTPException(503, fault)
    return Health()


@router.get("/metrics", tags=["monitoring"], response_class=Response)
def metrics(service: TheService, request: Request) -> Response:
    """Metrics in Prometheus' text format, for admins, or for everyone where the configuration says so."""
    caller = request.scope["state"]["caller"]
    if not service.config.server.public_metrics and not caller.is_admin:
        raise HTTPException(403, "only admins may do this")
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
