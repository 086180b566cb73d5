"""Gavel's priorities: who is furthest behind the share of time that the plan gives it goes first."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bloxopt.errors import ConfigError
from bloxopt.formulations.space import AllocationSpace
from bloxopt.jobs import BoolArray, FloatArray
from bloxopt.selection.base import NO_SHARE, Decision, Plan, fill, first_of_each
from bloxopt.selection.pairs import fill_with_pairs

if TYPE_CHECKING:
    from bloxopt.formulations.policy import Policy


class Priorities:
    """Per GPU type, jobs in order of share / (part of the type's time received), greedily while they fit.

    The priority of job i on type j is ``x_ij / f_ij`` with ``f_ij`` the part of all time given out on
    j since the plan was made that went to i, each column starting with half a round; ties go to the
    larger deficit (time owed over all earlier plans), then to the larger share. Jobs without a share
    fill GPUs that would idle, unless the policy forbids overtaking. Where jobs may share GPUs, one whose turn it is
    beside another kind of job takes the most urgent of that kind along. Source: Narayanan et al., OSDI 2020, section 5,
    and its simulator.

    ``type_order`` names the GPU types in the order in which they are filled (default: the cluster's).
    ``fill_each_type`` True fills a type's idle GPUs before the next type is looked at, as Gavel's
    simulator does; False gives every type's planned jobs their turn first. ``shuffle_seed`` shuffles the
    types anew each round for policies that do not tell GPU types apart, as Gavel's simulator does (its
    default seed makes 5); None never shuffles.
    """

    needs_plan = True

    def __init__(
        self,
        type_order: Sequence[str] | None = None,
        fill_each_type: bool = False,
        shuffle_seed: int | None = None,
    ) -> None:
        self.type_order = None if type_order is None else [name.lower() for name in type_order]
        self.fill_each_type = fill_each_type
        if shuffle_seed is not None and shuffle_seed < 0:
            raise ConfigError(f"selector 'priorities': shuffle_seed is {shuffle_seed}, must be a whole number >= 0")
        self._shuffler = None if shuffle_seed is None else random.Random(shuffle_seed)

    @property
    def remembers(self) -> bool:
        """Whether a round depends on the rounds before by more than the ledger and the plan: it does with shuffling."""
        return self._shuffler is not None

    def replanned(self, previous: Plan | None, space: AllocationSpace) -> None:
        """Carry over what the replaced plan still owes each job on each type."""
        if previous is None:
            return
        deficit = _deficit(space)
        np.add.at(deficit, (previous.row, previous.gpu_type), previous.owed(space.now))

    def select(self, policy: Policy, space: AllocationSpace, plan: Plan | None) -> Decision:
        assert plan is not None
        waiting = np.zeros(len(space.catalog.table), dtype=bool)
        waiting[space.index] = True
        deficit = _deficit(space)[plan.row, plan.gpu_type]
        received = plan.received + space.round_seconds / 2
        per_type = np.bincount(plan.gpu_type, weights=received, minlength=len(space.gpu_types))
        priority = plan.share * per_type[plan.gpu_type] / received
        ranked = np.lexsort((-plan.share, -deficit, -priority))

        left = space.capacity.tolist()
        chosen: list[int] = []
        partner: list[int] = []
        pairing = space.catalog.pairing
        kind_of_job = None if pairing is None else pairing.kind[plan.row]
        worth = plan.partner < 0
        if pairing is not None:
            worth |= plan.share > NO_SHARE
        limits = policy.round_limits(space)

        def fill_type(kind: int, eligible: BoolArray) -> None:
            if left[kind] <= 0:
                return
            columns = ranked[((plan.gpu_type == kind) & eligible)[ranked]]
            columns = columns[waiting[plan.row[columns]]]
            if kind_of_job is not None:
                columns = columns[worth[columns]]
                pairs = fill_with_pairs(columns, plan, kind_of_job, waiting, left[kind], limits)
                chosen.extend(pairs[0])
                partner.extend(pairs[1])
                left[kind] = pairs[2]
                return
            # An elastic job has several columns on a type: only its most urgent one competes.
            columns = columns[first_of_each(plan.row[columns])]
            taken, left[kind] = fill(
                plan.row[columns], kind, plan.num_gpus[columns], plan.gpu_demand[columns], left[kind], limits
            )
            chosen.extend(columns[taken].tolist())
            waiting[plan.row[columns[taken]]] = False

        planned = plan.share > 0
        may_fill = plan.allocation.work_conserving
        types = self._types(space, policy)
        if self.fill_each_type:
            for kind in types:
                fill_type(kind, np.ones_like(planned) if may_fill else planned)
        else:
            for kind in types:
                fill_type(kind, planned)
            for kind in types if may_fill else ():
                fill_type(kind, ~planned)
        picked = np.array(chosen, dtype=np.int64)
        promised = None if plan.promised is None else plan.promised[picked]
        together = None if pairing is None else np.array(partner, dtype=np.int64)
        row = plan.row[picked]
        return Decision(row, plan.gpu_type[picked], plan.num_gpus[picked], promised, together, plan.rank(row))

    def _types(self, space: AllocationSpace, policy: Policy) -> list[int]:
        names = [name.lower() for name in space.gpu_types]
        rank = {name: position for position, name in enumerate(self.type_order or names)}
        types = sorted(range(len(names)), key=lambda kind: rank.get(names[kind], len(rank)))
        if self._shuffler is not None and not policy.heterogeneity_aware:
            self._shuffler.shuffle(types)
        return types


def _deficit(space: AllocationSpace) -> FloatArray:
    """Seconds that all plans so far still owe each job on each type, (jobs of the table, types)."""
    deficit: FloatArray = space.ledger.memory("priorities.deficit", 0.0, len(space.gpu_types))
    return deficit
