"""AFS: elastic GPUs one size at a time, to the job of each pair that shortens their completion times together most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.deadlines.jobs import PlannedJob, planned_jobs
from bloxopt.formulations.objectives import Objective
from bloxopt.formulations.session import Outcome, Session
from bloxopt.formulations.space import AllocationSpace
from bloxopt.formulations.upgrades import Upgrades, columns_by_size
from bloxopt.jobs import FloatArray
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
    """What each job has and could have next, and how the two compare: plain lists, read for every pair.

    ``short`` and ``long`` are what the next size is worth per GPU to the shorter and to the longer of a pair.
    """

    def __init__(self, jobs: list[PlannedJob], attained: FloatArray | None) -> None:
        self._jobs = jobs
        self._attained = None if attained is None else attained.tolist()
        self._open = list(range(len(jobs)))
        self.held: list[tuple[int, int] | None] = [None] * len(jobs)
        self.next: list[list[tuple[int, int]]] = [[] for _ in jobs]
        self._rank = [0.0] * len(jobs)
        self._short = [0.0] * len(jobs)
        self._long = [0.0] * len(jobs)
        for job in range(len(jobs)):
            self._value(job)
        self._open = [job for job in self._open if self.next[job]]

    def winner(self) -> int | None:
        """The job that the next GPUs go to, None if no job can take more."""
        best: int | None = None
        held, rank, short, long = self.held, self._rank, self._short, self._long
        for job in self._open:
            if best is None:
                best = job
            elif held[best] is None and held[job] is None:
                best = job if rank[job] < rank[best] else best
            else:
                first, last = (job, best) if rank[job] < rank[best] else (best, job)
                if held[first] is None and held[last] is not None and self._attained is None:
                    first, last = last, first  # without GPUs it is the longer one
                best = last if long[last] > short[first] else first
        return best

    def give(self, job: int, size: tuple[int, int] | None) -> None:
        """Book the size that a job got; None: nothing more fits for it."""
        if size is not None:
            self.held[job] = size
            self._value(job)
        if size is None or not self.next[job]:
            self._open.remove(job)

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
