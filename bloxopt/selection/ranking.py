"""The policy's ranking as a queue: waiting jobs may evict those ranked after them (Blox)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bloxopt.errors import ConfigError, FormulationError
from bloxopt.formulations.space import AllocationSpace, ConfigurationCatalog
from bloxopt.jobs import FloatArray
from bloxopt.placement.passes import preferred_types
from bloxopt.selection.base import Plan, Queue

if TYPE_CHECKING:
    from bloxopt.formulations.policy import Policy


class Ranking:
    """Serve jobs in the order of the policy's ranking, whatever their GPU counts; no program is solved.

    An elastic job gets the GPUs it asks for or, where no such gang can run, the largest that can.

    ``starvation_seconds``: a job that went so long without running moves to the front for good (None:
    never). Source: Blox, EuroSys 2024.
    """

    needs_plan = False

    def __init__(self, starvation_seconds: float | None = None) -> None:
        if starvation_seconds is not None and not starvation_seconds >= 0:
            raise ConfigError(
                f"selector 'ranking': starvation_seconds is {starvation_seconds!r}, must be a number of seconds >= 0"
            )
        self.starvation_seconds = starvation_seconds
        self._catalog: ConfigurationCatalog | None = None
        self._num_gpus: list[int] = []
        self._preference: list[list[int]] = []

    def replanned(self, previous: Plan | None, space: AllocationSpace) -> None:
        """Nothing to carry over: the ranking is all there is."""

    def select(self, policy: Policy, space: AllocationSpace, plan: Plan | None) -> Queue:
        order = policy.rank(space)
        if order is None:
            raise FormulationError(
                f"policy {policy.name!r} gives shares of time, not a ranking, which the 'ranking' selector (preset "
                "'blox') needs: use fifo, srtf or las, or the 'priorities' selector"
            )
        if self._catalog is not space.catalog:
            self._catalog = space.catalog
            self._num_gpus, rate = _sizes(space.catalog)
            self._preference = preferred_types(rate)
        if self.starvation_seconds is not None:
            order = order[np.argsort(~self._starved(space, self.starvation_seconds)[order], kind="stable")]
        queue = space.index[order]
        limits = policy.round_limits(space)
        if limits is None:
            return Queue(queue, self._num_gpus, self._preference)
        # Who comes first takes its part of every limit; who then has none left sits this round out.
        admitted = np.array(
            [
                any(limits.admit(row, kind, self._num_gpus[row]) for kind in self._preference[row])
                for row in queue.tolist()
            ],
            dtype=bool,
        )
        return Queue(queue[admitted], self._num_gpus, self._preference, queue[~admitted].tolist())

    def _starved(self, space: AllocationSpace, limit: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Active jobs that have been promoted, (num_jobs,)."""
        last_ran = space.ledger.memory("ranking.last_ran", np.nan)
        promoted = space.ledger.memory("ranking.promoted", False)
        index = space.index
        last = last_ran[index]
        # A job evicted in a round counts as unscheduled from the next one on: what runs now counts to its end.
        last = np.where(np.isnan(last), space.now, np.where(space.running, space.now + space.round_seconds, last))
        last_ran[index] = last
        promoted[index] |= space.now - last >= limit
        return promoted[index]


def _sizes(catalog: ConfigurationCatalog) -> tuple[list[int], FloatArray]:
    """GPUs that each job is served with, and its rates on each type at that count, (jobs, types)."""
    sizes, rate = catalog.table.num_gpus.tolist(), catalog.requested_rate
    if catalog.rigid:
        return sizes, rate
    rate = np.zeros_like(rate)
    for row, asked in enumerate(sizes):
        columns = slice(catalog.offsets[row], catalog.offsets[row + 1])
        counts = catalog.num_gpus[columns]
        sizes[row] = size = asked if asked in counts else int(counts.max())
        chosen = counts == size
        rate[row, catalog.gpu_type[columns][chosen]] = catalog.rate[columns][chosen]
    return sizes, rate
