"""Names to implementations: adding one is a new file and one line in a registry."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from bloxopt.errors import UnknownNameError


class Registry:
    """Maps a name to an object, or to ``"module:attribute"`` imported when first asked for."""

    def __init__(self, kind: str, entries: Mapping[str, Any]) -> None:
        self.kind = kind
        self._entries: dict[str, Any] = dict(entries)

    def register(self, name: str, target: Any) -> None:
        """Add an object, or a ``"module:attribute"`` string, under ``name``."""
        self._entries[name] = target

    def get(self, name: str) -> Any:
        """The object registered under ``name``; raises :class:`UnknownNameError` with a suggestion."""
        try:
            target = self._entries[name]
        except (KeyError, TypeError):  # what cannot be hashed is no name either
            raise UnknownNameError(self.kind, name, self._entries) from None
        if isinstance(target, str):
            module, _, attribute = target.partition(":")
            target = getattr(importlib.import_module(module), attribute)
            self._entries[name] = target
        return target

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
