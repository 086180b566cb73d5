"""Gandiva's packing by trial: jobs are put together at random and taken apart again where it does not pay."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.checks import checked_amount, checked_flag, shown
from bloxopt.formulations.expressions import build_affine
from bloxopt.formulations.measures import NormalizedThroughput
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.solving.session import Outcome, Session
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray
from bloxopt.solvers.base import Termination


@dataclass(frozen=True)
class RandomPairs(Objective):
    """Equal time for all, in random pairs of equal gangs while the jobs ask for more GPUs than there are.

    With m jobs and pairs, each gets ``c_j / (m s)`` of type j, rows above 1 scaled to 1. Pairs last until one of their
    jobs is done. One whose normalised throughputs, added up over both jobs and all GPU types, are below ``keep`` is
    taken apart when the next plan is made; so is one that cannot run on some type. ``blindly`` puts jobs together
    before it is known whether they can run beside each other, as Gavel's code does: those that cannot have no claim to
    time until the next plan. Otherwise only jobs that have a profile are paired. A closed form; no solver runs.
    Source: Gandiva (Xiao et al., OSDI 2018) as in Gavel's ``gandiva`` (OSDI 2020).
    """

    keep: float = 1.0
    blindly: bool = True
    seed: int = 0
    curvature = "staged"
    progress_dependent = False

    def __post_init__(self) -> None:
        checked_amount("RandomPairs", "keep", self.keep)
        checked_flag("RandomPairs", "blindly", self.blindly)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise FormulationError(f"RandomPairs: seed is {shown(self.seed)}, must be a whole number >= 0")

    def solve(self, session: Session) -> Outcome:
        space = session.space
        if space.catalog.pairing is None:
            raise FormulationError("RandomPairs: the policy needs PairedShares(threshold=0) among its constraints")
        partner = np.full(space.num_jobs, -1)
        if float(space.requested_demand.sum()) > float(space.capacity.sum()):
            partner = self._partners(space)
        x = _equal_shares(space, partner)
        value = self.utility(space, x)
        return Outcome(x, value, value, Termination.OPTIMAL, message="closed form")

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        rows = build_affine(NormalizedThroughput(), space, "RandomPairs").only_counted()
        return float(rows.at(x).min()) if rows.num_rows else 0.0

    def _partners(self, space: AllocationSpace) -> IntArray:
        """Each active job's partner among the active jobs, -1 for none; remembered until the next plan."""
        pair = space.ledger.memory("gandiva.pair", -1)
        drawn = space.ledger.memory("gandiva.drawn_at", np.nan)
        partner = _together(pair[space.index])
        if (drawn[space.index] == space.now).all():
            return partner
        partner[_worth(space, partner) < self.keep] = -1
        self._draw(space, partner)
        paired = (partner >= 0).nonzero()[0]
        # A number for each pair, that of its first job.
        pair[space.index] = -1
        pair[space.index[paired]] = np.minimum(paired, partner[paired])
        drawn[space.index] = space.now
        return partner

    def _draw(self, space: AllocationSpace, partner: IntArray) -> None:
        """Put jobs without a partner together: as many tries as there are, each two of them at random."""
        pairing = space.catalog.pairing
        assert pairing is not None
        kind = pairing.kind[space.index]
        gpus = space.requested_gpus
        possible = pairing.factor.max(axis=2) > 0
        generator = random.Random(f"{self.seed} {space.now!r}")
        free = [job for job in (partner < 0).nonzero()[0].tolist() if kind[job] >= 0]
        for _ in range(len(free)):
            if len(free) < 2:
                return
            first, second = generator.sample(free, 2)
            if gpus[first] != gpus[second] or not (self.blindly or possible[kind[first], kind[second]]):
                continue
            free.remove(first)
            free.remove(second)
            partner[first], partner[second] = second, first


def _together(pair: IntArray) -> IntArray:
    """The position of the other job with the same number of 0 or more, -1 for none, (jobs,)."""
    partner = np.full(len(pair), -1)
    order = np.argsort(pair, kind="stable")
    same = ((pair[order[1:]] == pair[order[:-1]]) & (pair[order[1:]] >= 0)).nonzero()[0]
    partner[order[same]], partner[order[same + 1]] = order[same + 1], order[same]
    return partner


def _worth(space: AllocationSpace, partner: IntArray) -> FloatArray:
    """Normalised throughputs of each job's pair, added up over types; 0 if it cannot run on some, (num_jobs,)."""
    pairing = space.catalog.pairing
    assert pairing is not None
    worth: FloatArray = np.zeros(space.num_jobs)
    paired = (partner >= 0).nonzero()[0]
    own, other = pairing.kind[space.index[paired]], pairing.kind[space.index[partner[paired]]]
    kept = pairing.factor[own, other] + pairing.factor[other, own]
    worth[paired] = np.where((kept > 0).all(axis=1), kept.sum(axis=1), 0.0)
    return worth


def _equal_shares(space: AllocationSpace, partner: IntArray) -> FloatArray:
    """Time shares of the columns, (num_columns,), where each job or pair gets an equal part of the cluster."""
    pairing = space.catalog.pairing
    assert pairing is not None
    groups = space.num_jobs - int(np.count_nonzero(partner >= 0)) // 2
    share = space.capacity[None, :] / (groups * space.requested_demand[:, None])
    share = share / np.maximum(share.sum(axis=1, keepdims=True), 1.0)
    kind = np.where(partner >= 0, pairing.kind[space.index[partner]], -1)
    mine = (space.partner == kind[space.job]) & (space.num_gpus == space.requested_gpus[space.job])
    return np.where(mine, share[space.job, space.gpu_type], 0.0)
