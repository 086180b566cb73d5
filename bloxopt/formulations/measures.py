"""The expressions that scheduling papers use: throughputs, time, GPUs, money, finish times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.checks import amount_of_each_type, checked_amounts
from bloxopt.formulations.expressions import Expression, ExpressionLike, build_affine, per_job
from bloxopt.formulations.progress import depends_on_progress
from bloxopt.formulations.solving.affine import Affine, Reciprocal
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray


@dataclass(frozen=True)
class EffectiveThroughput(Expression):
    """Steps/s of each job averaged over time: ``Σ_j T_ij x_ij`` (Narayanan et al., OSDI 2020, §3)."""

    progress_dependent = False

    def build(self, space: AllocationSpace) -> Affine:
        return per_job(space, space.rate)


@dataclass(frozen=True, eq=False)
class NormalizedThroughput(Expression):
    """Effective throughput of each job relative to a reference, comparable across models.

    ``s_i / (w_i ref_i) Σ_j T_ij x_ij`` with s the GPUs the job asks for (``scale_by_gpus``: a job of 8 GPUs
    should get an eighth of the time of a job of 1) and w its priority weight (``weighted``: under max-min
    a job of weight 2 gets twice as much). As it stands it is what Gavel's ``max_min_fairness_perf``
    makes as large as it can (OSDI 2020, §4.1).

    ``reference``: ``"proportional"``, the rate on an average GPU of the cluster ``Σ_j T_ij c_j / Σ_j c_j``;
    ``"isolated"``, the rate with an equal share of the cluster; ``"fastest"``, the rate on its fastest
    configuration; or an array of steps/s, one per active job. Where a reference is 0 (an elastic job that
    cannot run at the size it asks for) the job's fastest rate stands in.
    """

    reference: Literal["proportional", "isolated", "fastest"] | FloatArray = "proportional"
    weighted: bool = True
    scale_by_gpus: bool = True
    progress_dependent = False

    def build(self, space: AllocationSpace) -> Affine:
        factor = 1.0 / positive_rate(_reference_rate(self.reference, space), space)
        if self.scale_by_gpus:
            factor = factor * space.requested_demand
        if self.weighted:
            factor = factor / space.weight
        return per_job(space, space.rate * factor[space.job])


@dataclass(frozen=True)
class TimeFraction(Expression):
    """Share of the time in which each job runs, on any configuration: ``Σ_j x_ij`` in [0, 1]."""

    progress_dependent = False

    def build(self, space: AllocationSpace) -> Affine:
        return per_job(space, np.ones(space.num_columns))


@dataclass(frozen=True)
class GpusUsed(Expression):
    """GPUs in use on average: one row per GPU type, per tenant, per job (``by="job"``), or in all (None).

    A job with part of a GPU counts as that part.
    """

    by: Literal["gpu_type", "tenant", "job"] | None = None
    progress_dependent = False

    def build(self, space: AllocationSpace) -> Affine:
        gpus = space.gpu_demand.astype(np.float64)
        columns = np.arange(space.num_columns)
        if self.by == "job":
            return per_job(space, gpus)
        if self.by == "gpu_type":
            names = tuple(space.gpu_types)
            return Affine(space.gpu_type, columns, gpus, np.zeros(len(names)), lambda: names)
        if self.by == "tenant":
            tenants = space.catalog.table.tenants
            return Affine(space.tenant[space.job], columns, gpus, np.zeros(len(tenants)), lambda: tenants)
        if self.by is None:
            return Affine(np.zeros(space.num_columns, np.int64), columns, gpus, np.zeros(1), lambda: ["all"])
        raise FormulationError(f"GpusUsed: by is {self.by!r}, must be 'gpu_type', 'tenant', 'job' or None")


@dataclass(frozen=True)
class Cost(Expression):
    """Money per hour that each job spends: ``Σ_j price_j s_i x_ij``, ``price`` by GPU type per GPU-hour.

    A job with part of a GPU pays for that part.
    """

    price: Mapping[str, float]
    progress_dependent = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "price", checked_amounts("Cost", self.price, "price"))

    def build(self, space: AllocationSpace) -> Affine:
        return per_job(space, hourly_cost(self.price, space, "Cost"))


@dataclass(frozen=True)
class Restarts(Expression):
    """Seconds each running job is expected to lose by leaving what it runs on: ``cost_i (1 − x_i,current)``.

    ``seconds`` is the same restart cost for all jobs, None each job's own ``restart_cost``. 0 for waiting jobs.
    """

    seconds: float | None = None
    progress_dependent = False

    def build(self, space: AllocationSpace) -> Affine:
        if self.seconds is not None and not (np.isfinite(self.seconds) and self.seconds >= 0):
            raise FormulationError(f"Restarts: seconds is {self.seconds!r}, must be a finite number >= 0")
        cost = space.restart_cost if self.seconds is None else np.full(space.num_jobs, float(self.seconds))
        lost = np.where(space.running & space.runnable, cost, 0.0)
        stays = per_job(space, np.where(space.is_current, -lost[space.job], 0.0))
        return stays.shifted(lost)


@dataclass(frozen=True, eq=False)
class ColumnValue(Expression):
    """A value per column of the space, given as an array (num_columns,): ``Σ_c value_c x_c`` per job."""

    value: FloatArray
    progress_dependent = False

    def build(self, space: AllocationSpace) -> FloatArray:
        return np.asarray(self.value, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Total(Expression):
    """One row: the sum of an affine expression over its rows, such as ``Total(Cost(price))`` for the cluster."""

    expression: ExpressionLike

    @property
    def progress_dependent(self) -> bool:  # type: ignore[override]
        return depends_on_progress(self.expression)

    def build(self, space: AllocationSpace) -> Affine:
        return build_affine(self.expression, space, "Total").total()


@dataclass(frozen=True)
class RemainingTime(Expression):
    """Seconds until each job is done at its allocation: ``R_i / Σ_j T_ij x_ij``, a reciprocal (for MinMax)."""

    progress_dependent = False

    def build(self, space: AllocationSpace) -> Reciprocal:
        return Reciprocal(np.zeros(space.num_jobs), space.remaining_steps, per_job(space, space.rate))


@dataclass(frozen=True)
class FinishTimeRatio(Expression):
    """Finish time over what it would be on an equal share of the cluster, a reciprocal (for MinMax).

    ``(t_i + R_i / Σ_j T_ij x_ij) / (iso_i + R_i / T_i^iso)``: t seconds since arrival, R steps left, iso the
    seconds that the work done so far would have taken on the isolated share (Themis, NSDI 2020; Gavel,
    OSDI 2020, §4.2). A ratio of at most 1 means that sharing did not hurt the job.
    """

    progress_dependent = False

    def build(self, space: AllocationSpace) -> Reciprocal:
        remaining = space.remaining_steps
        alone = space.isolated_seconds + remaining / positive_rate(space.isolated_rate, space)
        alone = np.where(alone > 0, alone, 1.0)
        return Reciprocal(space.elapsed / alone, remaining / alone, per_job(space, space.rate))


def positive_rate(rate: FloatArray, space: AllocationSpace) -> FloatArray:
    """``rate`` (num_jobs,), with the fastest column where it is 0 and 1 for a job without columns."""
    if (rate > 0).all():
        return rate
    fallback = np.where(space.runnable, space.fastest_rate, 1.0)
    return np.where(rate > 0, rate, fallback)


def hourly_cost(price: Mapping[str, float], space: AllocationSpace, user: str) -> FloatArray:
    """Money per hour of running each column all the time, (num_columns,); prices name each GPU type of the cluster."""
    each = amount_of_each_type(user, price, "price", space.gpu_types)
    cost: FloatArray = each[space.gpu_type] * space.gpu_demand
    return cost


def _reference_rate(reference: object, space: AllocationSpace) -> FloatArray:
    if isinstance(reference, str):
        rates = {
            "proportional": lambda: space.proportional_rate,
            "isolated": lambda: space.isolated_rate,
            "fastest": lambda: space.fastest_rate,
        }
        if reference not in rates:
            raise FormulationError(
                f"NormalizedThroughput: reference is {reference!r}, must be one of {', '.join(rates)} or an array"
            )
        return rates[reference]()
    try:
        array = np.asarray(reference, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if array.shape != (space.num_jobs,) or not (np.isfinite(array) & (array > 0)).all():
        raise FormulationError(
            f"NormalizedThroughput: reference must be {space.num_jobs} finite steps/s > 0, one per active job"
        )
    return array
