"""How long jobs take on the GPUs that they ask for, as it is known or as somebody estimates it."""

from __future__ import annotations

import math

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.checks import checked_amount, shown
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray


def check_estimate_error(user: str, error: float, seed: int) -> None:
    """Raise :class:`FormulationError` naming ``user`` for an error below 0 or a seed that is none."""
    checked_amount(user, "estimate_error", error)
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise FormulationError(f"{user}: seed is {shown(seed)}, must be a whole number >= 0")


def estimated_steps(space: AllocationSpace, error: float, seed: int) -> FloatArray:
    """Total steps of each active job, off by a factor ``exp(error · z)`` with z standard normal, drawn once a job."""
    total: FloatArray = space.catalog.table.total_steps[space.index]
    if not error:
        return total
    drawn = space.ledger.memory(f"size_estimates.{seed}", math.nan)
    if math.isnan(drawn[0]):
        drawn[:] = np.random.default_rng(seed).standard_normal(len(drawn))
    with np.errstate(over="ignore"):  # an estimate may be beyond all numbers
        return total * np.exp(error * drawn[space.index])


def seconds_as_requested(space: AllocationSpace, steps: FloatArray, as_it_runs: bool = False) -> FloatArray:
    """Seconds that ``steps`` take each active job at its best rate on the GPUs it asks for; inf where it cannot run.

    ``as_it_runs``: with the CPUs and memory that it has now (:mod:`bloxopt.hosts`), not those of the trace's rates.
    """
    rate = space.catalog.best_requested_rate[space.index]
    if not rate.all():
        rate = np.where(rate > 0, rate, space.fastest_rate)
    if as_it_runs and space.ledger.host_factor is not None:
        rate = rate * space.ledger.host_factor[space.index]
    with np.errstate(divide="ignore"):
        return steps / rate
