"""Round selection: which jobs run now so that, over rounds, each gets its share of time."""

from __future__ import annotations

from bloxopt.errors import ConfigError
from bloxopt.registry import Registry
from bloxopt.selection.base import Decision, Plan, Queue, RoundSelector, Selection

SELECTORS = Registry(
    "selector",
    {
        "priorities": "bloxopt.selection.priorities:Priorities",
        "exact": "bloxopt.selection.exact:ExactSelection",
        "ranking": "bloxopt.selection.ranking:Ranking",
    },
)


def get_selector(name: str, /, **options: object) -> RoundSelector:
    """A new selector of the registered kind with the given options.

    Raises :class:`~bloxopt.errors.UnknownNameError` for another kind and :class:`~bloxopt.errors.ConfigError` for
    options that it does not take.
    """
    selector: RoundSelector = SELECTORS.make(name, options, f"selector_options: selector {name!r}", ConfigError)
    return selector


__all__ = ["SELECTORS", "Decision", "Plan", "Queue", "RoundSelector", "Selection", "get_selector"]
