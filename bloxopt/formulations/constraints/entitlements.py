"""What people are promised or charged: quotas, minimum shares, budgets and deadlines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from bloxopt.errors import FormulationError, InfeasibleError
from bloxopt.formulations.checks import checked_amount, checked_amounts
from bloxopt.formulations.constraints.base import (
    Constraint,
    Limit,
    describe,
    excess,
    tenant_codes,
)
from bloxopt.formulations.expressions import per_job
from bloxopt.formulations.measures import hourly_cost, positive_rate
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import MAX_SECONDS, BoolArray, FloatArray, IntArray
from bloxopt.wording import rounded_down, rounded_up


@dataclass(frozen=True)
class TenantQuota(Constraint):
    """Tenants use at most so many GPUs, of any type, in every round: ``Σ_{i of tenant} s_i x_ij ≤ quota``.

    Tenants that own no job are refused, but on a live cluster, where those without jobs at present have no rows.
    """

    quota: Mapping[str, float]
    name: str | None = field(default=None, kw_only=True)
    progress_dependent = False
    unit = "GPUs"

    def __post_init__(self) -> None:
        object.__setattr__(self, "quota", checked_amounts(describe(self), self.quota, "GPUs"))

    def build(self, space: AllocationSpace, program: Program) -> None:
        present = self._present(space)
        rows = _group_rows(describe(self), present, space)
        program.add_rows(rows, upper=np.array(list(present.values()), np.float64), labels=tuple(present))

    def round_limits(self, space: AllocationSpace) -> Iterable[Limit]:
        present = self._present(space)
        rows = _group_rows(describe(self), present, space)
        return [Limit(lambda _: rows, upper=np.array(list(present.values()), np.float64))]

    def violations(self, space: AllocationSpace, x: FloatArray) -> FloatArray:
        used = _tenant_gpus(space, x)
        codes = tenant_codes(describe(self), self.quota, space)
        code = np.array(list(codes.values()), dtype=np.int64)
        return excess(used[code], -np.inf, np.array(list(self._present(space).values()), np.float64))

    def labels(self, space: AllocationSpace) -> Sequence[str]:
        return list(self._present(space))

    def _present(self, space: AllocationSpace) -> dict[str, float]:
        """The quota of each tenant that has jobs."""
        return {name: self.quota[name] for name in tenant_codes(describe(self), self.quota, space)}


@dataclass(frozen=True)
class MinimumShare(Constraint):
    """Jobs or tenants get at least a stated share.

    ``share`` is one number for every job, or a mapping from tenants and job ids to numbers. What it is a
    share ``of``:

    - ``"isolated"`` (default): each job's throughput is at least ``share`` × what an equal part of the cluster
      would give it; ``share`` = 1 for all is sharing incentive. For a tenant: each of its jobs.
    - ``"proportional"``: likewise of its rate on an average GPU, ``Σ_j T_ij c_j / Σ_j c_j``, all the time.
    - ``"gpus"``: the tenant's (or job's) GPUs in use are at least ``share`` × the GPUs that are up, or as many
      as its jobs can use if that is less. Needs a mapping; shares are at most 1.

    Jobs that cannot run now, and names of jobs that are not active, ask for nothing; nor do names that nobody has at
    present on a live cluster, where jobs come and go. Elsewhere such names are refused.
    """

    share: float | Mapping[str, float]
    of: Literal["isolated", "proportional", "gpus"] = "isolated"
    name: str | None = field(default=None, kw_only=True)
    progress_dependent = False

    @property
    def unit(self) -> str:  # type: ignore[override]
        return "GPUs" if self.of == "gpus" else "steps/s"

    def in_own_terms(self, space: AllocationSpace, label: str, bound: float) -> str:
        least = f"{rounded_down(bound):.12g}"
        if self.of == "gpus":
            assert isinstance(self.share, Mapping)
            up = float(space.capacity.sum())
            if not up:
                return ""
            if bound < self.share[label] * up and bound == self._gpu_floor(space)[list(self.share).index(label)]:
                return f"{self.share[label]:.12g} ({least} GPUs, all that its jobs can use)"
            return f"{rounded_down(bound / up):.12g} ({least} GPUs)"
        job = int(np.flatnonzero(space.job_ids == label)[0])
        reference = space.isolated_rate if self.of == "isolated" else space.proportional_rate
        return f"{rounded_down(bound / positive_rate(reference, space)[job]):.12g} ({least} steps/s)"

    def __post_init__(self) -> None:
        user = describe(self)
        if self.of not in ("isolated", "proportional", "gpus"):
            raise FormulationError(f"{user}: of is {self.of!r}, must be 'isolated', 'proportional' or 'gpus'")
        highest = 1.0 if self.of == "gpus" else np.inf
        if isinstance(self.share, Mapping):
            object.__setattr__(self, "share", checked_amounts(user, self.share, "share", highest=highest))
        elif self.of == "gpus":
            raise FormulationError(f"{user}: of='gpus' needs a mapping from tenants or jobs to shares")
        else:
            object.__setattr__(self, "share", checked_amount(user, "share", self.share, highest=highest))

    def build(self, space: AllocationSpace, program: Program) -> None:
        if self.of == "gpus":
            program.add_rows(self._gpu_rows(space), lower=self._gpu_floor(space), labels=self.labels(space))
            return
        floor = self._rate_floor(space)
        rows = per_job(space, space.rate)
        rows = Affine(rows.row, rows.column, rows.value, rows.constant, rows.labels, floor > 0)
        program.add_rows(rows.only_counted(), lower=floor[floor > 0])

    def violations(self, space: AllocationSpace, x: FloatArray) -> FloatArray:
        if self.of == "gpus":
            return excess(self._gpu_rows(space).at(x), self._gpu_floor(space), np.inf)
        floor = self._rate_floor(space)
        rate = sum_by(space.job, space.rate * x, space.num_jobs)
        return excess(rate, floor, np.inf)[floor > 0]

    def labels(self, space: AllocationSpace) -> Sequence[str]:
        if isinstance(self.share, Mapping) and self.of == "gpus":
            return list(self.share)
        return list(space.job_ids[self._rate_floor(space) > 0])

    def _rate_floor(self, space: AllocationSpace) -> FloatArray:
        """Least steps/s of each active job, 0 for none."""
        if isinstance(self.share, Mapping):
            share = np.zeros(space.num_jobs)
            for name, value in self.share.items():
                members = _members(describe(self), name, space)
                share[members] = np.maximum(share[members], value)
        else:
            share = np.full(space.num_jobs, self.share)
        reference = space.isolated_rate if self.of == "isolated" else space.proportional_rate
        return np.where(space.runnable, share * positive_rate(reference, space), 0.0)

    def _gpu_rows(self, space: AllocationSpace) -> Affine:
        assert isinstance(self.share, Mapping)
        return _group_rows(describe(self), self.share, space)

    def _gpu_floor(self, space: AllocationSpace) -> FloatArray:
        assert isinstance(self.share, Mapping)
        most = np.zeros(space.num_jobs)
        np.maximum.at(most, space.job, space.gpu_demand)
        floors = [
            min(value * float(space.capacity.sum()), float(most[_members(describe(self), name, space)].sum()))
            for name, value in self.share.items()
        ]
        return np.array(floors, dtype=np.float64)


@dataclass(frozen=True)
class Budget(Constraint):
    """GPUs in use cost at most ``amount`` per hour in every round, at ``price`` per GPU-hour by GPU type."""

    amount: float
    price: Mapping[str, float]
    name: str | None = field(default=None, kw_only=True)
    progress_dependent = False
    unit = "per hour"

    def __post_init__(self) -> None:
        checked_amount(describe(self), "amount", self.amount)
        object.__setattr__(self, "price", checked_amounts(describe(self), self.price, "price"))

    def build(self, space: AllocationSpace, program: Program) -> None:
        rows = per_job(space, hourly_cost(self.price, space, describe(self))).total()
        program.add_rows(rows, upper=float(self.amount), labels=("per hour",))

    def round_limits(self, space: AllocationSpace) -> Iterable[Limit]:
        rows = per_job(space, hourly_cost(self.price, space, describe(self))).total()
        return [Limit(lambda _: replace(rows, labels=lambda: ["per hour"]), upper=float(self.amount))]

    def violations(self, space: AllocationSpace, x: FloatArray) -> FloatArray:
        spent = float(hourly_cost(self.price, space, describe(self)) @ x)
        return excess(np.array([spent]), -np.inf, float(self.amount))

    def labels(self, space: AllocationSpace) -> Sequence[str]:
        return ["per hour"]


@dataclass(frozen=True)
class Deadlines(Constraint):
    """Every job with a deadline gets at least the throughput to meet it: ``Σ_j T_ij x_ij ≥ R_i / (D_i − now)``.

    A deadline that its job would miss even on its fastest configuration all the time is ``impossible``:
    ``"raise"`` an :class:`~bloxopt.errors.InfeasibleError` that names the jobs, or ``"drop"`` it (the job is then
    like one without a deadline). Deadlines that are possible one by one but not together raise it either way.
    """

    impossible: Literal["raise", "drop"] = "raise"
    name: str | None = field(default=None, kw_only=True)
    progress_dependent = True
    unit = "steps/s"

    @property
    def unserved(self) -> str:  # type: ignore[override]
        return "" if self.impossible == "drop" else "jobs that cannot meet their deadline: give impossible='drop'"

    def in_own_terms(self, space: AllocationSpace, label: str, bound: float) -> str:
        job = int(np.flatnonzero(space.job_ids == label)[0])
        done = space.now + float(space.remaining_steps[job]) / bound if bound > 0 else np.inf
        if not done <= MAX_SECONDS:
            return "without a deadline"
        return f"by {rounded_up(done, 6):.12g} s ({rounded_down(bound):.12g} steps/s)"

    def __post_init__(self) -> None:
        if self.impossible not in ("raise", "drop"):
            raise FormulationError(f"{describe(self)}: impossible is {self.impossible!r}, must be 'raise' or 'drop'")

    def build(self, space: AllocationSpace, program: Program) -> None:
        needed, due = self._needed(space)
        rows = per_job(space, space.rate)
        rows = Affine(rows.row, rows.column, rows.value, rows.constant, rows.labels, due)
        program.add_rows(rows.only_counted(), lower=needed[due])

    def violations(self, space: AllocationSpace, x: FloatArray) -> FloatArray:
        needed, due = self._needed(space)
        rate = sum_by(space.job, space.rate * x, space.num_jobs)
        return excess(rate[due], needed[due], np.inf)

    def labels(self, space: AllocationSpace) -> Sequence[str]:
        return list(space.job_ids[self._needed(space)[1]])

    def _needed(self, space: AllocationSpace) -> tuple[FloatArray, BoolArray]:
        """Least steps/s of each job and which jobs it is asked of."""
        left = space.deadline - space.now
        needed = np.divide(space.remaining_steps, left, out=np.full(space.num_jobs, np.inf), where=left > 0)
        timed = np.isfinite(space.deadline) & space.runnable
        # A job on schedule at full speed needs exactly its fastest rate: rounding must not make that impossible.
        missed = timed & (needed > space.fastest_rate * (1.0 + 1e-9))
        if self.impossible == "raise" and missed.any():
            names = [str(job_id) for job_id in space.job_ids[missed]]
            listed = ", ".join(repr(job_id) for job_id in names[:5]) + (" …" if len(names) > 5 else "")
            raise InfeasibleError(
                f"{describe(self)}: {len(names)} job(s) cannot meet their deadline even alone on their fastest GPUs: "
                f"{listed}; move the deadlines or use Deadlines(impossible='drop')"
            )
        return np.minimum(needed, space.fastest_rate), timed & ~missed


def _members(user: str, name: str, space: AllocationSpace) -> IntArray:
    """Active jobs that ``name`` stands for: a tenant's, or one job; empty if that is not active or, live, not there."""
    tenants = space.catalog.table.tenants
    position = space.catalog.position
    if name in tenants and name in position:
        raise FormulationError(f"{user}: {name!r} is both a tenant and a job id; rename one of them")
    if name in tenants:
        return np.flatnonzero(space.tenant == tenants.index(name))
    if name in position:
        return np.flatnonzero(space.index == position[name])
    if space.catalog.table.is_open:
        return np.zeros(0, dtype=np.int64)
    raise FormulationError(f"{user}: {name!r} is neither a tenant ({', '.join(tenants)}) nor a job id of this trace")


def _group_rows(user: str, names: Mapping[str, float], space: AllocationSpace) -> Affine:
    """GPUs in use, one row per name (a tenant or a job id)."""
    rows, columns = [], []
    for row, name in enumerate(names):
        mask = np.zeros(space.num_jobs, dtype=bool)
        mask[_members(user, name, space)] = True
        mine = np.flatnonzero(mask[space.job])
        rows.append(np.full(len(mine), row))
        columns.append(mine)
    column = np.concatenate([np.zeros(0, np.int64), *columns])
    row_index = np.concatenate([np.zeros(0, np.int64), *rows])
    labels = list(names)
    return Affine(row_index, column, space.gpu_demand[column].astype(np.float64), np.zeros(len(labels)), lambda: labels)


def _tenant_gpus(space: AllocationSpace, x: FloatArray) -> FloatArray:
    """GPUs in use by each tenant of the trace."""
    owner = space.tenant[space.job]
    return sum_by(owner, space.gpu_demand * x, len(space.catalog.table.tenants))
