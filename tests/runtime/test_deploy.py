"""What is in deploy/: systemd accepts the units, they hold what they promise, and configurations fit them."""

from __future__ import annotations

import configparser
import re
import shutil
import ssl
import subprocess
import tomllib
from pathlib import Path

import pytest

from bloxopt.runtime.agent.config import AgentConfig
from bloxopt.runtime.service.config import load_config
from bloxopt.runtime.service.listening import check_tls

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = ("bloxopt-scheduler", "bloxopt-agent")
_NEWER = re.compile(r".*Unknown key '?DelegateSubgroup'?.*ignoring\.")
"""Of systemd before 254, where docs/runtime.md says what to do."""


def _text(unit: str) -> str:
    return (DEPLOY / "systemd" / f"{unit}.service").read_text()


def _settings(unit: str) -> dict[str, str]:
    """The settings of a unit by name; of one that comes several times, the last."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(_text(unit))
    return {name: value for section in parser.sections() for name, value in parser[section].items()}


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd is not installed: no systemd-analyze")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_finds_nothing_wrong_with_a_unit(unit: str, tmp_path: Path) -> None:
    # The program is not installed here, and systemd asks for it.
    program = tmp_path / "bloxopt"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    file = tmp_path / f"{unit}.service"
    file.write_text(_text(unit).replace("/opt/bloxopt/bin/bloxopt", str(program)))
    done = _analyze("verify", "--man=no", str(file))
    told = [line for line in (done.stdout + done.stderr).splitlines() if not _NEWER.fullmatch(line)]
    assert told == []
    assert done.returncode == 0


@pytest.mark.parametrize(("unit", "most"), [("bloxopt-scheduler", 20), ("bloxopt-agent", 65)])
def test_a_unit_is_exposed_no_more_than_it_has_to_be(unit: str, most: int) -> None:
    """In tenths of systemd's measure, of 100: jobs hold what the agent holds, and need devices and homes."""
    file = str(DEPLOY / "systemd" / f"{unit}.service")
    done = _analyze("security", "--offline=true", "--no-pager", f"--threshold={most}", file)
    if "nrecognized option" in done.stderr:
        pytest.skip("systemd-analyze is too old for --offline")
    assert "Overall exposure level" in done.stdout
    assert done.returncode == 0, done.stdout[-300:]


def test_the_scheduler_comes_back_whatever_it_ended_with_and_owns_its_folder_alone() -> None:
    unit = _settings("bloxopt-scheduler")
    assert (unit["Restart"], unit["StartLimitIntervalSec"]) == ("always", "0")
    assert (unit["User"], unit["NoNewPrivileges"], unit["CapabilityBoundingSet"]) == ("bloxopt", "yes", "")
    assert (unit["StateDirectory"], unit["StateDirectoryMode"], unit["UMask"]) == ("bloxopt", "0700", "0077")
    assert int(unit["TimeoutStopSec"]) >= 15, "the round that is decided ends first"


def test_no_run_ends_with_its_agent() -> None:
    unit = _settings("bloxopt-agent")
    assert (unit["Restart"], unit["StartLimitIntervalSec"]) == ("always", "0")
    assert (unit["KillMode"], unit["OOMPolicy"]) == ("process", "continue")
    assert (unit["Delegate"], unit["DelegateSubgroup"]) == ("yes", "agent")


def test_the_configurations_can_be_read_and_fit_the_units() -> None:
    config = load_config(DEPLOY / "scheduler.toml")
    state = Path("/var/lib") / _settings("bloxopt-scheduler")["StateDirectory"]
    assert Path(config.database).parent == state
    assert Path(config.logs).parent == state
    assert config.server.tls_key == "/etc/bloxopt/server.key"
    agent = AgentConfig.create(**tomllib.loads((DEPLOY / "agent.toml").read_text()))
    assert agent.state_folder == Path("/var/lib") / _settings("bloxopt-agent")["StateDirectory"]
    assert str(agent.cgroup).startswith("/sys/fs/cgroup/system.slice/bloxopt-agent.service/")
    assert agent.user == "bloxopt-jobs"
    for unit, file in zip(UNITS, ("scheduler.toml", "agent.toml"), strict=True):
        assert _settings(unit)["ExecStart"].endswith(f"--config /etc/bloxopt/{file}")
    assert agent.scheduler.startswith("https://")
    assert agent.scheduler.endswith(f":{config.server.port}")


def test_each_file_is_in_the_guide() -> None:
    guide = (DEPLOY.parent / "docs" / "runtime.md").read_text()
    for path in DEPLOY.rglob("*.*"):
        assert f"deploy/{path.relative_to(DEPLOY)}" in guide


def test_the_certificates_of_the_guide_are_believed_by_agents_and_by_no_one_else(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    guide = (DEPLOY.parent / "docs" / "runtime.md").read_text()
    section = guide[guide.index("**2. TLS.**") : guide.index("**3. The scheduler**")]
    commands = [line.removeprefix("# ") for line in section.splitlines() if line.startswith("# ")]
    made = [command for command in commands if not command.startswith("install ")]
    assert len(made) >= 4
    subprocess.run(["bash", "-ec", "\n".join(made)], cwd=tmp_path, check=True, capture_output=True)
    certificate, key = str(tmp_path / "server.pem"), str(tmp_path / "server.key")
    check_tls(certificate, key)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    settings = AgentConfig.create(
        scheduler="https://scheduler.example", user="nobody", certificates=tmp_path / "authority.pem"
    )
    trusting = ssl.create_default_context(cafile=settings.certificates)
    _shake_hands(serving, trusting, "scheduler.example")
    for context, name in ((trusting, "elsewhere.example"), (ssl.create_default_context(), "scheduler.example")):
        with pytest.raises(ssl.SSLCertVerificationError):
            _shake_hands(serving, context, name)


def _shake_hands(serving: ssl.SSLContext, asking: ssl.SSLContext, name: str) -> None:
    """A TLS handshake over memory; raises what the client says of the server's certificate."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(there, back, server_side=True)
    client = asking.wrap_bio(back, there, server_hostname=name)
    for _ in range(5):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client.version() is not None
