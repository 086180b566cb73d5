"""How commands reach a running scheduler: which one, with how much patience, and under which addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bloxopt.errors import InputError

if TYPE_CHECKING:
    from bloxopt.runtime.people import People

SchedulerOption = Annotated[
    str | None,
    typer.Option("--scheduler", help="Address of the scheduler. Default: $BLOXOPT_SCHEDULER.", metavar="URL"),
]
JobArgument = Annotated[str, typer.Argument(help="Id of the job.")]
NodeArgument = Annotated[str, typer.Argument(help="Name of the node.")]


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
    return "/v1/" + "/".join(quote(part, safe="", errors="surrogatepass") for part in parts)
