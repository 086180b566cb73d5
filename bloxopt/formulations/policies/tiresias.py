"""Tiresias: queues by attained service, and orders from what past jobs took (Gu et al., NSDI 2019)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bloxopt.errors import FormulationError, UnknownNameError
from bloxopt.formulations import (
    Arrival,
    AttainedService,
    DurationDistribution,
    ExpectedRemaining,
    FirstStart,
    GittinsIndex,
    OrderKey,
    Policy,
    Priority,
    QueuePosition,
    ServiceQueue,
    TiresiasGittinsRank,
)

LIMITS = (3250.0, 7200.0)
"""Service (GPU-s) at which jobs change queues in Tiresias' simulator; it lists a third limit that it never uses."""

QUANTUM = 3250.0
"""Service (GPU-s) for which Tiresias' simulator works out a Gittins index."""

DURATIONS = "tiresias/yarn-gput1000.csv"
"""The GPU time of 1000 jobs, shipped with Tiresias' simulator."""

Durations = str | Path | Iterable[float] | DurationDistribution | None


def tiresias(
    limits: Iterable[float] = LIMITS,
    promote_knob: float | None = None,
    within_queue: str = "running_first",
    gpu_weighted: bool = True,
    backfill: bool = True,
    durations: Durations = None,
    quantum: float | None = None,
    **options: Any,
) -> Policy:
    """Discretised 2D-LAS: queues by attained service, those with less first; jobs that fit go ahead.

    ``limits`` (GPU-s) and ``promote_knob``: see :class:`ServiceQueue`. ``within_queue``: ``running_first`` (running
    jobs, then by time in the queue: Tiresias' simulator), ``joined`` (by time in the queue: AdaptDL's Tiresias),
    ``start`` (by first start: the paper), ``arrival``, ``service`` (LAS), or ``gittins`` (2D-Gittins, with
    ``durations`` and ``quantum``, see :func:`gittins`). ``gpu_weighted`` False counts seconds run instead.
    """
    queues = ServiceQueue(limits, promote_knob, gpu_weighted)
    orders: dict[str, Callable[[], list[OrderKey]]] = {
        "running_first": lambda: [QueuePosition(queues)],
        "joined": lambda: [QueuePosition(queues, running_first=False)],
        "start": lambda: [FirstStart(), Arrival()],
        "arrival": lambda: [Arrival()],
        "service": lambda: [AttainedService(gpu_weighted)],
        "gittins": lambda: [
            GittinsIndex(_distribution(durations), gpu_weighted, QUANTUM if quantum is None else quantum),
            Arrival(),
        ],
    }
    if within_queue not in orders:
        raise UnknownNameError("within_queue", str(within_queue), list(orders))
    for name, value in (("durations", durations), ("quantum", quantum)):
        if value is not None and within_queue != "gittins":
            raise FormulationError(f"tiresias: {name} is given, but within_queue is {within_queue!r}, not 'gittins'")
    return Policy(
        objective=Priority([queues, *orders[within_queue]()], backfill=backfill),
        **{
            "name": "tiresias",
            "source": "Tiresias (NSDI 2019)",
            "description": "serve jobs by queues of attained GPU time",
            **options,
        },
    )


def gittins(
    durations: Durations = None,
    quantum: float | None = QUANTUM,
    index: str = "gittins",
    gpu_weighted: bool = True,
    backfill: bool = True,
    **options: Any,
) -> Policy:
    """Highest Gittins index first, ``P(S - a ≤ Δ | S > a) / E[min(S - a, Δ) | S > a]`` at the attained service a.

    ``durations``: past jobs' service (GPU-s), numbers or a file with one a line; default: that of 1000 jobs shipped
    with Tiresias. ``quantum`` Δ, None for the best one at each a (the Gittins index proper). ``index="published"`` is
    the order of Tiresias' simulator, which differs, see :class:`TiresiasGittinsRank`.
    """
    if index not in ("gittins", "published"):
        raise UnknownNameError("index", str(index), ["gittins", "published"])
    if index == "published" and quantum is None:
        raise FormulationError("gittins: index 'published' needs a quantum: the simulator has no best one")
    distribution = _distribution(durations)
    order: OrderKey = (
        GittinsIndex(distribution, gpu_weighted, quantum)
        if index == "gittins"
        else TiresiasGittinsRank(distribution, gpu_weighted, QUANTUM if quantum is None else quantum)
    )
    return Policy(
        objective=Priority([order, Arrival()], backfill=backfill),
        **{
            "name": "gittins",
            "source": "Tiresias (NSDI 2019); Gittins (1979)",
            "description": "serve jobs most likely to end soon for their service first",
            **options,
        },
    )


def serpt(durations: Durations = None, gpu_weighted: bool = True, backfill: bool = True, **options: Any) -> Policy:
    """Shortest expected remaining service first, ``E[S - a | S > a]`` of past jobs' ``durations`` (as for gittins)."""
    return Policy(
        objective=Priority([ExpectedRemaining(_distribution(durations), gpu_weighted), Arrival()], backfill=backfill),
        **{
            "name": "serpt",
            "source": "Tiresias (NSDI 2019), shortest-expected of its simulator",
            "description": "serve jobs with the least expected GPU time left first",
            **options,
        },
    )


def _distribution(durations: Durations) -> DurationDistribution:
    if isinstance(durations, DurationDistribution):
        return durations
    if durations is None:
        from bloxopt.workloads.shipped import data_path

        return DurationDistribution(data_path(DURATIONS))
    return DurationDistribution(durations)
