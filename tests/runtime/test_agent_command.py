"""``bloxopt agent`` as a service manager runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bloxopt.cli import run
from bloxopt.runtime.messages import RunState
from tests.runtime.agent_support import (
    ACCOUNT,
    SmallScheduler,
    home,
    processes_of,
    python,
    run_of,
    scheduler,
    wait_until,
)

__all__ = ["home", "scheduler"]


def agent_command(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bloxopt.cli", "agent", *arguments],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_sigterm_ends_the_agent_and_not_its_runs(scheduler: SmallScheduler, home: Path) -> None:
    settings = home / "agent.toml"
    settings.write_text(f'scheduler = "http://overridden"\nstate_folder = "{home / "state"}"\nnode = "here"\n')
    arguments = ["--config", str(settings), "--scheduler", scheduler.url, "--simulate", "2xA100"]
    if ACCOUNT is not None:
        arguments += ["--user", ACCOUNT]
    process = agent_command(*arguments, BLOXOPT_TOKEN="secret-token")
    key = scheduler.want(run_of("job", python("import time; print('up', flush=True); time.sleep(600)")))
    scheduler.wait_for(key, RunState.RUNNING)
    assert scheduler.heartbeats[-1].node == "here"
    assert [gpu.gpu_type for gpu in scheduler.heartbeats[-1].gpus] == ["A100", "A100"]
    assert set(scheduler.tokens) == {"Bearer secret-token"}
    wait_until(lambda: scheduler.log("job") == "up\n")
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "secret-token" not in told
    (left,) = processes_of(home)
    assert b"secret-token" not in Path(f"/proc/{left}/environ").read_bytes()


def test_a_token_file_goes_before_the_variable_of_the_shell(scheduler: SmallScheduler, home: Path) -> None:
    token = home / "node.token"
    token.write_text("of-the-node\n")
    arguments = ["--scheduler", scheduler.url, "--simulate", "1xA100", "--state-folder", str(home / "state")]
    if ACCOUNT is not None:
        arguments += ["--user", ACCOUNT]
    process = agent_command(*arguments, "--token-file", str(token), BLOXOPT_TOKEN="of-an-admin")
    wait_until(lambda: bool(scheduler.tokens))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert set(scheduler.tokens) == {"Bearer of-the-node"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scheduler", "nowhere"], "error: agent setting scheduler: "),
        (["--scheduler", "http://s", "--simulate", "8A100", "--user", "nobody"], "error: simulated GPUs '8A100': "),
        (["--config", "/absent.toml"], "error: /absent.toml: "),
    ],
)
def test_bad_settings_are_one_line_and_exit_code_two(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["agent", "--state-folder", str(tmp_path / "state"), *arguments]) == 2
    told = capsys.readouterr().err
    assert told.startswith(message)
    assert told.count("\n") == 1
