"""The partial allocation mechanism: proportional fairness made strategy-proof by giving each job a part of its share.

Job i gets the part ``f_i = Π_{j≠i} (v_j(x) / v_j(x^{-i}))^{w_j/w_i}`` of its proportionally fair share x_i, where
x^{-i} is the proportionally fair allocation without it: it pays for what the others lose by its presence. What it
gets in the end, ``v_i(x) Π (v_j(x)/v_j(x^{-i}))^{w_j/w_i}``, is the Nash product over something that it cannot change:
the truth about its throughputs serves it best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.expressions import build_affine
from bloxopt.formulations.measures import EffectiveThroughput
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.objectives.proportional_fairness import log_sum, maximise_logarithms
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import Outcome, Session
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray
from bloxopt.solvers.base import Termination

EXACT_JOBS = 32
"""Active jobs up to which ``"auto"`` solves a program without each of them."""
_GAP = 1e-8
"""Discounts are products over all jobs: they need welfare more exactly than the allocation does."""


@dataclass(frozen=True, eq=False)
class PartialAllocation(Objective):
    """Strategy-proof proportional fairness over the jobs' throughputs, weighted by their priority weights.

    ``discount``: ``"exact"`` solves one more proportionally fair program without each job; ``"prices"`` takes the
    limit of many jobs from the prices of the one program, ``f_i = exp(−spend_i / w_i)`` with ``spend_i`` what the job
    pays for GPUs at these prices. By weak duality that is at most the exact one (with 110 jobs 0.3–2 % less on a
    contended cluster, up to 9 % where GPUs are plentiful and prices not unique), and a job may gain about as much by a
    false report; ``"auto"`` is exact up to 32 active jobs.
    Discounts are at least 1/e. GPUs given up stay idle as far as the selector allows. The value is
    ``Σ w_i log`` of the discounted steps/s; ``Allocation.levels`` has these.
    Source: Cole, Gkatzelis & Goel (EC 2013); Gavel's ``max_min_fairness_strategy_proof``.
    """

    discount: Literal["auto", "exact", "prices"] = "auto"
    curvature = "staged"
    progress_dependent = False
    work_conserving = False

    def __post_init__(self) -> None:
        if self.discount not in ("auto", "exact", "prices"):
            raise FormulationError(f"PartialAllocation: discount is {self.discount!r}, must be auto, exact or prices")

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        rows = build_affine(EffectiveThroughput(), space, "PartialAllocation").only_counted()
        return log_sum(rows.at(x), space.weight[space.runnable])

    def solve(self, session: Session) -> Outcome:
        space = session.space
        if session.program().is_mip:
            raise FormulationError("PartialAllocation needs shares of time: use TimeShare, not OneConfiguration")
        jobs = np.flatnonzero(space.runnable)
        rows = build_affine(EffectiveThroughput(), space, "PartialAllocation").only_counted()
        weight = space.weight[jobs]
        exact = self.discount == "exact" or (self.discount == "auto" and len(jobs) <= EXACT_JOBS)
        # Prices come from a linear program, whose optimum is degenerate where the gap is smallest.
        fair = maximise_logarithms(session, rows, weight, gap=_GAP if exact else 1e-6)
        if exact:
            factor, ending = _without_each(session, rows, weight, fair)
        else:
            factor, ending = np.exp(-_spend(session, fair) / weight), fair.termination
        of_job = np.ones(space.num_jobs)
        of_job[jobs] = factor
        x = fair.x * of_job[space.job]
        kind = "exact" if exact else "from prices"
        return Outcome(
            x=x,
            utility=self.utility(space, x),
            bound=None,
            termination=ending,
            levels=rows.at(x),
            message=f"discounts ({kind}) from {factor.min(initial=1.0):.3f} to {factor.max(initial=0.0):.3f}",
        )


def _without_each(session: Session, rows: Affine, weight: FloatArray, fair: Outcome) -> tuple[FloatArray, Termination]:
    """The exact discount of each row, and how the worst of the programs ended."""
    space = session.space
    log_value = np.log(rows.at(fair.x))
    factor = np.ones(len(weight))
    ending = fair.termination
    for row, job in enumerate(np.flatnonzero(space.runnable)):
        others = np.arange(len(weight)) != row
        if not others.any():
            continue
        kept = Affine(rows.row, rows.column, rows.value, rows.constant, rows.labels, others).only_counted()
        alone = maximise_logarithms(
            session,
            kept,
            weight[others],
            gap=_GAP,
            near=np.exp(log_value[others]),
            without=np.flatnonzero(space.job == job),
        )
        lost = alone.utility - float(weight[others] @ log_value[others])
        factor[row] = np.exp(-max(lost, 0.0) / weight[row])
        if alone.termination is not Termination.OPTIMAL:
            ending = alone.termination
    return factor, ending


def _spend(session: Session, fair: Outcome) -> FloatArray:
    """What each job that can run pays for its share at the prices of the rows it has in common with others."""
    space = session.space
    program: Program = session.program()
    if fair.prices is None:
        raise FormulationError(
            f"PartialAllocation: solver {session.solver_name!r} gives no prices: use discount='exact' or another solver"
        )
    matrix = program.compile_rows().matrix.tocoo()
    column = matrix.col < space.num_columns
    row, col, value = matrix.row[column], matrix.col[column], matrix.data[column]
    first = np.full(program.num_rows, space.num_jobs)
    last = np.full(program.num_rows, -1)
    np.minimum.at(first, row, space.job[col])
    np.maximum.at(last, row, space.job[col])
    shared = first < last
    price = np.where(shared, fair.prices[: program.num_rows], 0.0)
    paid = sum_by(space.job[col], price[row] * value * fair.x[col], space.num_jobs)[space.runnable]
    # No job pays more than its weight: at an optimum that is what all its rows cost it together.
    return np.clip(paid, 0.0, space.weight[space.runnable])
