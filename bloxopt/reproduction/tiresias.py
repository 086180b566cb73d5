"""Tiresias' simulator (Gu et al., NSDI 2019) on its 60 jobs; it counts the GPUs of 4 nodes of 4, no placement."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from bloxopt.formulations.policies import get_policy
from bloxopt.reproduction.base import Figure, Run
from bloxopt.simulation import simulate

# Its name for the schedule, ours with its options, average JCT and makespan (s).
_PUBLISHED: tuple[tuple[str, str, Mapping[str, Any], float, float], ...] = (
    ("fifo", "fifo", {}, 200.82, 3335.0),
    ("dlas-gpu", "tiresias", {}, 190.68, 3271.0),
    ("gittins", "gittins", {"index": "published"}, 192.30, 3295.0),
    ("shortest", "shortest", {}, 192.12, 3271.0),
)


def _measure(policy: str, options: Mapping[str, Any]) -> dict[str, float | None]:
    summary = simulate("tiresias-60", "4x4xP100", get_policy(policy, **options), preset="tiresias").summary()
    return {name: summary[name] for name in ("average_jct", "makespan")}


RUNS = tuple(
    Run(
        trace="tiresias-60",
        policy=policy + "".join(f" ({name}={value})" for name, value in options.items()),
        source=f"Tiresias' simulator: schedule {schedule}, scheme count",
        measure=partial(_measure, policy, options),
        figures=(Figure(metric="average_jct", reference=jct), Figure(metric="makespan", reference=makespan)),
    )
    for schedule, policy, options, jct, makespan in _PUBLISHED
)
