"""``bloxopt simulate`` and ``bloxopt compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bloxopt.cli import console
from bloxopt.cli import options as o
from bloxopt.errors import ConfigError

if TYPE_CHECKING:
    from bloxopt.experiments.comparison import Outcome

_LIST = "values separated by commas"


def simulate(
    experiment: o.ExperimentFile = None,
    trace: o.TraceOption = None,
    cluster: o.ClusterOption = None,
    policy: o.PolicyOption = None,
    admission: o.AdmissionOption = None,
    solver: o.SolverOption = None,
    preset: o.PresetOption = None,
    placement: o.PlacementOption = None,
    host_allocation: o.HostAllocationOption = None,
    selector: o.SelectorOption = None,
    seed: o.SeedOption = None,
    round_seconds: o.RoundSecondsOption = None,
    first: o.FirstOption = None,
    load: o.LoadOption = None,
    throughput: o.ThroughputOption = None,
    time_limit: o.TimeLimitOption = None,
    mip_gap: o.MipGapOption = None,
    threads: o.ThreadsOption = None,
    settings: o.SetOption = None,
    output: o.OutputOption = None,
    plots: o.PlotsOption = None,
    formats: o.FormatOption = None,
    overwrite: o.OverwriteOption = False,
    json: o.JsonOption = False,
) -> None:
    """Simulate a trace on a cluster under a policy; print the summary and write a result folder."""
    from bloxopt.cli.quantities import shown_summary
    from bloxopt.experiments.run import resolve, run_and_save, run_experiment

    configured = o.build_experiment(
        experiment,
        settings,
        trace=trace,
        throughput=throughput,
        first=first,
        load=load,
        cluster=cluster,
        policy=policy,
        admission=admission,
        solver=solver,
        time_limit=time_limit,
        mip_gap=mip_gap,
        threads=threads,
        preset=preset,
        placement=placement,
        host_allocation=host_allocation,
        selector=selector,
        seed=seed,
        round_seconds=round_seconds,
        output=output,
        plots=plots,
        formats=formats,
    )
    if configured.compare is not None:
        raise ConfigError(f"{experiment}: has [compare]: run it with `bloxopt compare`")
    resolved = resolve(configured)
    folder = resolved.output.folder
    with console.simulation_progress() as progress:
        if folder is None:
            result = run_experiment(resolved, progress)
        else:
            drawn = resolved.output.formats if resolved.output.plots else ()
            result = run_and_save(resolved, folder, overwrite=overwrite, plot_formats=drawn, progress=progress)
    summary = result.summary()
    if json:
        document = {"summary": summary, "config": result.config, "experiment": resolved.document(), "folder": folder}
        console.print_json(document)
    else:
        named = [str(result.config[key]) for key in ("trace", "cluster", "policy", "solver") if result.config.get(key)]
        console.print_pairs(shown_summary(summary), title=" · ".join(named))
    if folder is not None:
        console.note(f"results in {folder}")


def compare(
    experiment: o.ExperimentFile = None,
    policies: Annotated[str | None, typer.Option(help=f"Policies, {_LIST}.")] = None,
    admissions: Annotated[str | None, typer.Option(help=f"Admissions, {_LIST}.")] = None,
    solvers: Annotated[str | None, typer.Option(help=f"Solvers, {_LIST}.")] = None,
    seeds: Annotated[str | None, typer.Option(help=f"Seeds, {_LIST}.")] = None,
    traces: Annotated[str | None, typer.Option(help=f"Traces, {_LIST}.")] = None,
    clusters: Annotated[str | None, typer.Option(help=f"Clusters, {_LIST}.")] = None,
    loads: Annotated[str | None, typer.Option(help=f"Multiples of the trace's load, {_LIST}.")] = None,
    presets: Annotated[str | None, typer.Option(help=f"Presets, {_LIST}.")] = None,
    placements: Annotated[str | None, typer.Option(help=f"Placements, {_LIST}.")] = None,
    host_allocations: Annotated[str | None, typer.Option(help=f"Ways to divide CPUs and memory, {_LIST}.")] = None,
    selectors: Annotated[str | None, typer.Option(help=f"Round selectors, {_LIST}.")] = None,
    trace: o.TraceOption = None,
    cluster: o.ClusterOption = None,
    policy: o.PolicyOption = None,
    admission: o.AdmissionOption = None,
    solver: o.SolverOption = None,
    preset: o.PresetOption = None,
    placement: o.PlacementOption = None,
    host_allocation: o.HostAllocationOption = None,
    selector: o.SelectorOption = None,
    seed: o.SeedOption = None,
    round_seconds: o.RoundSecondsOption = None,
    first: o.FirstOption = None,
    load: o.LoadOption = None,
    throughput: o.ThroughputOption = None,
    time_limit: o.TimeLimitOption = None,
    mip_gap: o.MipGapOption = None,
    threads: o.ThreadsOption = None,
    settings: o.SetOption = None,
    output: o.OutputOption = None,
    plots: o.PlotsOption = None,
    formats: o.FormatOption = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Parallel processes. Default: one per CPU.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the runs that are finished already.")] = False,
    overwrite: o.OverwriteOption = False,
    json: o.JsonOption = False,
) -> None:
    """Run every combination of the listed values in parallel processes; print one table."""
    from bloxopt.experiments import comparison

    configured = o.build_experiment(
        experiment,
        settings,
        trace=trace,
        throughput=throughput,
        first=first,
        load=load,
        cluster=cluster,
        policy=policy,
        admission=admission,
        solver=solver,
        time_limit=time_limit,
        mip_gap=mip_gap,
        threads=threads,
        preset=preset,
        placement=placement,
        host_allocation=host_allocation,
        selector=selector,
        seed=seed,
        round_seconds=round_seconds,
        output=output,
        plots=plots,
        formats=formats,
        policies=o.split_names(policies),
        admissions=o.split_names(admissions),
        solvers=o.split_names(solvers),
        seeds=o.split_list(seeds),
        traces=o.split_names(traces),
        clusters=o.split_names(clusters),
        loads=o.split_list(loads),
        presets=o.split_names(presets),
        placements=o.split_names(placements),
        host_allocations=o.split_names(host_allocations),
        selectors=o.split_names(selectors),
    )
    folder = configured.output.folder
    if folder is None:
        raise ConfigError("no output folder: a comparison writes its runs there; give --output or [output] folder")
    done: list[Outcome] = []
    with console.progress_bar("comparing", "runs") as advance:

        def show(outcome: Outcome, total: int) -> None:
            done.append(outcome)
            advance(len(done), total, outcome.run.name)

        outcomes = comparison.compare(
            configured, folder, processes=jobs, resume=resume, overwrite=overwrite, on_outcome=show
        )
    failed = [outcome for outcome in outcomes if outcome.status == comparison.FAILED]
    averages = comparison.averaged_table(outcomes).to_dict(orient="records")
    rows = [outcome.row() for outcome in outcomes]
    if json:
        console.print_json({"runs": rows, "averages": averages, "folder": folder})
    else:
        _print_averages(averages, outcomes)
    if configured.output.plots and len(failed) < len(outcomes):
        from bloxopt.experiments.plots import plot_comparison

        plot_comparison(comparison.results_of_rows(rows, folder), folder, configured.output.formats)
    console.note(f"results in {folder}")
    for outcome in failed:
        console.note(f"error: {outcome.run.name}: {' '.join(outcome.message.split())}")
    if failed:
        raise typer.Exit(2)


def _print_averages(averages: list[dict[Any, Any]], outcomes: list[Outcome]) -> None:
    """The table of a comparison: what differs between the runs, then the quantities; the title says the rest."""
    from bloxopt.cli.quantities import shown_average

    axes = [column for column in outcomes[0].run.values if column != "seed"]
    shown = [column for column in axes if column == "policy" or len({str(row[column]) for row in averages}) > 1]
    rows = []
    for average in averages:
        row = {column: Path(str(average[column])).name for column in shown}
        if any(other["failed"] for other in averages):
            row["failed"] = f"{average['failed']} of {average['runs']}"
        rows.append(row | shown_average(average))
    fixed = [f"{column} {outcomes[0].run.values[column]}" for column in axes if column not in shown]
    if any(average["runs"] > 1 for average in averages):
        fixed.append("mean over seeds ± sample standard deviation")
    names = list(rows[0])
    numeric = set(names) - set(shown)
    left_out = console.print_table(rows, " · ".join(fixed), names, numeric, at_least=len(shown) + 3)
    if left_out:
        console.note(f"in comparison.csv too: {', '.join(left_out)}")
