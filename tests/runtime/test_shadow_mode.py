"""Asked and replayed on the command line, against a real scheduler, real agents and real jobs, across a restart."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from tests.runtime.test_up import BLOXOPT, OPTIONS
from tests.runtime.test_up import folder as folder  # the fixture

JOBS = """
set -e
for gpus in 1 2 1 2; do
    {bloxopt} submit --gpus $gpus --duration 4 -- /bin/sh -c 'sleep 3' > /dev/null
done
sleep 4
"""
ASK = """
{bloxopt} whatif --policy srtf --horizon 60 --json > {folder}/whatif.json
{bloxopt} whatif --policy fof 2> {folder}/unknown.txt && exit 9
{bloxopt} replay $BLOXOPT_SCHEDULER --json > {folder}/served.json
{bloxopt} replay {folder}/bloxopt.db --json > {folder}/used.json
"""


def live(folder: Path, script: str) -> None:
    text = script.format(bloxopt=" ".join(BLOXOPT), folder=folder)
    arguments = [*BLOXOPT, "up", *OPTIONS, "--folder", str(folder), "--", "/bin/sh", "-c", text]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=170, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_a_running_cluster_is_asked_and_replayed_across_a_restart(folder: Path) -> None:
    live(folder, JOBS + ASK)
    asked = json.loads((folder / "whatif.json").read_text())
    assert asked["alternative"]["decision"]["policy"] == "srtf"
    assert asked["present"]["decision"]["gpus_up"] == 4
    assert "did you mean 'fifo'" in (folder / "unknown.txt").read_text()
    served, used = (json.loads((folder / name).read_text()) for name in ("served.json", "used.json"))
    for report in (served, used):
        assert report["rounds"] == report["identical"] > 2
    live(folder, JOBS)
    ended = subprocess.run(
        [*BLOXOPT, "replay", str(folder / "bloxopt.db"), "--json"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout
    report = json.loads(ended.stdout)
    assert report["identical"] == report["rounds"] > used["rounds"]
