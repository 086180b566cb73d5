"""What a queue is sorted by: one number per active job, smallest first, ties in order of admission."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bloxopt.errors import FormulationError, guarded
from bloxopt.formulations.checks import checked_flag, real_numbers, shown
from bloxopt.formulations.orders.size_estimates import check_estimate_error, estimated_steps, seconds_as_requested
from bloxopt.formulations.progress import ProgressDependent
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray

_OURS = "bloxopt.formulations."


class OrderKey(ProgressDependent):
    """Base of order keys; a user's own overrides :meth:`key`.

    Unless it says ``progress_dependent = False`` the order is worked out anew in every round.
    """

    def key(self, space: AllocationSpace) -> FloatArray:
        """One number per active job, (num_jobs,); the smallest goes first. Infinite ones may go, NaN may not."""
        raise FormulationError(
            f"order key {type(self).__name__} does not say what it sorts by: override key(space) with one number per "
            "active job"
        )

    def next_change(self, space: AllocationSpace) -> float:
        """Seconds until the order changes next if what runs now goes on and no job comes or ends; inf if unknown.

        Asked for where rounds end at the next event (``round_end="next_event"``), after the jobs of ``space`` have
        started or stopped. A key that changes all the time, or that cannot tell, is asked again when the round ends.
        """
        return math.inf


def key_of(order: OrderKey, space: AllocationSpace) -> NDArray[Any]:
    """The numbers to sort by, (num_jobs,); raises :class:`FormulationError` naming a key that gives anything else."""
    if type(order).__module__.startswith(_OURS):
        return order.key(space)  # our own keys need no check, and rankings are asked for in every round
    name = type(order).__name__
    with guarded(f"order key {name}: key(space)", FormulationError):
        given = order.key(space)
    wanted = f"an array of {space.num_jobs} numbers, one per active job"
    numbers = real_numbers(f"order key {name}: what key(space) gave", given, wanted)
    if numbers.shape != (space.num_jobs,):
        raise FormulationError(f"order key {name}: key(space) gave shape {numbers.shape}, must be {wanted}")
    if numbers.dtype.kind == "f" and np.isnan(numbers).any():
        job = space.job_ids[int(np.flatnonzero(np.isnan(numbers))[0])]
        raise FormulationError(f"order key {name}: the key of job {job!r} is NaN, must be a number")
    return numbers


def next_change_of(order: OrderKey, space: AllocationSpace) -> float:
    """What :meth:`OrderKey.next_change` says; raises :class:`FormulationError` naming a key that gives no number."""
    name = type(order).__name__
    with guarded(f"order key {name}: next_change(space)", FormulationError):
        given: Any = order.next_change(space)
    number = isinstance(given, (int, float, np.number)) and not isinstance(given, (bool, np.bool_))
    if not number or math.isnan(given):
        raise FormulationError(
            f"order key {name}: next_change(space) gave {shown(given)}, must be a number of seconds, inf if unknown"
        )
    return float(given)


@dataclass(frozen=True)
class Arrival(OrderKey):
    """First come, first served: the time of arrival (s)."""

    progress_dependent = False

    def key(self, space: AllocationSpace) -> FloatArray:
        return space.arrival


@dataclass(frozen=True)
class AttainedService(OrderKey):
    """Least attained service: GPU-seconds received (Tiresias, NSDI 2019).

    With ``gpu_weighted`` False the seconds run, whatever the number of GPUs (Blox).
    """

    gpu_weighted: bool = True
    progress_dependent = True

    def __post_init__(self) -> None:
        checked_flag("AttainedService", "gpu_weighted", self.gpu_weighted)

    def key(self, space: AllocationSpace) -> FloatArray:
        return space.attained_service if self.gpu_weighted else space.attained_seconds


@dataclass(frozen=True)
class ShortestRemaining(OrderKey):
    """Shortest remaining time: steps left over the best rate at the GPU count that the job asks for (s).

    ``gpu_weighted``: that times the GPUs asked for, the shortest remaining service (SRSF of Tiresias, NSDI 2019).
    ``estimate_error`` σ > 0: how much work a job is in all is not known but estimated, off by a factor ``exp(σ z)``
    with z standard normal, drawn once a job from ``seed``; a job that outlives its estimate has nothing left.
    """

    gpu_weighted: bool = False
    estimate_error: float = 0.0
    seed: int = 0
    progress_dependent = True

    def __post_init__(self) -> None:
        checked_flag("ShortestRemaining", "gpu_weighted", self.gpu_weighted)
        check_estimate_error("ShortestRemaining", self.estimate_error, self.seed)

    def key(self, space: AllocationSpace) -> FloatArray:
        steps = space.remaining_steps
        if self.estimate_error:
            done = space.catalog.table.total_steps[space.index] - steps
            steps = np.maximum(estimated_steps(space, self.estimate_error, self.seed) - done, 0.0)
        seconds = seconds_as_requested(space, steps, as_it_runs=True)
        return seconds * space.requested_demand if self.gpu_weighted else seconds


@dataclass(frozen=True)
class ShortestTotal(OrderKey):
    """Shortest job: all steps over the best rate at the GPU count that the job asks for (s).

    ``gpu_weighted``: that times the GPUs asked for, the shortest service. ``estimate_error`` and ``seed`` as for
    :class:`ShortestRemaining`.
    """

    gpu_weighted: bool = False
    estimate_error: float = 0.0
    seed: int = 0
    progress_dependent = False

    def __post_init__(self) -> None:
        checked_flag("ShortestTotal", "gpu_weighted", self.gpu_weighted)
        check_estimate_error("ShortestTotal", self.estimate_error, self.seed)

    def key(self, space: AllocationSpace) -> FloatArray:
        seconds = seconds_as_requested(space, estimated_steps(space, self.estimate_error, self.seed))
        return seconds * space.requested_demand if self.gpu_weighted else seconds
