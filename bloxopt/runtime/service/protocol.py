"""HTTP connections that wait for no one: a request that does not arrive in time ends its connection."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bloxopt.runtime.service.logging import log

_COMPLETE = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)
"""States of a client that has sent all of its request, or will send nothing more."""


class ImpatientProtocol(H11Protocol):
    """Closes a connection whose request has not arrived, head and body, ``patience`` seconds after its first byte (the
    first request: after the connection was made). So whoever sends slowly, or nothing, holds nothing for long."""

    patience: float = 60.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        self._wait()
        super().data_received(data)
        if self.conn.their_state in _COMPLETE:
            self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.patience, self._give_up)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            log.warning("a request did not arrive in time", extra={"client": self.client and self.client[0]})
            self.transport.close()


def impatient(seconds: float) -> type[asyncio.Protocol]:
    """The protocol with a patience of ``seconds``, as uvicorn takes it."""
    settings: dict[str, Any] = {"patience": seconds}
    return type("ImpatientProtocol", (ImpatientProtocol,), settings)
