"""Looking ahead: what would become of the jobs at hand under a policy, simulated from the present state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bloxopt.formulations.policy import Policy
from bloxopt.formulations.space import AllocationSpace, ConfigurationCatalog
from bloxopt.jobs import FloatArray, IntArray
from bloxopt.placement import get_placement
from bloxopt.placement.passes import place_decision
from bloxopt.placement.rules import Rules
from bloxopt.placement.workspace import Workspace
from bloxopt.rounds import Scheduler
from bloxopt.runtime.assignment import Assignment
from bloxopt.selection import get_selector
from bloxopt.simulation.backend import SimulatedBackend
from bloxopt.simulation.failures import NodeEvents
from bloxopt.simulation.options import SimulationOptions
from bloxopt.solvers.base import Solver, SolverOptions
from bloxopt.state import JobLedger


@dataclass(frozen=True, eq=False)
class Outlook:
    """What is expected of the active jobs of a space, in its order; times in seconds.

    ``start`` when each next runs, ``finish`` when it is done: for those that are not done at ``until``, the end of what
    was simulated, that time and what is left of them on the GPUs they ask for. inf for jobs that cannot run.
    """

    start: FloatArray
    finish: FloatArray
    until: float

    def average_jct(self, arrival: FloatArray) -> float:
        """Mean time from arrival to finish (s) of the jobs that can run; 0 without any."""
        return _mean((self.finish - arrival)[np.isfinite(self.finish)])

    def makespan(self, now: float) -> float:
        """Seconds from ``now`` until the last job that can run is done; 0 without any."""
        return float(self.finish[np.isfinite(self.finish)].max(initial=now)) - now


def look_ahead(
    space: AllocationSpace,
    policy: Policy,
    *,
    horizon: float,
    options: SimulationOptions | None = None,
    solver: str | Solver | None = None,
    solver_options: SolverOptions | None = None,
) -> Outlook:
    """Simulate the active jobs of ``space`` under ``policy`` for ``horizon`` seconds, as if no others came.

    Jobs that run go on without a restart, on nodes that a first-fit placement gives them; nodes that are down stay
    down. ``options`` default to those of :class:`SimulationOptions` with the space's round length. The space and its
    ledger are not changed.
    """
    chosen = (options or SimulationOptions()).with_(round_seconds=space.round_seconds)
    catalog = space.catalog.rebuilt(space.index)
    ledger = space.ledger.take(space.index, catalog.table)
    first = ledger.start.copy()
    ledger.start[:] = np.nan
    ledger.start[~np.isnan(first)] = -np.inf  # has run before: starting again is a restart
    running = np.flatnonzero(ledger.gpu_type >= 0)
    assignment = _assignment_of(catalog, running, ledger, space)
    backend = SimulatedBackend(catalog, chosen, NodeEvents(None, space.cluster, 0), ledger)
    backend.resume(space.now, assignment, space.node_up)
    scheduler = Scheduler(
        backend=backend,
        policy=policy,
        selector=get_selector(chosen.selector, **chosen.selector_options),
        placement=get_placement(chosen.placement, **chosen.placement_options),
        solver=solver,
        solver_options=solver_options,
        solve_interval=chosen.solve_interval,
        placement_retries=chosen.placement_retries,
    )
    while not backend.finished and backend.now < space.now + horizon:
        scheduler.run_round()
    backend.close()
    start = np.full(len(ledger.table), np.inf)
    for row, _, _, _, begin, _ in backend.spells:
        start[row] = min(start[row], begin)
    return Outlook(start, expected_finishes(backend), backend.now)


def expected_finishes(backend: SimulatedBackend) -> FloatArray:
    """When each job of a simulation so far is done (s), (jobs,).

    Those that are not by now: with what is left of them on the GPUs they ask for, or their fastest; inf if on none.
    """
    ledger, catalog = backend.ledger, backend.catalog
    rate = catalog.best_requested_rate
    fastest = np.zeros(len(rate))
    np.maximum.at(fastest, np.repeat(np.arange(len(rate)), np.diff(catalog.offsets)), catalog.rate)
    rate = np.where(rate > 0, rate, fastest)
    left = np.divide(ledger.remaining_steps, rate, out=np.full(len(rate), np.inf), where=rate > 0)
    return np.where(np.isnan(ledger.finish), backend.now + left, ledger.finish)


def _assignment_of(
    catalog: ConfigurationCatalog, rows: IntArray, ledger: JobLedger, space: AllocationSpace
) -> Assignment:
    """Places for the jobs that run, as a placement would find them on the empty cluster."""
    empty = Assignment(catalog.cluster, catalog.table)
    if not len(rows):
        return empty
    rules = Rules.of(catalog.cluster, catalog.table)
    workspace = Workspace(
        empty, catalog.cluster, catalog.table, space.node_up, get_placement("first_fit"), rules, catalog.runs_on
    )
    partner = None if catalog.pairing is None else ledger.partner[rows]
    stop, start = place_decision(rows, ledger.gpu_type[rows], ledger.gpus[rows], empty, workspace, partner=partner)
    return empty.change(stop, start)


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else 0.0
