"""Tokens of users, nodes and admins: make one, list them, revoke one. For admins."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bloxopt.cli import console
from bloxopt.cli.connection import SchedulerOption, connected, path
from bloxopt.cli.live_rows import length
from bloxopt.cli.options import JsonOption

if TYPE_CHECKING:
    from bloxopt.runtime.people import People

_COLUMNS = ["token_id", "role", "subject", "state", "created", "expires", "last_used"]
_DAY = 86_400.0

token = typer.Typer()

DaysOption = Annotated[float | None, typer.Option(min=0.0, help="Days until it expires. Default: never.")]


@token.callback(invoke_without_command=True)
def _token(context: typer.Context) -> None:
    """Make, list and revoke tokens (admins)."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@token.command()
def user(
    name: Annotated[str, typer.Argument(help="Name of the user.")],
    days: DaysOption = None,
    scheduler: SchedulerOption = None,
) -> None:
    """Make a token of a user, which is printed once."""
    _make("user", name, days, scheduler)


@token.command()
def node(
    name: Annotated[str, typer.Argument(help="Name of the node: its host name, or `node` in agent.toml.")],
    days: DaysOption = None,
    scheduler: SchedulerOption = None,
) -> None:
    """Make a token of a node, which is printed once."""
    _make("node", name, days, scheduler)


@token.command()
def admin(
    name: Annotated[str, typer.Argument(help="Name of the admin.")],
    days: DaysOption = None,
    scheduler: SchedulerOption = None,
) -> None:
    """Make a token of an admin, which is printed once."""
    _make("admin", name, days, scheduler)


@token.command("list")
def list_tokens(scheduler: SchedulerOption = None, json: JsonOption = False) -> None:
    """List tokens without their secrets, the oldest first; those that expired or were revoked too, for a while."""
    with connected(scheduler) as people:
        views = people.get("/v1/tokens")
    if json:
        console.print_json(views)
    else:
        now = time.time()
        console.print_table([_row(view, now) for view in views], columns=_COLUMNS, at_least=4)


@token.command()
def revoke(
    ids: Annotated[list[str], typer.Argument(help="Ids of tokens: what bloxopt token list shows.", metavar="ID...")],
    scheduler: SchedulerOption = None,
    json: JsonOption = False,
) -> None:
    """Have tokens hold no longer, from now on."""
    with connected(scheduler) as people:
        views = [_revoke(people, each) for each in ids]
    if json:
        console.print_json(views)
    else:
        for view in views:
            print(f"{view['token_id']} revoked")


def _make(role: str, subject: str, days: float | None, scheduler: str | None) -> None:
    body = {"role": role, "subject": subject, "lifetime": None if days is None else days * _DAY}
    with connected(scheduler) as people:
        print(people.post("/v1/tokens", body)["token"])


def _revoke(people: People, token_id: str) -> Any:
    # Of a whole token only its id goes into the address, which ends up in logs.
    return people.post(path("tokens", token_id.partition(".")[0] or token_id, "revoke"))


def _row(view: dict[str, Any], now: float) -> dict[str, Any]:
    state = "active" if view["valid"] else "revoked" if view["revoked_at"] is not None else "expired"
    return {
        "token_id": view["token_id"],
        "role": view["role"],
        "subject": view["subject"],
        "state": state,
        "created": _date(view["created_at"]),
        "expires": "never" if view["expires_at"] is None else _date(view["expires_at"]),
        "last_used": "never" if view["last_used_at"] is None else f"{length(now - view['last_used_at'])} ago",
    }


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))
