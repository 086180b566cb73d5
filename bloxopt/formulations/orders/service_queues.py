"""Queues by service received (Tiresias' discretised 2D-LAS), and the order within one queue."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.checks import checked_amount, checked_flag, shown
from bloxopt.formulations.orders.order_keys import OrderKey
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray

_MOMENT = 1e-6
"""Seconds: a job this close to a limit has reached it. Service adds up to a rounding error."""


@dataclass(frozen=True)
class ServiceQueue(OrderKey):
    """The number of the queue in which a job waits or runs: how many ``limits`` its service has reached.

    ``limits`` ascending, in GPU-seconds, or in seconds run with ``gpu_weighted`` False; n of them make n + 1
    queues. A job that leaves the first queue and then waits at least ``promote_knob`` times as long as it has run goes
    back to the first one, and its service and waiting count from zero again (None: never). Waiting before a job first
    runs does not count. Source: Tiresias (Gu et al., NSDI 2019, §3.3). Raises :class:`FormulationError` for limits
    that do not ascend.
    """

    limits: Iterable[float]
    promote_knob: float | None = None
    gpu_weighted: bool = True
    progress_dependent = True

    def __post_init__(self) -> None:
        name = type(self).__name__
        if isinstance(self.limits, (str, bytes, Mapping)) or not isinstance(self.limits, Iterable):
            raise FormulationError(f"{name}: limits is {shown(self.limits)}, must be a list of amounts of service")
        limits = tuple(checked_amount(name, "a limit", limit) for limit in self.limits)
        if any(low >= high for low, high in zip((0.0, *limits), limits, strict=False)):
            raise FormulationError(f"{name}: limits are {shown(list(limits))}, must ascend, the first greater than 0")
        if self.promote_knob is not None:
            checked_amount(name, "promote_knob", self.promote_knob)
        checked_flag(name, "gpu_weighted", self.gpu_weighted)
        object.__setattr__(self, "limits", limits)

    def key(self, space: AllocationSpace) -> FloatArray:
        service = space.attained_service if self.gpu_weighted else space.attained_seconds
        if self.promote_knob is None:
            return self._queue(space, service).astype(np.float64)
        index, ledger = space.index, space.ledger
        service = service - self._since_promotion(space, "service")
        queue = self._queue(space, service)
        run, waited = self._times(space)
        promoted = (queue > 0) & ~space.running & (run > 0) & (waited >= self.promote_knob * run - _MOMENT)
        if promoted.any():
            rows = index[promoted]
            queue[promoted] = 0
            ledger.memory("service_queue.service")[rows] += service[promoted]
            ledger.memory("service_queue.seconds")[rows] = ledger.attained_seconds[rows]
            ledger.memory("service_queue.since", math.nan)[rows] = math.nan
            ledger.memory("service_queue.promotions")[rows] += 1
        return queue.astype(np.float64)

    def next_change(self, space: AllocationSpace) -> float:
        """Seconds until a running job reaches its next limit or a waiting one is promoted."""
        service = space.attained_service if self.gpu_weighted else space.attained_seconds
        if self.promote_knob is not None:
            service = service - self._since_promotion(space, "service")
        queue, speed = self._queue(space, service), self._speed(space)
        ahead = np.append(np.asarray(self.limits), math.inf)[queue] - service
        soonest = float(np.min(ahead / speed, where=space.running, initial=math.inf))
        if self.promote_knob is not None:
            run, waited = self._times(space)
            left = self.promote_knob * run - waited
            # Who has waited long enough already has just been stopped, and is promoted at the next event.
            waits = (queue > 0) & ~space.running & (run > 0) & (left > _MOMENT)
            soonest = float(np.min(left, where=waits, initial=soonest))
        return soonest

    def _queue(self, space: AllocationSpace, service: FloatArray) -> IntArray:
        return np.searchsorted(np.asarray(self.limits), service + _MOMENT * self._speed(space), side="right")

    def _speed(self, space: AllocationSpace) -> FloatArray | IntArray:
        """Service per second of a job on the GPUs that it has, or asks for."""
        return service_per_second(space) if self.gpu_weighted else np.ones(space.num_jobs)

    def _since_promotion(self, space: AllocationSpace, what: str) -> FloatArray:
        """What a job had received when it was last promoted, 0 if never."""
        had: FloatArray = space.ledger.memory(f"service_queue.{what}")[space.index]
        return had

    def _times(self, space: AllocationSpace) -> tuple[FloatArray, FloatArray]:
        """Seconds that each job has run, and has waited since it first ran, both since its last promotion."""
        run = space.attained_seconds - self._since_promotion(space, "seconds")
        since = space.ledger.memory("service_queue.since", math.nan)
        # The order is asked for in every round, so what has run by now for the first time has run without a break.
        starts = (run > 0) & np.isnan(since[space.index])
        since[space.index[starts]] = space.now - run[starts]
        waited = np.where(run > 0, space.now - since[space.index] - run, 0.0)
        return run, waited


@dataclass(frozen=True)
class QueuePosition(OrderKey):
    """The place of a job in the list of its queue: who joins a queue, from another or new, goes to its end.

    With ``running_first`` jobs that run are moved before those that wait whenever something has changed, so that
    within a queue none is preempted: Tiresias' simulator. Without, the order of joining stands (AdaptDL's Tiresias).
    """

    queues: ServiceQueue
    running_first: bool = True
    progress_dependent = True

    def __post_init__(self) -> None:
        if not isinstance(self.queues, ServiceQueue):
            raise FormulationError(f"QueuePosition: queues is {shown(self.queues)}, must be a ServiceQueue")
        checked_flag("QueuePosition", "running_first", self.running_first)

    def key(self, space: AllocationSpace) -> FloatArray:
        index, memory = space.index, space.ledger.memory
        place, seen = memory("queue_position.place"), memory("queue_position.seen", math.nan)
        if not (seen[index] == space.now).all():
            queue, queue_before = self.queues.key(space), memory("queue_position.queue", -1.0)
            new = np.isnan(seen[index])
            joins = new | (queue != queue_before[index])
            behind = ~space.running if self.running_first else np.zeros(space.num_jobs, dtype=bool)
            # New jobs join before those that come from another queue; each kind in order of admission.
            order = np.lexsort([np.where(joins, ~new, place[index]), ~joins & behind, joins])
            place[index[order]] = np.arange(space.num_jobs)
            queue_before[index], seen[index] = queue, space.now
        position: FloatArray = place[index]
        return position

    def next_change(self, space: AllocationSpace) -> float:
        """Places change as queues do."""
        return self.queues.next_change(space)


@dataclass(frozen=True)
class FirstStart(OrderKey):
    """The time at which a job first started (s); those that have not come last, in order of arrival."""

    progress_dependent = True

    def key(self, space: AllocationSpace) -> FloatArray:
        start: FloatArray = space.ledger.start[space.index]
        return np.where(np.isnan(start), math.inf, start)


def service_per_second(space: AllocationSpace) -> FloatArray | IntArray:
    """GPU-seconds per second that each job receives on the GPUs it has, or would on those it asks for."""
    gpus = np.where(space.running, space.current_num_gpus, space.requested_gpus)
    table = space.catalog.table
    return gpus * table.gpu_share[space.index] if table.has_shares else gpus
