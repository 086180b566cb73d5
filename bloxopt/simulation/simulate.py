"""``simulate``: a trace, a cluster and a policy in, a result out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bloxopt.admission import Admission, get_admission
from bloxopt.anytime import Ladder
from bloxopt.cluster import Cluster, load_cluster
from bloxopt.errors import BloxoptError, InputError
from bloxopt.formulations.allocation import Allocation
from bloxopt.formulations.policies import get_policy
from bloxopt.formulations.policy import Policy
from bloxopt.formulations.solving.resuming import Resolver
from bloxopt.formulations.space import AllocationSpace, ConfigurationCatalog
from bloxopt.hosts import HostAllocation, HostRates, Hosts, SensitivityProfiles, as_profiles
from bloxopt.placement import Strategy
from bloxopt.placement.slowdown import Slowdown, as_slowdown
from bloxopt.rounds import Scheduler
from bloxopt.runtime.backend import ClusterState
from bloxopt.selection import RoundSelector
from bloxopt.simulation.arguments import (
    as_host_allocation,
    as_placement,
    as_selector,
    as_trace,
    check_it_can_end,
    check_others,
    checked_seed,
    chosen_options,
)
from bloxopt.simulation.backend import SimulatedBackend
from bloxopt.simulation.failures import Failures, NodeEvents, RandomFailures
from bloxopt.simulation.options import SimulationOptions
from bloxopt.simulation.recorder import Recorder
from bloxopt.simulation.result import SimulationResult
from bloxopt.solvers.base import Solver, SolverOptions
from bloxopt.solvers.registry import check_solver
from bloxopt.state import JobStatus
from bloxopt.throughput import as_oracle

if TYPE_CHECKING:
    from bloxopt.workloads.trace import Trace

_ROUNDS_WITHOUT_PROGRESS = 1000
"""Rounds with active jobs of which none moves on before a simulation is given up (ten times that if nodes fail)."""


class ProgressUpdate(NamedTuple):
    """How far a simulation is: jobs finished of how many, simulated seconds, rounds."""

    finished_jobs: int
    total_jobs: int
    now: float
    rounds: int


def simulate(
    trace: str | Path | Trace,
    cluster: str | Path | Cluster,
    policy: str | Policy = "max_min_fairness",
    solver: str | Solver | None = None,
    placement: str | Strategy | None = None,
    preset: str | None = None,
    round_seconds: float | None = None,
    seed: int = 0,
    *,
    selector: str | RoundSelector | None = None,
    options: SimulationOptions | None = None,
    solver_options: SolverOptions | None = None,
    throughput: Any = None,
    slowdown: Any = None,
    host_allocation: str | HostAllocation | None = None,
    sensitivity: str | Path | SensitivityProfiles | None = None,
    admission: str | Admission = "accept_all",
    failures: Failures = None,
    max_rounds: int | None = None,
    progress: Callable[[ProgressUpdate], None] | None = None,
    inspect: Callable[[Allocation, Callable[[AllocationSpace], Allocation]], None] | None = None,
    before_round: Callable[[Scheduler, ClusterState], None] | None = None,
) -> SimulationResult:
    """Run every job of ``trace`` on ``cluster`` under ``policy`` and return what happened.

    ``trace``, ``cluster`` and ``policy`` are objects, names or paths. ``solver`` overrides the policy's
    (see ``bloxopt solvers``); where it, or the policy, says ``auto``, ``options.solver`` decides. ``preset``
    names a set of semantics (``default``, ``gavel``, ``blox``, …) that ``options`` gives outright instead;
    ``placement``, ``round_seconds`` (s) and ``selector`` change one of them. ``throughput`` replaces the
    trace's own (an oracle, function, table or path). ``slowdown`` says what spanning more nodes than necessary
    costs (see :func:`~bloxopt.placement.slowdown.as_slowdown`), and that it does. ``host_allocation`` divides CPUs and
    memory in every round (see :mod:`bloxopt.hosts`), from which jobs gain what ``sensitivity`` says. ``admission`` (a
    name, see :func:`~bloxopt.admission.get_admission`, or an object) says which jobs are let in. ``seed`` drives random
    failures and, where they have a seed, solvers. ``failures`` is a
    :class:`~bloxopt.simulation.failures.RandomFailures` or a list of outages. ``max_rounds`` ends early.
    ``progress`` is called after each round, ``inspect`` with every allocation as it is made and with a function that
    allocates in any space as the policy does, ``before_round`` with the scheduler and what it sees before it decides.

    Raises a :class:`~bloxopt.errors.BloxoptError` for input that cannot be used, an infeasible policy,
    a solver that fails, and jobs that can never start or are never let in.
    """
    started = time.perf_counter()
    workload = as_trace(trace)
    cluster = load_cluster(cluster)
    policy = get_policy(policy)
    chosen = chosen_options(preset, options, round_seconds, placement, selector, host_allocation)
    if chosen.restart_cost is not None:
        # Policies and admissions that reckon with restarts must know what they really cost.
        workload = workload.with_restart_cost(float(chosen.restart_cost))
    seed = checked_seed(seed)
    admitting = get_admission(admission)
    check_others(solver_options, failures, max_rounds, progress)
    if solver in (None, "auto"):
        # Who leaves the choice of the solver open gets the preset's.
        solver = chosen.solver if solver == "auto" or policy.solver == "auto" else None
    if solver is not None:
        check_solver(solver)
    if solver_options is None and seed:
        solver_options = SolverOptions(seed=seed)
    oracle = workload.throughput if throughput is None else as_oracle(throughput)

    model: Slowdown | None = None
    if slowdown is not None or chosen.placement_slowdown:
        model = as_slowdown(oracle if slowdown is None else slowdown)
        chosen = chosen.with_(placement_slowdown=True)
    catalog = ConfigurationCatalog(
        workload.jobs,
        cluster,
        oracle,
        model,
        spread_columns=policy.uses_spread,
        pair_threshold=policy.pair_threshold,
        every_count_up_to=chosen.every_gpu_count_up_to,
    )
    catalog.check_every_job_can_run()
    check_it_can_end(catalog, chosen, failures, max_rounds)
    hosts = _hosts(host_allocation, sensitivity, chosen, catalog)
    if hosts is not None and policy.pair_threshold is not None:
        raise InputError(
            f"policy {policy.name!r} lets jobs share GPUs, for which no host allocation divides CPUs and memory: leave "
            "host_allocation out, or use a policy that does not pack"
        )
    backend = SimulatedBackend(catalog, chosen, NodeEvents(failures, cluster, seed), hosts=hosts)
    scheduler = Scheduler(
        backend=backend,
        policy=policy,
        admission=admitting,
        selector=as_selector(selector, chosen),
        placement=as_placement(placement, chosen),
        solver=solver,
        solver_options=solver_options,
        solve_interval=chosen.solve_interval,
        placement_retries=chosen.placement_retries,
        inspect=inspect,
        before_round=before_round,
        event_driven=chosen.round_end == "next_event",
        hosts=hosts,
        ladder=None if chosen.round_budget is None else Ladder(chosen.round_budget),
        resolver=Resolver() if chosen.incremental else None,
    )
    try:
        recorder = _run(scheduler, chosen, failures, max_rounds, progress)
    finally:
        if scheduler.ladder is not None:
            scheduler.ladder.close()
    config = {
        "trace": workload.name,
        "cluster": cluster.describe(),
        "policy": policy.name,
        "admission": admission if isinstance(admission, str) else type(admission).__name__,
        "solver": getattr(solver or policy.solver, "name", solver or policy.solver),
        "preset": preset or ("custom" if options is not None else "default"),
        "options": chosen.to_dict(),
        "seed": seed,
    }
    return recorder.result(backend, config, time.perf_counter() - started)


def _hosts(
    allocation: str | HostAllocation | None,
    sensitivity: Any,
    options: SimulationOptions,
    catalog: ConfigurationCatalog,
) -> Hosts | None:
    """The host allocation given or named by the options, over the profiles given or named; None if there is none."""
    chosen = as_host_allocation(allocation, options)
    if chosen is None:
        if sensitivity is not None:
            raise InputError(
                "sensitivity is given, but nothing divides CPUs and memory: choose a host_allocation, such as 'tuned'"
            )
        return None
    profiles = as_profiles(options.sensitivity if sensitivity is None else sensitivity)
    return Hosts(chosen, HostRates(profiles, catalog))


def _run(
    scheduler: Scheduler,
    chosen: SimulationOptions,
    failures: Failures,
    max_rounds: int | None,
    progress: Callable[[ProgressUpdate], None] | None,
) -> Recorder:
    """Rounds until every job is done, or enough of them."""
    backend = scheduler.backend
    assert isinstance(backend, SimulatedBackend)
    recorder = Recorder()
    patience = _ROUNDS_WITHOUT_PROGRESS * (10 if isinstance(failures, RandomFailures) else 1)
    patience += int(10 * backend.highest_restart_cost / chosen.round_seconds)
    while not backend.finished and (max_rounds is None or len(recorder) < max_rounds):
        record = scheduler.run_round()
        recorder.add(record, backend.now)
        if backend.rounds_without_progress >= patience:
            raise _stuck(scheduler, chosen)
        if progress is not None:
            progress(ProgressUpdate(backend.ledger.num_finished, len(backend.ledger.table), backend.now, len(recorder)))
    backend.close()
    return recorder


def _stuck(scheduler: Scheduler, options: SimulationOptions) -> BloxoptError:
    """The error for a simulation in which no job moves on any more."""
    backend = scheduler.backend
    ledger, table = backend.ledger, backend.catalog.table
    active = ledger.active
    if not len(active):
        return _shut_out(scheduler)
    if ledger.restarts[active].any() and (ledger.attained_seconds[active] > 0).any():
        row = int(active[ledger.restarts[active].argmax()])
        return InputError(
            f"no job makes progress any more: each restart costs more than the round that follows it; job "
            f"{table.job_id[row]!r} started {ledger.restarts[row]} times. Use rounds longer than the restart cost "
            f"(round_seconds is {options.round_seconds:g}), or a policy that preempts less often"
        )
    row = int(active[0])
    others = f" and {len(active) - 1} others wait" if len(active) > 1 else " waits"
    return InputError(
        f"job {table.job_id[row]!r} ({table.num_gpus[row]} GPUs){others} and can never start on "
        f"{backend.catalog.cluster.describe()}: the placement ({options.placement!r} unless you gave your own) finds "
        f"no nodes for it, the nodes it needs are down, or policy {scheduler.policy.name!r} gives it nothing; use "
        "another placement such as 'first_fit', a larger cluster, or another policy"
    )


def _shut_out(scheduler: Scheduler) -> BloxoptError:
    """The error for a simulation in which jobs wait for admission and nothing else happens."""
    ledger = scheduler.backend.ledger
    (waiting,) = (ledger.status == JobStatus.NOT_ADMITTED).nonzero()
    row = next((row for row in waiting.tolist() if row in ledger.refusals), int(waiting[0]))
    others = f" and {len(waiting) - 1} others wait" if len(waiting) > 1 else " waits"
    return InputError(
        f"job {ledger.table.job_id[row]!r}{others} for admission although no other job is there any more "
        f"({ledger.refusals.get(row, 'not asked for')}): {type(scheduler.admission).__name__} never lets it in; use "
        "another admission or other limits, or one that rejects such jobs"
    )
