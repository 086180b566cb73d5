"""Published results beside ours: what is run, which figures it must give, and how far they may be apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bloxopt.errors import InputError

EXACT_SEMANTICS = 0.02
"""Relative difference that is allowed where the semantics of the published run are known exactly."""

OTHER_SEMANTICS = 0.05
"""Relative difference that is allowed elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A published number: ``metric`` is a key of what the run measures, in ``unit``.

    ``goal`` ``equal``: ours may differ by ``tolerance`` (relative) either way. ``at_most``: ours may be anything
    up to the reference. ``explanation`` says why ours differs by more, for figures that do.
    """

    metric: str
    reference: float
    unit: str = "s"
    tolerance: float = EXACT_SEMANTICS
    goal: Literal["equal", "at_most"] = "equal"
    explanation: str = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One published experiment: ``measure()`` runs ours and gives its numbers by metric."""

    trace: str
    policy: str
    source: str
    measure: Callable[[], Mapping[str, float | None]]
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Reproduced:
    """One line of the table; ``goal`` as in :class:`Figure`, ``difference`` is relative, ``verdict`` one of the three
    words below."""

    system: str
    trace: str
    policy: str
    metric: str
    unit: str
    goal: Literal["equal", "at_most"]
    reference: float
    measured: float
    difference: float
    verdict: Literal["reproduced", "explained", "differs"]
    explanation: str
    source: str


def compare(system: str, run: Run, measured: Mapping[str, float | None]) -> list[Reproduced]:
    """What a run measured against each of its figures; raises :class:`InputError` for a metric it did not measure."""
    rows = []
    for figure in run.figures:
        value = measured.get(figure.metric)
        if value is None:
            raise InputError(
                f"reproduction of {system}, {run.policy} on {run.trace}: {figure.metric!r} was not measured; there are "
                f"{', '.join(measured)}"
            )
        difference = _difference(float(value), figure.reference)
        within = difference <= 0 if figure.goal == "at_most" else abs(difference) <= figure.tolerance
        rows.append(
            Reproduced(
                system,
                run.trace,
                run.policy,
                figure.metric,
                figure.unit,
                figure.goal,
                figure.reference,
                float(value),
                difference,
                "reproduced" if within else "explained" if figure.explanation else "differs",
                figure.explanation,
                run.source,
            )
        )
    return rows


def _difference(value: float, reference: float) -> float:
    if reference == 0:
        return 0.0 if value == 0 else math.copysign(math.inf, value)
    return value / reference - 1.0


def as_rows(lines: Iterable[Reproduced]) -> list[dict[str, Any]]:
    """The table for people: differences in per cent, ``≤`` before references that ours may be anything up to."""
    return [
        {
            "system": line.system,
            "trace": line.trace,
            "policy": line.policy,
            "figure": f"{line.metric} ({line.unit})" if line.unit else line.metric,
            "reference": ("≤ " if line.goal == "at_most" else "") + f"{line.reference:.7g}",
            "ours": f"{line.measured:.7g}",
            "difference": f"{round(100 * line.difference, 2) + 0.0:+.2f} %",
            "verdict": line.verdict,
            "explanation": line.explanation,
        }
        for line in lines
    ]
