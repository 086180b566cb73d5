"""``bloxopt agent``: the agent of this node, in the foreground, for a service manager to keep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[Path | None, typer.Option("--config", help="TOML file of settings; options override it.")]
SchedulerOption = Annotated[str | None, typer.Option("--scheduler", help="URL of the scheduler.", metavar="URL")]
TokenFileOption = Annotated[
    Path | None, typer.Option("--token-file", help="File with the node's token. Default: the variable BLOXOPT_TOKEN.")
]
NodeOption = Annotated[str | None, typer.Option("--node", help="The node's name. Default: the host's.")]
AddressOption = Annotated[str | None, typer.Option("--address", help="Where other nodes reach this one.")]
StateOption = Annotated[Path | None, typer.Option("--state-folder", help="Where the agent keeps its runs.")]
UserOption = Annotated[str | None, typer.Option("--user", help="The account that jobs run as, where this is root.")]
WorkdirOption = Annotated[
    list[Path] | None, typer.Option("--workdir", help="A folder below which jobs may work; repeatable.")
]
SimulateOption = Annotated[
    str | None, typer.Option("--simulate", help="Pretend to have GPUs, such as 8xA100.", metavar="GPUS")
]


def agent(
    config: ConfigOption = None,
    scheduler: SchedulerOption = None,
    token_file: TokenFileOption = None,
    node: NodeOption = None,
    address: AddressOption = None,
    state_folder: StateOption = None,
    user: UserOption = None,
    workdir: WorkdirOption = None,
    simulate: SimulateOption = None,
) -> None:
    """Run the agent of this node until SIGTERM or Ctrl-C. Its jobs run on under their leases, and the next agent
    takes them over."""
    import logging
    import os
    import signal

    from bloxopt.errors import AgentError

    try:
        from bloxopt.runtime.agent import Agent, AgentConfig, NvmlGpus, SimulatedGpus
    except ImportError as error:
        raise AgentError(f"the agent needs the package {error.name}: install bloxopt[runtime]") from None

    given: dict[str, object] = {
        "scheduler": scheduler,
        "token_file": token_file,
        "node": node,
        "address": address,
        "state_folder": None if state_folder is None else state_folder.absolute(),
        "user": user,
        "workdirs": None if workdir is None else [each.absolute() for each in workdir],
    }
    settings = {name: value for name, value in given.items() if value is not None}

    def made(**more: object) -> AgentConfig:
        return (
            AgentConfig.create(**settings, **more) if config is None else AgentConfig.load(config, **settings, **more)
        )

    chosen, variable = made(), os.environ.pop("BLOXOPT_TOKEN", "")
    # In the shell of an admin the variable has the admin's token: a file is what was meant.
    if variable and chosen.token_file is None:
        chosen = made(token=variable)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    one = Agent(chosen, NvmlGpus() if simulate is None else SimulatedGpus(simulate, chosen.node))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: one.stop())
    one.run()
