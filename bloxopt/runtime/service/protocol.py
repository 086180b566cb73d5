"""HTTP connections that wait for no one, and take one request at a time, which can be read in one way only."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bloxopt.runtime.service.logging import log

_MOST_HEAD_BYTES = 65_536
"""How long the head of a request may be, or the size of a chunk of its body with what is said of it."""

_TARGET = re.compile(rb"/[^#\x00-\x20\x7f-\xff]*")


class RefusedError(Exception):
    """A request that others might read otherwise than the parser does."""


class ImpatientProtocol(HttpToolsProtocol):
    """Closes a connection whose request has not arrived, head and body, ``patience`` seconds after its first byte (the
    first request: after the connection was made). So whoever sends slowly, or nothing, holds nothing for long.

    A request that comes before the one before it was answered is not read: the connection ends with that answer.
    """

    patience: float = 60.0
    _timer: asyncio.TimerHandle | None = None
    _in_head = _complete = _deaf = False
    """Whether a head is being received; whether the last request has arrived; whether nothing more is read."""
    _bytes = 0
    """Received since a head, or a piece of a body, was last complete."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._complete = False
        self._bytes += len(data)
        super().data_received(data)
        if self._bytes > _MOST_HEAD_BYTES:
            self.send_400_response("The head of the request is too long.")
        if self._complete:
            self._rest()
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        if self._answering():
            raise RefusedError("a request before the answer to the one before it")
        self._in_head, self._complete = True, False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            raise RefusedError("a header after the body")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._bytes = False, 0
        upgrade = self.parser.should_upgrade()
        self._check_head(upgrade)
        super().on_headers_complete()
        if upgrade:
            # What follows would be of the other protocol, which is not spoken.
            self._deaf, self.cycle.keep_alive = True, False

    def _check_head(self, upgrade: bool) -> None:
        """Raise for a request that the parser takes, and others might read otherwise."""
        if _TARGET.fullmatch(self.url) is None:
            raise RefusedError("a target that is no path")
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise RefusedError("another version of HTTP")
        names = [name for name, _ in self.headers]
        hosts = names.count(b"host")
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            raise RefusedError("not one host")
        chunked = b"transfer-encoding" in names
        if chunked:
            codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
            if codings != [b"chunked"] or b"content-length" in names or version == "1.0":
                raise RefusedError("a body that ends here for one and there for another")
        if upgrade and (chunked or b"content-length" in names):
            raise RefusedError("a body before another protocol, which the parser would not read as one")

    def on_body(self, body: bytes) -> None:
        self._bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._complete, self._bytes = True, 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what was sent, and read no more; the answer to a request before it goes out first, as the last."""
        if self._deaf:
            return
        self._deaf = True
        if self._answering():
            self.cycle.keep_alive = False
        elif self.cycle is not None and self.cycle.scope is self.scope and self.cycle.response_started:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def _answering(self) -> bool:
        """Whether a request has arrived, and its answer has not gone."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

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
