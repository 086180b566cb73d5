"""``bloxopt logs``: what a job has written, and goes on to write."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from bloxopt.cli import console
from bloxopt.cli.connection import JobArgument, SchedulerOption, connected

_AWAY = 120.0
"""Seconds that the scheduler may be away while its answers are followed."""


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
