"""A policy that cannot be kept ends in one sentence: what conflicts, and what would mend it, in own terms."""

from __future__ import annotations

from bloxopt.cli import run as run_cli

POLICY = """
from bloxopt.formulations import Capacity, MaxMin, MinimumShare, NormalizedThroughput, Policy, TimeShare

PROMISES = Policy(
    objective=MaxMin(NormalizedThroughput()),
    constraints=[
        Capacity(),
        TimeShare(),
        MinimumShare({"vision": 0.6}, of="gpus", name="promise to vision"),
        MinimumShare({"speech": 0.6}, of="gpus", name="promise to speech"),
    ],
)
"""

EXPERIMENT = """
[generate]
num_jobs = 60
interarrival = 0.0
durations = 36000.0
gpu_counts = 1
tenants = {{vision = 1, speech = 1}}

[cluster]
nodes = "5x8xV100"

[policy]
name = "{policy}:PROMISES"
"""


def test_promises_that_exceed_the_cluster_are_named_with_what_would_fit(tmp_path, capsys) -> None:
    policy = tmp_path / "promises.py"
    policy.write_text(POLICY)
    experiment = tmp_path / "promises.toml"
    experiment.write_text(EXPERIMENT.format(policy=policy))
    assert run_cli(["simulate", str(experiment)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: no allocation satisfies ")
    assert error.count("\n") == 1
    for words in (
        "promise to vision('vision') 0.6 (24 GPUs)",
        "Capacity('V100') at most 40 GPUs",
        "by 8 GPUs",
        "to 0.4 (16 GPUs)",
    ):
        assert words in error
