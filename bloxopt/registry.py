"""Names to implementations: adding one is a new file and one line in a registry."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from bloxopt.arguments import check_options
from bloxopt.errors import BloxoptError, InputError, UnknownNameError, guarded


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

    def make(
        self, name: str, options: Mapping[str, Any], what: str = "", error: type[BloxoptError] = InputError
    ) -> Any:
        """A new object of the class or factory registered under ``name``, with ``options``.

        Raises :class:`UnknownNameError`, and ``error``, which says ``what`` it is about (default: kind and name), for
        options that it does not take or cannot work with.
        """
        factory = self.get(name)
        what = what or f"{self.kind} {name!r}"
        check_options(factory, options, what, error)
        with guarded(what, error):
            return factory(**options)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
