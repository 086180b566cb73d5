"""Which GPUs are set aside in which rounds so that deadlines are met, and what has been promised before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bloxopt.formulations.deadlines.filling import fill_in_order, satisfactory_profile
from bloxopt.formulations.deadlines.jobs import PlannedJob, Profile, planned_jobs
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray

_PROMISE = "deadlines.promise"
_SEEN = "deadlines.seen"
"""Names under which the ledger remembers."""

_MOST_ROUNDS = 100_000
"""Rounds that a plan looks ahead at most: a deadline beyond is planned as if it were there."""


@dataclass(frozen=True, eq=False)
class DeadlinePlan:
    """Profiles of the jobs of ``space`` that have a deadline and meet it, by position; ``jobs`` has all of them.

    ``free`` (types, rounds) is what nobody is promised. ``late`` are the positions of jobs whose deadline is not met.
    """

    space: AllocationSpace
    jobs: Sequence[PlannedJob]
    profiles: Mapping[int, Profile]
    free: FloatArray
    late: frozenset[int]

    @property
    def late_rows(self) -> frozenset[int]:
        """Rows of the job table of the jobs that are late."""
        return frozenset(int(self.space.index[position]) for position in self.late)

    def with_profiles(self, profiles: Mapping[int, Profile]) -> DeadlinePlan:
        """The same jobs with other profiles, which must be possible together."""
        free = np.repeat(self.space.capacity.astype(np.float64)[:, None], self.free.shape[1], axis=1)
        for position, profile in profiles.items():
            profile.take_from(free, self.jobs[position].share)
        late = frozenset(i for i, job in enumerate(self.jobs) if np.isfinite(job.due)) - profiles.keys()
        return DeadlinePlan(self.space, self.jobs, profiles, free, late)

    def joined_by(self, row: int) -> DeadlinePlan | None:
        """The plan with job ``row`` on GPUs that nobody is promised; None if these do not do for its deadline."""
        space, length = self.space, self.space.round_seconds
        rows = np.array([row], dtype=np.int64)
        (job,) = planned_jobs(space.without(space.index).including(rows))
        capacity = space.capacity.astype(np.float64)
        beyond = min(_MOST_ROUNDS, int(np.ceil(job.due / length))) - self.free.shape[1]
        free = np.concatenate([self.free, np.repeat(capacity[:, None], max(0, beyond), axis=1)], axis=1)
        profile = satisfactory_profile(job, free, capacity, length)
        if profile is None:
            return None
        profile.take_from(free, job.share)
        return DeadlinePlan(
            space.including(rows), [*self.jobs, job], {**self.profiles, len(self.jobs): profile}, free, self.late
        )

    def promise(self) -> None:
        """Remember the plan in the ledger: as long as it can be kept, no job of it misses its deadline."""
        space = self.space
        promises = space.ledger.memory(_PROMISE, None)
        for position, row in enumerate(space.index.tolist()):
            profile = self.profiles.get(position)
            promises[row] = None if profile is None else (space.now, profile)


def deadline_plan(space: AllocationSpace) -> DeadlinePlan:
    """A plan in rounds from now by which as many deadlines as promised are met, and more if possible.

    Deadlines are served in order by progressive filling. Gangs come in whole GPUs, so that what was possible a
    round ago may not be found again; then everyone keeps the profile it was promised, which is possible as
    long as no node fails, and the others are fitted in between. A plan speaks of rounds of ``space.round_seconds``
    that begin now: promises made for rounds that begin at other times are not looked at.
    """
    space = space.alone()  # a promise counts on GPUs of its own
    jobs = planned_jobs(space, _stalled(space))
    length = space.round_seconds
    due = np.array([job.due for job in jobs], dtype=np.float64)
    with_deadline = np.flatnonzero(np.isfinite(due))
    order = with_deadline[np.argsort(due[with_deadline], kind="stable")].tolist()
    horizon = min(_MOST_ROUNDS, max(1, int(np.ceil(max(due[with_deadline], default=0.0) / length))))
    capacity = space.capacity.astype(np.float64)
    free = np.repeat(capacity[:, None], horizon, axis=1)
    profiles = fill_in_order(jobs, order, free, capacity, length)
    missed = [position for position in order if position not in profiles]
    promises = space.ledger.memory(_PROMISE, None)
    if any(promises[space.index[position]] is not None for position in missed):
        promised = _promised(space, jobs)
        kept = _kept(jobs, promised, np.repeat(capacity[:, None], horizon, axis=1))
        if kept is not None and not profiles.keys() >= promised.keys():
            free = kept
            rest = [position for position in order if position not in promised]
            profiles = {**promised, **fill_in_order(jobs, rest, free, capacity, length)}
    late = frozenset(order) - profiles.keys()
    return DeadlinePlan(space, jobs, profiles, free, late)


def _promised(space: AllocationSpace, jobs: Sequence[PlannedJob]) -> dict[int, Profile]:
    """What is left of earlier promises that still do: profiles from now on, by position."""
    promises = space.ledger.memory(_PROMISE, None)
    found: dict[int, Profile] = {}
    for position, row in enumerate(space.index.tolist()):
        if promises[row] is None:
            continue
        made_at, profile = promises[row]
        past = (space.now - made_at) / space.round_seconds
        if abs(past - round(past)) > 1e-6:
            continue
        rest = Profile(profile.kinds[round(past) :], profile.counts[round(past) :])
        if jobs[position].meets_deadline(rest, space.round_seconds):
            found[position] = rest
    return found


def _kept(jobs: Sequence[PlannedJob], promised: Mapping[int, Profile], free: FloatArray) -> FloatArray | None:
    """What is free beside all that is promised, None if that is more than there is."""
    for position, profile in promised.items():
        profile.take_from(free, jobs[position].share)
    return free if float(free.min(initial=0.0)) >= -1e-9 else None


def _stalled(space: AllocationSpace) -> FloatArray:
    """Seconds that restarts under way still cost each job: only those that outlast a round do.

    A job that runs on other GPUs than when it was last looked at has done so since then.
    """
    cost = space.restart_cost
    if not (cost > space.round_seconds).any():
        return np.zeros(space.num_jobs)
    seen = space.ledger.memory(_SEEN, None)
    left = np.zeros(space.num_jobs)
    for position, row in enumerate(space.index.tolist()):
        config = (int(space.current_gpu_type[position]), int(space.current_num_gpus[position]))
        before, since, looked = (None, space.now, space.now) if seen[row] is None else seen[row]
        since = since if config == before else looked
        seen[row] = (config, since, space.now)
        if config[1] and space.ledger.restarts[row]:
            left[position] = max(0.0, float(cost[position]) - (space.now - since))
    return left
