"""What past jobs took, as samples that are equally likely, and what they say of a job under way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bloxopt.errors import FormulationError, InputError
from bloxopt.formulations.checks import real_numbers, shown
from bloxopt.input_files import read_input
from bloxopt.jobs import FloatArray

_MOST_PAIRS = 1 << 21
"""Pairs of jobs and samples that are looked at in one go."""


def _is_list(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (bytes, Mapping))


class DurationDistribution:
    """An empirical distribution of service, ``samples`` > 0 in ascending order (seconds or GPU-seconds).

    ``durations``: the samples, or the path of a file with one a line (a first line of text is a heading). Raises
    :class:`~bloxopt.errors.InputError` naming the file and line, :class:`FormulationError` for other values that are
    no durations.
    """

    def __init__(self, durations: Iterable[float] | str | Path) -> None:
        if isinstance(durations, (str, Path)):
            samples: NDArray[Any] = _read(Path(durations))
        else:
            wanted = "numbers > 0, or the path of a file with one a line"
            listed = list(durations) if _is_list(durations) else durations
            samples = real_numbers("durations", listed, wanted)
            wrong = ~(np.isfinite(samples) & (samples > 0))
            if samples.ndim != 1 or not len(samples):
                raise FormulationError(f"durations is {shown(durations)}, must be a list of at least one number > 0")
            if wrong.any():
                raise FormulationError(f"durations has {samples[wrong][0]}, must be finite numbers > 0")
        self.samples: FloatArray = np.sort(samples.astype(np.float64))
        self._sum = np.concatenate([[0.0], np.cumsum(self.samples)])

    def mean_remaining(self, attained: FloatArray) -> FloatArray:
        """``E[S - a | S > a]`` for each service ``a`` received; inf where no sample is longer."""
        beyond = self._beyond(attained)
        count = len(self.samples) - beyond
        left = self._sum[-1] - self._sum[beyond] - attained * count
        mean: FloatArray = np.divide(left, count, out=np.full(len(count), np.inf), where=count > 0)
        return mean

    def gittins_index(self, attained: FloatArray, quantum: float | None = None) -> tuple[FloatArray, FloatArray]:
        """Gittins index of each service ``a`` received, and the service until it is to be worked out again.

        ``P(S - a ≤ Δ | S > a) / E[min(S - a, Δ) | S > a]`` for the ``quantum`` Δ, or with None the largest value over
        all Δ > 0, the Gittins index proper. The larger, the sooner a job should run; 0 where no sample is longer
        than a. Source: Tiresias (NSDI 2019, §3.3); Gittins 1979.
        """
        if quantum is not None:
            value = self._ratio(attained, self._beyond(attained), self._beyond(attained + quantum), quantum)
            span = quantum - np.mod(attained, quantum)
            # Service adds up to a rounding error: a quantum that is as good as over is over.
            return value, np.where(span < 1e-6, span + quantum, span)
        value, span = np.zeros(len(attained)), np.full(len(attained), np.inf)
        count = len(self.samples)
        for part in np.array_split(np.arange(len(attained)), len(attained) * count // _MOST_PAIRS + 1):
            # P/E falls in Δ between two samples, so the best Δ ends at one of them.
            delta = self.samples - attained[part, None]
            first = np.broadcast_to(self._beyond(attained[part])[:, None], delta.shape)
            last = np.broadcast_to(np.searchsorted(self.samples, self.samples, side="right"), delta.shape)
            ratio = np.where(delta > 0, self._ratio(attained[part, None], first, last, delta), 0.0)
            best = ratio.argmax(axis=1)
            rows = np.arange(len(part))
            value[part] = ratio[rows, best]
            span[part] = np.where(value[part] > 0, delta[rows, best], np.inf)
        return value, span

    def _beyond(self, attained: FloatArray) -> NDArray[np.int64]:
        """Number of samples that are not longer than each service received."""
        return np.searchsorted(self.samples, attained, side="right")

    def _ratio(
        self, attained: FloatArray, first: NDArray[np.int64], last: NDArray[np.int64], delta: FloatArray | float
    ) -> FloatArray:
        """Samples that end within ``delta`` (positions ``first`` to ``last``) over the service that all would use."""
        ends = last - first
        used = self._sum[last] - self._sum[first] - attained * ends + delta * (len(self.samples) - last)
        ratio: FloatArray = np.divide(ends, used, out=np.zeros(np.shape(used)), where=ends > 0)
        return ratio


def _read(path: Path) -> FloatArray:
    try:
        lines = read_input(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as cause:
        raise InputError(f"{path}: not a text file: it must hold one duration a line") from cause
    samples = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        try:
            value = float(text) if text else None
        except ValueError:
            if number == 1:
                continue  # a heading
            value = np.nan
        if value is None:
            continue
        if not 0 < value < np.inf:
            raise InputError(f"{path}, line {number}: {shown(text)} is no duration, must be a finite number > 0")
        samples.append(value)
    if not samples:
        raise InputError(f"{path}: no durations: it must hold one number > 0 a line")
    return np.array(samples)
