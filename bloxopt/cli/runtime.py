"""Commands of the live system. What they need beyond the core is imported when one of them runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bloxopt.cli.console import note
from bloxopt.errors import InputError

_MISSING = "the live system needs more packages than the core: install them with pip install 'bloxopt[runtime]'"


def scheduler(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Configuration (TOML); without one, the defaults.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on, instead of the configured one.")] = None,
    port: Annotated[int | None, typer.Option(help="Port, instead of the configured one; 0: any free one.")] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="Certificate (PEM) for TLS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    create_admin_token: Annotated[
        bool, typer.Option("--create-admin-token", help="Print a new admin token, once, and exit.")
    ] = False,
    admin_token_file: Annotated[
        Path | None,
        typer.Option(help="Write a new admin token to this file (mode 0600) unless it exists, then serve."),
    ] = None,
    backup: Annotated[Path | None, typer.Option(help="Copy the SQLite database to this new file, and exit.")] = None,
    restore: Annotated[Path | None, typer.Option(help="Make the SQLite database from this backup, and exit.")] = None,
) -> None:
    """Run the scheduler service: HTTP for agents and people, and the rounds of a policy over live nodes."""
    try:
        from bloxopt.runtime.service import command
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("fastapi", "uvicorn", "sqlalchemy", "prometheus_client"):
            raise InputError(f"{_MISSING} ({error.name} is missing)") from None
        raise
    settings = command.configured(config, host, port, tls_certificate, tls_key)
    if backup is not None or restore is not None:
        note(command.copy_store(settings, backup, restore))
    elif create_admin_token:
        print(command.new_admin_token(settings))
    else:
        command.serve(settings, admin_token_file)
