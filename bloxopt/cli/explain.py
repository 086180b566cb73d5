"""``bloxopt explain``: why a job waits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bloxopt.cli import console
from bloxopt.cli.connection import SchedulerOption, connected, path
from bloxopt.cli.options import JsonOption
from bloxopt.errors import InputError

_HORIZON = 7 * 86_400.0
"""Seconds ahead that the start of a live job is looked for."""
_PATIENCE = 180.0
"""Seconds for an answer: on a large cluster, what would help takes a while to try out."""
_EPOCH = 1e9
"""Moments after this many seconds are dates of a live cluster, those before it moments of a trace."""

AtOption = Annotated[
    float | None, typer.Option("--at", min=0.0, help="Seconds into the trace. Default: the first round it waits in.")
]


def explain(
    what: Annotated[
        list[str],
        typer.Argument(
            help="Folder with a result and id of a job; the id alone asks the scheduler.", metavar="[FOLDER] JOB"
        ),
    ],
    at: AtOption = None,
    remedies: Annotated[bool, typer.Option(help="Try out what would make it run at once.")] = True,
    scheduler: SchedulerOption = None,
    json: JsonOption = False,
) -> None:
    """Say why a job does not run, what it would take to run at once, and when it is expected to start."""
    if len(what) > 2:
        raise InputError("explain takes a result folder and the id of a job, or the id of a live job alone")
    if len(what) == 2:
        from bloxopt.explanations.results import explain_result

        if scheduler is not None:
            raise InputError("--scheduler asks about live jobs: leave out the folder, or --scheduler")
        answer = explain_result(what[0], what[1], at, remedies=remedies).to_dict()
    else:
        if Path(what[0]).is_dir():
            raise InputError(f"{what[0]} is a folder: name a job of it as well: bloxopt explain {what[0]} JOB")
        if at is not None:
            raise InputError("--at is for results on disk: a live job is explained as it is now")
        with connected(scheduler, timeout=_PATIENCE) as people:
            answer = people.get(path("jobs", what[0], "explain"), remedies=remedies, horizon=_HORIZON)
    if json:
        console.print_json(answer)
    else:
        console.print_facts(_facts(answer), title=f"job {answer['job_id']}")


def _facts(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    moment, start = answer["time"], answer["expected_start"]
    rows = [] if moment > _EPOCH else [("time", f"{moment:,.0f} s")]
    rows += [("reason", str(answer["reason"])), ("because", answer["detail"])]
    if start is not None and start > moment:
        when = f"{start:,.0f} s, in" if start < _EPOCH else "in"
        rows.append(("expected to start", f"{when} {(start - moment) / 3600:,.1f} h, if no others come"))
    rows += [("would run now", remedy["text"]) for remedy in answer["remedies"]]
    rows += [(f"price of a {name}", f"{price:.4g}") for name, price in (answer["prices"] or {}).items() if price]
    return rows
