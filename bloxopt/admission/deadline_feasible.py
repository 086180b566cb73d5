"""Deadline-feasible: a job is let in exactly if some schedule meets all deadlines, proven by programs."""

from __future__ import annotations

import numpy as np

from bloxopt.admission.base import Otherwise, checked_otherwise
from bloxopt.admission.elasticflow import ElasticFlow
from bloxopt.formulations.deadlines import DeadlinePlan, fewest_gpu_seconds, proven_impossible
from bloxopt.solvers.base import Solver, SolverOptions, Termination
from bloxopt.solvers.registry import check_solver, get_solver


class DeadlineFeasible(ElasticFlow):
    """Admit a job if some schedule of whole gangs in rounds meets its deadline and those of all admitted jobs.

    Progressive filling looks for one first (see ``elasticflow``); then a linear program may prove that there is none;
    else a binary program over the rounds decides, within ``time_limit`` seconds. What was found is promised and kept by
    the policy ``elasticflow``, under the same conditions. Jobs without a deadline are always admitted. A job that
    is refused is rejected or waits (``otherwise``). Raises :class:`~bloxopt.errors.InputError` for a
    ``time_limit`` that is no number >= 0 and a solver that does not exist.
    """

    def __init__(
        self, solver: str | Solver = "auto", time_limit: float = 10.0, otherwise: Otherwise = "reject"
    ) -> None:
        check_solver(solver)
        self.solver = solver
        self.options = SolverOptions(time_limit=time_limit)
        self.otherwise = checked_otherwise("deadline_feasible", otherwise)

    def _schedule(self, filled: DeadlinePlan, lost: frozenset[int]) -> tuple[DeadlinePlan | None, str]:
        if filled.late_rows <= lost:
            return filled, ""
        space, length = filled.space, filled.space.round_seconds
        positions = [i for i, job in enumerate(filled.jobs) if np.isfinite(job.due) and space.index[i] not in lost]
        jobs = [filled.jobs[i] for i in positions]
        capacity, solver = space.capacity.astype(np.float64), get_solver(self.solver)
        if proven_impossible(jobs, capacity, solver, self.options):
            return None, "no schedule whatever meets all deadlines with it, by a linear program"
        ending, profiles = fewest_gpu_seconds(jobs, capacity, length, solver, self.options)
        if len(profiles) == len(jobs) and all(jobs[i].meets_deadline(plan, length) for i, plan in profiles.items()):
            return filled.with_profiles({positions[i]: plan for i, plan in profiles.items()}), ""
        if ending is Termination.INFEASIBLE:
            return None, "no schedule of whole rounds meets all deadlines with it, by a binary program"
        return None, "no schedule that meets all deadlines with it was found within the limits of the search"
