"""Mixes: weighted choices, and how drawn GPU counts are dealt to the jobs that can use them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from bloxopt.errors import TraceError
from bloxopt.jobs import BoolArray, FloatArray, IntArray

Choice = TypeVar("Choice")


def checked_mix(what: str, mix: Mapping[Choice, float]) -> tuple[list[Choice], FloatArray]:
    """The choices and their probabilities; weights must be finite, >= 0 and not all 0."""
    if not isinstance(mix, Mapping) or not mix:
        raise TraceError(f"{what}: needs at least one choice with its weight, such as {{1: 0.7, 4: 0.3}}")
    weights = np.zeros(len(mix))
    for place, (choice, weight) in enumerate(mix.items()):
        if (
            isinstance(weight, bool)
            or not isinstance(weight, (int, float, np.number))
            or not math.isfinite(weight)
            or weight < 0
        ):
            raise TraceError(f"{what}: the weight of {choice!r} is {weight!r}, must be a finite number >= 0")
        weights[place] = weight
    if weights.sum() == 0:
        raise TraceError(f"{what}: all weights are 0")
    return list(mix), weights / weights.sum()


def checked_seed(seed: object) -> int:
    """The seed if it is a whole number >= 0; raises :class:`~bloxopt.errors.TraceError`."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise TraceError(f"seed is {seed!r}, must be a whole number >= 0")
    return int(seed)


def assign_counts(
    name: str, choices: IntArray, weights: FloatArray, runnable: BoolArray, rng: np.random.Generator
) -> IntArray:
    """Draw one choice per job from ``weights`` and deal them so that ``runnable[job, choice]`` holds.

    The draws are independent of the jobs, so the mix is met; the jobs with the fewest possibilities
    are dealt first, at random among the drawn choices that they can take. Returns indices into
    ``choices``, shape (jobs,).
    """
    drawn = rng.choice(len(choices), size=len(runnable), p=weights)
    if runnable.all():
        return drawn.astype(np.int64)
    dealt = np.full(len(runnable), -1, dtype=np.int64)
    left = np.ones(len(runnable), np.bool_)
    patterns, inverse = np.unique(runnable, axis=0, return_inverse=True)
    inverse = inverse.ravel()
    for group in np.argsort(patterns.sum(axis=1), kind="stable"):
        members = np.flatnonzero(inverse == group)
        fitting = np.flatnonzero(left & patterns[group][drawn])
        if len(fitting) < len(members):
            usable = ", ".join(str(count) for count in choices[patterns[group]]) or "none"
            raise TraceError(
                f"trace {name!r}: the GPU demand cannot be met: {len(members)} jobs can only run on {usable} of the "
                f"counts {', '.join(map(str, choices))}, but the mix gives {len(fitting)} such requests: raise their "
                "weight, or change the job types first (job_types under [trace], with_job_types in Python)"
            )
        taken = rng.choice(fitting, size=len(members), replace=False)
        dealt[members] = drawn[taken]
        left[taken] = False
    return dealt
