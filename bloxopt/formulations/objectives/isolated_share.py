"""The allocation that needs no optimisation: an equal part of the cluster for everyone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bloxopt.formulations.expressions import build_affine
from bloxopt.formulations.measures import NormalizedThroughput
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.solving.session import Outcome, Session
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray
from bloxopt.solvers.base import Termination


@dataclass(frozen=True)
class IsolatedShare(Objective):
    """Every job gets ``x_ij = c_j / (m s_i)`` at the GPU count it asks for, rows capped at 1 (Gavel's isolated).

    A closed form: no solver runs. The reported value is the smallest normalised throughput. Time on
    GPU types that a job cannot use is lost, as it would be on a partition of its own.
    """

    curvature = "staged"
    progress_dependent = False

    def solve(self, session: Session) -> Outcome:
        space = session.space
        asked = (space.num_gpus == space.requested_gpus[space.job]) & (space.partner < 0)
        x = np.where(asked, space.isolated_share[space.job, space.gpu_type], 0.0)
        value = self.utility(space, x)
        return Outcome(x, value, value, Termination.OPTIMAL, message="closed form")

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        rows = build_affine(NormalizedThroughput(), space, "IsolatedShare").only_counted()
        return float(rows.at(x).min()) if rows.num_rows else 0.0
