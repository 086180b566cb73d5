"""The application: one line per command. Heavy packages are imported by the commands that need them."""

from __future__ import annotations

from typing import Annotated

import typer

from bloxopt.cli import (
    agent,
    audit,
    control,
    explain,
    listings,
    look,
    output,
    replay,
    reproduction,
    results,
    runtime,
    simulation,
    submit,
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
app.command()(submit.submit)
app.command()(look.queue)
app.command()(look.status)
app.command()(output.logs)
app.command()(control.cancel)
app.command()(look.nodes)
app.command()(control.drain)
app.command()(look.top)
app.command()(look.history)
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
