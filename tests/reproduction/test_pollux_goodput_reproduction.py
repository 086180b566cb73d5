"""Pollux itself on its workload 6: the program beats the genetic algorithm in completion times and in seconds."""

from __future__ import annotations

import pytest

from bloxopt.reproduction import SYSTEMS
from bloxopt.reproduction.base import compare


@pytest.mark.slow
def test_pollux_as_a_program_is_at_least_as_good_as_its_genetic_algorithm() -> None:
    [run] = [run for run in SYSTEMS.get("pollux") if run.policy == "pollux"]
    lines = compare("pollux", run, run.measure())
    assert {line.metric for line in lines} == {"average_jct", "makespan", "utilisation", "restarts_per_job", "wall"}
    assert [line for line in lines if line.verdict != "reproduced"] == []
