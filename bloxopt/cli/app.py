"""The application: one line per command. Heavy packages are imported by the commands that need them."""

from __future__ import annotations

from typing import Annotated

import typer

from bloxopt.cli import (
    agent,
    audit,
    explain,
    listings,
    live,
    replay,
    reproduction,
    results,
    runtime,
    simulation,
    token,
    topology,
    up,
    whatif,
)

app = typer.Typer(
    name="bloxopt",
    help="Schedule deep-learning jobs on GPU clusters by optimisation.",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        import bloxopt

        print(f"bloxopt {bloxopt.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command()(simulation.simulate)
app.command()(simulation.compare)
app.command()(audit.audit)
app.command()(explain.explain)
app.command()(reproduction.reproduce)
app.command()(results.plot)
app.command()(results.generate)
app.command()(topology.topology)
app.command()(runtime.scheduler)
app.command()(agent.agent)
app.command()(up.up)
app.command()(live.submit)
app.command()(live.queue)
app.command()(live.status)
app.command()(live.logs)
app.command()(live.cancel)
app.command()(live.nodes)
app.command()(live.drain)
app.command()(live.top)
app.command()(live.history)
app.command()(whatif.whatif)
app.command()(replay.replay)
app.add_typer(token.token, name="token")
app.command()(listings.traces)
app.command()(listings.policies)
app.command()(listings.admissions)
app.command()(listings.solvers)
app.command()(listings.placements)
app.command()(listings.selectors)
app.command(name="host-allocations")(listings.host_allocations)
app.command()(listings.presets)
