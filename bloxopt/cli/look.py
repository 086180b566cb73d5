"""What a running scheduler is asked to show: queue, status, nodes, history, top."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bloxopt.cli import console
from bloxopt.cli.connection import JobArgument, SchedulerOption, connected, path
from bloxopt.cli.live_rows import JOB_COLUMNS, NODE_COLUMNS, clock, job_row, node_row, show
from bloxopt.cli.options import JsonOption
from bloxopt.wording import counted, natural_order

if TYPE_CHECKING:
    from rich.console import Console, Group

    from bloxopt.runtime.people import People

_FEW = 100
"""Jobs that are shown if nobody asks for more."""
_ROOM_FOR_JOBS = 15
"""Lines that jobs have on a terminal at least, if it has twice as many, whatever the number of nodes."""
_AROUND = 13
"""Lines of ``top`` that are no nodes and no jobs."""
_EVENTS = 1000
"""Events that are asked for at once."""
_NOTHING: tuple[Any, ...] = (None, "", [], {})


def queue(
    all_jobs: Annotated[bool, typer.Option("--all", "-a", help="Those that are over, too.")] = False,
    user: Annotated[str | None, typer.Option(help="Of one user (admins).")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = _FEW,
    scheduler: SchedulerOption = None,
    json: JsonOption = False,
) -> None:
    """List jobs, the latest first."""
    with connected(scheduler) as people:
        jobs = _listed(people, all_jobs, user, limit)
    show(jobs, json, job_row, JOB_COLUMNS, ["gpus", "steps"], "no jobs")


def status(job: JobArgument, scheduler: SchedulerOption = None, json: JsonOption = False) -> None:
    """Show one job."""
    with connected(scheduler) as people:
        view = people.get(path("jobs", job))
    if json:
        console.print_json(view)
        return
    row = job_row(view)
    row |= {
        "command": " ".join(view["spec"]["command"]),
        "attempt": view["attempt"],
        "preemptions": view["preemptions"],
    }
    if view["exit_code"] is not None:
        row["exit_code"] = view["exit_code"]
    console.print_facts([(key.replace("_", " "), str(value)) for key, value in row.items() if value not in (None, "")])


def nodes(scheduler: SchedulerOption = None, json: JsonOption = False) -> None:
    """List the nodes and their GPUs."""
    with connected(scheduler) as people:
        views = sorted(people.get("/v1/nodes"), key=lambda view: natural_order(view["name"]))
    show(views, json, node_row, NODE_COLUMNS, ["gpus", "in_use"], "no nodes: start agents with bloxopt agent")


def history(
    job: Annotated[str | None, typer.Argument(help="Id of a job. Default: everything (admins).")] = None,
    scheduler: SchedulerOption = None,
    json: JsonOption = False,
) -> None:
    """Print what happened, in order."""
    with connected(scheduler) as people:
        pages = _events(people, path("jobs", job, "history") if job else "/v1/events")
        if json:
            console.print_json([event for page in pages for event in page])
            return
        for page in pages:
            for event in page:
                about = ", ".join(f"{key} {value}" for key, value in event["data"].items() if value not in _NOTHING)
                line = f"{clock(event['time'])}  {event['kind']:22} {event['subject']:22} {about}"
                print(console.plain(line)[:200].rstrip())


def _events(people: People, address: str) -> Iterator[list[dict[str, Any]]]:
    """All events there, page by page."""
    after = 0
    while page := people.get(address, after=after, limit=_EVENTS):
        yield page
        if len(page) < _EVENTS:
            return
        after = page[-1]["number"]


def top(
    interval: Annotated[float, typer.Option(min=0.2, max=86_400.0, help="Seconds between two looks.")] = 2.0,
    scheduler: SchedulerOption = None,
) -> None:
    """Watch nodes and jobs; Ctrl-C ends it. In a pipe: one look."""
    from rich.live import Live

    with connected(scheduler) as people:
        if not sys.stdout.isatty():
            nodes, jobs = people.get("/v1/nodes"), _listed(people, False, None, _FEW)
            console.print_table([node_row(view) for view in nodes], columns=NODE_COLUMNS, numeric=["gpus", "in_use"])
            print()
            console.print_table([job_row(job) for job in jobs], columns=JOB_COLUMNS, numeric=["gpus", "steps"])
            return
        from rich.console import Console

        screen = Console(highlight=False, markup=False)
        with Live(_view(people, screen), console=screen, refresh_per_second=4) as live:
            while True:
                time.sleep(interval)
                live.update(_view(people, screen))


def _view(people: People, screen: Console) -> Group:
    """Nodes and jobs, as many as there is room for: nodes that need somebody come first."""
    from rich.console import Group

    views = people.get("/v1/nodes")
    states = Counter(view["state"] for view in views)
    gpus, used = sum(len(view["gpus"]) for view in views), sum(view["gpus_in_use"] for view in views)
    head = f"{counted(len(views), 'node')} ({', '.join(f'{count} {state}' for state, count in states.items())})"
    room = max(screen.height - _AROUND, 2)
    views.sort(key=lambda view: (view["state"] == "up", -view["gpus_in_use"]))
    shown = views[: max(room - min(room // 2, _ROOM_FOR_JOBS), 1)]
    jobs = _listed(people, False, None, max(room - len(shown), 1))
    return Group(
        f"{head}, {used} of {counted(gpus, 'GPU')} in use" if views else "no nodes: start agents with bloxopt agent",
        console.lines_of([node_row(view) for view in shown], NODE_COLUMNS, ["gpus", "in_use"], screen.width),
        f"… and {len(views) - len(shown)} more" if len(views) > len(shown) else "",
        console.lines_of([job_row(job) for job in jobs], JOB_COLUMNS, ["gpus", "steps"], screen.width),
    )


def _listed(people: People, all_jobs: bool, user: str | None, limit: int) -> list[dict[str, Any]]:
    """Up to ``limit`` jobs, page by page."""
    query: dict[str, Any] = {} if user is None else {"user": user}
    if not all_jobs:
        query["status"] = ["pending", "starting", "running", "stopping"]
    jobs: list[dict[str, Any]] = []
    before: str | None = None
    while len(jobs) < limit:
        page = people.get(
            "/v1/jobs", limit=min(1000, limit - len(jobs)), **query, **({} if before is None else {"before": before})
        )
        jobs += page["jobs"]
        before = page["next"]
        if before is None:
            break
    return jobs
