"""From an experiment to its result: load what it names, simulate, and keep what is needed to run it again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bloxopt.errors import ConfigError, InputError
from bloxopt.experiments.config import Experiment, FailuresSection, TraceSection
from bloxopt.experiments.files import reason
from bloxopt.experiments.policies import make_policy, policy_file
from bloxopt.experiments.store import check_free, save_result

if TYPE_CHECKING:
    from bloxopt.simulation import SimulationResult
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
    return Experiment.model_validate(document)


def run_experiment(experiment: Experiment, progress: Progress | None = None) -> SimulationResult:
    """Simulate what the experiment describes; ``progress`` is called after every round.

    Raises any :class:`~bloxopt.errors.BloxoptError` of the parts it names.
    """
    from bloxopt.cluster import load_cluster
    from bloxopt.simulation import PRESETS, simulate
    from bloxopt.solvers.base import SolverOptions

    experiment = resolve(experiment)
    assert experiment.cluster is not None
    simulation, solver = experiment.simulation, experiment.solver
    changes = simulation.model_dump(exclude_none=True, exclude={"preset", "seed", "max_rounds"})
    limits = solver.model_dump(exclude_none=True, exclude={"name"})
    return simulate(
        _trace(experiment),
        load_cluster(experiment.cluster.path or experiment.cluster.nodes or ""),
        policy=make_policy(experiment.policy.name, experiment.policy.options),
        solver=solver.name,
        preset=simulation.preset,
        options=PRESETS.get(simulation.preset).with_(**changes),
        seed=simulation.seed,
        solver_options=SolverOptions(**limits) if limits else None,
        failures=_failures(experiment.failures),
        max_rounds=simulation.max_rounds,
        progress=progress,
    )


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
        try:
            found[path] = hashlib.sha256(_existing(path).read_bytes()).hexdigest()
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {reason(error)}") from error
    return found


def _existing(path: str) -> Path:
    """The file itself, or the archive that it is a member of (``archive.tar.gz/member.csv``)."""
    file = Path(path)
    return next((place for place in (file, *file.parents) if place.is_file()), file)


def _trace(experiment: Experiment) -> Trace:
    if experiment.trace is None:
        return generated_trace(experiment)
    return _loaded(experiment.trace)


def _loaded(section: TraceSection) -> Trace:
    from bloxopt.workloads import load_trace

    trace = load_trace(section.name or section.path or "", format=section.format, throughput=section.throughput)
    seed = section.seed or 0
    if section.start is not None or section.end is not None:
        trace = trace.window(section.start or 0.0, float("inf") if section.end is None else section.end)
    if section.where is not None:
        trace = trace.where(**section.where.model_dump(exclude_none=True))
    if section.jobs is not None:
        trace = trace.head(section.jobs)
    if section.gpu_demand is not None:
        trace = trace.with_gpu_demand({int(count): weight for count, weight in section.gpu_demand.items()}, seed)
    if section.job_types is not None:
        trace = trace.with_job_types(section.job_types, seed)
    if section.load is not None:
        trace = trace.scale_load(section.load)
    if section.elastic_range is not None:
        trace = trace.with_elastic_range(*section.elastic_range)
    if section.restart_cost is not None:
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
    return generate_trace(**values)


def _failures(section: FailuresSection | None) -> Failures:
    from bloxopt.simulation import Outage, RandomFailures

    if section is None:
        return None
    if section.outages is not None:
        return [Outage(**outage.model_dump(exclude_none=True)) for outage in section.outages]
    return RandomFailures(section.mean_seconds_between_failures or 0.0, section.mean_seconds_to_repair or 0.0)
