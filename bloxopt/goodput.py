"""Goodput: what of a job's throughput counts towards convergence, and the model of step times that predicts it.

``goodput = throughput(placement, batch) × efficiency(batch)`` (Qiao et al., Pollux, OSDI 2021). The throughput model
has seven parameters and is fitted to step times that were seen; the efficiency follows from the gradient noise scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bloxopt.errors import ThroughputError
from bloxopt.jobs import BoolArray, FloatArray, IntArray

_LEAST = 1e-8
"""Seconds, and seconds a sample, below which no parameter is fitted: its logarithm has to exist."""

_FIT_STEPS = 60

_GAMMA_ROOT, _SLOPE_ROOT = np.sqrt(1e-3), np.sqrt(1e-2)
"""Roots of the weights that Pollux gives to what the data leave open: overlap and growth with the number of GPUs."""

OVERLAP = (1.0, 10.0)
"""Range of the exponent: at 1 computing and communicating add up, at 10 the longer of the two is nearly all."""


def statistical_efficiency(noise_scale: Any, initial_batch_size: float, batch_size: Any) -> FloatArray:
    """``(φ + B0) / (φ + B)``: progress per sample at batch size B over that at B0, with φ the noise scale (samples).

    φ is B0 times the variance of the gradient over its squared norm, both at B0. Arrays broadcast.
    """
    noise = np.asarray(noise_scale, dtype=np.float64)
    efficiency: FloatArray = (noise + initial_batch_size) / (noise + np.asarray(batch_size, dtype=np.float64))
    return efficiency


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """Seconds of a training step by GPUs, nodes and local batch size b (Pollux, OSDI 2021, §3.2).

    Computing takes ``T_c = compute + compute_per_sample b``; exchanging gradients among n > 1 GPUs
    ``T_n = α + β max(n − 2, 0)`` with ``across`` α and ``across_per_gpu`` β between nodes, ``within`` and
    ``within_per_gpu`` on one; together ``(T_c^γ + T_n^γ)^(1/γ)`` with γ the ``overlap``. A pass that only accumulates
    gradients takes T_c.
    """

    compute: float
    compute_per_sample: float
    across: float
    across_per_gpu: float
    within: float
    within_per_gpu: float
    overlap: float

    def pass_seconds(self, local: Any) -> FloatArray:
        """Seconds of a pass over ``local`` samples a GPU that exchanges nothing."""
        seconds: FloatArray = self.compute + self.compute_per_sample * np.asarray(local, dtype=np.float64)
        return seconds

    def exchange_seconds(self, nodes: Any, gpus: Any) -> FloatArray:
        """Seconds of exchanging the gradients of ``gpus`` GPUs on ``nodes`` nodes."""
        nodes, gpus = np.asarray(nodes), np.asarray(gpus)
        fixed = np.where(nodes > 1, self.across, np.where(gpus > 1, self.within, _LEAST))
        each = np.where(nodes > 1, self.across_per_gpu, np.where(gpus > 1, self.within_per_gpu, _LEAST))
        seconds: FloatArray = fixed + each * np.maximum(gpus - 2, _LEAST)
        return seconds

    def step_seconds(self, nodes: Any, gpus: Any, local: Any, accumulated: Any = 0) -> FloatArray:
        """Seconds of a step: ``accumulated`` passes without an exchange and one with. Arrays broadcast."""
        alone = self.pass_seconds(local)
        seconds: FloatArray = np.exp(self._log_step(alone, self.exchange_seconds(nodes, gpus))) + accumulated * alone
        return seconds

    def _log_step(self, alone: FloatArray, exchange: FloatArray) -> FloatArray:
        joint: FloatArray = np.logaddexp(self.overlap * np.log(alone), self.overlap * np.log(exchange)) / self.overlap
        return joint


@dataclass(frozen=True, slots=True)
class FittedStepTimes:
    """A fitted model and how far it is off: root mean squared logarithmic errors of steps and of passes."""

    model: StepTimeModel
    step_error: float
    pass_error: float


def fit_step_times(
    nodes: IntArray, gpus: IntArray, local: FloatArray, pass_seconds: FloatArray, step_seconds: FloatArray
) -> FittedStepTimes:
    """Fit the seven parameters to observations, all (observations,), as Pollux' agents do.

    Minimises the root mean squared errors of the logarithms of pass and step seconds, plus ``10⁻³ (γ − 1)²`` and
    ``10⁻² Σ (β/α)²`` for what the data leave open: least squares, then L-BFGS-B. Parameters that nothing was seen of
    keep their least value: a job that has not run on two nodes is taken to lose little by it.
    Raises :class:`ThroughputError` for observations that are not positive or not of equal length.
    """
    from scipy.optimize import least_squares, minimize

    nodes, gpus, local, alone, step = _observations(nodes, gpus, local, pass_seconds, step_seconds)
    start = np.array([0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001])
    lower = np.array([_LEAST] * 6 + [OVERLAP[0]])
    upper = np.array([np.inf] * 6 + [OVERLAP[1]])

    def fixed(index: Sequence[int], value: float) -> None:
        start[list(index)] = lower[list(index)] = upper[list(index)] = value

    if len(np.unique(local)) == 1:
        # One batch size cannot tell the two parts of computing apart: half is taken for each.
        fixed([0], float(alone.mean()) / 2)
    if not (nodes > 1).any():
        fixed([2, 3], _LEAST)
    if not ((nodes == 1) & (gpus > 1)).any():
        fixed([4, 5], _LEAST)
    if not (gpus > 2).any():
        fixed([3, 5], _LEAST)
    log_alone, log_step = np.log(alone), np.log(step)
    free = lower < upper

    def misses(values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Logarithmic errors of steps and of passes, and the roots of the terms for what the data leave open."""
        model = StepTimeModel(*values.tolist())
        computed = model.pass_seconds(local)
        predicted = model._log_step(computed, model.exchange_seconds(nodes, gpus))
        _, _, across, across_each, within, within_each, overlap = values.tolist()
        open_terms = np.array(
            [_GAMMA_ROOT * (overlap - 1), *_SLOPE_ROOT * np.array([across_each / across, within_each / within])]
        )
        return predicted - log_step, np.log(computed) - log_alone, open_terms

    def full(chosen: FloatArray) -> FloatArray:
        values = start.copy()
        values[free] = chosen
        return values

    def loss(chosen: FloatArray) -> float:
        steps, passes, terms = misses(full(chosen))
        return _rms(steps) + _rms(passes) + float(terms @ terms)

    def squares(chosen: FloatArray) -> FloatArray:
        steps, passes, terms = misses(full(chosen))
        return np.concatenate([steps / np.sqrt(len(steps)), passes / np.sqrt(len(passes)), terms])

    # Least squares come close from afar; the published loss has a kink wherever an error vanishes.
    bounds = (lower[free], upper[free])
    near = np.clip(least_squares(squares, start[free], bounds=bounds, x_scale="jac", max_nfev=_FIT_STEPS).x, *bounds)
    polished = minimize(loss, near, method="L-BFGS-B", bounds=list(zip(*bounds, strict=True))).x
    values = full(min(near, polished, key=loss))
    step_error, pass_error = (_rms(part) for part in misses(values)[:2])
    if not (nodes > 1).any():
        # Exchanging between nodes is at least a tenth slower than within one.
        values[2], values[3] = max(values[2], 1.1 * values[4]), max(values[3], 1.1 * values[5])
    return FittedStepTimes(StepTimeModel(*values.tolist()), step_error, pass_error)


def _observations(*columns: Any) -> tuple[Any, ...]:
    arrays = [np.asarray(column, dtype=np.float64) for column in columns]
    names = ("nodes", "gpus", "local", "pass_seconds", "step_seconds")
    for name, values in zip(names, arrays, strict=True):
        if values.ndim != 1 or len(values) != len(arrays[0]) or not len(values):
            raise ThroughputError(f"step times to fit: {name} has shape {values.shape}, all must be of one length > 0")
        bad: BoolArray = ~(np.isfinite(values) & (values > 0))
        if bad.any():
            raise ThroughputError(f"step times to fit: {name} has {values[bad][0]}, all must be finite numbers > 0")
    return tuple(arrays)


def _rms(values: FloatArray) -> float:
    return float(np.sqrt((values**2).mean()))
