"""Most work for the money, without and with deadlines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bloxopt.arguments import unknown_name
from bloxopt.errors import FormulationError
from bloxopt.formulations import Affine, Cost, DeadlinesFirst, MaxSum, Objective, Policy, Program
from bloxopt.formulations.checks import checked_amount
from bloxopt.formulations.expressions import Expression
from bloxopt.formulations.measures import positive_rate
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray

PRICES: Mapping[str, float] = {"v100": 0.74, "p100": 0.43, "k80": 0.135}
"""US dollars per GPU-hour: what Gavel's simulator uses for Google Cloud's preemptible GPUs (its scheduler/utils.py)."""


def min_cost(prices: Mapping[str, float] | None = None, normalized: bool = False, **options: Any) -> Policy:
    """``max Σ_i Σ_j T_ij / price_j x_ij``, most throughput per dollar (Gavel, OSDI 2020, §4.2, as its code has it).

    ``prices`` per GPU-hour by GPU type, :data:`PRICES` for those not named (without ``prices``, on a cluster that has
    none of these types, a GPU-hour costs 1); ``normalized`` divides each job's steps/s by its rate on an average GPU,
    so that models with long and short steps count alike.
    """
    return Policy(
        objective=MaxSum(ThroughputPerCost(Prices(prices), normalized)),
        **{
            "name": "min_cost",
            "source": "Gavel (OSDI 2020)",
            "description": "most throughput per dollar",
            **options,
        },
    )


def min_cost_slos(
    prices: Mapping[str, float] | None = None,
    normalized: bool = False,
    frugal: bool = False,
    unmet: Literal["fewest", "least"] = "fewest",
    **options: Any,
) -> Policy:
    """Deadlines first, then most throughput per dollar (Gavel's ``..._by_cost_perf_SLOs``).

    Deadlines that cannot all be kept are given up one by one and named in ``Allocation.message`` (Gavel drops all).
    ``frugal`` spends as little as the deadlines allow instead: jobs without one then wait.
    """
    price = Prices(prices)
    spend: Objective = LeastCost(price) if frugal else MaxSum(ThroughputPerCost(price, normalized))
    return Policy(
        objective=DeadlinesFirst(spend, unmet),
        **{
            "name": "min_cost_slos",
            "source": "Gavel (OSDI 2020)",
            "description": "keep deadlines, then " + ("spend least" if frugal else "most throughput per dollar"),
            **options,
        },
    )


@dataclass(frozen=True)
class Prices:
    """Dollars per GPU-hour by GPU type, in any case: those ``given``, :data:`PRICES` for all others.

    Raises :class:`FormulationError` for a price that is no finite number > 0.
    """

    given: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        given: object = self.given
        if given is not None and not isinstance(given, Mapping):
            raise FormulationError(
                f"min_cost: prices is {given!r}, must be a table of dollars per GPU-hour by GPU type"
            )
        for name, value in (self.given or {}).items():
            checked_amount("min_cost", f"price of GPU type {name!r}", value)
            if value <= 0:
                raise FormulationError(f"min_cost: price of GPU type {name!r} is {value!r}, must be > 0")

    def of_each_type(self, space: AllocationSpace) -> FloatArray:
        """The prices of the cluster's GPU types (types,); 1 each where nobody gave any, and none has a default.

        One list may serve several clusters. But raises :class:`FormulationError` for a GPU type that has no price
        beside others that have one; and where one that is not named comes beside a name that the cluster does not
        have, which must be a slip. Not so on a live cluster, whose types come and go.
        """
        given = {str(name).lower(): float(value) for name, value in (self.given or {}).items()}
        known = {**PRICES, **given}
        types = [name.lower() for name in space.gpu_types]
        strange = [str(name) for name in self.given or {} if str(name).lower() not in types]
        missing = [name for name in space.gpu_types if name.lower() not in given]
        if strange and missing and not space.catalog.table.is_open:
            raise FormulationError(
                f"min_cost: price of GPU type {strange[0]!r}, which the cluster does not have, and none is given for "
                f"{missing[0]!r}: {unknown_name(strange[0], space.gpu_types)}"
            )
        if not any(name in known for name in types):
            return np.ones(len(types))
        for name in space.gpu_types:
            if name.lower() not in known:
                raise FormulationError(
                    f"min_cost: no price for GPU type {name!r}; known are {', '.join(known)}: give "
                    f"prices={{{name!r}: ...}}"
                )
        return np.array([known[name] for name in types], dtype=np.float64)


@dataclass(frozen=True)
class ThroughputPerCost(Expression):
    """Steps/s of each job per dollar an hour of one GPU of the type it runs on: ``Σ_j T_ij / price_j x_ij``."""

    price: Prices
    normalized: bool = False
    progress_dependent = False

    def build(self, space: AllocationSpace) -> FloatArray:
        each = self.price.of_each_type(space)
        value = space.rate / each[space.gpu_type]
        if self.normalized:
            value = value * (space.requested_demand / positive_rate(space.proportional_rate, space))[space.job]
        return value


@dataclass(frozen=True, eq=False)
class LeastCost(Objective):
    """``min Σ_i Σ_j price_j s_i x_ij``, dollars per hour. GPUs that nobody was promised stay idle: they cost."""

    price: Prices
    progress_dependent = False
    work_conserving = False
    minimised = True

    def terms(self, space: AllocationSpace, program: Program) -> Affine:
        return self._cost(space).terms(space, program)

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        return self._cost(space).utility(space, x)

    def _cost(self, space: AllocationSpace) -> MaxSum:
        price = self.price.of_each_type(space)
        return MaxSum(-Cost(dict(zip(space.gpu_types, price.tolist(), strict=True))))
