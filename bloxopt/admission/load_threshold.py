"""Load threshold: jobs are let in while those that are in do not ask for too much."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from bloxopt.admission.base import Otherwise, checked_otherwise
from bloxopt.errors import InputError
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray


class LoadThreshold:
    """Admit in order of arrival while the outstanding demand is at most a multiple of the GPUs that are up.

    ``measure`` is what jobs that are in still ask for: ``"gpus"`` at a time, to ``multiple`` × the GPUs up, or
    ``"gpu_seconds"`` of work left on the GPUs they ask for (of their fastest type), to ``multiple`` seconds of all
    GPUs up. The first job that finds the demand above the limit and all behind it wait, or are rejected with
    ``otherwise="reject"``. As in Blox, what counts is the demand before a job is let in, so an idle cluster takes
    any. Source: Agarwal et al., "Blox", EuroSys 2024 (its load-based acceptance). Raises
    :class:`~bloxopt.errors.InputError` for a ``multiple`` that is no finite number > 0 and for unknown words.
    """

    def __init__(
        self,
        multiple: float = 1.2,
        measure: Literal["gpus", "gpu_seconds"] = "gpus",
        otherwise: Otherwise = "wait",
    ) -> None:
        if isinstance(multiple, bool) or not isinstance(multiple, (int, float)) or not 0 < multiple < math.inf:
            raise InputError(f"load_threshold: multiple is {multiple!r}, must be a finite number > 0")
        if measure not in ("gpus", "gpu_seconds"):
            raise InputError(f"load_threshold: measure is {measure!r}, must be 'gpus' or 'gpu_seconds'")
        self.multiple = float(multiple)
        self.measure = measure
        self.otherwise = checked_otherwise("load_threshold", otherwise)

    def decide(self, submitted: IntArray, space: AllocationSpace) -> tuple[IntArray, IntArray]:
        demand = self._demand(space.including(submitted))
        # What is in when each submitted job is looked at, if all before it have been let in.
        before = np.cumsum(demand)[space.num_jobs :] - demand[space.num_jobs :]
        limit = self.multiple * float(space.capacity.sum())
        count = int((before <= limit * (1.0 + 1e-12)).sum())
        admit, rest = submitted[:count], submitted[count:]
        if len(rest):
            used, unit = ("GPUs asked for", "GPUs") if self.measure == "gpus" else ("work outstanding", "GPU-seconds")
            space.ledger.explain(rest, f"{used} by the jobs that are in exceed {limit:g} {unit}")
        return admit, rest if self.otherwise == "reject" else rest[:0]

    def _demand(self, space: AllocationSpace) -> FloatArray:
        """What each job asks for, (num_jobs,)."""
        gpus = np.asarray(space.requested_demand, dtype=np.float64)
        if self.measure == "gpus":
            return gpus
        rate = space.catalog.best_requested_rate[space.index]
        rate = np.where(rate > 0, rate, np.maximum(space.fastest_rate, 1e-300))
        return gpus * space.remaining_steps / rate
