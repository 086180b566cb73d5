"""``bloxopt submit``: jobs from the command line and from files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bloxopt.cli import console
from bloxopt.cli.connection import SchedulerOption, connected
from bloxopt.cli.options import JsonOption
from bloxopt.errors import InputError
from bloxopt.wording import counted


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
    if len(jobs) != len(specs):
        raise InputError(f"the answer is about {len(jobs)} of {counted(len(specs), 'job')}: look at `bloxopt queue`")
    if json:
        console.print_json(jobs)
    else:
        for job in jobs:
            print(job["job_id"])


def _jobs_of(file: Path) -> list[dict[str, Any]]:
    import tomllib

    from bloxopt.input_files import read_input

    try:
        document = tomllib.loads(read_input(file).decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
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
