"""The Python that the README and the guides show runs as it stands."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from bloxopt.admission import ADMISSIONS
from bloxopt.experiments import config
from bloxopt.formulations.policies import POLICIES
from bloxopt.hosts import HOST_ALLOCATIONS
from bloxopt.registry import Registry
from bloxopt.selection import SELECTORS

ROOT = Path(__file__).parents[1]

OPTIONS = [
    (registry, name, guide)
    for registry, guide in (
        (POLICIES, "policies.md"),
        (ADMISSIONS, "policies.md"),
        (HOST_ALLOCATIONS, "policies.md"),
        (SELECTORS, "simulation.md"),
    )
    for name in registry
]


@pytest.mark.parametrize("document", ["README.md"])
def test_every_python_block_runs(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), flags=re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{document}, block {number + 1}", "exec"), names)


@pytest.mark.parametrize("document", [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"], ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


def in_code(word: str, document: str) -> bool:
    return re.search(rf"`[^`]*\b{re.escape(word)}\b[^`]*`", (ROOT / "docs" / document).read_text()) is not None


def test_every_key_of_an_experiment_file_is_documented() -> None:
    sections = [c for c in vars(config).values() if isinstance(c, type) and issubclass(c, config.Section)]
    keys = {key for section in sections for key in section.model_fields}
    assert [key for key in keys if not re.search(rf"\b{key}\b", (ROOT / "docs/cli.md").read_text())] == []


@pytest.mark.parametrize(("registry", "name", "guide"), OPTIONS, ids=[name for _, name, _ in OPTIONS])
def test_every_option_of_a_part_that_has_a_name_is_documented(registry: Registry, name: str, guide: str) -> None:
    parameters = inspect.signature(registry.get(name)).parameters.values()
    options = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [option for option in options if not in_code(option, guide)] == []


def test_every_command_is_documented() -> None:
    from bloxopt.cli.app import app

    names = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    assert len(names) > 20
    rows = [line for line in (ROOT / "docs/cli.md").read_text().splitlines() if line.startswith("|")]
    assert [name for name in names if not any(re.search(rf"`{name}[ `]", row) for row in rows)] == []


def test_examples_of_deployment_are_what_scheduler_and_agent_read() -> None:
    pytest.importorskip("fastapi")
    from bloxopt.runtime.agent import AgentConfig
    from bloxopt.runtime.service.config import load_config

    scheduler, agent = load_config(ROOT / "deploy/scheduler.toml"), AgentConfig.load(ROOT / "deploy/agent.toml")
    assert agent.scheduler.endswith(f":{scheduler.server.port}")
    assert agent.user is not None
    for unit in ("scheduler", "agent"):
        text = (ROOT / f"deploy/systemd/bloxopt-{unit}.service").read_text()
        assert f"bloxopt {unit} --config /etc/bloxopt/{unit}.toml" in text
    assert "KillMode=process" in text
    assert "DelegateSubgroup=agent" in text
    assert f"StateDirectory={agent.state_folder.name}" in text
