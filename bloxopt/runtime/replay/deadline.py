"""Allocations of recorded rounds that had a deadline: solved again where they were solved, else given as recorded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bloxopt.anytime import Ladder, Rung
from bloxopt.formulations.allocation import Allocation
from bloxopt.formulations.constraints.base import name_blocks
from bloxopt.formulations.policy import Policy
from bloxopt.formulations.solving.resuming import Resolver
from bloxopt.formulations.space import AllocationSpace
from bloxopt.selection import Plan
from bloxopt.solvers.base import Solver, SolverOptions, Termination
from bloxopt.solvers.registry import get_solver

_NEVER = 1e9
"""Seconds that a round may take here: as long as it takes."""


class RecordedLadder(Ladder):
    """A ladder of one rung: what a solver proved then is solved again, and what the time did not do for is given.

    ``recorded`` is what the log says of the plan of the present round, None where there was none.
    """

    def __init__(self) -> None:
        super().__init__(_NEVER, watched=False)
        self.recorded: Mapping[str, Any] | None = None

    def allocate(
        self,
        policy: Policy,
        space: AllocationSpace,
        previous: Plan | None = None,
        *,
        deadline: float | None = None,
        solver: str | Solver | None = None,
        options: SolverOptions | None = None,
        resume: Resolver | None = None,
    ) -> Allocation:
        if self.recorded is not None and self.recorded["rung"] != Rung.SOLVED:
            return _given(policy, space, self.recorded)
        return policy.allocate(space, solver=solver, options=options, resume=resume)

    def solver(self, solver: str | Solver, seconds: float) -> Solver:
        """For other parts of a round: in this process, for as long as it takes."""
        return get_solver(solver)


def _given(policy: Policy, space: AllocationSpace, recorded: Mapping[str, Any]) -> Allocation:
    """The recorded allocation over the columns of ``space``."""
    if policy.pair_threshold is None:
        space = space.alone()
    share = {(job_id, gpu_type, count): x for job_id, gpu_type, count, x in recorded.get("shares", ())}
    ids = space.job_ids.tolist()
    x = np.array(
        [
            share.get((ids[job], space.gpu_types[kind], count), 0.0)
            for job, kind, count in zip(
                space.job.tolist(), space.gpu_type.tolist(), space.num_gpus.tolist(), strict=True
            )
        ],
        dtype=np.float64,
    )
    place = {job_id: job for job, job_id in enumerate(ids)}
    ranking = recorded.get("ranking")
    objective = recorded.get("objective")
    return Allocation(
        space=space,
        x=x,
        objective=math.nan if objective is None else objective,
        bound=None,
        termination=Termination(recorded["termination"]),
        solver=recorded["solver"],
        solve_seconds=0.0,
        build_seconds=0.0,
        num_solves=0,
        constraints=name_blocks(policy.blocks),
        ranking=None if ranking is None else np.array([place[job_id] for job_id in ranking], dtype=np.int64),
        work_conserving=policy.work_conserving,
        rung=recorded["rung"],
    )
