"""Jobs with deadlines over the coming rounds: what each may run on, and what a plan of GPUs gives it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import BoolArray, FloatArray, IntArray

_ROUNDING = 1e-12
"""Part of a job's work that may be missing by rounding: far less than a microsecond of any job."""


@dataclass(frozen=True, eq=False)
class Sizes:
    """Gangs worth giving to a job on one GPU type: ``counts`` GPUs and their ``rates`` (steps/s), both ascending.

    Sizes that are no faster than a smaller one are left out. Both begin with no GPUs at all.
    """

    counts: IntArray
    rates: FloatArray

    @property
    def largest(self) -> int:
        """Position of the largest gang, 0 if there is none."""
        return len(self.counts) - 1

    def position(self, gpus: int) -> int:
        """Position of the largest gang within that many GPUs."""
        return int(np.searchsorted(self.counts, gpus, side="right")) - 1

    def at_most(self, gpus: FloatArray) -> IntArray:
        """Position of the largest gang within each number of GPUs."""
        position: IntArray = np.searchsorted(self.counts, gpus, side="right") - 1
        return position


@dataclass(frozen=True, eq=False)
class Profile:
    """GPUs that a job is given in each coming round: ``counts`` (rounds,) of type ``kinds`` (rounds,)."""

    kinds: IntArray
    counts: IntArray

    def take_from(self, free: FloatArray, share: float) -> None:
        """Lessen what is free, (types, rounds), by what a job with that share of each GPU is given."""
        free[self.kinds, np.arange(len(self.counts))] -= share * self.counts


@dataclass(frozen=True, eq=False)
class PlannedJob:
    """A job as a plan sees it, times in seconds from now.

    ``work`` steps left · ``due`` until its deadline, inf for none · ``sizes`` by GPU type · ``share`` of each GPU that
    it takes · ``restart`` lost when it starts again · ``stalled`` left of such a loss · ``gpu_type`` and ``gpus``
    that it runs on, -1 and 0 if it waits · ``started`` whether it has run before (the first start costs nothing).
    """

    work: float
    due: float
    sizes: tuple[Sizes, ...]
    share: float = 1.0
    restart: float = 0.0
    stalled: float = 0.0
    gpu_type: int = -1
    gpus: int = 0
    started: bool = False

    def productive(self, kinds: IntArray, counts: IntArray, length: float) -> FloatArray:
        """Seconds of each round, (…, rounds), in which the job makes progress before its deadline.

        ``counts`` (…, rounds) GPUs of types ``kinds`` (rounds,) and ``length`` seconds of a round. Every start costs
        ``restart`` from its moment on, over several rounds if need be, and so does every change of GPUs.
        """
        rounds = np.arange(counts.shape[-1])
        usable = np.clip(self.due - rounds * length, 0.0, length)
        if not self.restart and not self.stalled:
            return np.broadcast_to(usable, counts.shape)
        before = np.full((*counts.shape[:-1], 1), self.gpus)
        changes = counts != np.concatenate([before, counts[..., :-1]], axis=-1)
        starts: BoolArray = (counts > 0) & (changes | (kinds != np.concatenate([[self.gpu_type], kinds[:-1]])))
        latest = np.maximum.accumulate(np.where(starts, rounds, -1), axis=-1)
        lost = np.where(latest >= 0, self.restart - (rounds - latest) * length, self.stalled - rounds * length)
        if not self.started:
            first = starts.cumsum(axis=-1) == 1
            lost = np.where(first, 0.0, lost)
        productive: FloatArray = np.clip(usable - np.clip(lost, 0.0, length), 0.0, None)
        return productive

    def progress(self, kinds: IntArray, counts: IntArray, rates: FloatArray, length: float) -> FloatArray:
        """Steps done by the end of each round, (…, rounds)."""
        done: FloatArray = np.cumsum(rates * self.productive(kinds, counts, length), axis=-1)
        return done

    def enough(self, steps: FloatArray) -> BoolArray:
        """Whether so many steps are all that is left, up to rounding."""
        return np.greater_equal(steps, self.work * (1.0 - _ROUNDING))

    def rates_of(self, profile: Profile) -> FloatArray:
        """Steps/s of each round of a profile."""
        kinds = profile.kinds
        if len(kinds) and (kinds == kinds[0]).all():
            sizes = self.sizes[kinds[0]]
            same: FloatArray = sizes.rates[sizes.at_most(profile.counts)]
            return same
        rates = np.zeros(len(profile.counts))
        for kind in np.unique(kinds):
            here = profile.kinds == kind
            rates[here] = self.sizes[kind].rates[self.sizes[kind].at_most(profile.counts[here])]
        return rates

    def meets_deadline(self, profile: Profile, length: float) -> bool:
        """Whether a profile does all the work by the deadline."""
        steps = self.progress(profile.kinds, profile.counts, self.rates_of(profile), length)
        return bool(len(steps) and self.enough(steps[-1]))

    def gpu_seconds(self, profile: Profile, length: float) -> float:
        """GPU-seconds that a profile takes until the work is done, inf if it is not done by the deadline."""
        rates, seconds = self.rates_of(profile), self.productive(profile.kinds, profile.counts, length)
        steps = np.cumsum(rates * seconds)
        done = self.enough(steps)
        if not done.any():
            return np.inf
        last = int(np.argmax(done))
        left = self.work - (float(steps[last - 1]) if last else 0.0)
        # What a restart takes comes first in a round, then the work, and at the deadline it would be over.
        lost = min(length, self.due - last * length) - float(seconds[last])
        held = lost + left / float(rates[last])
        return self.share * (float(profile.counts[:last].sum()) * length + float(profile.counts[last]) * held)


def planned_jobs(space: AllocationSpace, stalled: FloatArray | None = None) -> list[PlannedJob]:
    """The jobs of a space in its order; ``stalled`` (num_jobs,) is what restarts under way still cost (s)."""
    kinds = len(space.gpu_types)
    by_kind = np.lexsort((space.num_gpus, space.gpu_type, space.job))
    job, kind = space.job[by_kind], space.gpu_type[by_kind]
    count, rate = space.num_gpus[by_kind], space.rate[by_kind]
    bounds = np.searchsorted(job * kinds + kind, np.arange(space.num_jobs * kinds + 1))
    due = space.deadline - space.now
    share = space.catalog.table.gpu_share[space.index]
    started = ~np.isnan(space.ledger.start[space.index])
    left = np.zeros(space.num_jobs) if stalled is None else stalled
    return [
        PlannedJob(
            work=float(space.remaining_steps[i]),
            due=float(due[i]),
            sizes=tuple(
                _sizes(count[bounds[b] : bounds[b + 1]], rate[bounds[b] : bounds[b + 1]])
                for b in range(i * kinds, (i + 1) * kinds)
            ),
            share=float(share[i]),
            restart=float(space.restart_cost[i]),
            stalled=float(left[i]),
            gpu_type=int(space.current_gpu_type[i]),
            gpus=int(space.current_num_gpus[i]),
            started=bool(started[i]),
        )
        for i in range(space.num_jobs)
    ]


def _sizes(counts: IntArray, rates: FloatArray) -> Sizes:
    """Those that are faster than all smaller ones."""
    best = np.maximum.accumulate(np.concatenate([[0.0], rates]))
    useful = rates > best[:-1]
    return Sizes(np.concatenate([[0], counts[useful]]), np.concatenate([[0.0], rates[useful]]))
