"""What if: the present round of a scheduler decided again, and the rounds after it, with something changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bloxopt.cluster import Cluster
from bloxopt.formulations.policy import Policy
from bloxopt.jobs import JobTable
from bloxopt.rounds import Scheduler
from bloxopt.runtime.assignment import Assignment
from bloxopt.runtime.backend import ClusterState
from bloxopt.simulation.backend import SimulatedBackend
from bloxopt.simulation.failures import NodeEvents
from bloxopt.simulation.options import SimulationOptions
from bloxopt.state import JobStatus


def fork(
    scheduler: Scheduler,
    state: ClusterState,
    *,
    cluster: Cluster | None = None,
    table: JobTable | None = None,
    policy: Policy | None = None,
    replan: bool = False,
) -> tuple[Scheduler, ClusterState]:
    """A scheduler over a simulated copy of the cluster as it stands at ``state``, and that state for it to decide.

    Nothing that happens to one shows in the other. Without changes its next decision is the one that ``scheduler`` is
    about to make. ``cluster`` has the nodes of the present one first, and others of the same GPU types after them, all
    up; ``table`` has the same jobs; ``policy`` decides instead of the present one; ``replan`` makes a plan now, whether
    one is due or not. Jobs that have not been submitted
    yet do not come, and nodes neither fail nor come back.
    """
    backend = scheduler.backend
    catalog = backend.catalog.rebuilt(table=table, cluster=cluster)
    ledger = backend.ledger.copy(catalog.table)
    known = np.zeros(len(ledger.status), dtype=bool)
    known[scheduler.pending] = known[state.submitted] = True
    ledger.status[(ledger.status == JobStatus.NOT_ADMITTED) & ~known] = JobStatus.REJECTED
    assignment = _same_grants(Assignment(catalog.cluster, catalog.table), state.assignment)
    up = np.ones(len(catalog.cluster.nodes), dtype=bool)
    up[: len(state.node_up)] = state.node_up
    options = getattr(backend, "options", SimulationOptions(round_seconds=backend.round_seconds))
    copied = SimulatedBackend(
        catalog,
        replace(options, round_budget=None, first_round=0.0),
        NodeEvents(None, catalog.cluster, 0),
        ledger,
        hosts=scheduler.hosts,
    )
    copied.resume(state.now, assignment, up, state.nodes_changed)
    if isinstance(backend, SimulatedBackend):
        copied.continue_as(backend)
    before = ClusterState(state.now, state.submitted[:0], assignment, up, state.nodes_changed)
    changed = replan or cluster is not None or table is not None
    return scheduler.fork(copied, state, policy=policy, changed=changed), before


def _same_grants(empty: Assignment, present: Assignment) -> Assignment:
    """The grants of ``present``, also halves whose other half is free since the job that had it has ended."""
    grants = dict(present.grants)
    ended = {
        grant.partner: grant._replace(partner=row)
        for row, grant in grants.items()
        if grant.partner >= 0 and grant.partner not in grants
    }
    return empty.change((), grants | ended).change(ended, {})
