"""Where the service listens: sockets and TLS files, checked before anything begins, with one sentence for a fault."""

from __future__ import annotations

import errno
import socket
import ssl
from pathlib import Path

from bloxopt.errors import ConfigError

BACKLOG = 4096
"""Connections that wait to be taken, such as those of all agents after a restart."""


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on every address of ``host``; port 0 stands for any free one, the same for all.

    Raises :class:`~bloxopt.errors.ConfigError` that says what to change.
    """
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no host name"
        raise ConfigError(f"the scheduler cannot listen on host {host!r}: {reason}") from None
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            if sockets and not port:
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            one = socket.socket(family, kind, protocol)
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                one.bind(address)
                one.listen(BACKLOG)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                # A name such as localhost may have an IPv6 address that this machine does not.
                missing = error
                sockets.pop().close()
        if not sockets and missing is not None:
            raise missing
    except OSError as error:
        for one in sockets:
            one.close()
        raise ConfigError(f"the scheduler cannot listen on {host}:{port}: {_remedy(error)}") from None
    return sockets


def url_of(listener: socket.socket, tls: bool) -> str:
    """The address of the service."""
    host, port = listener.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _remedy(error: OSError) -> str:
    return {
        errno.EADDRINUSE: "another program listens there: stop it, or choose another port (server.port, --port)",
        errno.EACCES: "this account may not use ports below 1024: choose another one (server.port, --port)",
        errno.EADDRNOTAVAIL: "this machine has no such address: 127.0.0.1 is itself alone, 0.0.0.0 all its addresses",
    }.get(error.errno or 0, error.strerror or str(error))


def check_tls(certificate: str, key: str) -> None:
    """Raise :class:`~bloxopt.errors.ConfigError` for files that TLS cannot be served with."""
    for name, path in (("tls_certificate", certificate), ("tls_key", key)):
        try:
            Path(path).read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(f"{name} {path} cannot be read: {reason}") from None
    try:
        # With some password, so that nobody is asked for that of an encrypted key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else ""
        if reason == "KEY_VALUES_MISMATCH":
            text = "the key is that of another certificate"
        else:
            text = "both must be PEM files, the certificate first, and the key not encrypted"
        raise ConfigError(f"tls_certificate {certificate} with tls_key {key} cannot be used: {text}") from None
