"""Whether an answer changes while jobs run: what tells a scheduler to solve again in every round."""

from __future__ import annotations

from typing import Any

_SAYS_WHAT_IT_IS = frozenset({"build", "limits", "terms", "solve", "key"})


class ProgressDependent:
    """Base of blocks: one that looks at the time, at progress or at what runs must be asked again every round.

    That is assumed of every class that says what it is (``build``, ``limits``, ``terms``, ``solve`` or ``key``)
    unless it says itself ``progress_dependent = False``: its answer then changes only as jobs or nodes come and go.
    """

    progress_dependent = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A subclass of Capacity with limits of its own must not inherit that Capacity never changes.
        if "progress_dependent" not in vars(cls) and not _SAYS_WHAT_IT_IS.isdisjoint(vars(cls)):
            cls.progress_dependent = True


def depends_on_progress(part: object) -> bool:
    """True unless ``part`` (an expression, or a plain function of the space) says that it does not."""
    return bool(getattr(part, "progress_dependent", True))
