"""The least remaining time of all jobs together, as a program (what Optimus approximates)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bloxopt.formulations.expressions import per_job
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import Outcome, Session, outcome_of
from bloxopt.formulations.space import AllocationSpace
from bloxopt.formulations.systems.marginal_gain import climb, total_seconds
from bloxopt.formulations.systems.remaining_estimates import (
    AtPresentRate,
    RemainingEstimate,
    check_estimate,
    seconds_left,
)
from bloxopt.jobs import FloatArray


@dataclass(frozen=True, eq=False)
class LeastRemainingTime(Objective):
    """``min Σ_c t_c y_c`` over binary y, one configuration a job, with as many jobs served as can be.

    ``t_c`` are the seconds that the job of column c would still take on it, by ``estimate``. Two programs: the
    most jobs that can be served at once (not solved where it is plain that all can), then the least time among the
    allocations that serve so many.
    Source: Peng et al., Optimus, EuroSys 2018, §4.1, eq. 1, which is solved greedily there.
    """

    estimate: RemainingEstimate = field(default_factory=AtPresentRate)
    curvature = "staged"
    minimised = True
    progress_dependent = True

    def __post_init__(self) -> None:
        check_estimate(self.estimate, "LeastRemainingTime")

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        return total_seconds(seconds_left(self.estimate, space), x)

    def solve(self, session: Session) -> Outcome:
        space = session.space
        seconds = seconds_left(self.estimate, space)
        program = self._program(session, seconds)
        jobs = per_job(space, np.ones(space.num_columns))
        found = climb(program, seconds)
        able = len(np.unique(space.job[np.isfinite(seconds)]))
        if found is not None and found.sum() == able:
            served = float(able)
        else:
            served = float(np.round(session.solve(program, jobs.total()).x).sum())
        program.add_rows(jobs.total(), lower=served - 0.5, labels=("jobs served",))
        known = np.isfinite(seconds).nonzero()[0]
        time = Affine(np.zeros(len(known), np.int64), known, -seconds[known], np.zeros(1))
        return outcome_of(session.solve(program, time))

    def hold(self, session: Session, program: Program, outcome: Outcome, tolerance: float) -> None:
        program.restrict(np.arange(session.space.num_columns), np.round(outcome.x), np.round(outcome.x))

    def _program(self, session: Session, seconds: FloatArray) -> Program:
        """The blocks, with one configuration a job, among those that are known."""
        space = session.space
        program = session.program()
        program.block = program.unique_family("LeastRemainingTime")
        program.make_integer()
        if session.exclusive_job is None:
            program.add_rows(per_job(space, np.ones(space.num_columns)), upper=1.0)
        unknown = (~np.isfinite(seconds)).nonzero()[0]
        if len(unknown):
            program.restrict(unknown, 0.0, 0.0)
        return program
