"""Nobody stops a service by what they submit: every part that it accepts decides rounds whatever jobs come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from bloxopt.admission import ADMISSIONS
from bloxopt.formulations.policies import POLICIES, get_policy
from bloxopt.placement import PLACEMENTS
from tests.runtime.recorded_world import RecordedWorld

_TREE = {"entities": {"ada": 2, "guests": 1}, "default": "guests"}
_CELLS = {"virtual_clusters": {"ada": {"node:A100": 1}}}

UNSOLVABLE = {"min_makespan"}
"""Remaining times of such jobs differ by more than solvers can bear, and it puts them all into one program."""

HOSTILE: list[tuple[list[int], dict[str, Any]]] = [
    ([1, 2], {"deadline_seconds": 0.0}),
    ([2], {"deadline_seconds": 1e-9}),
    ([1], {"deadline_seconds": 1e12}),
    ([1] * 6, {"deadline_seconds": 200.0}),
    ([1], {"weight": 1e6}),
    ([1], {"weight": 1e-6}),
    ([1], {"total_steps": 1e-3, "duration": 1e12}),
    ([1], {"total_steps": 1e18, "duration": 1e-3}),
    ([1], {"total_steps": 1e18, "duration": 1e12}),
    ([1], {"total_steps": None, "duration": None}),
    ([100_000], {}),
    ([4], {"min_gpus": 1, "max_gpus": 100_000}),
    ([1], {"gpu_types": ["none-such"]}),
    ([1], {"cpus_per_gpu": 1e18}),
    ([1], {"restart_cost": 1e12}),
]
"""Sizes and details of jobs that a policy may be asked to schedule: the extremes that a submission may have."""


def rounds_go_on(folder: Path, **settings: Any) -> None:
    world = RecordedWorld(folder, **settings)
    world.add("a", 4)
    world.add("b", 4)
    world.beat()
    world.submit("ada", 1, 2, 4)
    world.rounds(2)
    for sizes, details in HOSTILE:
        world.submit("eve", *sizes, **details)
    world.rounds(3)
    world.kill()


@pytest.mark.parametrize("policy", [name for name in POLICIES if get_policy(name).pair_threshold is None])
def test_every_policy_decides_whatever_jobs_come(tmp_path: Path, policy: str) -> None:
    # Rounds of a service have a budget by default. With none, nothing hides what a policy cannot solve.
    budget = 10.0 if policy in UNSOLVABLE else 0.0
    rounds_go_on(tmp_path, policy=policy, rounds={"seconds": 10.0, "shortest": 1.0, "budget": budget})


@pytest.mark.parametrize("admission", list(ADMISSIONS))
def test_every_admission_decides_whatever_jobs_come(tmp_path: Path, admission: str) -> None:
    rounds_go_on(tmp_path, policy="fifo", admission=admission)


@pytest.mark.parametrize("placement", list(PLACEMENTS))
def test_every_placement_places_whatever_jobs_come(tmp_path: Path, placement: str) -> None:
    rounds_go_on(tmp_path, policy="fifo", placement=placement)


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": {"name": "hierarchical", "options": _TREE}},
        {"policy": {"name": "gandiva_fair", "options": {"tickets": {"ada": 2.0}}}},
        {"policy": {"name": "hived", "options": _CELLS}, "placement": {"name": "guaranteed_cells", "options": _CELLS}},
        {"policy": "fifo", "admission": {"name": "quota", "options": {"gpus": {"ada": 2}, "jobs": {"ada": 2}}}},
    ],
    ids=["tree", "tickets", "cells", "quota"],
)
def test_parts_that_name_tenants_serve_those_that_they_do_not_name(tmp_path: Path, settings: dict[str, Any]) -> None:
    rounds_go_on(tmp_path, **settings)
