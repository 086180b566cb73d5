"""Orders by what past jobs tell of how much longer a job will run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.checks import checked_amount, checked_flag, shown
from bloxopt.formulations.orders.duration_distribution import DurationDistribution
from bloxopt.formulations.orders.order_keys import OrderKey
from bloxopt.formulations.orders.service_queues import service_per_second
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray


@dataclass(frozen=True)
class _FromDistribution(OrderKey):
    """Base of keys that follow from service received, GPU-seconds or (``gpu_weighted`` False) seconds run."""

    distribution: DurationDistribution
    gpu_weighted: bool = True

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.distribution, DurationDistribution):
            raise FormulationError(
                f"{name}: distribution is {shown(self.distribution)}, must be a DurationDistribution([...])"
            )
        checked_flag(name, "gpu_weighted", self.gpu_weighted)

    def service(self, space: AllocationSpace) -> FloatArray:
        return space.attained_service if self.gpu_weighted else space.attained_seconds


@dataclass(frozen=True)
class GittinsIndex(_FromDistribution):
    """Highest Gittins index first, worked out for ``quantum`` (same unit as the service), None for the best one.

    See :meth:`DurationDistribution.gittins_index`.
    """

    quantum: float | None = None
    progress_dependent = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantum is not None:
            object.__setattr__(self, "quantum", _checked_quantum("GittinsIndex", self.quantum))

    def key(self, space: AllocationSpace) -> FloatArray:
        return -self.distribution.gittins_index(self.service(space), self.quantum)[0]

    def next_change(self, space: AllocationSpace) -> float:
        """Seconds until a running job has received its quantum."""
        _, span = self.distribution.gittins_index(self.service(space), self.quantum)
        speed = service_per_second(space) if self.gpu_weighted else np.ones(space.num_jobs)
        return float(np.min(span / speed, where=space.running, initial=np.inf))


@dataclass(frozen=True)
class TiresiasGittinsRank(_FromDistribution):
    """The order of the ``gittins`` schedule of Tiresias' simulator (run_sim.py), as it is published.

    It differs from the definition in two ways: ``E`` averages whole durations where the definition has what is left
    of them, with the service rounded up to just below the next sample; and jobs run in ascending order of the value,
    as if it were its inverse, so that newcomers come last. It is here to reproduce published figures.
    """

    quantum: float = 3250.0
    progress_dependent = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "quantum", _checked_quantum("TiresiasGittinsRank", self.quantum))

    def key(self, space: AllocationSpace) -> FloatArray:
        samples = self.distribution.samples
        service, most = self.service(space), len(samples) - 1
        first = np.searchsorted(samples, service, side="right")
        known = first <= most
        first = np.minimum(first, most)
        reached = samples[first] - 1.0 + self.quantum
        last = np.where(reached > samples[-1] - 1.0, most, np.searchsorted(samples, reached, side="right"))
        total = np.concatenate([[0.0], np.cumsum(samples)])
        used = total[last] - total[first] + self.quantum * (len(samples) - last)
        return np.where(known, (last - first) / used, 0.0)


@dataclass(frozen=True)
class ExpectedRemaining(_FromDistribution):
    """Least expected remaining service first, ``E[S - a | S > a]``; jobs longer than all samples come last (SERPT)."""

    progress_dependent = True

    def key(self, space: AllocationSpace) -> FloatArray:
        return self.distribution.mean_remaining(self.service(space))


def _checked_quantum(user: str, quantum: float) -> float:
    service = checked_amount(user, "quantum", quantum)
    if service <= 0:
        raise FormulationError(f"{user}: quantum is {shown(quantum)}, must be greater than 0")
    return service
