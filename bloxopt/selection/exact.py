"""Exact selection: the set of jobs for this round that repays the most time owed, by a binary program."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from bloxopt.errors import CheckError, SolverError
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray
from bloxopt.selection.base import Decision, Plan, fill, first_of_each
from bloxopt.selection.pairs import partners

if TYPE_CHECKING:
    from bloxopt.anytime import Ladder
    from bloxopt.formulations.policy import Policy
    from bloxopt.formulations.round_limits import RoundLimits


_NEGLIGIBLE = 1e-6
"""Shares and debts (rounds) below this are rounding of the plan's solver."""


class ExactSelection:
    """Maximise the GPU time owed that is repaid: ``max Σ_c owed_c s_c y_c``, one column a job, within capacity.

    ``owed_c`` is share × (time since the plan was made + this round) − time received, in rounds, and
    ``s_c`` the column's GPUs. GPUs that would idle then go to jobs that are owed nothing, in order of
    admission, unless the policy forbids overtaking. Solved by ``solver`` to ``mip_gap``. Where a round has a
    ``deadline`` (monotonic s) and the solver does not make it, those that are owed most go first, while they fit.
    """

    needs_plan = True

    def __init__(self, solver: str = "auto", mip_gap: float = 1e-3, time_limit: float | None = 10.0) -> None:
        self.solver = solver
        self.mip_gap = mip_gap
        self.time_limit = time_limit
        self.deadline = math.inf
        self.ladder: Ladder | None = None
        """Whose processes the solver of a round with a deadline runs in."""

    def replanned(self, previous: Plan | None, space: AllocationSpace) -> None:
        """Nothing to carry over: what is owed is counted from the plan in force."""

    def select(self, policy: Policy, space: AllocationSpace, plan: Plan | None) -> Decision:
        assert plan is not None
        owed = _owed(space, plan)
        limits = policy.round_limits(space)
        try:
            chosen = self._repay(space, owed, limits)
        except (SolverError, CheckError):
            if self.deadline == math.inf:
                raise
            chosen = _most_owed(space, owed, limits)
            # What is left of the limits is counted anew when idle GPUs are given away.
            limits = policy.round_limits(space)
        if plan.allocation.work_conserving:
            chosen = np.concatenate([chosen, _fill_idle(space, chosen, limits)])
        row, kind, gpus = space.index[space.job[chosen]], space.gpu_type[chosen], space.num_gpus[chosen]
        if space.catalog.pairing is not None:
            return Decision(row, kind, gpus, partner=partners(space, chosen))
        if plan.promised is None:
            return Decision(row, kind, gpus, rank=plan.rank(row))
        at = plan.position(row, kind, gpus)
        return Decision(row, kind, gpus, (at >= 0) & plan.promised[at], plan.rank(row))

    def _repay(self, space: AllocationSpace, owed: FloatArray, limits: RoundLimits | None) -> IntArray:
        """Columns of the best set of jobs."""
        from bloxopt.formulations import Capacity, ColumnValue, MaxSum, OneConfiguration, PairedShares
        from bloxopt.formulations.policy import Policy as ProgramPolicy
        from bloxopt.solvers.base import SolverOptions

        limit = self._time_limit()
        ladder = self.ladder if self.deadline < math.inf else None
        program = ProgramPolicy(
            objective=MaxSum(ColumnValue(owed * space.gpu_demand)),
            constraints=[
                Capacity(),
                OneConfiguration(),
                *([] if limits is None else [limits.block()]),
                *([] if space.catalog.pairing is None else [PairedShares(whole=True)]),
            ],
            solver=self.solver if ladder is None or limit is None else ladder.solver(self.solver, limit),
            options=SolverOptions(mip_gap=self.mip_gap, time_limit=limit),
            name="exact selection",
        )
        # A job that is owed nothing may be needed as the partner of one that is.
        return ((program.allocate(space).x > 0.5) & ((owed > 0) | (space.partner >= 0))).nonzero()[0]

    def _time_limit(self) -> float | None:
        """Seconds for the solver: its own limit, or half of what is left of the round."""
        left = 0.5 * (self.deadline - time.monotonic())
        if left == math.inf:
            return self.time_limit
        return max(left if self.time_limit is None else min(left, self.time_limit), 0.0)


def _most_owed(space: AllocationSpace, owed: FloatArray, limits: RoundLimits | None) -> IntArray:
    """Columns of jobs that have their GPUs for themselves, the most owed first, each if it still fits."""
    left = space.capacity.astype(np.float64)
    waiting = np.ones(space.num_jobs, dtype=bool)
    chosen: list[int] = []
    order = np.argsort(-owed * space.gpu_demand, kind="stable")
    for column in order[(owed[order] > 0) & (space.partner[order] < 0)].tolist():
        job, kind, size = int(space.job[column]), int(space.gpu_type[column]), float(space.gpu_demand[column])
        if not waiting[job] or size > left[kind]:
            continue
        if limits is not None and not limits.admit(int(space.index[job]), kind, int(space.num_gpus[column])):
            continue
        left[kind] -= size
        waiting[job] = False
        chosen.append(column)
    return np.array(chosen, dtype=np.int64)


def _owed(space: AllocationSpace, plan: Plan) -> FloatArray:
    """Rounds of time owed to each column of ``space``, at least 0; columns newer than the plan are owed nothing."""
    position = plan.position(space.index[space.job], space.gpu_type, space.num_gpus, space.partner)
    owed = plan.owed(space.now + space.round_seconds) / space.round_seconds
    known = (position >= 0) & (plan.share[position] > _NEGLIGIBLE)
    return np.where(known & (owed[position] > _NEGLIGIBLE), owed[position], 0.0)


def _fill_idle(space: AllocationSpace, chosen: IntArray, limits: RoundLimits | None) -> IntArray:
    """Columns of jobs not chosen that fit into what the chosen ones leave, type by type."""
    row = space.index[space.job]
    if limits is not None:
        for column in chosen.tolist():
            key = (row[column], space.gpu_type[column], space.num_gpus[column], space.partner[column])
            limits.admit(*(int(part) for part in key))
    waiting = np.ones(space.num_jobs, dtype=bool)
    waiting[space.job[chosen]] = False
    filled: list[int] = []
    for kind, capacity in enumerate(space.capacity.tolist()):
        mine = chosen[space.gpu_type[chosen] == kind]
        columns = ((space.gpu_type == kind) & waiting[space.job] & (space.partner < 0)).nonzero()[0]
        columns = columns[first_of_each(space.job[columns])]
        left = capacity - space.gpu_demand[mine].sum().item()
        taken, _ = fill(row[columns], kind, space.num_gpus[columns], space.gpu_demand[columns], left, limits)
        filled.extend(columns[taken].tolist())
        waiting[space.job[columns[taken]]] = False
    return np.array(filled, dtype=np.int64)
