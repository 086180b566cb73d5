"""ElasticFlow's allocation: every deadline its minimum satisfactory share, the rest where it saves most GPU time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from bloxopt.formulations.deadlines import DeadlinePlan, PlannedJob, Profile, deadline_plan
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.solving.session import Outcome, Session
from bloxopt.formulations.solving.upgrades import Upgrades, columns_by_size
from bloxopt.solvers.base import Termination


@dataclass(frozen=True)
class SatisfactoryShares(Objective):
    """In each round the minimum satisfactory share of every job with a deadline, then elastic scaling of all.

    What the plan of the deadlines (:func:`~bloxopt.formulations.deadlines.deadline_plan`) does not use in this
    round is given out size by size, each time to the job whose GPU time until it is done shrinks most, or grows
    least, per GPU added; jobs without any GPU come first, in order of arrival. Jobs without a deadline, and those whose
    deadline cannot be kept, take part in the second step only. More GPUs now never break a promise: where a restart
    would cost a job its deadline, it is not scaled. The reported value is the number of deadlines kept.

    Source: Gu et al., "ElasticFlow", ASPLOS 2023, algorithms 1 and 2.
    """

    curvature = "staged"
    progress_dependent = True
    work_conserving = False

    def solve(self, session: Session) -> Outcome:
        space = session.space
        plan = deadline_plan(space)
        plan.promise()
        upgrades = Upgrades(session, "SatisfactoryShares")
        columns = columns_by_size(space)
        has: dict[int, tuple[int, int]] = {}
        for position, profile in plan.profiles.items():
            kind, count = int(profile.kinds[0]), int(profile.counts[0])
            column = columns.get((position, kind, count), -1)
            if column >= 0 and upgrades.exchange(-1, column):
                has[position] = kind, count
        _scale(plan, has, upgrades, columns)
        kept = float(len(plan.profiles))
        return Outcome(upgrades.x, kept, None, Termination.FEASIBLE, message="progressive filling")


def _scale(
    plan: DeadlinePlan,
    has: dict[int, tuple[int, int]],
    upgrades: Upgrades,
    columns: dict[tuple[int, int, int], int],
) -> None:
    """Give out what is left in this round; ``has`` (GPU type and number by position) grows."""
    length = plan.space.round_seconds
    heap: list[tuple[float, int, float, int, int]] = []

    def offer(position: int) -> None:
        """Put the job's next size on the heap; for a job without GPUs its smallest on each type, the fastest first."""
        job, profile, held = plan.jobs[position], plan.profiles.get(position), has.get(position)
        for kind in range(len(job.sizes)) if held is None else (held[0],):
            sizes = job.sizes[kind]
            at = 0 if held is None else sizes.position(held[1])
            for bigger, rate in zip(sizes.counts[at + 1 :].tolist(), sizes.rates[at + 1 :].tolist(), strict=True):
                after = _gpu_seconds(job, profile, kind, bigger, length)
                if not np.isfinite(after):
                    continue
                growth = -np.inf
                if held is not None:
                    growth = (after - _gpu_seconds(job, profile, kind, held[1], length)) / (bigger - held[1])
                heapq.heappush(heap, (growth, position, -rate, kind, bigger))
                break

    for position in range(len(plan.jobs)):
        offer(position)
    while heap:
        growth, position, _, kind, bigger = heapq.heappop(heap)
        held = has.get(position)
        if held is not None and growth == -np.inf:
            continue  # it has got GPUs of another type by now
        old = -1 if held is None else columns[position, held[0], held[1]]
        if upgrades.exchange(old, columns[position, kind, bigger]):
            has[position] = kind, bigger
            offer(position)


def _gpu_seconds(job: PlannedJob, profile: Profile | None, kind: int, count: int, length: float) -> float:
    """GPU-seconds until the job is done if it has ``count`` GPUs in this round and then goes on as planned.

    A job without a plan keeps them. inf if its deadline would be missed.
    """
    if profile is None:
        rate = float(job.sizes[kind].rates[job.sizes[kind].position(count)])
        lost = 0.0 if (kind, count) == (job.gpu_type, job.gpus) or not job.started else job.restart
        return job.share * count * (lost + job.work / rate)
    counts, kinds = profile.counts.copy(), profile.kinds.copy()
    counts[0], kinds[0] = count, kind
    return job.gpu_seconds(Profile(kinds, counts), length)
