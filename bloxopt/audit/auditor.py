"""The audit of a policy over a whole simulation: every plan judged by every property."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bloxopt.audit.properties import Property, Question
from bloxopt.errors import InputError
from bloxopt.formulations.allocation import Allocation
from bloxopt.formulations.policy import Policy
from bloxopt.formulations.space import AllocationSpace
from bloxopt.simulation.arguments import checked_seed

if TYPE_CHECKING:
    from bloxopt.cluster import Cluster
    from bloxopt.simulation.result import SimulationResult
    from bloxopt.workloads.trace import Trace

Allocate = Callable[[AllocationSpace], Allocation]

_COLUMNS = ("property", "time", "jobs", "places", "broken", "worst", "mean")


class Auditor:
    """Judges allocations one by one; given to ``simulate(inspect=...)``.

    Of every ``every`` plans one is judged. ``properties`` are names of :data:`PROPERTIES` (None: all of them) or
    :class:`Property` objects. ``seed`` drives the random choices of properties that make some.
    """

    def __init__(self, properties: Sequence[str | Property] | None = None, every: int = 1, seed: int = 0) -> None:
        from bloxopt.audit import PROPERTIES

        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InputError(f"every is {every!r}: it must be a whole number of plans >= 1")
        chosen = list(PROPERTIES) if properties is None else list(properties)
        if not chosen:
            raise InputError("no property to audit: name at least one")
        self.properties: list[Property] = [PROPERTIES.get(p) if isinstance(p, str) else p for p in chosen]
        names = [entry.name for entry in self.properties]
        if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
            raise InputError(f"property {twice!r} is named twice: once is enough")
        self.every = every
        self._random = np.random.default_rng([checked_seed(seed), 0xA0D17])
        self._plans = 0
        self._rows: list[tuple[Any, ...]] = []

    def __call__(self, allocation: Allocation, allocate: Allocate) -> None:
        """Judge one allocation; ``allocate`` is how its policy allocates.

        The space it belongs to must still be as it was when it was made.
        """
        self._plans += 1
        if (self._plans - 1) % self.every:
            return
        space = allocation.space
        for entry in self.properties:
            amounts = np.asarray(entry.amounts(Question(allocation, allocate, self._random)), dtype=np.float64)
            amounts = amounts[~np.isnan(amounts)]
            broken = amounts[amounts > entry.tolerance]
            worst, mean = (float(broken.max()), float(broken.mean())) if len(broken) else (0.0, 0.0)
            self._rows.append((entry.name, space.now, space.num_jobs, len(amounts), len(broken), worst, mean))

    def plans(self) -> pd.DataFrame:
        """One row a plan and property.

        ``time`` (s), active ``jobs``, ``places`` looked at, at how many the property is ``broken``, the ``worst`` and
        the ``mean`` amount there.
        """
        return pd.DataFrame(self._rows, columns=list(_COLUMNS))


@dataclass(frozen=True, eq=False)
class AuditReport:
    """``summary``: one row a property; ``plans``: one row a plan and property; ``result``: the simulation audited."""

    summary: pd.DataFrame
    plans: pd.DataFrame
    result: SimulationResult


def audit(
    trace: str | Path | Trace,
    cluster: str | Path | Cluster,
    policy: str | Policy = "max_min_fairness",
    properties: Sequence[str | Property] | None = None,
    every: int = 1,
    seed: int = 0,
    **simulation: Any,
) -> AuditReport:
    """Simulate and judge every plan; further arguments go to :func:`~bloxopt.simulate`.

    Raises :class:`~bloxopt.errors.UnknownNameError` for a property that does not exist, and
    :class:`~bloxopt.errors.InputError` where the simulation makes no plans.
    """
    from bloxopt.simulation import simulate

    auditor = Auditor(properties, every, seed)
    result = simulate(trace, cluster, policy, seed=seed, inspect=auditor, **simulation)
    return report(auditor, result)


def report(auditor: Auditor, result: SimulationResult) -> AuditReport:
    """What an auditor saw during a simulation, summed up."""
    plans = auditor.plans()
    if plans.empty:
        raise InputError(
            "nothing to audit: the simulation made no plans, because its selector follows the policy's ranking alone; "
            "use the 'priorities' selector"
        )
    return AuditReport(_summary(plans, auditor.properties), plans, result)


def _summary(plans: pd.DataFrame, properties: Sequence[Property]) -> pd.DataFrame:
    """Per property: of how many plans and places it is broken, and by how much where it is."""
    rows = []
    for entry in properties:
        mine = plans[plans["property"] == entry.name]
        broken = mine["broken"].to_numpy()
        rows.append(
            {
                "property": entry.name,
                "says": entry.says,
                "plans": len(mine),
                "plans_broken": int((broken > 0).sum()),
                "places": int(mine["places"].sum()),
                "places_broken": int(broken.sum()),
                "worst": float(mine["worst"].max()),
                "mean": float((mine["mean"] * broken).sum() / broken.sum()) if broken.sum() else 0.0,
            }
        )
    return pd.DataFrame(rows)
