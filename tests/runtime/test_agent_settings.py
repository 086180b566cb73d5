"""An agent's settings: what is refused and in which words, and how its token is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bloxopt.errors import AgentError, ConfigError
from bloxopt.runtime.agent import Agent, AgentConfig, SimulatedGpus
from bloxopt.runtime.agent.connection import SchedulerConnection
from tests.runtime.agent_support import ACCOUNT, SmallScheduler, agent_thread, home, scheduler, settings_for, wait_until

__all__ = ["home", "scheduler"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"scheduler": "scheduler:8000"},
            "agent setting scheduler: is 'scheduler:8000': must be an address such as http",
        ),
        ({"scheduler": "http://s", "nodes": "a"}, "agent setting nodes: unknown key: did you mean node?"),
        (
            {"scheduler": "http://s", "node": "../etc"},
            "agent setting node: is '../etc': must consist of letters, digits, '.', '_' and '-'",
        ),
        ({"scheduler": "http://s", "workdirs": ["data"]}, "agent setting workdirs: data must be an absolute path"),
        ({"scheduler": "http://s", "log_segments": 1}, "agent setting log_segments: "),
        ({}, "agent setting scheduler: must be given"),
    ],
)
def test_settings_that_cannot_be_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("[", r"\[").split(":")[0]) as caught:
        AgentConfig.create(**{"user": ACCOUNT, **settings})
    assert message in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="of agents that run as root")
def test_an_agent_that_runs_as_root_must_be_told_who_jobs_run_as() -> None:
    with pytest.raises(ConfigError, match="the agent runs as root: name the account that jobs run as"):
        AgentConfig.create(scheduler="http://s")
    assert "jobs run as root" in AgentConfig.create(scheduler="http://s", user="root").warnings()[0]
    assert AgentConfig.create(scheduler="http://s", user="nobody").warnings() == []
    assert "no account" in AgentConfig.create(scheduler="http://s", user="no-such-account").warnings()[0]


def test_settings_come_from_files_and_errors_name_them(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(f'scheduler = "https://s:8000"\nnode = "gpu-1"\nuser = "nobody"\nworkdirs = ["{tmp_path}"]\n')
    config = AgentConfig.load(path)
    assert (config.node, config.workdirs) == ("gpu-1", (tmp_path,))
    path.write_text('scheduler = "https://s"\nuser = "nobody"\nlease = 3\n')
    with pytest.raises(ConfigError, match=r"agent\.toml: agent setting lease: unknown key"):
        AgentConfig.load(path)
    path.write_text("scheduler = ")
    with pytest.raises(ConfigError, match=r"agent\.toml: "):
        AgentConfig.load(path)
    with pytest.raises(ConfigError, match=r"absent\.toml: "):
        AgentConfig.load(tmp_path / "absent.toml")


def test_tokens_are_sent_reread_and_never_shown(scheduler: SmallScheduler, home: Path) -> None:
    token = home / "token"
    token.write_text("first-secret\n")
    with agent_thread(scheduler, home, token_file=token) as agent:
        wait_until(lambda: "Bearer first-secret" in scheduler.tokens)
        token.write_text("second-secret\n")
        wait_until(lambda: "Bearer second-secret" in scheduler.tokens)
        # Without one that can be read the agent goes on, and runs with it.
        token.unlink()
        count = len(scheduler.heartbeats)
        token.write_text("third-secret\n")
        wait_until(lambda: len(scheduler.heartbeats) > count and "Bearer third-secret" in scheduler.tokens)
        assert not any("without encryption" in warning for warning in agent.config.warnings())
    config = AgentConfig.create(scheduler="http://s", user="nobody", token="secret-token")
    assert any("without encryption" in warning for warning in config.warnings())
    assert "secret-token" not in repr(config) + str(config) + config.model_dump_json()


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    config = AgentConfig.create(scheduler="https://s", user="nobody", certificates=tmp_path / "absent.pem")
    with pytest.raises(ConfigError, match=r"certificates .*absent\.pem: "):
        SchedulerConnection(config)


def test_a_state_folder_that_cannot_be_made_is_named(scheduler: SmallScheduler, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    with pytest.raises(AgentError, match=r"the state folder .*/state cannot be used"):
        Agent(AgentConfig.create(**settings_for(scheduler, tmp_path)), SimulatedGpus("1xA100"))
