"""What a configuration is worth to an elastic job: its rate, relative to a reference and less what restarts cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.checks import checked_amount, finite_number, shown
from bloxopt.formulations.expressions import Expression, ExpressionLike, build_affine, per_job
from bloxopt.formulations.progress import depends_on_progress
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray
from bloxopt.throughput import ThroughputOracle, as_oracle, checked_rates

REFERENCES = ("fair", "least")


@dataclass(frozen=True, eq=False)
class Speedup(Expression):
    """Rate of each configuration over a reference of its job.

    ``"fair"``: the rate on an equal part of the cluster, its GPUs over the number of jobs, rounded up, averaged over
    the GPU types by their GPUs (Pollux, OSDI 2021). ``"least"``: the smallest rate among its configurations over the
    GPUs that this takes, so that the smallest value is its number of GPUs (Sia, SOSP 2023).

    ``predictor`` is the oracle that plans are made with: anything that :func:`~bloxopt.throughput.as_oracle` takes,
    ``"own"`` for the ``prediction`` that the space's oracle has of itself, such as a model fitted to measurements,
    None for the rates of the space, with which the simulation runs. Raises :class:`FormulationError` for an oracle that
    has no prediction, and naming a job of which the predictor knows no rate where the space has one.
    """

    reference: Literal["fair", "least"] = "fair"
    predictor: ThroughputOracle | Literal["own"] | None = None
    progress_dependent = False

    def __post_init__(self) -> None:
        if self.reference not in REFERENCES:
            raise FormulationError(f"Speedup: reference is {shown(self.reference)}, must be one of {REFERENCES}")
        if self.predictor is not None and self.predictor != "own":
            object.__setattr__(self, "predictor", as_oracle(self.predictor))

    def build(self, space: AllocationSpace) -> Affine:
        rate = space.rate if self.predictor is None else predicted_rates(_predictor(self.predictor, space), space)
        reference = (_fair if self.reference == "fair" else _least)(space, rate)
        return per_job(space, rate / reference[space.job])


def _predictor(given: ThroughputOracle | Literal["own"], space: AllocationSpace) -> ThroughputOracle:
    if given != "own":
        return given
    oracle = space.catalog.oracle
    prediction: ThroughputOracle | None = getattr(oracle, "prediction", None)
    if prediction is None:
        raise FormulationError(
            f"Speedup: predictor is 'own', but the throughput oracle {type(oracle).__name__} has no prediction of its "
            "own: give an oracle, or None to plan with the rates that jobs run at"
        )
    return prediction


def predicted_rates(oracle: ThroughputOracle, space: AllocationSpace) -> FloatArray:
    """Steps/s of every column by another oracle than the space's own, (num_columns,).

    Columns on more nodes than necessary keep the part of the rate that they keep in the space.
    """
    columns = np.arange(space.num_columns)
    jobs = space.jobs.take(space.job)
    rate = checked_rates(oracle, jobs, space.gpu_types, space.num_gpus)[columns, space.gpu_type]
    if not (rate > 0).all():
        bad = int(np.argmin(rate))
        raise FormulationError(
            f"the predictor {type(oracle).__name__} has no rate for job {space.job_ids[space.job[bad]]!r} on "
            f"{space.num_gpus[bad]} x {space.gpu_types[space.gpu_type[bad]]}, where it can run"
        )
    apart = space.has_twin & (space.spread == 1)
    if apart.any():
        # Twins are neighbours in no order that is promised, so the packed one is found by its key.
        key = (space.job * len(space.gpu_types) + space.gpu_type) * (int(space.num_gpus.max()) + 1) + space.num_gpus
        packed = np.flatnonzero(~apart)
        packed = packed[np.argsort(key[packed], kind="stable")]
        twin = packed[np.searchsorted(key[packed], key[apart])]
        rate = rate.copy()
        rate[apart] *= space.rate[apart] / space.rate[twin]
    return rate


def _fair(space: AllocationSpace, rate: FloatArray) -> FloatArray:
    """Rate of each job with an equal part of every GPU type, weighted by its GPUs, (num_jobs,)."""
    fair = np.ceil(space.capacity / max(space.num_jobs, 1))
    total, weight = np.zeros(space.num_jobs), np.zeros(space.num_jobs)
    for kind, capacity in enumerate(space.capacity.tolist()):
        mine = np.flatnonzero(space.gpu_type == kind)
        if not len(mine):
            continue
        # The largest configuration of at most the fair part, the smallest where all are larger.
        size = np.where(space.num_gpus[mine] <= fair[kind], space.num_gpus[mine], -space.num_gpus[mine])
        best = np.full(space.num_jobs, -np.inf)
        np.maximum.at(best, space.job[mine], size.astype(np.float64))
        held = mine[size == best[space.job[mine]]]
        at = np.zeros(space.num_jobs)
        np.maximum.at(at, space.job[held], rate[held])
        total += capacity * at
        weight += capacity * (at > 0)
    mean: FloatArray = np.divide(total, weight, out=np.ones(space.num_jobs), where=total > 0)
    return mean


def _least(space: AllocationSpace, rate: FloatArray) -> FloatArray:
    """Smallest rate of each job over the GPUs that it takes, (num_jobs,)."""
    lowest = np.full(space.num_jobs, np.inf)
    np.minimum.at(lowest, space.job, rate)
    at = np.flatnonzero(rate == lowest[space.job])
    gpus = np.full(space.num_jobs, np.inf)
    np.minimum.at(gpus, space.job[at], space.num_gpus[at])
    with np.errstate(invalid="ignore"):  # jobs without a column have neither
        return np.where(space.runnable, lowest / gpus, 1.0)


@dataclass(frozen=True, eq=False)
class AfterRestart(Expression):
    """An expression of one row a job, its configurations other than the present one times the restart factor.

    ``r_i = max(t_i − n_i S, 0) / (t_i + S)`` with t seconds since arrival, n restarts so far and S the ``seconds`` that
    one takes (None: each job's own restart cost): the part of its life that a job would still have spent
    running after one more restart. ``waiting`` applies it to jobs that wait as well, as Pollux does, otherwise they
    start at full value, and so do jobs younger than S (Sia). No value falls below ``floor``.
    """

    expression: ExpressionLike
    seconds: float | None = None
    waiting: bool = False
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.seconds is not None:
            checked_amount("AfterRestart", "seconds", self.seconds)
        checked_amount("AfterRestart", "floor", self.floor)

    def build(self, space: AllocationSpace) -> Affine:
        rows = build_affine(self.expression, space, "AfterRestart")
        if rows.num_rows != space.num_jobs:
            raise FormulationError("AfterRestart needs an expression with a row per job")
        factor = self.factor(space)
        value = np.where(space.is_current[rows.column], rows.value, rows.value * factor[rows.row])
        return Affine(rows.row, rows.column, np.maximum(value, self.floor), rows.constant, rows.labels, rows.counted)

    def factor(self, space: AllocationSpace) -> FloatArray:
        """What is left of a job's value if it restarts now, (num_jobs,), in [0, 1]."""
        cost = space.restart_cost if self.seconds is None else np.full(space.num_jobs, float(self.seconds))
        age = np.maximum(space.elapsed, 0.0)
        left = np.maximum(age - space.ledger.restarts[space.index] * cost, 0.0)
        factor: FloatArray = np.divide(left, age + cost, out=np.ones(space.num_jobs), where=age + cost > 0)
        if not self.waiting:
            factor = np.where(space.running & (age >= cost), factor, 1.0)
        return factor


@dataclass(frozen=True, eq=False)
class Otherwise(Expression):
    """An expression of one row a job where the job has a configuration, ``value`` where it has none.

    For programs of whole configurations: the row is ``value + Σ_c (e_c − value) x_c``.
    """

    expression: ExpressionLike
    value: float

    def __post_init__(self) -> None:
        finite_number("Otherwise: value", self.value)

    @property
    def progress_dependent(self) -> bool:  # type: ignore[override]
        return depends_on_progress(self.expression)

    def build(self, space: AllocationSpace) -> Affine:
        rows = build_affine(self.expression, space, "Otherwise").merged()
        if rows.num_rows != space.num_jobs:
            raise FormulationError("Otherwise needs an expression with a row per job")
        missing = len(rows.row) != space.num_columns
        if missing or not np.array_equal(rows.row, space.job):
            raise FormulationError("Otherwise needs a value for every configuration of a job, in the job's own row")
        constant = rows.constant[rows.row]
        return replace(
            rows, value=rows.value + constant - self.value, constant=np.full(space.num_jobs, float(self.value))
        )
