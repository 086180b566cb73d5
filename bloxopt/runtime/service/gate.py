"""What every request passes before any route: size, token, rate; and what becomes of errors. Nothing leaks."""

from __future__ import annotations

import logging
import time
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bloxopt.errors import StoreError
from bloxopt.runtime.messages import Problem
from bloxopt.runtime.service.limits import RateLimit
from bloxopt.runtime.service.logging import log
from bloxopt.runtime.service.metrics import Metrics
from bloxopt.runtime.service.tokens import Tokens

PUBLIC = frozenset({"/healthz", "/openapi.json"})
"""Paths that need no token."""

_GONE = 499
"""What the logs call the status of a request whose client did not stay for the answer."""

_LOGGED = 500
"""Characters of a path that are logged."""


class TooLargeError(HTTPException):
    """A body with more bytes than are allowed; of a kind that passes through whoever reads the body."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(413, f"the body is larger than {most_bytes} bytes")


class Gate:
    """Middleware: refuses what is too large, unknown or too much, before a body is read, and answers every error.

    The caller is left in ``scope["state"]["caller"]`` for the routes.
    """

    def __init__(
        self, app: ASGIApp, tokens: Tokens, rates: RateLimit, metrics: Metrics, most_bytes: int, public: frozenset[str]
    ) -> None:
        self.app = app
        self.tokens, self.rates, self.metrics, self.most_bytes, self.public = tokens, rates, metrics, most_bytes, public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        began = time.monotonic()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._pass(scope, receive, sending)
        except TooLargeError as error:
            if not status:
                await _answer(sending, error.status_code, error.detail)
        except ClientDisconnect:
            # Whoever asked has gone, or was too slow: nobody is left to be answered.
            status = status or _GONE
        except StoreError as error:
            log.error("the store failed", extra={"reason": str(error), "path": scope["path"][:_LOGGED]})
            if not status:
                await _answer(
                    sending, 503, "the scheduler's database does not work: try again later", {"retry-after": "5"}
                )
        except Exception:
            log.exception("a request failed", extra={"path": scope["path"][:_LOGGED]})
            if not status:
                await _answer(sending, 500, "something went wrong in the scheduler, and its log says what")
        finally:
            self._record(scope, status, time.monotonic() - began)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        state: dict[str, Any] = scope.setdefault("state", {})
        caller = None
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme.lower() == "bearer":
            caller = self.tokens.caller(token.strip())
        state["caller"] = caller
        client = scope.get("client")
        pause = self.rates.wait(f"address {client[0] if client else ''}" if caller is None else caller.token_id)
        if pause > 0:
            await _answer(send, 429, "too many requests: wait and try again", {"retry-after": str(int(pause) + 1)})
            return
        if caller is None and scope["path"] not in self.public:
            detail = (
                "the token is wrong, expired or revoked" if token else "a token is missing: send it as a bearer token"
            )
            await _answer(send, 401, detail, {"www-authenticate": "Bearer"})
            return
        length = headers.get(b"content-length", b"0")
        # Not even read as a number where it has too many digits.
        if not length.isdigit() or len(length) > 18 or int(length) > self.most_bytes:
            raise TooLargeError(self.most_bytes)
        seen = 0

        async def receiving() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > self.most_bytes:
                    raise TooLargeError(self.most_bytes)
            return message

        await self.app(scope, receiving, send)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        # The route, not the path: paths have no end, and ids in them are nobody's business in metrics.
        route = getattr(scope.get("route"), "path", "")
        self.metrics.observe_request(scope["method"], route, status, seconds)
        caller = scope.get("state", {}).get("caller")
        # What agents send all the time is no news while it goes well; nor is looking.
        common = scope["method"] == "GET" or (caller is not None and caller.role == "node")
        level = logging.WARNING if status >= 500 or status in (401, 403, 429) else logging.INFO
        level = logging.DEBUG if common and status < 400 else level
        if log.isEnabledFor(level):
            log.log(
                level,
                "request",
                extra={
                    "method": scope["method"],
                    "path": scope["path"][:_LOGGED],
                    "status": status,
                    "seconds": round(seconds, 4),
                    "caller": None if caller is None else f"{caller.role} {caller.subject}",
                    "client": client[0] if (client := scope.get("client")) else None,
                },
            )


async def _answer(send: Send, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
    body = Problem(detail=detail).model_dump_json().encode()
    fields = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    listed = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": body})
