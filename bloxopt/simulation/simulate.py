"""``simulate``: a trace, a cluster and a policy in, a result out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bloxopt.admission import Admission
from bloxopt.cluster import Cluster, load_cluster
from bloxopt.errors import BloxoptError, InputError
from bloxopt.formulations.policies import get_policy
from bloxopt.formulations.policy import Policy
from bloxopt.formulations.space import ConfigurationCatalog
from bloxopt.placement import Strategy, get_placement
from bloxopt.placement.slowdown import Slowdown, as_slowdown
from bloxopt.rounds import Scheduler
from bloxopt.selection import RoundSelector, get_selector
from bloxopt.simulation.backend import SimulatedBackend
from bloxopt.simulation.failures import Failures, NodeEvents
from bloxopt.simulation.options import PRESETS, SimulationOptions
from bloxopt.simulation.recorder import Recorder
from bloxopt.simulation.result import SimulationResult
from bloxopt.solvers.base import SolverOptions
from bloxopt.throughput import as_oracle

if TYPE_CHECKING:
    from bloxopt.workloads.trace import Trace

_IDLE_ROUNDS_BEFORE_GIVING_UP = 1000


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
    solver: str | None = None,
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
    admission: Admission | None = None,
    failures: Failures = None,
    max_rounds: int | None = None,
    progress: Callable[[ProgressUpdate], None] | None = None,
) -> SimulationResult:
    """Run every job of ``trace`` on ``cluster`` under ``policy`` and return what happened.

    ``trace``, ``cluster`` and ``policy`` are objects, names or paths. ``solver`` overrides the policy's
    (see ``bloxopt solvers``), ``options.solver`` only ``auto``. ``preset`` names a set of semantics
    (``default``, ``gavel``, ``blox``) that ``options`` replaces as a whole and ``placement``,
    ``round_seconds`` (s) and ``selector`` change one by
    one. ``throughput`` replaces the trace's own (an oracle, function, table or path). ``slowdown`` says
    what spanning more nodes than necessary costs (see :func:`~bloxopt.placement.slowdown.as_slowdown`), and that
    it does. ``seed`` drives
    random failures and, where they have a seed, solvers. ``failures`` is a
    :class:`~bloxopt.simulation.failures.RandomFailures` or outages. ``max_rounds`` ends early.
    ``progress`` is called after each round.

    Raises a :class:`~bloxopt.errors.BloxoptError` for input that cannot be used, an infeasible policy,
    a solver that fails, and jobs that can never start.
    """
    started = time.perf_counter()
    workload = _as_trace(trace)
    cluster = load_cluster(cluster)
    policy = get_policy(policy)
    chosen = options if options is not None else PRESETS.get(preset or "default")
    changes: dict[str, Any] = {}
    if round_seconds is not None:
        changes["round_seconds"] = round_seconds
    if isinstance(placement, str):
        changes["placement"] = placement
    if isinstance(selector, str):
        changes["selector"] = selector
    chosen = chosen.with_(**changes)
    if solver is None:
        solver = chosen.solver if policy.solver == "auto" else None
    if solver is not None:
        from bloxopt.solvers.registry import get_solver

        get_solver(solver)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed is {seed!r}: it must be a whole number >= 0")
    if solver_options is None and seed:
        solver_options = SolverOptions(seed=seed)
    oracle = workload.throughput if throughput is None else as_oracle(throughput)

    model: Slowdown | None = None
    if slowdown is not None or chosen.placement_slowdown:
        model = as_slowdown(oracle if slowdown is None else slowdown)
        chosen = chosen.with_(placement_slowdown=True)
    catalog = ConfigurationCatalog(workload.jobs, cluster, oracle, model, spread_columns=policy.uses_spread)
    catalog.check_every_job_can_run()
    backend = SimulatedBackend(catalog, chosen, NodeEvents(failures, cluster, seed))
    scheduler = Scheduler(
        backend=backend,
        policy=policy,
        selector=(
            selector
            if selector is not None and not isinstance(selector, str)
            else get_selector(chosen.selector, **chosen.selector_options)
        ),
        placement=placement if callable(placement) else get_placement(chosen.placement),
        solver=solver,
        solver_options=solver_options,
        solve_interval=chosen.solve_interval,
        placement_retries=chosen.placement_retries,
        **({} if admission is None else {"admission": admission}),
    )
    recorder = Recorder()
    idle = 0
    while not backend.finished and (max_rounds is None or len(recorder) < max_rounds):
        record = scheduler.run_round()
        recorder.add(record, backend.now)
        idle = idle + 1 if record.active and not record.running and backend.next_change == float("inf") else 0
        if idle >= _IDLE_ROUNDS_BEFORE_GIVING_UP:
            raise _stuck(scheduler, chosen)
        if progress is not None:
            progress(ProgressUpdate(backend.ledger.num_finished, len(workload.jobs), backend.now, len(recorder)))
    config = {
        "trace": workload.name,
        "cluster": cluster.describe(),
        "policy": policy.name,
        "solver": solver or policy.solver,
        "preset": preset or ("custom" if options is not None else "default"),
        "options": chosen.to_dict(),
        "seed": seed,
    }
    return recorder.result(backend, config, time.perf_counter() - started)


def _as_trace(source: str | Path | Trace) -> Trace:
    if isinstance(source, (str, Path)):
        from bloxopt.workloads import load_trace

        return load_trace(source)
    return source


def _stuck(scheduler: Scheduler, options: SimulationOptions) -> BloxoptError:
    """The error for a cluster on which nothing runs and nothing will change."""
    backend = scheduler.backend
    row = int(backend.ledger.active[0])
    table = backend.catalog.table
    others = len(backend.ledger.active) - 1
    return InputError(
        f"job {table.job_id[row]!r} ({table.num_gpus[row]} GPUs) and {others} others wait and can "
        f"never start: placement {options.placement!r} finds no nodes for it on {backend.catalog.cluster.describe()} "
        f"(or its CPU and memory needs fit no node), or policy {scheduler.policy.name!r} gives it nothing; use another "
        "placement such as 'first_fit', a larger cluster, or another policy"
    )
