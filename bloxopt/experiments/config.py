"""Experiments as data: the tables of an experiment file and what each key may hold."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from bloxopt.errors import UnknownNameError
from bloxopt.experiments.policies import is_policy_file

_REGISTRIES = {
    "policy": ("bloxopt.formulations.policies", "POLICIES", "ALIASES"),
    "solver": ("bloxopt.solvers", "SOLVERS"),
    "preset": ("bloxopt.simulation", "PRESETS"),
    "placement": ("bloxopt.placement", "PLACEMENTS"),
    "selector": ("bloxopt.selection", "SELECTORS"),
    "trace": ("bloxopt.workloads", "TRACES"),
    "trace format": ("bloxopt.workloads", "FORMATS"),
}
"""Kind of name to the module and the mappings that know the names."""


def _registered(kind: str, or_else: Callable[[str], bool] | None = None) -> AfterValidator:
    """Accepts the names of one registry, which is imported when the first name is checked."""

    def check(name: str) -> str:
        if or_else is not None and or_else(name):
            return name
        module, *attributes = _REGISTRIES[kind]
        known = [entry for attribute in attributes for entry in getattr(importlib.import_module(module), attribute)]
        if name not in known:
            raise UnknownNameError(kind, name, known)
        return name

    return AfterValidator(check)


PolicyName = Annotated[str, _registered("policy", or_else=is_policy_file)]
SolverName = Annotated[str, _registered("solver")]
PresetName = Annotated[str, _registered("preset")]
PlacementName = Annotated[str, _registered("placement")]
SelectorName = Annotated[str, _registered("selector")]
TraceName = Annotated[str, _registered("trace")]
FormatName = Annotated[str, _registered("trace format")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
PlotFormat = Literal["png", "svg", "pdf"]


class Section(BaseModel):
    """A table of an experiment file: unknown keys and values of another kind are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _exactly_one(first: Any, second: Any, message: str) -> None:
    if (first is None) == (second is None):
        raise ValueError(message)


class WhereSection(Section):
    """Which jobs of the trace to keep; bounds are inclusive."""

    min_gpus: Count | None = None
    max_gpus: Count | None = None
    min_duration: NonNegative | None = None
    max_duration: Positive | None = None
    tenant: str | list[str] | None = None
    job_type: str | list[str] | None = None


class TraceSection(Section):
    """A registered trace or a file, and how it is changed: window, where, jobs, demand, types, load, costs."""

    name: TraceName | None = None
    path: str | None = None
    format: FormatName | None = None
    throughput: str | None = None
    start: NonNegative | None = None
    end: Positive | None = None
    where: WhereSection | None = None
    jobs: Count | None = None
    gpu_demand: dict[str, NonNegative] | None = None
    job_types: dict[str, NonNegative] | None = None
    load: Positive | None = None
    elastic_range: list[Count] | None = None
    restart_cost: NonNegative | None = None
    seed: Seed | None = None

    @model_validator(mode="after")
    def _check(self) -> TraceSection:
        _exactly_one(self.name, self.path, "needs either name (a trace of `bloxopt traces`) or path (a file)")
        if self.elastic_range is not None and len(self.elastic_range) != 2:
            raise ValueError("elastic_range needs two numbers of GPUs, such as [1, 8]")
        if not all(count.isdecimal() and int(count) >= 1 for count in self.gpu_demand or ()):
            raise ValueError("gpu_demand needs whole numbers of GPUs as keys, such as {1 = 0.7, 4 = 0.3}")
        return self


class GenerateSection(Section):
    """A trace drawn at random, see :func:`bloxopt.generate_trace`."""

    num_jobs: Count
    jobs_per_hour: Annotated[float, Field(gt=0)] | None = None
    interarrival: NonNegative | None = None
    durations: str | Positive = "gavel"
    gpu_counts: str | Count | dict[str, NonNegative] = "gavel"
    job_types: str | dict[str, NonNegative] | None = None
    tenants: dict[str, NonNegative] | None = None
    throughput: str | None = None
    gpu_type: str = "V100"
    restart_cost: NonNegative = 0.0
    seed: Seed | None = None
    name: str = "generated"

    @model_validator(mode="after")
    def _check(self) -> GenerateSection:
        _exactly_one(self.jobs_per_hour, self.interarrival, "needs either jobs_per_hour or interarrival (seconds)")
        if isinstance(self.gpu_counts, dict) and not all(count.isdecimal() for count in self.gpu_counts):
            raise ValueError("gpu_counts needs whole numbers of GPUs as keys, such as {1 = 0.7, 4 = 0.3}")
        return self


class ClusterSection(Section):
    """The GPUs: ``nodes`` such as ``8xV100+16xP100`` or the ``path`` of a TOML or CSV file."""

    nodes: str | None = None
    path: str | None = None

    @model_validator(mode="after")
    def _check(self) -> ClusterSection:
        _exactly_one(self.nodes, self.path, 'needs either nodes (such as "32x4xV100") or path (.toml or .csv)')
        return self


class PolicySection(Section):
    """A registered policy, or one of your own as ``FILE.py:NAME``, and its options."""

    name: PolicyName = "max_min_fairness"
    options: dict[str, Any] = {}


class SolverSection(Section):
    """A solver instead of the policy's own, and limits: seconds, relative gap, threads, seed."""

    name: SolverName | None = None
    time_limit: Positive | None = None
    mip_gap: NonNegative | None = None
    threads: Count | None = None
    seed: Seed | None = None


class SimulationSection(Section):
    """A preset, and the options (see ``SimulationOptions``) to change in it; its solver stands in ``[solver]``."""

    preset: PresetName = "default"
    seed: Seed = 0
    max_rounds: Count | None = None
    round_seconds: Positive | None = None
    progress: Literal["exact", "whole_steps", "whole_rounds"] | None = None
    round_end: Literal["fixed", "last_job"] | None = None
    solve_interval: NonNegative | None = None
    selector: SelectorName | None = None
    selector_options: dict[str, Any] | None = None
    placement: PlacementName | None = None
    placement_slowdown: bool | None = None
    placement_retries: Annotated[int, Field(ge=0)] | None = None
    restart_cost: NonNegative | None = None


class OutageSection(Section):
    """A node that is down from ``start`` to ``end`` (seconds), for good without ``end``."""

    node: str
    start: NonNegative
    end: Positive | None = None


class FailuresSection(Section):
    """Failures of nodes: random ones by their mean times (seconds), or listed outages."""

    mean_seconds_between_failures: Positive | None = None
    mean_seconds_to_repair: Positive | None = None
    outages: list[OutageSection] | None = None

    @model_validator(mode="after")
    def _check(self) -> FailuresSection:
        message = "needs both mean_seconds_between_failures and mean_seconds_to_repair, or else outages"
        means = (self.mean_seconds_between_failures, self.mean_seconds_to_repair)
        if (means[0] is None) != (means[1] is None):
            raise ValueError(message)
        _exactly_one(means[0], self.outages, message)
        return self


class OutputSection(Section):
    """Where results go, and which plots are drawn."""

    folder: str | None = None
    plots: bool = True
    formats: Annotated[list[PlotFormat], Field(min_length=1)] = ["png"]


class CompareSection(Section):
    """The values to vary; every combination is one run."""

    traces: Annotated[list[str], Field(min_length=1)] | None = None
    clusters: Annotated[list[str], Field(min_length=1)] | None = None
    loads: Annotated[list[Positive], Field(min_length=1)] | None = None
    presets: Annotated[list[PresetName], Field(min_length=1)] | None = None
    selectors: Annotated[list[SelectorName], Field(min_length=1)] | None = None
    placements: Annotated[list[PlacementName], Field(min_length=1)] | None = None
    policies: Annotated[list[PolicyName], Field(min_length=1)] | None = None
    solvers: Annotated[list[SolverName], Field(min_length=1)] | None = None
    seeds: Annotated[list[Seed], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _check(self) -> CompareSection:
        for key in type(self).model_fields:
            values = getattr(self, key) or []
            twice = next((value for i, value in enumerate(values) if value in values[:i]), None)
            if twice is not None:
                raise ValueError(f"{key} lists {twice!r} twice")
        return self


class Experiment(Section):
    """Everything that decides a simulation; ``document()`` gives it back as plain tables."""

    trace: TraceSection | None = None
    generate: GenerateSection | None = None
    cluster: ClusterSection | None = None
    policy: PolicySection = PolicySection()
    solver: SolverSection = SolverSection()
    simulation: SimulationSection = SimulationSection()
    failures: FailuresSection | None = None
    output: OutputSection = OutputSection()
    compare: CompareSection | None = None

    def document(self) -> dict[str, Any]:
        """The tables as plain data without empty values, as they stand in TOML."""
        return self.model_dump(exclude_none=True)
