"""The order of deadlines."""

from __future__ import annotations

from dataclasses import dataclass

from bloxopt.formulations.orders.order_keys import OrderKey
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray


@dataclass(frozen=True)
class EarliestDeadline(OrderKey):
    """Earliest deadline first: the absolute time (s); jobs without one come last."""

    progress_dependent = False

    def key(self, space: AllocationSpace) -> FloatArray:
        return space.deadline
