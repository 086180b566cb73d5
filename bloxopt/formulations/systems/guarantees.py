"""Resource guarantees: jobs within their tenant's quota run as if alone, the others take what these leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.checks import checked_amount, checked_amounts
from bloxopt.formulations.constraints.base import Constraint, tenant_codes
from bloxopt.formulations.expressions import Expression, per_job
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.program import Program
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import BoolArray, FloatArray, IntArray

Quota = Mapping[str, float] | None


def guaranteed_jobs(space: AllocationSpace, quota: Quota) -> BoolArray:
    """Active jobs with a guarantee, (num_jobs,): of each tenant, in order of admission, as long as its quota lasts.

    ``quota`` has GPUs by tenant (0 for those not named); None divides the cluster's GPUs evenly. Behind the first job
    that exceeds what is left of its tenant's quota none has a guarantee. Jobs that cannot run just now count.
    """
    tenants = space.catalog.table.tenants
    if quota is None:
        room = np.full(len(tenants), np.floor(space.cluster.capacity.sum() / len(tenants)))
    else:
        room = np.zeros(len(tenants))
        for name, code in tenant_codes("quota", quota, space).items():
            room[code] = quota[name]
    order = np.argsort(space.tenant, kind="stable")
    used = np.cumsum(space.requested_demand[order]).astype(np.float64)
    first = np.searchsorted(space.tenant[order], np.arange(len(tenants)))
    before = np.concatenate([[0.0], used])[first]
    guaranteed = np.zeros(space.num_jobs, dtype=bool)
    guaranteed[order] = used - before[space.tenant[order]] <= room[space.tenant[order]] + 1e-9
    return guaranteed


@dataclass(frozen=True, eq=False)
class GuaranteedGpus(Expression):
    """GPUs that each job with a guarantee asks for, times its share of time on any: ``s_i Σ_c x_ic``; 0 for others.

    Beside a partner counts as much as alone: see :class:`BoundedSlowdown`.
    """

    quota: Quota = None
    progress_dependent = False

    def build(self, space: AllocationSpace) -> Affine:
        worth = np.where(guaranteed_jobs(space, self.quota), space.requested_demand, 0.0)
        return per_job(space, worth[space.job])


@dataclass(frozen=True)
class BoundedSlowdown(Constraint):
    """A job with a guarantee shares its GPUs only where it keeps at least ``1 - slowdown`` of its rate alone."""

    slowdown: float = 0.1
    quota: Quota = None
    name: str | None = field(default=None, kw_only=True)
    progress_dependent = False

    def __post_init__(self) -> None:
        checked_amount("BoundedSlowdown", "slowdown", self.slowdown)
        if self.slowdown > 1:
            raise FormulationError(f"BoundedSlowdown: slowdown is {self.slowdown!r}, must be a part from 0 to 1")
        if self.quota is not None:
            checked_amounts("BoundedSlowdown", self.quota, "quota")

    def build(self, space: AllocationSpace, program: Program) -> None:
        program.restrict(self._closed(space), 0.0, 0.0)

    def violations(self, space: AllocationSpace, x: FloatArray) -> FloatArray:
        return np.abs(x[self._closed(space)])

    def labels(self, space: AllocationSpace) -> Sequence[str]:
        return [str(name) for name in space.job_ids[space.job[self._closed(space)]]]

    def _closed(self, space: AllocationSpace) -> IntArray:
        """Columns that would slow a job with a guarantee too much."""
        pairing = space.catalog.pairing
        if pairing is None:
            return np.zeros(0, dtype=np.int64)
        shared = (guaranteed_jobs(space, self.quota)[space.job] & (space.partner >= 0)).nonzero()[0]
        own = pairing.kind[space.index[space.job[shared]]]
        kept = pairing.factor[own, space.partner[shared], space.gpu_type[shared]]
        slow: IntArray = shared[kept < 1.0 - self.slowdown - 1e-9]
        return slow
