"""Forks schedulers and agents from a process that has imported everything, so that they are up in no time.

A line of JSON says what to start, and where its output goes; the answer is its process id. What is started may be armed
to kill itself at a given point, and ends with the nursery.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


class Nursery:
    """A running nursery."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.runtime.crash_nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def scheduler(self, config: Path, port: int, log: Path, point: tuple[str, int] | None = None) -> int:
        """A scheduler's process id; ``point`` as in :func:`tests.runtime.crashing_scheduler.arm`."""
        return self._bear(kind="scheduler", config=config, port=port, log=log, point=point)

    def agent(self, settings: dict[str, Any], gpus: str, log: Path, die_at: int | None = None) -> int:
        """An agent's process id; it is killed at its ``die_at``-th call of a C function."""
        return self._bear(kind="agent", settings=settings, gpus=gpus, log=log, die_at=die_at)

    def _bear(self, **wish: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(wish, default=str) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


def ended_by_itself(log: Path, pid: int) -> Path:
    """A file that is there if the process with this log ended without having been killed."""
    return log.with_name(f"{log.stem}.{pid}.ended")


def _live(wish: dict[str, Any]) -> None:
    """What a forked process does."""
    from bloxopt.runtime.agent import Agent, AgentConfig, SimulatedGpus
    from bloxopt.runtime.agent.processes import die_with_parent
    from bloxopt.runtime.service.command import configured, serve
    from tests.runtime.crashing_scheduler import arm, die_at_call

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    die_with_parent()
    output = os.open(wish["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if wish["kind"] == "scheduler":
        if wish["point"] is not None:
            arm(*wish["point"])
        serve(configured(Path(wish["config"]), None, wish["port"], None, None))
    else:
        if wish["die_at"] is not None:
            die_at_call(wish["die_at"])
        agent = Agent(AgentConfig.create(**wish["settings"]), SimulatedGpus(wish["gpus"]))
        signal.signal(signal.SIGTERM, lambda *_: agent.stop())
        agent.run()


def main() -> None:
    import logging

    import httpx

    import bloxopt.runtime.agent.agent
    import bloxopt.runtime.service.command  # noqa: F401 - imported for those that are forked
    from bloxopt.errors import BloxoptError

    # The first one makes much that the others share.
    httpx.Client(verify=False).close()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _live(json.loads(line))
                code = 0
            except BloxoptError as error:
                logging.error(error)
            except BaseException:
                logging.exception("ended")
            finally:
                ended_by_itself(Path(json.loads(line)["log"]), os.getpid()).touch()
                os._exit(code)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
