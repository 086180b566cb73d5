"""Options that several commands share, and how they become values of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bloxopt.experiments.config import Experiment

ExperimentFile = Annotated[Path | None, typer.Argument(help="Experiment file (TOML); options override it.")]
TraceOption = Annotated[str | None, typer.Option(help="Trace: a name (see `bloxopt traces`) or a file.")]
ThroughputOption = Annotated[str | None, typer.Option(help="Throughput table: Gavel's JSON or a CSV.")]
ClusterOption = Annotated[
    str | None, typer.Option(help="Cluster, such as 8xV100+16xP100, or a .toml/.csv file. Default: the trace's own.")
]
PolicyOption = Annotated[
    str | None, typer.Option(help="Policy (see `bloxopt policies`), or FILE.py:NAME. Default: max_min_fairness.")
]
AdmissionOption = Annotated[
    str | None, typer.Option(help="Admission (see `bloxopt admissions`): which jobs are let in. Default: accept_all.")
]
SolverOption = Annotated[str | None, typer.Option(help="Solver (see `bloxopt solvers`). Default: the policy's own.")]
PresetOption = Annotated[str | None, typer.Option(help="Simulation preset (see `bloxopt presets`).")]
PlacementOption = Annotated[str | None, typer.Option(help="Placement (see `bloxopt placements`).")]
HostAllocationOption = Annotated[
    str | None, typer.Option(help="How CPUs and memory are divided (see `bloxopt host-allocations`).")
]
SelectorOption = Annotated[str | None, typer.Option(help="Round selector: how a plan becomes a round.")]
SeedOption = Annotated[
    int | None, typer.Option(help="Seed of generated traces, trace changes, failures and solvers. Default: 0.")
]
RoundSecondsOption = Annotated[float | None, typer.Option(help="Length of a round in seconds.")]
FirstOption = Annotated[int | None, typer.Option("--first", help="Only the first N jobs of the trace.", metavar="N")]
LoadOption = Annotated[float | None, typer.Option(help="Offered load as a multiple of the trace's own.")]
TimeLimitOption = Annotated[float | None, typer.Option(help="Solver time limit in seconds.")]
MipGapOption = Annotated[float | None, typer.Option(help="Relative gap at which a MIP counts as solved.")]
ThreadsOption = Annotated[int | None, typer.Option(help="Threads of the solver.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Any key of an experiment file, such as simulation.progress=exact.", metavar="KEY=VALUE"
    ),
]
OutputOption = Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the results.")]
FormatOption = Annotated[list[str] | None, typer.Option("--format", help="Format of the plots: png, svg or pdf.")]
PlotsOption = Annotated[bool | None, typer.Option("--plots/--no-plots", help="Draw plots into the output folder.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace results that are there.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]

_FLAGS: Mapping[str, tuple[str, str]] = {
    "trace": ("--trace", "trace"),
    "throughput": ("--throughput", "trace.throughput"),
    "first": ("--first", "trace.jobs"),
    "load": ("--load", "trace.load"),
    "cluster": ("--cluster", "cluster"),
    "policy": ("--policy", "policy"),
    "admission": ("--admission", "admission"),
    "solver": ("--solver", "solver"),
    "time_limit": ("--time-limit", "solver.time_limit"),
    "mip_gap": ("--mip-gap", "solver.mip_gap"),
    "threads": ("--threads", "solver.threads"),
    "preset": ("--preset", "simulation.preset"),
    "placement": ("--placement", "simulation.placement"),
    "host_allocation": ("--host-allocation", "simulation.host_allocation"),
    "selector": ("--selector", "simulation.selector"),
    "seed": ("--seed", "simulation.seed"),
    "round_seconds": ("--round-seconds", "simulation.round_seconds"),
    "output": ("--output", "output.folder"),
    "plots": ("--plots", "output.plots"),
    "formats": ("--format", "output.formats"),
    "traces": ("--traces", "compare.traces"),
    "clusters": ("--clusters", "compare.clusters"),
    "loads": ("--loads", "compare.loads"),
    "presets": ("--presets", "compare.presets"),
    "selectors": ("--selectors", "compare.selectors"),
    "host_allocations": ("--host-allocations", "compare.host_allocations"),
    "placements": ("--placements", "compare.placements"),
    "policies": ("--policies", "compare.policies"),
    "admissions": ("--admissions", "compare.admissions"),
    "solvers": ("--solvers", "compare.solvers"),
    "seeds": ("--seeds", "compare.seeds"),
}
"""Option to its name on the command line and the key of the experiment it sets."""


def build_experiment(file: Path | None, settings: list[str] | None, /, **values: Any) -> Experiment:
    """The experiment of a file and the options given; messages name the option or the file's key."""
    from bloxopt.experiments.reading import labels_of, load_experiment, make_experiment, parse_value

    overrides: dict[str, Any] = {}
    labels: dict[str, str] = {}
    for name, value in values.items():
        if value is not None:
            flag, key = _FLAGS[name]
            overrides[key] = str(value) if isinstance(value, Path) else value
            labels |= labels_of(key, flag)
    for setting in settings or []:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"--set {setting}: write KEY=VALUE, such as simulation.seed=1")
        overrides[key.strip()] = parse_value(text.strip())
        labels |= labels_of(key.strip(), f"--set {key.strip()}")
    if file is not None:
        return load_experiment(file, overrides, labels)
    return make_experiment({}, overrides, labels)


def split_list(text: str | None) -> list[Any] | None:
    """``"0,1,2"`` as the values it lists."""
    from bloxopt.experiments.reading import parse_value

    return None if text is None else [parse_value(part.strip()) for part in text.split(",") if part.strip()]


def split_names(text: str | None) -> list[str] | None:
    """``"fifo,las"`` as names, even where a name reads as a number."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
