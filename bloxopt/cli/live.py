"""What people ask of a running scheduler: submit, queue, status, logs, cancel, nodes, drain, top, history."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bloxopt.cli import console
from bloxopt.cli.options import JsonOption
from bloxopt.errors import InputError
from bloxopt.wording import counted, natural_order

if TYPE_CHECKING:
    from rich.console import Console, Group

    from bloxopt.runtime.people import People

SchedulerOption = Annotated[
    str | None,
    typer.Option("--scheduler", help="Address of the scheduler. Default: $BLOXOPT_SCHEDULER.", metavar="URL"),
]
JobArgument = Annotated[str, typer.Argument(help="Id of the job.")]
NodeArgument = Annotated[str, typer.Argument(help="Name of the node.")]

# On a narrow terminal the last ones are left out.
_JOB_COLUMNS = ["job_id", "status", "gpus", "user", "name", "waited_or_ran", "reason", "steps", "on"]
_NODE_COLUMNS = ["name", "state", "gpus", "in_use", "gpu_types", "utilisation", "last_heartbeat", "message"]
_FEWEST_COLUMNS = 2
_FEW = 100
"""Jobs that are shown if nobody asks for more."""
_ROOM_FOR_JOBS = 15
"""Lines that jobs have on a terminal at least, if it has twice as many, whatever the number of nodes."""
_AROUND = 13
"""Lines of ``top`` that are no nodes and no jobs."""
_EVENTS = 1000
"""Events that are asked for at once."""
_AWAY = 120.0
"""Seconds that the scheduler may be away while its answers are followed."""
_NOTHING: tuple[Any, ...] = (None, "", [], {})


def connected(scheduler: str | None, timeout: float = 30.0) -> People:
    """The connection to the scheduler, with ``timeout`` seconds for an answer; the packages it needs may be missing."""
    try:
        from bloxopt.runtime.people import People
    except ModuleNotFoundError as error:
        raise InputError(f"this command needs the package {error.name}: pip install 'bloxopt[runtime]'") from None
    return People(scheduler, timeout=timeout)


def path(*parts: str) -> str:
    """The address of what has these names; raises InputError for a text that can be no name."""
    from urllib.parse import quote

    for part in parts:
        if "/" in part or part in ("", ".", ".."):
            raise InputError(f"there is nothing of the name {part!r}: names have letters, digits, '.', '-' and '_'")
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def submit(
    command: Annotated[
        list[str] | None, typer.Argument(help="The command, after --.", metavar="[-- COMMAND...]")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help=r"Jobs from a TOML file: \[\[jobs]] tables.")
    ] = None,
    gpus: Annotated[int, typer.Option("--gpus", "-g", min=1, help="GPUs, a gang.")] = 1,
    min_gpus: Annotated[int | None, typer.Option(min=1, help="Fewest GPUs of an elastic job.")] = None,
    max_gpus: Annotated[int | None, typer.Option(min=1, help="Most GPUs of an elastic job.")] = None,
    gpu_type: Annotated[list[str] | None, typer.Option(help="GPU type it may run on; repeatable.")] = None,
    name: Annotated[str, typer.Option(help="Name, for people.")] = "job",
    job_type: Annotated[str, typer.Option(help="Jobs of one type are expected to run equally fast.")] = "generic",
    workdir: Annotated[str | None, typer.Option(help="Folder on the node to run in.")] = None,
    environment: Annotated[list[str] | None, typer.Option("--env", help="Variable, as NAME=VALUE; repeatable.")] = None,
    steps: Annotated[float | None, typer.Option(help="Steps that the job makes in all.")] = None,
    duration: Annotated[float | None, typer.Option(help="Seconds that it takes, about.")] = None,
    grace: Annotated[float | None, typer.Option(help="Seconds between SIGTERM and SIGKILL.")] = None,
    retries: Annotated[int, typer.Option(min=0, help="Starts after a failure.")] = 0,
    scheduler: SchedulerOption = None,
    json: JsonOption = False,
) -> None:
    """Submit a job (a command), or those of a file; print their ids."""
    specs = _jobs_of(file) if file is not None else []
    if command:
        given = {
            "command": command,
            "num_gpus": gpus,
            "min_gpus": min_gpus,
            "max_gpus": max_gpus,
            "gpu_types": gpu_type,
            "name": name,
            "job_type": job_type,
            "workdir": workdir,
            "environment": _variables(environment or []),
            "total_steps": steps,
            "duration": duration,
            "grace_seconds": grace,
            "max_retries": retries,
        }
        specs.append({key: value for key, value in given.items() if value is not None})
    if not specs:
        raise InputError("nothing to submit: give a command after --, or --file")
    with connected(scheduler) as people:
        jobs = people.post("/v1/jobs/batch", [_checked(spec, number) for number, spec in enumerate(specs)])
    if json:
        console.print_json(jobs)
    else:
        for job in jobs:
            print(job["job_id"])


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
    _list(jobs, json, _job_row, _JOB_COLUMNS, ["gpus", "steps"], "no jobs")


def status(job: JobArgument, scheduler: SchedulerOption = None, json: JsonOption = False) -> None:
    """Show one job."""
    with connected(scheduler) as people:
        view = people.get(path("jobs", job))
    if json:
        console.print_json(view)
        return
    row = _job_row(view)
    row |= {
        "command": " ".join(view["spec"]["command"]),
        "attempt": view["attempt"],
        "preemptions": view["preemptions"],
    }
    if view["exit_code"] is not None:
        row["exit_code"] = view["exit_code"]
    console.print_facts([(key.replace("_", " "), str(value)) for key, value in row.items() if value not in (None, "")])


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    rank: Annotated[int, typer.Option(min=0, help="Which process of the gang.")] = 0,
    attempt: Annotated[int, typer.Option(min=0, help="Which start; 0: the last.")] = 0,
    scheduler: SchedulerOption = None,
) -> None:
    """Print what a job has written."""
    offset, heard, away = 0, 0.0, False
    with connected(scheduler) as people:
        from bloxopt.runtime.people import AwayError

        while True:
            wait = 20.0 if follow else 0.0
            try:
                data, offset, complete = people.output(job, rank=rank, attempt=attempt, offset=offset, wait=wait)
            except AwayError:
                # A scheduler that never answered is none; one that is started again goes on where it was.
                if not follow or not heard or time.monotonic() - heard > _AWAY:
                    raise
                if not away:
                    console.note(f"the scheduler does not answer: asking again for {_AWAY:g} s")
                away = True
                time.sleep(1.0)
                continue
            heard, away = time.monotonic(), False
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            if not data and (complete or not follow):
                return


def cancel(
    jobs: Annotated[list[str], typer.Argument(help="Ids of the jobs.")],
    scheduler: SchedulerOption = None,
    json: JsonOption = False,
) -> None:
    """Stop jobs for good."""
    with connected(scheduler) as people:
        views = [people.post(path("jobs", job, "cancel")) for job in jobs]
    if json:
        console.print_json(views)
    else:
        for view in views:
            print(f"{view['job_id']} {view['status']}")


def nodes(scheduler: SchedulerOption = None, json: JsonOption = False) -> None:
    """List the nodes and their GPUs."""
    with connected(scheduler) as people:
        views = sorted(people.get("/v1/nodes"), key=lambda view: natural_order(view["name"]))
    _list(views, json, _node_row, _NODE_COLUMNS, ["gpus", "in_use"], "no nodes: start agents with bloxopt agent")


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
                line = f"{_clock(event['time'])}  {event['kind']:22} {event['subject']:22} {about}"
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
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    scheduler: SchedulerOption = None,
) -> None:
    """Watch nodes and jobs; Ctrl-C ends it. In a pipe: one look."""
    from rich.live import Live

    with connected(scheduler) as people:
        if not sys.stdout.isatty():
            nodes, jobs = people.get("/v1/nodes"), _listed(people, False, None, _FEW)
            console.print_table([_node_row(view) for view in nodes], columns=_NODE_COLUMNS, numeric=["gpus", "in_use"])
            print()
            console.print_table([_job_row(job) for job in jobs], columns=_JOB_COLUMNS, numeric=["gpus", "steps"])
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
        console.lines_of([_node_row(view) for view in shown], _NODE_COLUMNS, ["gpus", "in_use"], screen.width),
        f"… and {len(views) - len(shown)} more" if len(views) > len(shown) else "",
        console.lines_of([_job_row(job) for job in jobs], _JOB_COLUMNS, ["gpus", "steps"], screen.width),
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


def _jobs_of(file: Path) -> list[dict[str, Any]]:
    import tomllib

    from bloxopt.input_files import read_input

    try:
        document = tomllib.loads(read_input(file).decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not valid TOML: {error}") from None
    jobs = document.get("jobs")
    if set(document) != {"jobs"} or not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        raise InputError(f"{file}: needs [[jobs]] tables and nothing else, each with a command and what the job needs")
    return list(jobs)


def _checked(spec: dict[str, Any], number: int) -> dict[str, Any]:
    """A job as the scheduler takes it; what is wrong with it is said here, by key."""
    from pydantic import ValidationError

    from bloxopt.runtime.messages import JobSpec
    from bloxopt.runtime.problems import first_problem

    try:
        return JobSpec.model_validate(spec).model_dump(exclude_defaults=True)
    except ValidationError as error:
        keys, text = first_problem(error, JobSpec)
        raise InputError(f"job {number + 1}: {'.'.join(keys) or 'job'}: {text}") from None


def _variables(given: list[str]) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise InputError(f"--env {text!r} is no NAME=VALUE")
        pairs[name] = value
    return pairs


def _job_row(job: dict[str, Any]) -> dict[str, Any]:
    spec = job["spec"]
    since = job["started_at"] if job["started_at"] is not None else job["submitted_at"]
    until = job["finished_at"] if job["finished_at"] is not None else time.time()
    held = sum(map(len, job["gpus"].values()))
    return {
        "job_id": job["job_id"],
        "user": job["user"],
        "name": spec["name"],
        "gpus": held or spec["num_gpus"],
        "status": job["status"],
        "reason": job["reason"],
        "waited_or_ran": length(until - since),
        "steps": f"{job['steps']:,.0f}" if job["steps"] else "",
        "on": ", ".join(job["gpus"]),
    }


def _node_row(node: dict[str, Any]) -> dict[str, Any]:
    used = [gpu["utilisation"] for gpu in node["gpus"] if gpu["utilisation"] is not None]
    types: dict[str, int] = {}
    for gpu in node["gpus"]:
        types[gpu["gpu_type"]] = types.get(gpu["gpu_type"], 0) + 1
    seen = node["last_heartbeat"]
    return {
        "name": node["name"],
        "state": node["state"],
        "gpus": len(node["gpus"]),
        "in_use": node["gpus_in_use"],
        "gpu_types": ", ".join(f"{count}x{kind}" for kind, count in types.items()),
        "utilisation": f"{sum(used) / len(used):.0%}" if used else None,
        "last_heartbeat": None if seen is None else f"{length(time.time() - seen)} ago",
        "message": node["message"],
    }


def _list(
    views: list[dict[str, Any]],
    json: bool,
    row: Callable[[dict[str, Any]], dict[str, Any]],
    columns: list[str],
    numeric: list[str],
    nothing: str,
) -> None:
    """Print what the scheduler answered as JSON, or a table with a ``row`` for each; ``nothing`` where it is empty."""
    if json:
        console.print_json(views)
    elif views:
        console.print_table([row(view) for view in views], columns=columns, numeric=numeric, at_least=_FEWEST_COLUMNS)
    else:
        console.note(nothing)


def length(seconds: float) -> str:
    """A length of time (s) for people."""
    seconds = max(seconds, 0.0)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
