"""What ``bloxopt scheduler`` does: configure, serve, make the first token, copy the store."""

from __future__ import annotations

import math
import os
import socket
import sys
from pathlib import Path

import uvicorn

from bloxopt.errors import ConfigError, InputError
from bloxopt.runtime.live import Clock
from bloxopt.runtime.service.application import create_app
from bloxopt.runtime.service.config import ServiceConfig, load_config, make_config
from bloxopt.runtime.service.listening import BACKLOG, check_tls, listen, url_of
from bloxopt.runtime.service.logging import log, log_as_json
from bloxopt.runtime.service.protocol import impatient
from bloxopt.runtime.service.service import Service
from bloxopt.runtime.service.tokens import Tokens
from bloxopt.runtime.store import Store, backup, restore

_TURN = 0.0001
"""Seconds after which a thread gives others a turn that want one."""


def configured(
    path: Path | None, host: str | None, port: int | None, certificate: Path | None, key: Path | None
) -> ServiceConfig:
    """The configuration of a file (None: the defaults), some of it replaced; ConfigError names what is wrong."""
    config = make_config({}, Path.cwd()) if path is None else load_config(path)
    changes = {
        "host": host,
        "port": port,
        "tls_certificate": None if certificate is None else str(certificate),
        "tls_key": None if key is None else str(key),
    }
    server = config.server.model_copy(update={name: value for name, value in changes.items() if value is not None})
    if (server.tls_certificate is None) != (server.tls_key is None):
        raise ConfigError("a certificate and its key belong together: give both or neither")
    if not 0 <= server.port <= 65_535:
        raise ConfigError(f"port is {server.port}, must be from 0 to 65535")
    return config.model_copy(update={"server": server})


def new_admin_token(config: ServiceConfig) -> str:
    """A new admin token in the store, which no scheduler may use at the time."""
    store = Store(config.database)
    try:
        return Tokens(store, Clock()).create("admin", "admin")[0]
    finally:
        store.close()


def copy_store(config: ServiceConfig, target: Path | None, source: Path | None) -> str:
    """Back the store up, or restore it; says what was done."""
    if target is not None and source is not None:
        raise InputError("--backup and --restore are both given: do one at a time")
    if target is not None:
        backup(config.database, target)
        return f"{config.database} was copied to {target}"
    assert source is not None
    restore(source, config.database)
    return f"{config.database} was made from {source}"


def serve(config: ServiceConfig, token_file: Path | None = None) -> None:
    """Serve until the process is told to end (SIGTERM or Ctrl-C). Jobs go on under their leases then.

    Raises a :class:`~bloxopt.errors.BloxoptError` for whatever keeps it from beginning, before it has begun.
    """
    log_as_json()
    # While a round is decided, requests are answered: they wait so long for their turn, each time they need one.
    sys.setswitchinterval(_TURN)
    server = config.server
    if server.tls_certificate is not None:
        check_tls(server.tls_certificate, str(server.tls_key))
    elif server.host not in ("127.0.0.1", "::1", "localhost"):
        log.warning("tokens go over the network unencrypted: give a TLS certificate", extra={"host": server.host})
    service = Service(config)
    sockets: list[socket.socket] = []
    try:
        sockets = listen(server.host, server.port)
        if token_file is not None and not token_file.exists():
            _write_token(service, token_file)
        elif not service.tokens.listed():
            log.warning("there is no token yet: make one with --create-admin-token or --admin-token-file")
        app = create_app(service)
        service.start()
    except BaseException:
        for one in sockets:
            one.close()
        service.store.close()
        raise
    runner = _Server(
        uvicorn.Config(
            app,
            http=impatient(config.limits.request_seconds),
            ws="none",
            ssl_certfile=server.tls_certificate,
            ssl_keyfile=server.tls_key,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=5,
            # Longer than agents are silent: a new connection for each heartbeat would cost more than the heartbeat.
            timeout_keep_alive=max(75, math.ceil(3 * config.leases.heartbeat_seconds)),
            backlog=BACKLOG,
        )
    )
    log.info("listening", extra={"urls": [url_of(one, server.tls_certificate is not None) for one in sockets]})
    runner.run(sockets=sockets)


class _Server(uvicorn.Server):
    """A server that keeps nobody waiting once it ends."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.app.state.ending = True  # type: ignore[union-attr]
        await super().shutdown(sockets)


def _write_token(service: Service, path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    token, _ = service.tokens.create("admin", "admin")
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{token}\n")
