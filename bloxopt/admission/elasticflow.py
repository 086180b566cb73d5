"""ElasticFlow's admission: a job is let in only if all deadlines, its own too, can then be kept."""

from __future__ import annotations

import numpy as np

from bloxopt.admission.base import Otherwise, as_rows, checked_otherwise
from bloxopt.formulations.deadlines import DeadlinePlan, deadline_plan
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import IntArray


class ElasticFlow:
    """Admit a job if progressive filling finds every admitted job, and it, a minimum satisfactory share of GPUs.

    Jobs are looked at in order of arrival, first on the GPUs that nobody is promised, then in a new plan of all;
    those without a deadline are best effort and always admitted. What was found is promised: under the policy
    ``elasticflow`` no admitted job then misses its deadline, if rounds are ``fixed``, progress is ``exact``, plans are
    made in every round (``solve_interval`` 0), the placement finds nodes for every gang, rates depend on neither
    placement nor progress, first starts cost nothing, and no node fails. Restart costs of the jobs are reserved. A
    job that is refused is rejected or, with ``otherwise="wait"``, asked about again in every round until it would miss
    its deadline even alone. Source: Gu et al., "ElasticFlow", ASPLOS 2023, algorithm 1.
    """

    def __init__(self, otherwise: Otherwise = "reject") -> None:
        self.otherwise = checked_otherwise("elasticflow", otherwise)

    def decide(self, submitted: IntArray, space: AllocationSpace) -> tuple[IntArray, IntArray]:
        deadline = space.catalog.table.deadline
        admit: list[int] = []
        refused: list[int] = []
        plan: DeadlinePlan | None = None
        for row in submitted.tolist():
            if np.isinf(deadline[row]):
                admit.append(row)
                continue
            plan = deadline_plan(space) if plan is None else plan
            found, reason = plan.joined_by(row), ""
            if found is None:
                # Deadlines that are not kept anyway, of jobs whose nodes failed, are no reason to refuse others.
                found, reason = self._schedule(deadline_plan(plan.space.including(as_rows([row]))), plan.late_rows)
            if found is not None:
                plan = found
                plan.promise()
                admit.append(row)
                continue
            alone = deadline_plan(space.without(space.index).including(as_rows([row])))
            if alone.late:
                reason = "it would miss its deadline even if it were alone"
            space.ledger.explain([row], reason)
            if self.otherwise == "reject" or alone.late:
                refused.append(row)
        return as_rows(admit), as_rows(refused)

    def _schedule(self, filled: DeadlinePlan, lost: frozenset[int]) -> tuple[DeadlinePlan | None, str]:
        """A plan that meets all deadlines but those of the rows ``lost``; None, and why, if there is none."""
        if filled.late_rows <= lost:
            return filled, ""
        return None, "progressive filling finds no plan that meets all deadlines with it"
