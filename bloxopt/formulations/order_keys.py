"""What a queue is sorted by: one number per active job, smallest first, ties in order of admission."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray


class OrderKey:
    """Base of order keys; a user's own overrides :meth:`key`."""

    progress_dependent = False
    """True if the key changes as jobs run, so that the order must be worked out every round."""

    def key(self, space: AllocationSpace) -> FloatArray:
        """One number per active job; the smallest goes first."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it sorts by: override key(space)")


@dataclass(frozen=True)
class Arrival(OrderKey):
    """First come, first served: the time of arrival (s)."""

    def key(self, space: AllocationSpace) -> FloatArray:
        return space.arrival


@dataclass(frozen=True)
class AttainedService(OrderKey):
    """Least attained service: GPU-seconds received (Tiresias, NSDI 2019).

    With ``gpu_weighted`` False the seconds run, whatever the number of GPUs (Blox).
    """

    gpu_weighted: bool = True
    progress_dependent = True

    def key(self, space: AllocationSpace) -> FloatArray:
        return space.attained_service if self.gpu_weighted else space.attained_seconds


@dataclass(frozen=True)
class ShortestRemaining(OrderKey):
    """Shortest remaining time: steps left over the best rate at the GPU count that the job asks for (s)."""

    progress_dependent = True

    def key(self, space: AllocationSpace) -> FloatArray:
        rate = space.catalog.best_requested_rate[space.index]
        if not rate.all():
            rate = np.where(rate > 0, rate, space.fastest_rate)
        with np.errstate(divide="ignore"):
            return space.remaining_steps / rate
