"""Themis: GPUs are leased, and those whose lease ends are auctioned among the jobs that sharing has hurt most.

A job's bid for a configuration is its valuation 1/ρ, ρ being its finish-time ratio if it gets that: (time since
arrival + time left at that rate) / time alone on an equal share of the cluster. The auction maximises the product of
the bidders' valuations. A bidder without GPUs waits a lease and then has its fastest configuration, so that its
logarithm is finite; each has one configuration or none, so that the logarithm of the product is linear in x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.checks import checked_amount
from bloxopt.formulations.expressions import per_job
from bloxopt.formulations.measures import positive_rate
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.packing import Packing
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.session import Outcome, Session
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import BoolArray, FloatArray, IntArray
from bloxopt.solvers.base import Termination

_MOMENT = 1e-6
"""Leases that end within this many seconds have ended."""


@dataclass(frozen=True, eq=False)
class LeaseAuction(Objective):
    """Finish-time fairness by auctions of leases (Themis).

    A job that won GPUs keeps them for ``lease`` seconds (or ``lease_rounds`` rounds) or until it ends. Free GPUs and
    those of ended leases are offered to the part ``1 − fairness`` of the other jobs with the worst finish-time ratio
    (at least one; ``fairness`` 0: all of them). What the bidders leave goes to the others, worst ratio first.
    ``method`` ``"program"`` maximises the product of valuations by a binary program, ``"greedy"`` takes bids in order
    of gain in log valuation per GPU (so does a solver without integers, and the message says so). Leases are kept in
    the ledger (``themis.won_at``); within a round the answer does not change. The value is the sum of the winners'
    gains in log valuation.
    Themis' hidden payments are left out: rates are measured here, not declared. Source: Mahajan et al., NSDI 2020.
    """

    lease: float = 1200.0
    lease_rounds: int | None = None
    fairness: float = 0.8
    method: Literal["program", "greedy"] = "program"
    curvature = "staged"
    progress_dependent = True
    work_conserving = False

    def __post_init__(self) -> None:
        checked_amount("LeaseAuction", "lease", self.lease)
        checked_amount("LeaseAuction", "fairness", self.fairness, 0.0, 1.0)
        rounds = self.lease_rounds
        if rounds is not None and (isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1):
            raise FormulationError(f"LeaseAuction: lease_rounds is {rounds!r}, must be a whole number of rounds >= 1")
        if self.method not in ("program", "greedy"):
            raise FormulationError(f"LeaseAuction: method is {self.method!r}, must be 'program' or 'greedy'")

    def next_change(self, space: AllocationSpace) -> float:
        held, _ = self._leased(space)
        won_at = space.ledger.memory(_WON_AT, -math.inf)[space.index[held]]
        return float((won_at + self._seconds(space) - space.now).min(initial=math.inf))

    def solve(self, session: Session) -> Outcome:
        space = session.space
        seconds = self._seconds(space)
        held, column = self._leased(space)
        program = session.program()
        program.make_integer()
        program.restrict(column, 1.0, 1.0)
        packing = Packing.of(program)
        if packing is not None and not packing.forced_fit:
            # Nodes went down under leases: what is left cannot hold them all, and is auctioned anew.
            held, column = held[:0], column[:0]
            program = session.program()
            program.make_integer()
        ratio, gain = _bids(space, seconds)
        others = np.setdiff1d(np.flatnonzero(space.runnable), held)
        worst = others[np.argsort(-ratio[others], kind="stable")]
        bidders = worst[: max(1, math.ceil((1.0 - self.fairness) * len(worst) - 1e-9))]
        bids = np.isin(space.job, bidders) & (gain > 0)
        by_program = self.method == "program" and session.solver.capabilities.mip and bool(bids.any())
        if by_program:
            x, ending = _best_bids(session, program, bids, gain)
        else:
            x, ending = _best_bids_first(space, program, bids, gain), Termination.OPTIMAL
        x = _give_the_rest(session, x, worst)
        won = np.setdiff1d(space.job[x > 0.5], held)
        space.ledger.memory(_WON_AT, -math.inf)[space.index[won]] = space.now
        value = float(gain[bids] @ x[bids])
        message = f"{len(held)} leases go on, {len(bidders)} jobs bid"
        if self.method == "program" and not by_program and bids.any():
            message += f"; bids taken greedily, as solver {session.solver_name!r} takes no integers"
        return Outcome(x, value, None, ending, program=program if by_program else None, message=message)

    def _seconds(self, space: AllocationSpace) -> float:
        return self.lease if self.lease_rounds is None else self.lease_rounds * space.round_seconds

    def _leased(self, space: AllocationSpace) -> tuple[IntArray, IntArray]:
        """Jobs whose lease goes on, and the column that each keeps.

        A lease won at this very moment is not one yet, so that asking again gives the same answer.
        """
        won_at = space.ledger.memory(_WON_AT, -math.inf)[space.index]
        valid = (won_at < space.now) & (space.now < won_at + self._seconds(space) - _MOMENT)
        column = np.flatnonzero(space.is_current & (valid & space.running)[space.job])
        return space.job[column], column


_WON_AT = "themis.won_at"


def _bids(space: AllocationSpace, lease: float) -> tuple[FloatArray, FloatArray]:
    """Finish-time ratio of each job if it waits a lease, and what each column adds to its log valuation."""
    remaining = space.remaining_steps
    alone = space.isolated_seconds + remaining / positive_rate(space.isolated_rate, space)
    fastest = np.where(space.runnable, space.fastest_rate, 1.0)
    waits = space.elapsed + lease + remaining / fastest
    ratio = waits / np.maximum(alone, 1e-9)
    runs = space.elapsed[space.job] + remaining[space.job] / space.rate
    return ratio, np.log(waits[space.job] / np.maximum(runs, 1e-9))


def _best_bids(session: Session, program: Program, bids: BoolArray, gain: FloatArray) -> tuple[FloatArray, Termination]:
    """Columns of the leases and of the bids with the largest product of valuations."""
    space = session.space
    offered = np.flatnonzero(bids)
    lower = program.compile_rows().lower[: space.num_columns]
    program.restrict(np.flatnonzero(~bids & (lower < 0.5)), 0.0, 0.0)
    program.block = program.unique_family("LeaseAuction")
    program.add_rows(per_job(space, np.ones(space.num_columns)), upper=1.0)
    utility = Affine(np.zeros(len(offered), np.int64), offered, gain[offered], np.zeros(1))
    solved = session.solve(program, utility)
    return np.round(solved.x), solved.result.termination


def _best_bids_first(space: AllocationSpace, program: Program, bids: BoolArray, gain: FloatArray) -> FloatArray:
    """Columns of the leases and of the bids that fit, in order of gain per GPU."""
    packing = Packing.of(program)
    if packing is None:
        raise FormulationError(
            "LeaseAuction: taking bids greedily needs blocks that are upper limits on GPUs: drop lower bounds such as "
            "MinimumShare, or use method='program' with a solver that takes integers"
        )
    offered = np.flatnonzero(bids)
    order = offered[np.argsort(-gain[offered] / space.gpu_demand[offered], kind="stable")]
    jobs, first = np.unique(space.job[order], return_index=True)
    columns = order[np.argsort(space.job[order], kind="stable")]
    starts = np.concatenate([[0], np.cumsum(np.bincount(space.job[order], minlength=space.num_jobs))])
    return packing.fill(jobs[np.argsort(first)], columns, starts, backfill=True)


def _give_the_rest(session: Session, x: FloatArray, queue: IntArray) -> FloatArray:
    """Fill what is left with the jobs of ``queue``, each on its fastest configuration that fits."""
    space = session.space
    program = session.program()
    program.make_integer()
    program.restrict(np.flatnonzero(x > 0.5), 1.0, 1.0)
    packing = Packing.of(program)
    if packing is None or not packing.forced_fit:
        return x
    columns = np.lexsort((space.gpu_type, space.num_gpus, -space.rate, space.job))
    first = np.concatenate([[0], np.cumsum(np.bincount(space.job, minlength=space.num_jobs))])
    return packing.fill(queue, columns, first, backfill=True)
