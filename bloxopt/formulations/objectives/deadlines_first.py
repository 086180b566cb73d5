"""Service-level objectives that may clash: keep as many deadlines as possible, then optimise something else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.allocation import Allocation
from bloxopt.formulations.expressions import per_job
from bloxopt.formulations.objectives.base import Objective, check_objective
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import Outcome, Session
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import BoolArray, FloatArray, IntArray

_KEPT = 1e-6
"""A deadline counts as kept when the throughput is within this (relative) of what it needs."""
_HELD = 1e-9
"""What later stages may take from a throughput that an earlier one promised, relative."""
_NAMED = 20
_MANY = 60
"""Deadlines beyond which the fewest are found without integers, as a rule to within one a GPU type."""
_LITTLE = 0.02
"""Deadlines nearer than this to being kept weigh about the same."""
_NEARLY = 1e-5
"""Parts of deadlines this near to 1 are kept up to the solver's rounding."""
_REWEIGHTINGS = 8


@dataclass(frozen=True, slots=True)
class UnmetDeadline:
    """A deadline that an allocation does not keep.

    ``needed`` steps/s to be done in time (inf where the deadline has passed), ``given`` steps/s on average,
    ``reason`` in words: passed, impossible even alone, no GPU that could run it, or given up for others.
    """

    job_id: str
    needed: float
    given: float
    reason: str

    def __str__(self) -> str:
        return f"{self.job_id!r} ({self.reason})"


@dataclass(frozen=True, eq=False)
class DeadlinesFirst(Objective):
    """Keep deadlines first, ``Σ_j T_ij x_ij ≥ R_i / (D_i − now)``, then optimise ``then`` with what is left.

    Those that cannot be kept are given up one by one, never all together: ``unmet="fewest"`` gives up the smallest
    number (a program with one binary a deadline, only if they clash; beyond 60 deadlines a few linear programs, as a
    rule to within one a GPU type), then loses the least throughput on those (another choice of as many may lose less);
    ``"least"`` loses the least throughput in all, as a part of what each job needs (linear; so do solvers without
    integers). ``Allocation.message`` names every deadline that is not kept and why; :func:`unmet_deadlines`
    lists them. The value is that of ``then``.
    """

    then: Objective
    unmet: Literal["fewest", "least"] = "fewest"
    curvature = "staged"
    progress_dependent = True

    def __post_init__(self) -> None:
        check_objective(self.then, "DeadlinesFirst")
        if self.unmet not in ("fewest", "least"):
            raise FormulationError(f"DeadlinesFirst: unmet is {self.unmet!r}, must be 'fewest' or 'least'")

    @property
    def work_conserving(self) -> bool:  # type: ignore[override]
        return self.then.work_conserving

    @property
    def uses_spread(self) -> bool:  # type: ignore[override]
        return self.then.uses_spread

    @property
    def minimised(self) -> bool:  # type: ignore[override]
        return self.then.minimised

    def utility(self, space: AllocationSpace, x: FloatArray) -> float | None:
        return self.then.utility(space, x)

    def solve(self, session: Session) -> Outcome:
        space = session.space
        needed, possible = _needs(space)
        jobs = np.flatnonzero(possible & (needed > 0))
        note = ""
        if len(jobs):
            outcome, promised, note = self._promise(session, jobs, needed[jobs])
            session.hold(_Promise(jobs, promised, needed[jobs]), outcome, _HELD)
        result = self.then.solve(session)
        missed = _unmet(space, result.x)
        if not missed:
            return result
        listed = ", ".join(str(entry) for entry in missed[:_NAMED]) + (" …" if len(missed) > _NAMED else "")
        timed = int(np.isfinite(space.deadline).sum())
        report = f"{len(missed)} of {timed} deadlines are not kept: {listed}{note}"
        return replace(result, message=f"{report}; {result.message}" if result.message else report)

    def _promise(self, session: Session, jobs: IntArray, needed: FloatArray) -> tuple[Outcome, FloatArray, str]:
        """Steps/s for each of the ``jobs``: what it needs, or what is left for one that is given up."""
        rows = _some_jobs(per_job(session.space, session.space.rate), jobs).scaled(1.0 / needed)
        outcome = _least_shortfall(session, rows, np.ones(len(jobs)))
        given = rows.at(outcome.x)
        note = ""
        if self.unmet == "fewest" and (given < 1.0 - _KEPT).any():
            if len(jobs) > _MANY or session.solver.capabilities.mip:
                kept = _most_kept(session, rows, jobs)
                # Those that are kept count so much that no shortfall elsewhere is worth one of theirs.
                outcome = _least_shortfall(session, rows, np.where(kept, 2.0 * len(jobs), 1.0))
                given = rows.at(outcome.x)
            else:
                note = f" (least shortfall rather than fewest: solver {session.solver_name!r} takes no integers)"
        return outcome, np.minimum(given, 1.0) * needed, note


def unmet_deadlines(allocation: Allocation) -> tuple[UnmetDeadline, ...]:
    """The deadlines that ``allocation`` does not keep if it lasts, in order of admission, whatever its policy."""
    return tuple(_unmet(allocation.space, allocation.x))


@dataclass(frozen=True, eq=False)
class _Promise(Objective):
    """Throughputs kept in the stages that follow."""

    jobs: IntArray
    rate: FloatArray
    needed: FloatArray
    progress_dependent = True

    def hold(self, session: Session, program: Program, outcome: Outcome, tolerance: float) -> None:
        program.block = program.unique_family("DeadlinesFirst")
        # As parts of what they need, so that one tolerance of a solver fits all models; dust is not promised.
        part = self.rate / self.needed
        some = part > _KEPT
        rows = _some_jobs(per_job(session.space, session.space.rate), self.jobs[some]).scaled(1.0 / self.needed[some])
        program.add_rows(rows, lower=part[some] * (1.0 - tolerance))


def _needs(space: AllocationSpace) -> tuple[FloatArray, BoolArray]:
    """Steps/s that each job needs for its deadline (0 without one), and whether it could have that alone."""
    timed = np.isfinite(space.deadline)
    left = space.deadline - space.now
    needed = np.divide(space.remaining_steps, left, out=np.full(space.num_jobs, np.inf), where=left > 0)
    needed = np.where(timed, needed, 0.0)
    possible = timed & space.runnable & (needed <= space.fastest_rate * (1.0 + 1e-9))
    return np.where(possible, np.minimum(needed, space.fastest_rate), needed), possible


def _some_jobs(rows: Affine, jobs: IntArray) -> Affine:
    counted = np.zeros(rows.num_rows, dtype=bool)
    counted[jobs] = True
    return replace(rows, counted=counted).only_counted()


def _least_shortfall(session: Session, rows: Affine, weight: FloatArray) -> Outcome:
    """``min Σ w_i max(0, 1 − rows_i)``."""
    program = session.program()
    program.block = program.unique_family("DeadlinesFirst")
    short = program.add_columns(rows.num_rows, 0.0, 1.0)
    number = np.arange(rows.num_rows)
    program.add_rows(_with(rows, short), lower=1.0)
    scale = 1.0 / float(weight.max())
    cost = Affine(np.zeros_like(number), short, -weight * scale, np.zeros(1))
    solved = session.solve(program, cost)
    return Outcome(solved.x, solved.utility, solved.utility_bound, solved.result.termination, program)


def _most_kept(session: Session, rows: Affine, jobs: IntArray) -> BoolArray:
    """Which rows reach 1 in the allocation in which most of them do; beyond ``_MANY`` rows, nearly most."""
    if len(jobs) <= _MANY:
        return _parts_kept(session, rows, jobs, np.ones(len(jobs)), integer=True) > 0.5
    # A vertex keeps in part no more deadlines than there are scarce GPU types. Weighing those that are nearly kept
    # more, again and again, leads to one from anywhere (reweighted l1 minimisation: Candès, Wakin & Boyd, 2008).
    part = _parts_kept(session, rows, jobs, np.ones(len(jobs)))
    enough = np.floor(part.sum() + _KEPT * len(jobs)) - len(session.space.gpu_types)
    kept: BoolArray = part > 1.0 - _NEARLY
    for _ in range(_REWEIGHTINGS):
        if np.count_nonzero(kept) >= enough or session.out_of_time:
            break
        part = _parts_kept(session, rows, jobs, 1.0 / (1.0 - part + _LITTLE))
        now = part > 1.0 - _NEARLY
        kept = now if np.count_nonzero(now) > np.count_nonzero(kept) else kept
    return kept


def _parts_kept(
    session: Session, rows: Affine, jobs: IntArray, weight: FloatArray, *, integer: bool = False
) -> FloatArray:
    """``max Σ w_i y_i`` with ``rows_i ≥ y_i`` and a job's time ``Σ_j x_ij ≤ y_i``: the y, whole if ``integer``.

    Tying the time to y as well leaves no use in serving a deadline by halves, which is what makes it tight.
    """
    program = session.program()
    program.block = program.unique_family("DeadlinesFirst")
    kept = program.add_columns(rows.num_rows, 0.0, 1.0, integer=integer)
    program.add_rows(_with(rows, kept, -1.0), lower=0.0)
    if session.exclusive_job is not None:
        time = _some_jobs(per_job(session.space, np.ones(session.space.num_columns)), jobs)
        program.add_rows(_with(time, kept, -1.0), upper=0.0)
    utility = Affine(np.zeros_like(kept), kept, weight / float(weight.max()), np.zeros(1))
    solved = session.solve(program, utility)
    assert solved.result.x is not None
    return np.asarray(solved.result.x[kept], dtype=np.float64)


def _with(rows: Affine, columns: IntArray, coefficient: float = 1.0) -> Affine:
    """Each row plus ``coefficient`` times a column of its own."""
    number = np.arange(rows.num_rows)
    return replace(
        rows,
        row=np.concatenate([rows.row, number]),
        column=np.concatenate([rows.column, columns]),
        value=np.concatenate([rows.value, np.full(rows.num_rows, coefficient)]),
    )


def _unmet(space: AllocationSpace, x: FloatArray) -> list[UnmetDeadline]:
    needed, possible = _needs(space)
    given = sum_by(space.job, space.rate * x, space.num_jobs)
    missed = np.isfinite(space.deadline) & (given < needed * (1.0 - _KEPT))
    entries = []
    for job in np.flatnonzero(missed).tolist():
        if space.deadline[job] <= space.now:
            reason = f"its deadline passed {space.now - space.deadline[job]:g} s ago"
        elif not space.runnable[job]:
            reason = "no GPUs that are up can run it"
        elif not possible[job]:
            fastest = space.fastest_rate[job]
            reason = f"needs {needed[job]:.4g} steps/s, its fastest GPUs give {fastest:.4g}"
        else:
            reason = f"gets {given[job] / needed[job]:.1%} of the throughput it needs"
        entries.append(UnmetDeadline(str(space.job_ids[job]), float(needed[job]), float(given[job]), reason))
    return entries
