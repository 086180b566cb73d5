"""What users write goes to a job as it stands: no shell reads it, no guard obeys it, no path leaves its folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bloxopt.runtime.messages import RunState
from bloxopt.runtime.service.logs import LogFolder
from tests.runtime.agent_support import SmallScheduler, agent_thread, home, python, run_of, scheduler, wait_until

__all__ = ["home", "scheduler"]

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


def test_no_shell_reads_commands_or_variables(scheduler: SmallScheduler, home: Path) -> None:
    mark = home / "injected"
    arguments = [
        f"$(touch {mark})",
        f"`touch {mark}`",
        f"; touch {mark}",
        f"| touch {mark}",
        f"&& touch {mark}",
        f"\n touch {mark}",
        "$HOME",
        "*",
        "~",
        "--",
        "'\"\\",
        "é\u2028",
    ]
    variables = {f"VALUE_{number}": text for number, text in enumerate(arguments)}
    with agent_thread(scheduler, home):
        run = run_of("job", [*python(SHOW), *arguments], environment=variables)
        assert scheduler.wait_for(scheduler.want(run), RunState.ENDED).exit_code == 0
        wait_until(lambda: scheduler.log("job").endswith("\n"))
    seen, environment = json.loads(scheduler.log("job"))
    assert seen == arguments
    assert environment.items() >= variables.items()
    assert not mark.exists()


def test_variables_of_a_job_change_its_own_process_alone(scheduler: SmallScheduler, home: Path) -> None:
    """Those that loaders and interpreters obey: a guard that obeyed them would run a user's code as the agent."""
    mark = home / "obeyed"
    spy = home / "spy"
    spy.mkdir()
    (spy / "sitecustomize.py").write_text(
        f"import os\nopen({str(mark)!r}, 'a').write(f\"{{os.environ.get('BLOXOPT_JOB_ID')}}\\n\")\n"
    )
    environment = {
        "PYTHONPATH": str(spy),
        "PYTHONSTARTUP": str(spy / "sitecustomize.py"),
        "LD_PRELOAD": "/no/such/library.so",
        "BASH_ENV": str(spy / "x.sh"),
        "PATH": str(spy),
        "BLOXOPT_TOKEN": "theirs",
        "BLOXOPT_ATTEMPT": "99",
    }
    with agent_thread(scheduler, home):
        report = scheduler.wait_for(
            scheduler.want(run_of("job", [sys.executable, "-c", SHOW], environment=environment)), RunState.ENDED
        )
        assert report.exit_code == 0, report
        wait_until(lambda: scheduler.log("job").endswith("\n"))
    seen = json.loads(scheduler.log("job").splitlines()[-1])[1]
    assert seen["LD_PRELOAD"] == "/no/such/library.so"
    assert seen["BLOXOPT_ATTEMPT"] == "1"
    assert mark.read_text().splitlines() == ["job"], "its own process alone has read it, once"


@pytest.mark.parametrize("name", ["..", ".", "a/../../b", "/etc", "a\0b", ""])
def test_output_of_no_job_that_can_be_is_outside_its_folder(tmp_path: Path, name: str) -> None:
    """Names like these come from no request, which is tested elsewhere; and ids of jobs are made by the scheduler."""
    from pydantic import TypeAdapter, ValidationError

    from bloxopt.runtime.messages import JobId

    with pytest.raises(ValidationError):
        TypeAdapter(JobId).validate_python(name)


def test_output_is_not_written_through_links(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path / "logs", 8192)
    target = tmp_path / "precious"
    target.write_text("kept")
    place = logs.folder / "j" / "1"
    place.mkdir(parents=True)
    (place / "0.0").symlink_to(target)
    with pytest.raises(Exception, match="output cannot be stored"):
        logs.append("j", 1, 0, 4, b"more")
    assert target.read_text() == "kept"
