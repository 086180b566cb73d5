"""Who may do what: tokens by role, stored as hashes, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import threading
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

from bloxopt.errors import InputError
from bloxopt.runtime.live.clock import Clock
from bloxopt.runtime.live.faults import UnknownError
from bloxopt.runtime.store import Store, TokenRecord
from bloxopt.runtime.store.pruning import delete_tokens

Role = Literal["admin", "user", "node"]
ROLES: tuple[str, ...] = get_args(Role)

_NOBODY = TokenRecord("", "", "", hashlib.sha256(b"").hexdigest(), 0.0)
"""Compared with where there is no such token, so that this takes as long."""


class Caller(NamedTuple):
    """Who makes a request. ``subject`` is the user or node."""

    token_id: str
    role: str
    subject: str

    @property
    def is_admin(self) -> bool:
        return self.role == "admin"


class Tokens:
    """The tokens of a store. A token is ``ID.SECRET``: 256 random bits, of which the store has the SHA-256 alone."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._known = {token.token_id: token for token in store.tokens()}
        self._used: dict[str, float] = {}
        self._saved: dict[str, float] = {}

    def create(self, role: str, subject: str, lifetime: float | None = None) -> tuple[str, TokenRecord]:
        """A new token, to be shown once, and what is kept of it. ``lifetime`` in seconds, None: until it is revoked."""
        if role not in ROLES:
            raise InputError(f"role is {role!r}, must be one of {', '.join(ROLES)}")
        token_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        now = self._clock.now()
        record = TokenRecord(
            token_id, role, subject, _digest(secret), now, None if lifetime is None else now + lifetime
        )
        self._store.add_token(record)
        with self._lock:
            self._known[token_id] = record
        return f"{token_id}.{secret}", record

    def caller(self, token: str) -> Caller | None:
        """Who holds the token; None for one that is wrong, expired or revoked."""
        token_id, _, secret = token.partition(".")
        record = self._known.get(token_id, _NOBODY)
        right = hmac.compare_digest(record.digest, _digest(secret))
        if not right or record is _NOBODY or not self.is_valid(record):
            return None
        self._used[token_id] = self._clock.now()
        return Caller(record.token_id, record.role, record.subject)

    def is_valid(self, record: TokenRecord) -> bool:
        """Whether the token is neither revoked nor expired."""
        return record.revoked_at is None and (record.expires_at is None or self._clock.now() < record.expires_at)

    def revoke(self, token_id: str) -> TokenRecord:
        """Have a token hold no longer."""
        record = self._known.get(token_id)
        if record is None:
            raise UnknownError(f"there is no token {token_id!r}")
        revoked = self._store.revoke_token(record, self._clock.now())
        with self._lock:
            self._known[token_id] = revoked
        return revoked

    def prune(self, before: float, most: int) -> int:
        """Forget at most ``most`` tokens that ceased to hold before ``before`` (s); returns how many."""
        with self._lock:
            over = [token_id for token_id, record in self._known.items() if _ceased_at(record) < before][:most]
        if over:
            delete_tokens(self._store, over)
        with self._lock:
            for token_id in over:
                for kept in (self._known, self._used, self._saved):
                    kept.pop(token_id, None)
        return len(over)

    def listed(self) -> list[TokenRecord]:
        """Every token, also those that expired or were revoked and are still kept, the oldest first."""
        with self._lock:
            return [
                replace(token, last_used_at=self._used.get(token_id, token.last_used_at))
                for token_id, token in self._known.items()
            ]

    def save_use(self) -> None:
        """Store when tokens were last used: from time to time, since a write for each request would cost too much."""
        used = {
            token.token_id: token.last_used_at
            for token in self.listed()
            if token.last_used_at is not None and token.last_used_at != self._saved.get(token.token_id)
        }
        self._store.note_tokens_used(used)
        self._saved |= used


def _ceased_at(record: TokenRecord) -> float:
    """When the token ceases to hold, or did (s); inf for never."""
    return min(at for at in (record.revoked_at, record.expires_at, math.inf) if at is not None)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
