"""From an experiment to its result: load what it names, simulate, and keep what is needed to run it again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bloxopt.arguments import as_in_files
from bloxopt.errors import BloxoptError, ConfigError
from bloxopt.experiments.config import Experiment, TraceSection
from bloxopt.experiments.policies import make_policy, policy_file
from bloxopt.experiments.store import check_free, save_result
from bloxopt.input_files import read_input

if TYPE_CHECKING:
    from bloxopt.admission import Admission
    from bloxopt.cluster import Cluster
    from bloxopt.formulations.policy import Policy
    from bloxopt.simulation import SimulationOptions, SimulationResult
    from bloxopt.simulation.failures import Failures
    from bloxopt.simulation.simulate import ProgressUpdate
    from bloxopt.workloads import Trace

Progress = Callable[["ProgressUpdate"], None]


def resolve(experiment: Experiment) -> Experiment:
    """The experiment with every default that depends on another value filled in: cluster and seeds.

    A registered trace brings its cluster; random traces, transformations, solvers and failures
    take ``simulation.seed`` where they have no seed of their own. Raises
    :class:`~bloxopt.errors.ConfigError` where the trace or the cluster is missing.
    """
    if (experiment.trace is None) == (experiment.generate is None):
        raise ConfigError(
            "no trace: name one ([trace] or --trace, see `bloxopt traces`) or give [generate]"
            if experiment.trace is None
            else "both [trace] and [generate] are given: keep one"
        )
    document = experiment.document()
    seed = experiment.simulation.seed
    for section in ("trace", "generate"):
        if section in document:
            document[section].setdefault("seed", seed)
    if seed:
        document["solver"].setdefault("seed", seed)
    if experiment.cluster is None:
        from bloxopt.workloads import TRACES

        if experiment.trace is None or experiment.trace.name is None:
            what = "a generated trace" if experiment.trace is None else f"trace file {experiment.trace.path}"
            raise ConfigError(f"no cluster: {what} has no default one; give [cluster] or --cluster such as 32x4xV100")
        document["cluster"] = {"nodes": TRACES.get(experiment.trace.name).cluster}
    return Experiment.model_validate(document).with_origin(experiment.origin)


def check_inputs(experiments: Iterable[Experiment]) -> None:
    """Load everything that the experiments name, each once, so that a mistake shows before any work is spent.

    Whether the jobs of a trace fit a cluster, or a policy has a solution, is not looked at.
    """
    seen: set[str] = set()

    def first(*values: Any) -> bool:
        key = repr(values)
        fresh = key not in seen
        seen.add(key)
        return fresh

    for experiment in experiments:
        if first("trace", experiment.trace, experiment.generate):
            _trace(experiment)
        if first("cluster", experiment.cluster, experiment.failures):
            _failures(experiment, _cluster(experiment))
        if first("admission", experiment.admission):
            _admission(experiment)
        if first("policy", experiment.policy):
            _policy(experiment)
        if first("simulation", experiment.simulation):
            _options(experiment)


def run_experiment(experiment: Experiment, progress: Progress | None = None, **hooks: Any) -> SimulationResult:
    """Simulate what the experiment describes; ``progress`` and ``hooks`` as in :func:`~bloxopt.simulate`.

    Raises any :class:`~bloxopt.errors.BloxoptError` of the parts it names.
    """
    from bloxopt.simulation import simulate
    from bloxopt.solvers.base import SolverOptions

    experiment = resolve(experiment)
    simulation, solver = experiment.simulation, experiment.solver
    # What is quick to check comes first.
    options, policy, cluster = _options(experiment), _policy(experiment), _cluster(experiment)
    admission = _admission(experiment)
    failures = _failures(experiment, cluster)
    limits = solver.model_dump(exclude_none=True, exclude={"name"})
    result = simulate(
        _trace(experiment),
        cluster,
        policy=policy,
        solver=solver.name,
        options=options,
        seed=simulation.seed,
        solver_options=SolverOptions(**limits) if limits else None,
        admission=admission,
        failures=failures,
        max_rounds=simulation.max_rounds,
        progress=progress,
        **hooks,
    )
    result.config["preset"] = simulation.preset
    result.config["admission"] = experiment.admission.name
    return result


def run_and_save(
    experiment: Experiment,
    folder: str | Path,
    *,
    overwrite: bool = False,
    plot_formats: Iterable[str] = (),
    progress: Progress | None = None,
) -> SimulationResult:
    """Simulate and write the result folder, which is checked to be writable before the work starts."""
    check_free(folder, overwrite)
    experiment = resolve(experiment)
    inputs = input_hashes(experiment)
    result = run_experiment(experiment, progress)
    save_result(
        result,
        folder,
        experiment=experiment.document(),
        inputs=inputs,
        plot_formats=plot_formats,
        overwrite=overwrite,
    )
    return result


def input_hashes(experiment: Experiment) -> dict[str, str]:
    """SHA-256 of every file the experiment reads, by path; registered traces belong to bloxopt's version."""
    sections = (experiment.trace, experiment.generate, experiment.cluster)
    paths = [getattr(section, key, None) for section in sections for key in ("path", "throughput")]
    paths.append(policy_file(experiment.policy.name))
    found = {}
    for path in filter(None, paths):
        found[path] = hashlib.sha256(read_input(_existing(path))).hexdigest()
    return found


def _existing(path: str) -> Path:
    """The file itself, or the archive that it is a member of (``archive.tar.gz/member.csv``)."""
    file = Path(path)
    return next((place for place in (file, *file.parents) if place.is_file()), file)


def _trace(experiment: Experiment) -> Trace:
    if experiment.trace is None:
        return generated_trace(experiment)
    return _loaded(experiment, experiment.trace)


@contextmanager
def _at(experiment: Experiment, key: str, options: str = "") -> Iterator[None]:
    """Names the key, or the option that set it, in errors about what it holds; ``options`` is its table of options."""
    try:
        yield
    except BloxoptError as error:
        table = options or key
        place = experiment.origin.name(key if error.option is None else f"{table}.{error.option}")
        raise ConfigError(f"{place}: {error}") from error


def _cluster(experiment: Experiment) -> Cluster:
    from bloxopt.cluster import load_cluster

    section = experiment.cluster
    assert section is not None
    with _at(experiment, "cluster.nodes" if section.path is None else "cluster.path"):
        return load_cluster(section.path or section.nodes or "")


def _policy(experiment: Experiment) -> Policy:
    with _at(experiment, "policy.name", "policy.options"):
        return make_policy(experiment.policy.name, experiment.policy.options)


def _admission(experiment: Experiment) -> Admission:
    from bloxopt.admission import ADMISSIONS, get_admission

    name = experiment.admission.name
    with _at(experiment, "admission.name", "admission.options"):
        return get_admission(name, **as_in_files(ADMISSIONS.get(name), experiment.admission.options))


def _options(experiment: Experiment) -> SimulationOptions:
    from bloxopt.hosts import HOST_ALLOCATIONS, as_profiles, get_host_allocation
    from bloxopt.placement import PLACEMENTS, get_placement
    from bloxopt.selection import SELECTORS, get_selector
    from bloxopt.simulation import PRESETS

    section = experiment.simulation
    changes = section.model_dump(exclude_none=True, exclude={"preset", "seed", "max_rounds"})
    with _at(experiment, "simulation"):
        options: SimulationOptions = PRESETS.get(section.preset).with_(**changes)
    for kind, names in (("selector", SELECTORS), ("placement", PLACEMENTS), ("host_allocation", HOST_ALLOCATIONS)):
        if changes.get(f"{kind}_options") and (name := getattr(options, kind)) is not None:
            written = as_in_files(names.get(name), changes[f"{kind}_options"])
            options = options.with_(**{f"{kind}_options": written})
    with _at(experiment, "simulation.selector_options"):
        get_selector(options.selector, **options.selector_options)
    with _at(experiment, "simulation.placement_options"):
        get_placement(options.placement, **options.placement_options)
    if options.host_allocation is not None:
        with _at(experiment, "simulation.host_allocation_options"):
            get_host_allocation(options.host_allocation, **options.host_allocation_options)
        with _at(experiment, "simulation.sensitivity"):
            as_profiles(options.sensitivity)
    return options


def _loaded(experiment: Experiment, section: TraceSection) -> Trace:
    from bloxopt.workloads import load_trace

    trace = load_trace(section.name or section.path or "", format=section.format, throughput=section.throughput)
    seed = section.seed or 0
    on: dict[str, Any] = {} if section.gpu_type is None else {"gpu_type": section.gpu_type}
    if section.start is not None or section.end is not None:
        with _at(experiment, "trace.start" if section.end is None else "trace.end"):
            trace = trace.window(section.start or 0.0, float("inf") if section.end is None else section.end)
    if section.where is not None:
        with _at(experiment, "trace.where"):
            trace = trace.where(**section.where.model_dump(exclude_none=True), **on)
    if section.jobs is not None:
        trace = trace.head(section.jobs)
    if section.gpu_demand is not None:
        with _at(experiment, "trace.gpu_demand"):
            trace = trace.with_gpu_demand(
                {int(count): weight for count, weight in section.gpu_demand.items()}, seed, **on
            )
    if section.job_types is not None:
        with _at(experiment, "trace.job_types"):
            trace = trace.with_job_types(section.job_types, seed, **on)
    if section.load is not None:
        with _at(experiment, "trace.load"):
            trace = trace.scale_load(section.load)
    if section.elastic_range is not None:
        with _at(experiment, "trace.elastic_range"):
            trace = trace.with_elastic_range(*section.elastic_range)
    if section.deadlines is not None:
        tightest, loosest = section.deadlines
        with _at(experiment, "trace.deadlines"):
            trace = trace.with_deadlines(tightest, loosest, seed, **on)
    if section.restart_cost is not None:
        with _at(experiment, "trace.restart_cost"):
            trace = trace.with_restart_cost(section.restart_cost)
    return trace


def generated_trace(experiment: Experiment) -> Trace:
    """The trace that ``[generate]`` describes."""
    from bloxopt.workloads import generate_trace

    section = experiment.generate
    assert section is not None
    values: dict[str, Any] = section.model_dump(exclude_none=True)
    if isinstance(section.gpu_counts, dict):
        values["gpu_counts"] = {int(count): weight for count, weight in section.gpu_counts.items()}
    with _at(experiment, "generate"):
        return generate_trace(**values)


def _failures(experiment: Experiment, cluster: Cluster) -> Failures:
    from bloxopt.simulation import Outage, RandomFailures
    from bloxopt.simulation.failures import NodeEvents

    section = experiment.failures
    if section is None:
        return None
    if section.outages is not None:
        with _at(experiment, "failures.outages"):
            outages = [Outage(**outage.model_dump(exclude_none=True)) for outage in section.outages]
            NodeEvents(outages, cluster, 0)
        return outages
    return RandomFailures(section.mean_seconds_between_failures or 0.0, section.mean_seconds_to_repair or 0.0)
