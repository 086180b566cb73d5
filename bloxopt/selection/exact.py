"""Exact selection: the set of jobs for this round that repays the most time owed, by a binary program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray
from bloxopt.selection.base import Decision, Plan

if TYPE_CHECKING:
    from bloxopt.formulations.policy import Policy


class ExactSelection:
    """Maximise the GPU time owed that is repaid: ``max Σ_c owed_c s_c y_c``, one column a job, within capacity.

    ``owed_c`` is share × (time since the plan was made + this round) − time received, in rounds, and
    ``s_c`` the column's GPUs. Columns without a share, or that have had more than theirs, get a small
    positive value (unless the policy forbids overtaking), so that no GPU idles without need. Solved by
    ``solver`` to ``mip_gap``.
    """

    needs_plan = True

    def __init__(self, solver: str = "auto", mip_gap: float = 1e-3, time_limit: float | None = 10.0) -> None:
        self.solver = solver
        self.mip_gap = mip_gap
        self.time_limit = time_limit

    def replanned(self, previous: Plan | None, now: float) -> None:
        """Nothing to carry over: what is owed is counted from the plan in force."""

    def select(self, policy: Policy, space: AllocationSpace, plan: Plan | None) -> Decision:
        from bloxopt.formulations import Capacity, ColumnValue, MaxSum, OneConfiguration
        from bloxopt.formulations.policy import Policy as ProgramPolicy
        from bloxopt.solvers.base import SolverOptions

        assert plan is not None
        value = self._value(space, plan, policy.work_conserving)
        program = ProgramPolicy(
            objective=MaxSum(ColumnValue(value)),
            constraints=[Capacity(), OneConfiguration()],
            solver=self.solver,
            options=SolverOptions(mip_gap=self.mip_gap, time_limit=self.time_limit),
            name="exact selection",
        )
        chosen = (program.allocate(space).x > 0.5) & (value > 0)
        return Decision(space.index[space.job[chosen]], space.gpu_type[chosen], space.num_gpus[chosen])

    def _value(self, space: AllocationSpace, plan: Plan, work_conserving: bool) -> FloatArray:
        """Value of each column of ``space``; columns newer than the plan are owed nothing."""
        horizon = space.now - plan.made_at + space.round_seconds
        owed = (plan.share * horizon - plan.received) / space.round_seconds
        position = plan.position(space.index[space.job], space.gpu_type, space.num_gpus)
        known = position >= 0
        debt = np.where(known, owed[position], 0.0)
        share = np.where(known, plan.share[position], 0.0)
        idle = 1e-3 if work_conserving else 0.0
        return np.asarray(np.where((debt > 0) & (share > 0), debt, idle) * space.num_gpus, dtype=np.float64)
