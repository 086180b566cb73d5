"""Transformations of a trace: pure functions that return a new one, also methods of ``Trace``."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bloxopt.arguments import checked_arguments, fits
from bloxopt.errors import TraceError
from bloxopt.jobs import MAX_GPUS, BoolArray, FloatArray, JobTable
from bloxopt.throughput import as_oracle, checked_rates
from bloxopt.workloads.mixes import assign_counts, checked_mix, checked_seed

if TYPE_CHECKING:
    from bloxopt.workloads.trace import Trace


@checked_arguments(TraceError)
def window(trace: Trace, /, start: float, end: float = math.inf, *, rebase: bool = True) -> Trace:
    """The jobs that arrive in ``start <= arrival < end`` (seconds).

    ``rebase`` moves time so that ``start`` becomes 0; deadlines move along.
    """
    if not (math.isfinite(start) and start >= 0 and end > start):
        raise TraceError(f"window from {start!r} to {end!r}: needs 0 <= start < end, in seconds")
    arrival = trace.jobs.arrival
    mask = (arrival >= start) & (arrival < end)
    if not np.any(mask):
        raise TraceError(
            f"trace {trace.name!r}: no job arrives from {start} to {end} s; "
            f"arrivals go from {arrival[0]} to {arrival[-1]} s"
        )
    part = trace.take(mask)
    return _with_arrivals(part, part.jobs.arrival - start) if rebase else part


@checked_arguments(TraceError)
def head(trace: Trace, /, count: int) -> Trace:
    """The first ``count`` jobs to arrive, or all when there are fewer."""
    if count < 1:
        raise TraceError(f"head({count!r}): needs a whole number of jobs >= 1")
    return trace.take(slice(0, int(count)))


@checked_arguments(TraceError)
def where(
    trace: Trace,
    /,
    *,
    min_gpus: int | None = None,
    max_gpus: int | None = None,
    min_duration: float | None = None,
    max_duration: float | None = None,
    tenant: str | Collection[str] | None = None,
    job_type: str | Collection[str] | None = None,
    gpu_type: str = "V100",
) -> Trace:
    """The jobs that fulfil every condition given; bounds are inclusive.

    GPUs are those a job asks for; durations are seconds on them (on ``gpu_type`` where only a
    throughput table gives them). Raises when no job is left or a name does not occur.
    """
    for name, bound in (("min_duration", min_duration), ("max_duration", max_duration)):
        if bound is not None and math.isnan(bound):
            raise TraceError(f"where: {name} is nan, must be a number of seconds")
    mask = np.ones(len(trace), np.bool_)
    if min_gpus is not None:
        mask &= trace.jobs.num_gpus >= min_gpus
    if max_gpus is not None:
        mask &= trace.jobs.num_gpus <= max_gpus
    if min_duration is not None or max_duration is not None:
        durations = _finite_durations(trace, gpu_type)
        mask &= durations >= (-math.inf if min_duration is None else min_duration)
        mask &= durations <= (math.inf if max_duration is None else max_duration)
    if tenant is not None:
        mask &= _is_one_of(trace, "tenant", trace.jobs.tenant_names, tenant)
    if job_type is not None:
        mask &= _is_one_of(trace, "job type", trace.jobs.job_type_names, job_type)
    return trace.take(mask)


@checked_arguments(TraceError)
def scale_load(trace: Trace, /, factor: float) -> Trace:
    """Arrivals compressed around the first one, so that the offered load is ``factor`` times as high.

    Deadlines keep their distance from the arrival.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise TraceError(f"scale_load({factor!r}): needs a finite factor > 0")
    first = trace.jobs.arrival[0]
    with np.errstate(over="ignore"):  # a factor that small is refused by the trace
        return _with_arrivals(trace, first + (trace.jobs.arrival - first) / factor)


@checked_arguments(TraceError)
def with_gpu_demand(
    trace: Trace,
    /,
    mix: Mapping[int, float],
    seed: int = 0,
    *,
    keep: Literal["duration", "gpu_time"] = "duration",
    gpu_type: str = "V100",
) -> Trace:
    """Every job asks for a GPU count drawn from ``mix`` (count → weight; weights are normalised).

    ``keep="duration"`` leaves each job as long as it was, on its new GPUs; ``keep="gpu_time"`` leaves
    duration × GPUs. Steps follow from the trace's throughput on ``gpu_type``. Counts go to jobs that can
    run on them (throughput > 0): with Gavel's table, the multi-GPU counts go to the model types that are
    distributed; an error says so when there are too few. Rigid jobs stay rigid; the range of an
    elastic one grows to hold its new request.
    """
    counts, weights = checked_mix("GPU demand", mix)
    seed = checked_seed(seed)
    if not all(fits(count, float) and 1 <= count <= MAX_GPUS and count == int(count) for count in counts):
        raise TraceError(f"GPU demand {counts}: counts must be whole numbers of GPUs from 1 to {MAX_GPUS}")
    jobs = trace.jobs
    choices = np.array(counts, dtype=np.int64)
    runnable = np.column_stack(
        [checked_rates(trace.throughput, jobs, [gpu_type], np.full(len(jobs), count))[:, 0] > 0 for count in choices]
    )
    demand = choices[assign_counts(trace.name, choices, weights, runnable, np.random.default_rng(seed))]
    before = _positive_rates(trace, jobs, gpu_type)
    factor = np.ones(len(jobs)) if keep == "duration" else jobs.num_gpus / demand
    rigid = (jobs.min_gpus == jobs.num_gpus) & (jobs.max_gpus == jobs.num_gpus)
    changed = replace(
        jobs,
        num_gpus=demand,
        min_gpus=np.where(rigid, demand, np.minimum(jobs.min_gpus, demand)),
        max_gpus=np.where(rigid, demand, np.maximum(jobs.max_gpus, demand)),
        # Steps and duration change together, for oracles that work from their ratio.
        total_steps=jobs.total_steps * factor,
        duration=jobs.duration * factor,
    )
    after = _positive_rates(trace, changed, gpu_type)
    return replace(trace, jobs=replace(changed, total_steps=changed.total_steps * (after / before)))


@checked_arguments(TraceError)
def with_job_types(
    trace: Trace,
    /,
    mix: Mapping[str, float],
    seed: int = 0,
    *,
    throughput: Any = None,
    gpu_type: str = "V100",
) -> Trace:
    """Every job becomes of a type drawn from ``mix`` (job type → weight; weights are normalised).

    Durations stay; the steps become those that the new type makes in that time on ``gpu_type``, by
    ``throughput`` (the trace's own when ``None``). A job draws among the types that run on its GPU
    count, as Gavel's generator does; an error names the count that none runs on.
    """
    names, weights = checked_mix("job type mix", mix)
    seed = checked_seed(seed)
    if not all(isinstance(name, str) and name for name in names):
        raise TraceError(f"job type mix {names!r}: job types must be non-empty strings")
    jobs = trace.jobs
    oracle = trace.throughput if throughput is None else as_oracle(throughput)
    counts, inverse = np.unique(jobs.num_gpus, return_inverse=True)
    rng = np.random.default_rng(seed)
    draw = rng.random(len(jobs))
    job_type = np.zeros(len(jobs), np.int64)
    for group, count in enumerate(counts):
        members = np.flatnonzero(inverse == group)
        # One probe job of each new type, as large as these jobs, tells which types run.
        probe = replace(
            jobs.take(np.repeat(members[:1], len(names))),
            job_type=np.arange(len(names)),
            job_types=tuple(names),
        )
        rates = checked_rates(oracle, probe, [gpu_type], probe.num_gpus)[:, 0]
        possible = np.where(rates > 0, weights, 0.0)
        if possible.sum() == 0:
            raise TraceError(
                f"trace {trace.name!r}: none of the job types {', '.join(names)} runs on {count} x {gpu_type}, "
                f"which {len(members)} jobs ask for: add a type that does, or change the demand first"
            )
        cumulative = np.cumsum(possible / possible.sum())
        # Rounding can leave the last sum below 1: the last type that runs takes what is over.
        last = np.flatnonzero(possible)[-1]
        job_type[members] = np.minimum(np.searchsorted(cumulative, draw[members], side="right"), last)
    changed = replace(jobs, job_type=job_type, job_types=tuple(names))
    after = checked_rates(oracle, changed, [gpu_type], jobs.num_gpus)[:, 0]
    if throughput is None:
        steps = jobs.total_steps * (after / _positive_rates(trace, jobs, gpu_type))
    else:
        steps = _finite_durations(trace, gpu_type) * after
    return replace(trace, jobs=replace(changed, total_steps=steps), throughput=oracle)


@checked_arguments(TraceError)
def with_elastic_range(trace: Trace, /, min_gpus: int, max_gpus: int) -> Trace:
    """Every job may run on ``min_gpus`` … ``max_gpus``, widened where its request lies outside."""
    if not (1 <= min_gpus <= max_gpus <= MAX_GPUS):
        raise TraceError(
            f"elastic range {min_gpus!r} to {max_gpus!r}: needs whole numbers, 1 <= min <= max <= {MAX_GPUS}"
        )
    requested = trace.jobs.num_gpus
    jobs = replace(
        trace.jobs,
        min_gpus=np.minimum(requested, int(min_gpus)),
        max_gpus=np.maximum(requested, int(max_gpus)),
    )
    return replace(trace, jobs=jobs)


@checked_arguments(TraceError)
def with_deadlines(
    trace: Trace, /, tightest: float = 0.5, loosest: float = 1.5, seed: int = 0, *, gpu_type: str = "V100"
) -> Trace:
    """Every job has a deadline at its arrival + λ × its duration, with λ uniform from ``tightest`` to ``loosest``.

    Durations are seconds on the GPUs that a job asks for (on ``gpu_type`` where only a throughput table gives them);
    λ < 1 can be met by elastic jobs alone, on more GPUs than they ask for. As ElasticFlow's trace generator draws
    them, with 0.5 and 1.5 (Gu et al., ASPLOS 2023).
    """
    if not (0 < tightest <= loosest < math.inf):
        raise TraceError(f"deadlines from {tightest!r} to {loosest!r} durations: needs 0 < tightest <= loosest < inf")
    factor = np.random.default_rng(checked_seed(seed)).uniform(tightest, loosest, len(trace))
    deadline = trace.jobs.arrival + factor * _finite_durations(trace, gpu_type)
    return replace(trace, jobs=replace(trace.jobs, deadline=deadline))


@checked_arguments(TraceError)
def with_throughput(trace: Trace, /, source: Any) -> Trace:
    """The same jobs with other throughputs: an oracle, a function, a table or a path to one."""
    return replace(trace, throughput=as_oracle(source))


@checked_arguments(TraceError)
def with_restart_cost(trace: Trace, /, seconds: float) -> Trace:
    """Every job loses ``seconds`` each time it starts again after a preemption."""
    if not (math.isfinite(seconds) and seconds >= 0):
        raise TraceError(f"with_restart_cost({seconds!r}): needs a finite number of seconds >= 0")
    return replace(trace, jobs=replace(trace.jobs, restart_cost=np.full(len(trace), float(seconds))))


def _with_arrivals(trace: Trace, arrival: FloatArray) -> Trace:
    """The same jobs at other times, deadlines as far from the arrival as before."""
    deadline = arrival + (trace.jobs.deadline - trace.jobs.arrival)
    return replace(trace, jobs=replace(trace.jobs, arrival=arrival, deadline=deadline))


def _is_one_of(trace: Trace, kind: str, values: Any, wanted: str | Collection[str]) -> BoolArray:
    names = {wanted} if isinstance(wanted, str) else set(wanted)
    unknown = sorted(names - set(values))
    if unknown:
        known = ", ".join(sorted(set(values))[:10])
        raise TraceError(f"trace {trace.name!r} has no {kind} {unknown[0]!r}; it has {known}")
    mask: BoolArray = np.isin(values, list(names))
    return mask


def _positive_rates(trace: Trace, jobs: JobTable, gpu_type: str) -> FloatArray:
    """Steps/s of each job on the GPUs it asks for; raises where a job cannot run on ``gpu_type``."""
    rates = checked_rates(trace.throughput, jobs, [gpu_type], jobs.num_gpus)[:, 0]
    _refuse(trace, jobs, rates <= 0, gpu_type)
    return rates


def _finite_durations(trace: Trace, gpu_type: str) -> FloatArray:
    """Seconds of each job; raises where a job has none of its own and cannot run on ``gpu_type``."""
    durations = trace.durations(gpu_type)
    _refuse(trace, trace.jobs, ~np.isfinite(durations), gpu_type)
    return durations


def _refuse(trace: Trace, jobs: JobTable, bad: BoolArray, gpu_type: str) -> None:
    if np.any(bad):
        row = int(np.argmax(bad))
        raise TraceError(
            f"trace {trace.name!r}: job {jobs.job_id[row]!r} cannot run on {jobs.num_gpus[row]} x {gpu_type}, so its "
            "duration there is unknown: name another gpu_type"
        )
