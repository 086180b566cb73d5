"""``bloxopt explain``: why a job waits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bloxopt.cli import console
from bloxopt.cli.options import JsonOption

AtOption = Annotated[
    float | None, typer.Option("--at", min=0.0, help="Seconds into the trace. Default: the first round it waits in.")
]


def explain(
    folder: Annotated[Path, typer.Argument(help="Folder with the result of a simulation.")],
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    at: AtOption = None,
    remedies: Annotated[bool, typer.Option(help="Try out what would make it run at once.")] = True,
    json: JsonOption = False,
) -> None:
    """Say why a job does not run, what it would take to run at once, and when it is expected to start."""
    from bloxopt.explanations.results import explain_result

    answer = explain_result(folder, job, at, remedies=remedies)
    if json:
        console.print_json(answer.to_dict())
        return
    rows = [("time", f"{answer.time:,.0f} s"), ("reason", str(answer.reason)), ("because", answer.detail)]
    if answer.expected_start is not None and answer.expected_start > answer.time:
        wait = answer.expected_start - answer.time
        rows.append(
            ("expected to start", f"{answer.expected_start:,.0f} s, in {wait / 3600:,.1f} h, if no others come")
        )
    rows += [("would run now", remedy.text) for remedy in answer.remedies]
    rows += [(f"price of a {name}", f"{price:.4g}") for name, price in (answer.prices or {}).items() if price]
    console.print_facts(rows, title=f"job {answer.job_id}")
