"""Experiments as data: the tables of an experiment file and what each key may hold."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from bloxopt.errors import UnknownNameError
from bloxopt.experiments.policies import is_policy_file

_REGISTRIES = {
    "policy": ("bloxopt.formulations.policies", "POLICIES", "ALIASES"),
    "solver": ("bloxopt.solvers", "SOLVERS"),
    "preset": ("bloxopt.simulation", "PRESETS"),
    "placement": ("bloxopt.placement", "PLACEMENTS"),
    "admission": ("bloxopt.admission", "ADMISSIONS"),
    "selector": ("bloxopt.selection", "SELECTORS"),
    "host allocation": ("bloxopt.hosts", "HOST_ALLOCATIONS"),
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
AdmissionName = Annotated[str, _registered("admission")]
SelectorName = Annotated[str, _registered("selector")]
HostAllocationName = Annotated[str, _registered("host allocation")]
TraceName = Annotated[str, _registered("trace")]
FormatName = Annotated[str, _registered("trace format")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
PlotFormat = Literal["png", "svg", "pdf"]


def _non_empty(text: str) -> str:
    if not text.strip():
        raise ValueError(f"is {text!r}, must not be empty")
    return text


def _some_weight(weights: dict[str, float]) -> dict[str, float]:
    if not any(weights.values()):
        raise ValueError("all weights are 0: at least one must be greater than 0")
    return weights


def _gpu_counts(weights: dict[str, float]) -> dict[str, float]:
    if not all(count.isdecimal() and int(count) >= 1 for count in weights):
        raise ValueError("needs whole numbers of GPUs as keys, such as {1 = 0.7, 4 = 0.3}")
    return weights


def _gpu_range(limits: list[int]) -> list[int]:
    if len(limits) != 2 or limits[0] > limits[1]:
        raise ValueError(f"is {limits!r}: needs two numbers of GPUs, the fewest first, such as [1, 8]")
    return limits


def _tightness(limits: list[float]) -> list[float]:
    if len(limits) != 2 or limits[0] > limits[1]:
        raise ValueError(f"is {limits!r}: needs two multiples of the duration, the tightest first, such as [0.5, 1.5]")
    return limits


Text = Annotated[str, AfterValidator(_non_empty)]
Weights = Annotated[dict[str, NonNegative], AfterValidator(_some_weight)]
GpuWeights = Annotated[dict[str, NonNegative], AfterValidator(_gpu_counts), AfterValidator(_some_weight)]


class Section(BaseModel):
    """A table of an experiment file: unknown keys and values of another kind are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _exactly_one(first: Any, second: Any, names: str, message: str) -> None:
    if first is not None and second is not None:
        raise ValueError(f"has both {names}: keep one")
    if first is None and second is None:
        raise ValueError(message)


def _fail(key: str, text: str) -> NoReturn:
    """An error about one key of a table that is found by comparing it with others."""
    raise PydanticCustomError("related_keys", "{text}", {"text": text, "key": key})


def _check_order(start: float | None, end: float | None) -> None:
    if end is not None and end <= (start or 0):
        _fail("end", f"is {end:g}, must be greater than start, which is {start or 0:g} (seconds)")


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
    path: Text | None = None
    format: FormatName | None = None
    throughput: Text | None = None
    start: NonNegative | None = None
    end: Positive | None = None
    where: WhereSection | None = None
    jobs: Count | None = None
    gpu_demand: GpuWeights | None = None
    job_types: Weights | None = None
    load: Positive | None = None
    elastic_range: Annotated[list[Count], AfterValidator(_gpu_range)] | None = None
    deadlines: Annotated[list[Positive], AfterValidator(_tightness)] | None = None
    gpu_type: Text | None = None
    restart_cost: NonNegative | None = None
    seed: Seed | None = None

    @model_validator(mode="after")
    def _check(self) -> TraceSection:
        wanted = "needs either name (a trace of `bloxopt traces`) or path (a file)"
        _exactly_one(self.name, self.path, "name and path", wanted)
        _check_order(self.start, self.end)
        return self


class GenerateSection(Section):
    """A trace drawn at random, see :func:`bloxopt.generate_trace`."""

    num_jobs: Count
    jobs_per_hour: Annotated[float, Field(gt=0)] | None = None
    interarrival: NonNegative | None = None
    durations: str | Positive = "gavel"
    gpu_counts: str | Count | GpuWeights = "gavel"
    job_types: str | Weights | None = None
    tenants: Weights | None = None
    throughput: Text | None = None
    gpu_type: Text = "V100"
    restart_cost: NonNegative = 0.0
    seed: Seed | None = None
    name: str = "generated"

    @model_validator(mode="after")
    def _check(self) -> GenerateSection:
        wanted = "needs either jobs_per_hour or interarrival (seconds)"
        _exactly_one(self.jobs_per_hour, self.interarrival, "jobs_per_hour and interarrival", wanted)
        return self


class ClusterSection(Section):
    """The GPUs: ``nodes`` such as ``8xV100+16xP100`` or the ``path`` of a TOML or CSV file."""

    nodes: Text | None = None
    path: Text | None = None

    @model_validator(mode="after")
    def _check(self) -> ClusterSection:
        wanted = 'needs either nodes (such as "32x4xV100") or path (.toml or .csv)'
        _exactly_one(self.nodes, self.path, "nodes and path", wanted)
        return self


class PolicySection(Section):
    """A registered policy, or one of your own as ``FILE.py:NAME``, and its options."""

    name: PolicyName = "max_min_fairness"
    options: dict[str, Any] = {}


class AdmissionSection(Section):
    """Which jobs are let in: a registered admission and its options."""

    name: AdmissionName = "accept_all"
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
    first_round: NonNegative | None = None
    progress: Literal["exact", "whole_seconds", "whole_steps", "whole_rounds", "whole_steps_in_whole_rounds"] | None = (
        None
    )
    round_end: Literal["fixed", "last_job", "next_event"] | None = None
    solve_interval: NonNegative | None = None
    selector: SelectorName | None = None
    selector_options: dict[str, Any] | None = None
    placement: PlacementName | None = None
    placement_options: dict[str, Any] | None = None
    host_allocation: HostAllocationName | None = None
    host_allocation_options: dict[str, Any] | None = None
    sensitivity: Text | None = None
    placement_slowdown: bool | None = None
    placement_retries: Annotated[int, Field(ge=0)] | None = None
    round_budget: Positive | None = None
    incremental: bool | None = None
    restart_cost: NonNegative | None = None
    start_cost: NonNegative | None = None
    every_gpu_count_up_to: Count | None = None
    phase_change: Literal["next_round", "round_after_next"] | None = None


class OutageSection(Section):
    """A node that is down from ``start`` to ``end`` (seconds), for good without ``end``."""

    node: Text
    start: NonNegative
    end: Positive | None = None

    @model_validator(mode="after")
    def _check(self) -> OutageSection:
        _check_order(self.start, self.end)
        return self


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
        _exactly_one(means[0], self.outages, "mean times and outages", message)
        return self


class OutputSection(Section):
    """Where results go, and which plots are drawn."""

    folder: Text | None = None
    plots: bool = True
    formats: Annotated[list[PlotFormat], Field(min_length=1)] = ["png"]


class CompareSection(Section):
    """The values to vary; every combination is one run."""

    traces: Annotated[list[Text], Field(min_length=1)] | None = None
    clusters: Annotated[list[Text], Field(min_length=1)] | None = None
    loads: Annotated[list[Positive], Field(min_length=1)] | None = None
    presets: Annotated[list[PresetName], Field(min_length=1)] | None = None
    selectors: Annotated[list[SelectorName], Field(min_length=1)] | None = None
    placements: Annotated[list[PlacementName], Field(min_length=1)] | None = None
    host_allocations: Annotated[list[HostAllocationName], Field(min_length=1)] | None = None
    admissions: Annotated[list[AdmissionName], Field(min_length=1)] | None = None
    policies: Annotated[list[PolicyName], Field(min_length=1)] | None = None
    solvers: Annotated[list[SolverName], Field(min_length=1)] | None = None
    seeds: Annotated[list[Seed], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _check(self) -> CompareSection:
        for key in type(self).model_fields:
            values = getattr(self, key) or []
            twice = next((value for i, value in enumerate(values) if value in values[:i]), None)
            if twice is not None:
                _fail(key, f"lists {twice!r} twice")
        return self


@dataclass(frozen=True, eq=False)
class Origin:
    """Where the values of an experiment came from, for messages: options that set keys, and the file of the others."""

    labels: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""

    def name(self, key: str) -> str:
        """What the user calls the value under ``key``: an option, or the key in its file."""
        # The third value of a list is named by the option that gave the list.
        listed = key.rstrip("0123456789").rstrip(".")
        return self.labels.get(key) or self.labels.get(listed) or self.prefix + key

    def __eq__(self, other: object) -> bool:
        # Where values came from makes no difference between experiments.
        return isinstance(other, Origin)

    __hash__ = None  # type: ignore[assignment]


class Experiment(Section):
    """Everything that decides a simulation; ``document()`` gives it back as plain tables."""

    trace: TraceSection | None = None
    generate: GenerateSection | None = None
    cluster: ClusterSection | None = None
    policy: PolicySection = PolicySection()
    admission: AdmissionSection = AdmissionSection()
    solver: SolverSection = SolverSection()
    simulation: SimulationSection = SimulationSection()
    failures: FailuresSection | None = None
    output: OutputSection = OutputSection()
    compare: CompareSection | None = None
    _origin: Origin = PrivateAttr(default_factory=Origin)

    @property
    def origin(self) -> Origin:
        """Where its values came from."""
        return self._origin

    def with_origin(self, origin: Origin) -> Experiment:
        """The same experiment with another origin."""
        copy = self.model_copy()
        copy._origin = origin
        return copy

    def document(self) -> dict[str, Any]:
        """The tables as plain data without empty values, as they stand in TOML."""
        return self.model_dump(exclude_none=True)
