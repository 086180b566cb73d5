"""Round selection: which jobs run now so that, over rounds, each gets its share of time."""

from __future__ import annotations

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


def get_selector(name: str, **options: object) -> RoundSelector:
    """A new selector of the registered kind with the given options."""
    selector: RoundSelector = SELECTORS.get(name)(**options)
    return selector


__all__ = ["SELECTORS", "Decision", "Plan", "Queue", "RoundSelector", "Selection", "get_selector"]
