"""``generate_trace``: a synthetic workload from published distributions, the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bloxopt.arguments import checked_arguments
from bloxopt.errors import TraceError
from bloxopt.jobs import MAX_GPUS, MAX_SECONDS, TIME_LIMIT, FloatArray
from bloxopt.registry import Registry
from bloxopt.throughput import as_oracle
from bloxopt.workloads.distributions import DURATIONS, GPU_COUNTS, Categorical, Constant, Distribution, Exponential
from bloxopt.workloads.mixes import checked_mix, checked_seed
from bloxopt.workloads.shipped import shipped_throughput
from bloxopt.workloads.trace import Trace

MAX_JOBS = 10_000_000


@checked_arguments(TraceError)
def generate_trace(
    num_jobs: int,
    jobs_per_hour: float | None = None,
    *,
    interarrival: float | Distribution | None = None,
    durations: str | float | Distribution = "gavel",
    gpu_counts: str | int | Mapping[int, float] | Distribution = "gavel",
    job_types: str | Mapping[str, float] | None = None,
    tenants: Mapping[str, float] | None = None,
    throughput: Any = None,
    gpu_type: str = "V100",
    restart_cost: float = 0.0,
    seed: int = 0,
    name: str = "generated",
) -> Trace:
    """Jobs that arrive at random and draw their duration, GPU count, job type and tenant independently.

    ``jobs_per_hour`` gives a Poisson process (``math.inf``: all at time 0); or give ``interarrival``,
    the seconds between jobs, as a number or a distribution. The first job arrives after the first
    gap. ``durations`` (seconds), ``gpu_counts`` are names in ``DURATIONS`` and ``GPU_COUNTS``, numbers,
    or distributions of your own; a mapping of GPU counts gives weights.

    With ``job_types`` (weights by name, or ``"gavel"``: the 26 types of Gavel's table, equally often)
    the work is in steps: those that the type makes in the drawn duration on ``gpu_type``, by
    ``throughput`` (Gavel's table when ``None``), among the types that run on the GPU count drawn.

    Each quantity has its own random stream, so changing one leaves the draws of the others.
    Raises :class:`~bloxopt.errors.TraceError` for what cannot be drawn from.
    """
    if isinstance(num_jobs, bool) or not isinstance(num_jobs, (int, np.integer)) or not 1 <= num_jobs <= MAX_JOBS:
        raise TraceError(f"num_jobs is {num_jobs!r}, must be a whole number from 1 to {MAX_JOBS}")
    count = int(num_jobs)
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(checked_seed(seed)).spawn(5)]
    gaps = _draw("interarrival", _gaps(jobs_per_hour, interarrival), streams[0], count)
    duration = _draw("durations", _distribution(durations, DURATIONS), streams[1], count)
    _check(
        "durations", duration, (duration > 0) & (duration <= MAX_SECONDS), f"numbers of seconds > 0 and {TIME_LIMIT}"
    )
    gpus = _draw("gpu_counts", _distribution(gpu_counts, GPU_COUNTS), streams[2], count)
    _check("gpu_counts", gpus, (gpus >= 1) & (gpus <= MAX_GPUS) & (gpus == np.floor(gpus)), f"whole, 1 to {MAX_GPUS}")
    arrival = np.cumsum(gaps)
    if arrival[-1] > MAX_SECONDS:
        raise TraceError(
            f"the last of {count} jobs would arrive after {arrival[-1]:g} s, must be {TIME_LIMIT}: raise jobs_per_hour "
            "(or make interarrival shorter)"
        )
    columns: dict[str, Any] = {}
    if tenants is not None:
        checked_mix("tenants", tenants)
        names = np.array(list(tenants), dtype=object)
        drawn = Categorical(dict(enumerate(tenants.values()))).sample(streams[3], count)
        columns["tenant"] = names[drawn.astype(np.int64)]
    trace = Trace.from_columns(
        name,
        job_id=np.array([str(row) for row in range(count)], dtype=object),
        arrival=arrival,
        duration=duration,
        num_gpus=gpus.astype(np.int64),
        **columns,
    ).with_restart_cost(restart_cost)
    if job_types is None:
        return trace if throughput is None else trace.with_throughput(throughput)
    oracle = shipped_throughput("gavel/simulation_throughputs.json.gz") if throughput is None else as_oracle(throughput)
    mix = JOB_TYPES.get(job_types) if isinstance(job_types, str) else job_types
    return trace.with_job_types(
        mix() if callable(mix) else mix, seed=int(streams[4].integers(2**63)), throughput=oracle, gpu_type=gpu_type
    )


def gavel_job_types() -> dict[str, float]:
    """Gavel's 26 model types, equally often."""
    return dict.fromkeys(sorted(shipped_throughput("gavel/simulation_throughputs.json.gz").job_types), 1.0)


JOB_TYPES = Registry("job type mix", {"gavel": gavel_job_types})
"""Named job type mixes: a function that gives the weights."""


def _gaps(jobs_per_hour: float | None, interarrival: float | Distribution | None) -> Distribution:
    if (jobs_per_hour is None) == (interarrival is None):
        both = "both given: " if jobs_per_hour is not None else ""
        raise TraceError(f"{both}give either jobs_per_hour or interarrival")
    if interarrival is not None:
        return interarrival if isinstance(interarrival, Distribution) else Constant(interarrival)
    assert jobs_per_hour is not None
    if jobs_per_hour == math.inf:
        return Constant(0.0)
    if not (math.isfinite(jobs_per_hour) and jobs_per_hour > 0):
        raise TraceError(f"jobs_per_hour is {jobs_per_hour!r}, must be > 0 (math.inf: all jobs at time 0)")
    return Exponential(3600.0 / jobs_per_hour)


def _distribution(source: Any, known: Registry) -> Distribution:
    if isinstance(source, str):
        distribution: Distribution = known.get(source)
        return distribution
    if isinstance(source, Mapping):
        return Categorical(source)
    if isinstance(source, Distribution):
        return source
    return Constant(source)


def _draw(what: str, distribution: Distribution, rng: np.random.Generator, count: int) -> FloatArray:
    try:
        values = np.asarray(distribution.sample(rng, count), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TraceError(f"{what}: cannot draw from {distribution!r}: {error}") from error
    if values.shape != (count,):
        raise TraceError(f"{what}: the distribution gave shape {values.shape} for {count} draws")
    _check(what, values, values >= 0, "numbers >= 0")
    return values


def _check(what: str, values: FloatArray, good: Any, wanted: str) -> None:
    bad = ~(np.isfinite(values) & good)
    if np.any(bad):
        raise TraceError(f"{what}: drew {values[np.argmax(bad)]!r}, must be finite {wanted}")
