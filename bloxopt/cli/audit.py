"""``bloxopt audit``: which properties of fair and efficient sharing a policy breaks on a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bloxopt.cli import console
from bloxopt.cli import options as o

EveryOption = Annotated[int, typer.Option(min=1, help="Judge one of every N plans.", metavar="N")]
PropertiesOption = Annotated[
    str | None, typer.Option("--properties", help="Properties, separated by commas. Default: all of them.")
]
CsvOption = Annotated[Path | None, typer.Option("--csv", help="Write one row per plan and property to this CSV file.")]


def audit(
    experiment: o.ExperimentFile = None,
    trace: o.TraceOption = None,
    cluster: o.ClusterOption = None,
    policy: o.PolicyOption = None,
    admission: o.AdmissionOption = None,
    solver: o.SolverOption = None,
    preset: o.PresetOption = None,
    placement: o.PlacementOption = None,
    selector: o.SelectorOption = None,
    host_allocation: o.HostAllocationOption = None,
    seed: o.SeedOption = None,
    round_seconds: o.RoundSecondsOption = None,
    first: o.FirstOption = None,
    load: o.LoadOption = None,
    throughput: o.ThroughputOption = None,
    settings: o.SetOption = None,
    properties: PropertiesOption = None,
    every: EveryOption = 1,
    csv: CsvOption = None,
    json: o.JsonOption = False,
) -> None:
    """Simulate a policy and judge its plans: how often, and by how much, each property of fair sharing is broken."""
    from bloxopt.audit import Auditor
    from bloxopt.audit.auditor import report
    from bloxopt.experiments.files import check_file, make_folder, write_atomically
    from bloxopt.experiments.run import resolve, run_experiment

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
        preset=preset,
        placement=placement,
        selector=selector,
        host_allocation=host_allocation,
        seed=seed,
        round_seconds=round_seconds,
    )
    if csv is not None:
        check_file(csv)
    resolved = resolve(configured)
    auditor = Auditor(o.split_names(properties), every, resolved.simulation.seed)
    with console.simulation_progress() as progress:
        result = run_experiment(resolved, progress, inspect=auditor)
    outcome = report(auditor, result)
    if csv is not None:
        make_folder(csv.absolute().parent)
        write_atomically(csv, lambda path: outcome.plans.to_csv(path, index=False))
    rows: list[dict[Any, Any]] = outcome.summary.to_dict(orient="records")
    if json:
        console.print_json({"properties": rows, "config": result.config})
        return
    config = result.config
    console.print_facts([(row["property"], row["says"]) for row in rows], title="properties")
    console.print_table(
        [_shown(row) for row in rows],
        columns=["property", "plans", "plans broken", "cases broken", "worst", "mean"],
        numeric=["plans", "plans broken", "cases broken", "worst", "mean"],
        title=" · ".join(str(config[key]) for key in ("trace", "cluster", "policy") if config.get(key)),
    )


def _shown(row: dict[Any, Any]) -> dict[str, Any]:
    return {
        "property": row["property"],
        "plans": row["plans"],
        "plans broken": f"{row['plans_broken'] / max(row['plans'], 1):.1%}",
        "cases broken": f"{row['places_broken'] / max(row['places'], 1):.1%}",
        "worst": f"{row['worst']:.1%}",
        "mean": f"{row['mean']:.1%}",
    }
