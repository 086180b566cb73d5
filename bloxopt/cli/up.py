"""``bloxopt up``: a cluster of simulated GPUs on this machine, in one command."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bloxopt.cli.console import note
from bloxopt.errors import InputError

if TYPE_CHECKING:
    from bloxopt.runtime.local import LocalCluster


def up(
    simulate: Annotated[
        str, typer.Option("--simulate", help="Nodes to simulate: 4x8xA100 is four with eight GPUs.", metavar="CLUSTER")
    ],
    command: Annotated[
        list[str] | None, typer.Argument(help="Run this on the cluster, then stop.", metavar="[-- COMMAND...]")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Keep everything here, and go on from it. Default: one that is removed at the end."),
    ] = None,
    policy: Annotated[str, typer.Option(help="Policy (see `bloxopt policies`).")] = "max_min_fairness",
    round_seconds: Annotated[float, typer.Option(min=0.1, help="Seconds that a round lasts.")] = 10.0,
    round_end: Annotated[
        Literal["next_event", "fixed"], typer.Option(help="Whether rounds end early where GPUs are idle.")
    ] = "next_event",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of the scheduler. Default: any free one.")] = 0,
    user: Annotated[
        str | None, typer.Option(help="Account that jobs run as, where this is root. Default: nobody.")
    ] = None,
    workdir: Annotated[
        list[Path] | None, typer.Option(help="A folder below which jobs may work, beside work/; repeatable.")
    ] = None,
) -> None:
    """Start a scheduler and agents with simulated GPUs on this machine; Ctrl-C preempts the jobs and stops all."""
    try:
        from bloxopt.runtime.local import Interrupted, LocalCluster
    except ModuleNotFoundError as error:
        raise InputError(f"this command needs the package {error.name}: pip install 'bloxopt[runtime]'") from None
    place = Path(tempfile.mkdtemp(prefix="bloxopt-", dir="/var/tmp")) if folder is None else folder
    left, code = 0, 0
    try:
        cluster = LocalCluster(
            simulate,
            place,
            policy=policy,
            round_seconds=round_seconds,
            round_end=round_end,
            port=port,
            user=user,
            workdirs=tuple(workdir or ()),
        )
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            numbers.append(signal.SIGHUP)
        before = [signal.signal(number, lambda *_: cluster.wanted.set()) for number in numbers]
        try:
            cluster.start()
            up = "1 node is up" if len(cluster.nodes) == 1 else f"{len(cluster.nodes)} nodes are up"
            note(f"{up}; jobs may work below {', '.join(map(str, cluster.workdirs))}")
            code = _run(command, cluster) if command else _serve(cluster)
        except Interrupted:
            pass
        finally:
            cluster.wanted.clear()
            note("stopping: jobs are preempted (again to wait for none)")
            left = cluster.stop()
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
    finally:
        if folder is None and left == 0:
            shutil.rmtree(place, ignore_errors=True)
    if left:
        note(f"{'some' if left < 0 else left} jobs had not ended; they do within a minute, when their leases end")
    raise typer.Exit(code)


def _serve(cluster: LocalCluster) -> int:
    """Say how to reach the cluster, and watch over it until somebody wants it to stop."""
    print(f"export BLOXOPT_SCHEDULER={cluster.url}")
    print(f"export BLOXOPT_TOKEN=$(cat '{cluster.token_file}')", flush=True)
    note("in another terminal: these two lines, then bloxopt submit, queue, top; Ctrl-C here stops all")
    while not cluster.wanted.wait(1.0):
        cluster.check()
    return 0


def _run(command: list[str], cluster: LocalCluster) -> int:
    """The exit code of a command that finds the cluster through its environment."""
    # Ctrl-C is for the command, as in a shell; SIGTERM is for both.
    interrupt = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        process = subprocess.Popen(command, env={**os.environ, **cluster.environment})
    except OSError as error:
        raise InputError(f"{command[0]}: {error.strerror}") from None
    try:
        told = False
        while True:
            try:
                code = process.wait(0.5)
                return code if code >= 0 else 128 - code
            except subprocess.TimeoutExpired:
                cluster.check()
                if cluster.wanted.is_set() and not told:
                    process.terminate()
                    told = True
    finally:
        if process.poll() is None:  # part of the cluster is gone
            process.terminate()
        signal.signal(signal.SIGINT, interrupt)
