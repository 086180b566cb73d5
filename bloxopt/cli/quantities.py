"""How measured quantities are shown to people: their name, unit and precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Show = Callable[[float], str]


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.3f} h"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.2f} s"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _ratio(value: float) -> str:
    return f"{value:.3f}"


class Quantity(NamedTuple):
    """A key of ``summary()``, its name for people and how it is written."""

    key: str
    name: str
    show: Show


QUANTITIES = (
    Quantity("jobs", "jobs", _count),
    Quantity("finished", "finished", _count),
    Quantity("average_jct", "average JCT", _hours),
    Quantity("median_jct", "median JCT", _hours),
    Quantity("p95_jct", "95th percentile JCT", _hours),
    Quantity("p99_jct", "99th percentile JCT", _hours),
    Quantity("makespan", "makespan", _hours),
    Quantity("average_queueing_delay", "average queueing delay", _hours),
    Quantity("worst_finish_time_ratio", "worst finish-time ratio", _ratio),
    Quantity("utilisation", "GPU utilisation", _percent),
    Quantity("preemptions", "preemptions", _count),
    Quantity("restarts", "restarts", _count),
    Quantity("rounds", "rounds", _count),
    Quantity("plans", "plans", _count),
    Quantity("solves", "programs solved", _count),
    Quantity("solve_seconds", "time in the solver", _seconds),
    Quantity("build_seconds", "time building programs", _seconds),
    Quantity("wall_seconds", "time in all", _seconds),
)

COMPARED = (
    "finished",
    "average_jct",
    "p95_jct",
    "makespan",
    "average_queueing_delay",
    "utilisation",
    "preemptions",
    "solve_seconds",
    "wall_seconds",
)
"""The columns of the comparison for people; ``comparison.csv`` has all."""


def shown_summary(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of every quantity of a summary."""
    return [(q.name, "–" if summary[q.key] is None else q.show(summary[q.key])) for q in QUANTITIES if q.key in summary]


def shown_average(row: Mapping[str, Any]) -> dict[str, str]:
    """The compared quantities of one row of averages, with the deviation where several seeds ran."""
    cells = {}
    for q in QUANTITIES:
        if q.key in COMPARED:
            mean, deviation = row.get(q.key), row.get(f"{q.key}_std")
            cells[q.name] = "–" if _absent(mean) else q.show(float(mean or 0.0))
            if not _absent(mean) and not _absent(deviation):
                cells[q.name] += f" ± {q.show(float(deviation or 0.0))}"
    return cells


def _absent(value: Any) -> bool:
    return value is None or math.isnan(value)
