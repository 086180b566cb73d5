"""How measured quantities are shown to people: their name, unit and precision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class Quantity(NamedTuple):
    """A key of ``summary()``, its name for people, and how it is written: unit, factor into it, decimals."""

    key: str
    name: str
    unit: str = ""
    factor: float = 1.0
    decimals: int = 0

    @property
    def heading(self) -> str:
        """Name and unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def number(self, value: float, decimals: int | None = None) -> str:
        """The value in the unit, without it."""
        return f"{value * self.factor:,.{self.decimals if decimals is None else decimals}f}"


_HOURS: Any = {"unit": "h", "factor": 1 / 3600, "decimals": 3}
_SECONDS: Any = {"unit": "s", "decimals": 2}

QUANTITIES = (
    Quantity("jobs", "jobs"),
    Quantity("finished", "finished"),
    Quantity("rejected", "rejected"),
    Quantity("deadlines_met", "deadlines met", "%", 100, 1),
    Quantity("average_jct", "average JCT", **_HOURS),
    Quantity("median_jct", "median JCT", **_HOURS),
    Quantity("p95_jct", "95th percentile JCT", **_HOURS),
    Quantity("p99_jct", "99th percentile JCT", **_HOURS),
    Quantity("makespan", "makespan", **_HOURS),
    Quantity("average_queueing_delay", "average queueing delay", **_HOURS),
    Quantity("worst_finish_time_ratio", "worst finish-time ratio", decimals=3),
    Quantity("utilisation", "GPU utilisation", "%", 100, 1),
    Quantity("preemptions", "preemptions"),
    Quantity("restarts", "restarts"),
    Quantity("rounds", "rounds"),
    Quantity("plans", "plans"),
    Quantity("solves", "programs solved"),
    Quantity("solve_seconds", "time in the solver", **_SECONDS),
    Quantity("build_seconds", "time building programs", **_SECONDS),
    Quantity("wall_seconds", "time in all", **_SECONDS),
)

COMPARED = (
    "average_jct",
    "makespan",
    "p95_jct",
    "utilisation",
    "average_queueing_delay",
    "preemptions",
    "solve_seconds",
    "wall_seconds",
    "finished",
)
"""The columns of the comparison for people, the most wanted first; ``comparison.csv`` has all."""


def shown_summary(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of every quantity of a summary."""
    return [
        (q.heading, "–" if _absent(summary[q.key]) else q.number(summary[q.key]))
        for q in QUANTITIES
        if q.key in summary
    ]


def shown_average(row: Mapping[str, Any]) -> dict[str, str]:
    """The compared quantities of one row of averages, with the deviation where several seeds ran."""
    cells = {}
    by_key = {quantity.key: quantity for quantity in QUANTITIES}
    for q in (by_key[key] for key in COMPARED):
        mean, deviation = row.get(q.key), row.get(f"{q.key}_std")
        # A mean of counts need not be whole.
        decimals = q.decimals if row["runs"] == 1 else max(q.decimals, 1)
        cells[q.heading] = "–" if _absent(mean) else q.number(float(mean or 0.0), decimals)
        if not _absent(mean) and not _absent(deviation):
            cells[q.heading] += f" ± {q.number(float(deviation or 0.0), decimals)}"
    return cells


def _absent(value: Any) -> bool:
    return value is None or math.isnan(value)
