"""What changes a running scheduler's jobs and nodes: cancel, drain."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bloxopt.cli import console
from bloxopt.cli.connection import NodeArgument, SchedulerOption, connected, path
from bloxopt.cli.options import JsonOption


def cancel(
    jobs: Annotated[list[str], typer.Argument(help="Ids of the jobs.")],
    scheduler: SchedulerOption = None,
    json: JsonOption = False,
) -> None:
    """Stop jobs for good."""
    with connected(scheduler) as people:
        views: list[Any] = []
        try:
            views.extend(people.post(path("jobs", job, "cancel")) for job in jobs)
        finally:
            # Those that were stopped are, whatever became of the others.
            if json:
                console.print_json(views)
            else:
                for view in views:
                    print(f"{view['job_id']} {view['status']}")


def drain(
    node: NodeArgument,
    undo: Annotated[bool, typer.Option("--undo", help="Put the node back into service.")] = False,
    scheduler: SchedulerOption = None,
    json: JsonOption = False,
) -> None:
    """Move the jobs of a node elsewhere and give it no new ones (admins)."""
    with connected(scheduler) as people:
        view = people.post(path("nodes", node, "undrain" if undo else "drain"))
    if json:
        console.print_json(view)
    else:
        print(f"{view['name']} {view['state']}")
