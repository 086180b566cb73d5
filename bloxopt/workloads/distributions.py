"""Distributions that workloads are drawn from, with the published ones by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from bloxopt.errors import TraceError
from bloxopt.jobs import FloatArray
from bloxopt.registry import Registry
from bloxopt.workloads.mixes import checked_mix


@runtime_checkable
class Distribution(Protocol):
    """Anything that draws numbers from a generator."""

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """``count`` independent draws, shape (count,)."""
        ...


@dataclass(frozen=True)
class Constant:
    """Always the same value."""

    value: float

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        return np.full(count, float(self.value))


@dataclass(frozen=True)
class Exponential:
    """Exponential with a mean; ``whole`` rounds up, as Blox does with its inter-arrival seconds."""

    mean: float
    whole: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and self.mean > 0):
            raise TraceError(f"exponential distribution: the mean is {self.mean!r}, must be a finite number > 0")

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        draws = rng.exponential(self.mean, count)
        return np.ceil(draws) if self.whole else draws


@dataclass(frozen=True)
class LogUniformMixture:
    """With probability p, ``unit`` × 10^U(low, high), for each ``(p, low, high)`` of ``parts``."""

    parts: Sequence[tuple[float, float, float]]
    unit: float = 1.0

    def __post_init__(self) -> None:
        checked_mix("log-uniform mixture", {place: part[0] for place, part in enumerate(self.parts)})
        for _, low, high in self.parts:
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise TraceError(f"log-uniform mixture: exponents {low!r} to {high!r}, must be finite and ascending")
        if not (math.isfinite(self.unit) and self.unit > 0):
            raise TraceError(f"log-uniform mixture: the unit is {self.unit!r}, must be a finite number > 0")

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        weights, low, high = np.array(self.parts, dtype=np.float64).T
        part = rng.choice(len(weights), size=count, p=weights / weights.sum())
        exponent: FloatArray = rng.uniform(low[part], high[part])
        return self.unit * 10.0**exponent


@dataclass(frozen=True)
class Empirical:
    """Values drawn with replacement, such as the durations of a real trace."""

    values: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.values) == 0 or not np.all(np.isfinite(np.asarray(self.values, dtype=np.float64))):
            raise TraceError("empirical distribution: needs at least one value, all finite")

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        return rng.choice(np.asarray(self.values, dtype=np.float64), size=count)


@dataclass(frozen=True)
class Categorical:
    """Values with weights, such as ``{1: 0.7, 4: 0.3}`` GPUs."""

    weights: Mapping[float, float]

    def __post_init__(self) -> None:
        checked_mix("categorical distribution", self.weights)

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        values, weights = checked_mix("categorical distribution", self.weights)
        return rng.choice(np.asarray(values, dtype=np.float64), size=count, p=weights)


DURATIONS = Registry(
    "duration distribution",
    {
        # Gavel's generator, after the Philly trace: minutes. Blox uses the same one.
        "gavel": LogUniformMixture(((0.8, 1.5, 3.0), (0.2, 3.0, 4.0)), unit=60.0),
    },
)
"""Named distributions of durations in seconds."""

GPU_COUNTS = Registry(
    "GPU count distribution",
    {
        "single": Constant(1),
        # Gavel's generator.
        "gavel": Categorical({1: 0.7, 2: 0.1, 4: 0.15, 8: 0.05}),
        # Counted in the shipped Philly trace.
        "philly": Categorical(
            {1: 76627, 2: 1818, 4: 1870, 8: 1643, 12: 7, 16: 199, 24: 7, 32: 67, 64: 6, 128: 3},
        ),
    },
)
"""Named distributions of the number of GPUs a job asks for."""
