"""An order by estimated finish-time ratio: the heuristic beside the program of finish-time fairness."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bloxopt.formulations.checks import checked_flag
from bloxopt.formulations.orders.order_keys import OrderKey, ShortestRemaining
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray


@dataclass(frozen=True)
class EstimatedFinishTimeRatio(OrderKey):
    """``ρ_i = (now − arrival_i + remaining time_i) / total time_i``, both at the GPUs that the job asks for.

    ``largest_first``: the job that is treated worst goes first, as in Themis (Mahajan et al., NSDI 2020); False is the
    order that Synergy's simulator uses. Where CPUs and memory are divided (:mod:`bloxopt.hosts`) the remaining time is
    that at the present rate, the total time that at the rates of the trace.
    """

    largest_first: bool = True
    progress_dependent = True

    def __post_init__(self) -> None:
        checked_flag("EstimatedFinishTimeRatio", "largest_first", self.largest_first)

    def key(self, space: AllocationSpace) -> FloatArray:
        rate = space.catalog.best_requested_rate[space.index]
        if not rate.all():
            rate = np.where(rate > 0, rate, space.fastest_rate)
        with np.errstate(divide="ignore", invalid="ignore"):
            total = space.catalog.table.total_steps[space.index] / rate
            ratio = (space.elapsed + ShortestRemaining().key(space)) / total
        # A job that can run nowhere just now has no finish time to compare.
        ratio = np.where(rate > 0, ratio, 0.0 if self.largest_first else np.inf)
        return -ratio if self.largest_first else ratio
