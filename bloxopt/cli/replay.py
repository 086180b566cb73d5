"""``bloxopt replay``: a recorded log decided again and compared, or its workload under another policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bloxopt.cli import console
from bloxopt.cli import options as o
from bloxopt.cli.alternatives import SetOption, alternative
from bloxopt.errors import InputError

if TYPE_CHECKING:
    from bloxopt.runtime.replay.rounds import Report

_SHOWN = ("jobs", "finished", "average_jct", "p95_jct", "makespan", "preemptions")


def replay(
    log: Annotated[
        str,
        typer.Argument(
            help="A scheduler's database (a path or postgresql:// URL), its address, or a file that --export wrote."
        ),
    ],
    first: Annotated[int | None, typer.Option("--from", min=1, help="First round.", metavar="ROUND")] = None,
    last: Annotated[int | None, typer.Option("--to", min=1, help="Last round.", metavar="ROUND")] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the log as JSON lines into this new file, and exit.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Simulate the log's workload under this policy instead (see `bloxopt policies`)."),
    ] = None,
    solver: o.SolverOption = None,
    placement: o.PlacementOption = None,
    selector: o.SelectorOption = None,
    admission: o.AdmissionOption = None,
    settings: SetOption = None,
    output: o.OutputOption = None,
    overwrite: o.OverwriteOption = False,
    json: o.JsonOption = False,
) -> None:
    """Decide the rounds of a recorded log again, and compare; exit code 1 if one differs.

    With --policy, --solver, --placement, --selector or --admission: simulate its jobs and nodes under that.
    """
    try:
        from bloxopt.runtime.replay import read_log, write_log
    except ModuleNotFoundError as error:
        raise InputError(f"this command needs the package {error.name}: pip install 'bloxopt[runtime]'") from None
    changes = alternative(policy, solver, placement, selector, admission, settings)
    if export is not None:
        console.note(f"{write_log(read_log(log), export)} events in {export}")
    elif changes:
        if first is not None or last is not None:
            raise InputError("--from and --to are for the replay of rounds: a workload is simulated whole")
        _simulate(log, changes, output, overwrite, json)
    elif output is not None:
        raise InputError("--output is for a simulation: give what is to be other than it was, such as --policy")
    else:
        _replay(log, first, last, json)


def _replay(log: str, first: int | None, last: int | None, json: bool) -> None:
    from bloxopt.runtime.replay import read_log, replay
    from bloxopt.runtime.replay.rounds import KINDS

    with console.progress_bar("replaying", "rounds") as advance:
        report = replay(read_log(log, KINDS), first, last, lambda number: advance(number, last or number))
    if json:
        console.print_json(report.to_dict())
    else:
        console.print_facts(_facts(report))
    if report.different:
        raise typer.Exit(1)


def _facts(report: Report) -> list[tuple[str, str]]:
    rows = [
        ("rounds", f"{report.rounds:,}, from {report.first} to {report.last}"),
        ("identical", f"{report.identical:,}"),
    ]
    if report.given:
        rows.append(("of these timed", f"{report.given:,} ran out of time then: their shares are taken from the log"))
    if report.failed:
        rows.append(("failed then", f"{report.failed:,}"))
    if report.timed:
        rows.append(("depend on time", f"{report.timed:,} differ, and how fast the machine was may be why"))
    rows.append(("different", f"{report.different:,}"))
    if report.starts != report.first:
        rows.append(("log", f"can be replayed from round {report.starts} on"))
    if report.versions:
        others = (f"{name} {then or 'none'}, here {now or 'none'}" for name, (then, now) in report.versions.items())
        rows.append(("versions", "the log was made with others: " + "; ".join(others)))
    found = report.difference
    if found is not None:
        rows.append(("first difference", f"round {found.round} ({found.place}), in {', '.join(found.what)}"))
        for name in found.what:
            rows.append((f"{name}, recorded", _short(found.recorded[name])))
            rows.append((f"{name}, replayed", _short(found.replayed.get(name))))
        rows.append(("its inputs", f"{_inputs(found.inputs)}; --json has all of them"))
    if report.ended:
        rows.append(("after that", report.ended))
    return rows


def _short(value: Any) -> str:
    text = str(value) if value not in ([], {}, "", None) else "none"
    return text if len(text) <= 400 else f"{text[:400]}… ({len(value)})"


def _inputs(inputs: dict[str, Any]) -> str:
    running = sum(job["on"] is not None for job in inputs["jobs"])
    up = sum(node["up"] for node in inputs["nodes"])
    return f"time {inputs['now']:.3f}, {len(inputs['jobs'])} jobs of which {running} ran, {up} nodes up"


def _simulate(log: str, changes: dict[str, Any], output: Path | None, overwrite: bool, json: bool) -> None:
    from bloxopt.cli.quantities import QUANTITIES
    from bloxopt.experiments.store import check_free, save_result
    from bloxopt.runtime.replay import read_log
    from bloxopt.runtime.replay.simulation import simulate_workload
    from bloxopt.runtime.replay.workload import KINDS, read_workload

    if output is not None:
        check_free(output, overwrite)
    workload = read_workload(read_log(log, KINDS), Path(log).name)
    rows = [{"schedule": f"live: {workload.config.policy.name}", **workload.live_row()}]
    with console.simulation_progress() as progress:
        for title, given in (("simulated as it was", {}), (f"simulated: {_named(changes)}", changes)):
            result = simulate_workload(workload, given, progress)
            summary = result.summary()
            rows.append({"schedule": title, **{key: summary[key] for key in _SHOWN}})
    if output is not None:
        save_result(result, output, overwrite=overwrite)
    if json:
        document = {"rows": rows, "changes": changes, "left_out": workload.left_out, "folder": output}
        console.print_json(document)
    else:
        shown = [quantity for quantity in QUANTITIES if quantity.key in _SHOWN]
        cells = [
            {"schedule": row["schedule"]}
            | {q.heading: "–" if row[q.key] is None else q.number(row[q.key]) for q in shown}
            for row in rows
        ]
        console.print_table(cells, numeric=[q.heading for q in shown])
    if workload.left_out:
        console.note(f"{workload.left_out} jobs were cancelled before they ran, and are left out")
    if output is not None:
        console.note(f"results in {output}")


def _named(changes: dict[str, Any]) -> str:
    names = [change if isinstance(change, str) else str(change["name"]) for change in changes.values()]
    return ", ".join(names)
