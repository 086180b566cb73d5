"""ElasticFlow's progressive filling: the fewest GPUs that let each job meet its deadline, one job after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bloxopt.formulations.deadlines.jobs import PlannedJob, Profile
from bloxopt.jobs import FloatArray


def satisfactory_profile(job: PlannedJob, free: FloatArray, capacity: FloatArray, length: float) -> Profile | None:
    """The job's minimum satisfactory share of the GPUs that are ``free`` (types, rounds); None if it has none.

    With a level of ℓ GPUs it gets ``min(ℓ, free)`` of them in each round, rounded down to a size that it can run on;
    its share is the lowest level at which its work is done by the deadline. Of several GPU types the one is taken on
    which that is the smallest part of all GPU time there (``capacity`` (types,)). Source: Gu et al., "ElasticFlow",
    ASPLOS 2023, algorithm 1.
    """
    rounds = min(free.shape[1], max(0, int(np.ceil(job.due / length))))
    best: Profile | None = None
    least = np.inf
    for kind, sizes in enumerate(job.sizes):
        if not sizes.largest or not rounds:
            continue
        room = sizes.at_most(np.floor(free[kind, :rounds] / job.share + 1e-9))
        # Row ℓ: what the job has at level ℓ + 1.
        at = np.minimum(room, np.arange(1, sizes.largest + 1)[:, None])
        counts = sizes.counts[at]
        kinds = np.full(rounds, kind)
        done = job.enough(job.progress(kinds, counts, sizes.rates[at], length))
        possible = done[:, -1].nonzero()[0]
        if not len(possible):
            continue
        level = possible[0]
        profile = counts[level, : int(np.argmax(done[level])) + 1]
        part = job.share * float(profile.sum()) / float(capacity[kind])
        if part < least:
            best, least = Profile(kinds[: len(profile)], profile), part
    return best


def fill_in_order(
    jobs: Sequence[PlannedJob], order: Sequence[int], free: FloatArray, capacity: FloatArray, length: float
) -> dict[int, Profile]:
    """Profiles of the jobs at the positions ``order``, each from what those before it left; ``free`` shrinks.

    A job without a satisfactory share has no entry and takes nothing.
    """
    profiles: dict[int, Profile] = {}
    for position in order:
        profile = satisfactory_profile(jobs[position], free, capacity, length)
        if profile is not None:
            profiles[position] = profile
            profile.take_from(free, jobs[position].share)
    return profiles
