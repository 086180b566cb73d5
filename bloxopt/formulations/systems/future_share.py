"""AFS: elastic GPUs one size at a time, to the job of each pair that shortens their completion times together most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.deadlines.jobs import PlannedJob, planned_jobs
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.solving.session import Outcome, Session
from bloxopt.formulations.solving.upgrades import Upgrades, columns_by_size
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import BoolArray, FloatArray
from bloxopt.solvers.base import Termination


@dataclass(frozen=True)
class FutureShare(Objective):
    """Apathetic future share: GPUs go one size up at a time to the job that wins against all others, pair by pair.

    Of two jobs let a be the shorter, which with the GPUs given out so far would be done first, with throughput
    p, and p′ with the next size. While it runs, a GPU at a shortens a by ``(p′_a − p_a) / p_a`` of that time; at b
    it saves b ``(p′_b − p_b) / p′_b`` of it later, if b then keeps what it has (nothing is assumed of the future:
    apathy). The larger number gets the GPU; sizes that are several GPUs apart are compared per GPU. Of two jobs
    without any GPU the shorter on its smallest gang wins, of equals the one admitted first. A job stays on the GPU type
    of its smallest gang: its fastest one with room.

    ``length`` is what tells short from long: ``"remaining"`` time at the shares so far, or ``"attained"`` service
    (GPU-seconds) where lengths are unknown: who has had less is taken to be shorter. The reported value is the number
    of jobs that run. Source: Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning", NSDI 2021, AFS-L.
    """

    length: Literal["remaining", "attained"] = "remaining"
    curvature = "staged"
    progress_dependent = False
    work_conserving = False

    def __post_init__(self) -> None:
        if self.length not in ("remaining", "attained"):
            raise FormulationError(f"FutureShare: length is {self.length!r}, must be 'remaining' or 'attained'")

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        return float(np.round(x).sum())

    def solve(self, session: Session) -> Outcome:
        space = session.space
        attained = None if self.length == "remaining" else space.attained_service
        shares = _Shares(planned_jobs(space), attained)
        upgrades, columns = Upgrades(session, "FutureShare"), columns_by_size(space)
        while (winner := shares.winner()) is not None:
            held = shares.held[winner]
            old = -1 if held is None else columns[(winner, *held)]
            taken = next(
                (size for size in shares.next[winner] if upgrades.exchange(old, columns[(winner, *size)])), None
            )
            shares.give(winner, taken)
        served = self.utility(space, upgrades.x)
        return Outcome(upgrades.x, served, None, Termination.FEASIBLE, message="one size at a time")


class _Shares:
    """What each job has and could have next, and how the two compare.

    ``short`` and ``long`` (jobs,) are what the next size is worth per GPU to the shorter and to the longer of a pair.
    ``leaders`` are the jobs that led, one after the other, when each was compared with the best of those before it.
    """

    def __init__(self, jobs: list[PlannedJob], attained: FloatArray | None) -> None:
        self._jobs = jobs
        self._attained = attained
        self.held: list[tuple[int, int] | None] = [None] * len(jobs)
        self.next: list[list[tuple[int, int]]] = [[] for _ in jobs]
        self._has: BoolArray = np.zeros(len(jobs), dtype=bool)
        self._rank, self._short, self._long = np.zeros((3, len(jobs)))
        self._leaders: list[int] = []
        for job in range(len(jobs)):
            self._value(job)
        self._open: BoolArray = np.array([bool(sizes) for sizes in self.next], dtype=bool)

    def winner(self) -> int | None:
        """The job that the next GPUs go to, None if no job can take more."""
        # The last winner alone has changed, so that those who led before it did still lead.
        rest = self._leaders.pop() if self._leaders else 0
        while True:
            wins = self._open[rest:]
            if self._leaders:
                wins = wins & self._beat(self._leaders[-1], rest)
            if not wins.any():
                return self._leaders[-1] if self._leaders else None
            self._leaders.append(rest + int(wins.argmax()))
            rest = self._leaders[-1] + 1

    def _beat(self, best: int, rest: int) -> BoolArray:
        """Which jobs from ``rest`` on get the next GPUs rather than ``best``, each compared with it alone."""
        rank, has, short, long = self._rank[rest:], self._has[rest:], self._short[rest:], self._long[rest:]
        ahead: BoolArray = np.less(rank, self._rank[best])
        shorter = ahead
        if self._attained is None:
            shorter = np.where(has == self._has[best], ahead, has)  # without GPUs it is the longer one
        wins = np.where(shorter, short >= self._long[best], long > self._short[best])
        return wins if self._has[best] else np.where(has, wins, ahead)

    def give(self, job: int, size: tuple[int, int] | None) -> None:
        """Book the size that the winner got; None: nothing more fits for it."""
        if size is not None:
            self.held[job] = size
            self._has[job] = True
            self._value(job)
        self._open[job] = size is not None and bool(self.next[job])

    def _value(self, job: int) -> None:
        """Work out what the job's next size is and what it is worth."""
        plan, held = self._jobs[job], self.held[job]
        if held is None:
            smallest = [
                (-float(sizes.rates[1]), kind, int(sizes.counts[1]))
                for kind, sizes in enumerate(plan.sizes)
                if sizes.largest
            ]
            self.next[job] = [(kind, count) for _, kind, count in sorted(smallest)]
            self._short[job] = np.inf
            self._long[job] = 1.0 / self.next[job][0][1] if smallest else 0.0
            fastest = -min(smallest)[0] if smallest else np.inf
            self._rank[job] = plan.work / fastest
        else:
            kind, count = held
            sizes = plan.sizes[kind]
            at = sizes.position(count)
            now = float(sizes.rates[at])
            self.next[job] = []
            self._rank[job] = plan.work / now
            if at < sizes.largest:
                bigger, rate = int(sizes.counts[at + 1]), float(sizes.rates[at + 1])
                self.next[job] = [(kind, bigger)]
                self._short[job] = (rate - now) / now / (bigger - count)
                self._long[job] = (rate - now) / rate / (bigger - count)
        if self._attained is not None:
            self._rank[job] = self._attained[job]
