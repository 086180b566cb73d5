"""Quotas: how many GPUs and jobs a tenant may have in the cluster at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bloxopt.admission.base import Otherwise, as_rows, checked_otherwise
from bloxopt.errors import InputError
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import FloatArray, IntArray, JobTable

Limits = float | Mapping[str, float] | None


class Quota:
    """Admit a job while its tenant's jobs that are in ask for at most ``gpus`` GPUs and are at most ``jobs``.

    Both are one number for every tenant, or a mapping from tenants to numbers (tenants that are not named have no
    limit), None for no limit. A tenant's jobs keep their order: none overtakes another of the same tenant.
    A job that finds no room waits, or is rejected with ``otherwise="reject"``; one that alone asks for more than its
    tenant's quota is always rejected. Unlike the constraint block ``TenantQuota``, which limits the GPUs in use in
    each round, it is about the jobs that are in, whether they run or wait. Raises
    :class:`~bloxopt.errors.InputError` for limits that are no numbers >= 0 and for tenants that own no
    job of a trace; on a live cluster those have none at present.
    """

    def __init__(self, gpus: Limits = None, jobs: Limits = None, otherwise: Otherwise = "wait") -> None:
        self.gpus = _checked("gpus", gpus)
        self.jobs = _checked("jobs", jobs)
        self.otherwise = checked_otherwise("quota", otherwise)

    def decide(self, submitted: IntArray, space: AllocationSpace) -> tuple[IntArray, IntArray]:
        table = space.catalog.table
        most_gpus, most_jobs = (
            _by_tenant("gpus", self.gpus, table),
            _by_tenant("jobs", self.jobs, table),
        )
        count = len(table.tenants)
        gpus = np.bincount(space.tenant, weights=space.requested_demand, minlength=count)
        jobs = np.bincount(space.tenant, minlength=count)
        admit: list[int] = []
        refused: list[int] = []
        closed: set[int] = set()
        for row in submitted.tolist():
            tenant, need = int(table.tenant[row]), float(table.gpu_demand[row])
            name = table.tenants[tenant]
            if need > most_gpus[tenant] + 1e-9 or most_jobs[tenant] < 1:
                asked = f"it asks for {need:g} GPUs" if need > most_gpus[tenant] + 1e-9 else "it is one job"
                limit = f"{most_gpus[tenant]:g} GPUs" if need > most_gpus[tenant] + 1e-9 else "0 jobs"
                space.ledger.explain([row], f"{asked} and the quota of tenant {name!r} is {limit}")
                refused.append(row)
                continue
            fits = gpus[tenant] + need <= most_gpus[tenant] + 1e-9 and jobs[tenant] + 1 <= most_jobs[tenant]
            if fits and tenant not in closed:
                gpus[tenant] += need
                jobs[tenant] += 1
                admit.append(row)
                continue
            reason = f"tenant {name!r} has {jobs[tenant]} jobs that ask for {gpus[tenant]:g} GPUs in the cluster"
            space.ledger.explain([row], f"{reason}, and others before it wait" if tenant in closed else reason)
            if self.otherwise == "reject":
                refused.append(row)
            else:
                closed.add(tenant)
        return as_rows(admit), as_rows(refused)


def _checked(name: str, limits: Any) -> Limits:
    entries = limits if isinstance(limits, Mapping) else {None: limits}
    for tenant, value in entries.items():
        number = not isinstance(value, bool) and isinstance(value, (int, float)) and value >= 0
        if not number and limits is not None:
            of = "" if tenant is None else f" of tenant {tenant!r}"
            raise InputError(f"quota: {name}{of} is {value!r}, must be a number >= 0")
    return dict(limits) if isinstance(limits, Mapping) else limits


def _by_tenant(name: str, limits: Limits, table: JobTable) -> FloatArray:
    """The limit of each tenant of the table, inf for none."""
    if not isinstance(limits, Mapping):
        return np.full(len(table.tenants), math.inf if limits is None else float(limits))
    room = np.full(len(table.tenants), math.inf)
    for tenant, code in table.tenant_codes(f"quota: {name}", limits, InputError).items():
        room[code] = limits[tenant]
    return room
