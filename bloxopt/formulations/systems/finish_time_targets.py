"""Until when each job should have finished for sharing to be fair to it, averaged over how contended it was."""

from __future__ import annotations

import numpy as np

from bloxopt.formulations.space import AllocationSpace
from bloxopt.formulations.systems.predicted_work import PredictedWork
from bloxopt.jobs import FloatArray

MOMENTUM = 0.9
"""Weight of the average over time against the latest estimate."""


def fair_share(space: AllocationSpace) -> float:
    """Part of the time that each job would have with an equal share of the GPUs: ``min(1, GPUs / jobs)``."""
    return min(1.0, float(space.capacity.sum()) / max(space.num_jobs, 1))


def finish_time_targets(space: AllocationSpace, work: PredictedWork, memory: str, renew: bool) -> FloatArray:
    """Absolute times (s) by which jobs finish if sharing is fair, (num_jobs,).

    An estimate is ``arrival + (time spent + time remaining) / share`` with the equal share of the moment. ``renew``
    makes a new one (when jobs have come or gone); each counts for as long as it was the latest, and the target is 0.9
    of that average and 0.1 of the latest. Kept in the ledger's memories that begin with ``memory``. Source: Zheng et
    al., NSDI 2023, its implementation.
    """
    ledger, index = space.ledger, space.index
    area = ledger.memory(f"{memory}.target_area")
    latest = ledger.memory(f"{memory}.target", np.nan)
    since = ledger.memory(f"{memory}.target_since", np.nan)
    first = ledger.memory(f"{memory}.target_first", np.nan)
    new = np.isnan(latest[index])
    if renew or new.any():
        rows = index if renew else index[new]
        known = rows[~np.isnan(latest[rows])]
        area[known] += latest[known] * (space.now - since[known])
        estimate = space.arrival + (work.spent + work.remaining) / fair_share(space)
        latest[rows] = estimate if renew else estimate[new]
        since[rows] = space.now
        first[rows] = np.where(np.isnan(first[rows]), space.now, first[rows])
    elapsed = space.now - first[index]
    so_far = area[index] + latest[index] * (space.now - since[index])
    average = np.divide(so_far, elapsed, out=latest[index].copy(), where=elapsed > 0)
    target: FloatArray = MOMENTUM * average + (1.0 - MOMENTUM) * latest[index]
    return target
