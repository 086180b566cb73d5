"""Drawn requests against the OpenAPI description: nothing crashes, nothing leaks, every error is a Problem."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from bloxopt.errors import BloxoptError
from bloxopt.runtime.messages import RunReport, RunState
from bloxopt.runtime.service.config import load_config, make_config
from bloxopt.runtime.service.logs import LogFolder
from tests.runtime.service_world import JOB, World, running


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("attacked")) as world:
        world.beat()
        yield world


@pytest.mark.parametrize("examples", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_drawn_requests_get_an_answer_that_says_what_is_wrong(world: World, examples: int) -> None:
    schema = schemathesis.openapi.from_dict(world.client.get("/openapi.json").json())
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        )
        @hypothesis.given(case=operation.as_strategy())
        def attack(case: schemathesis.Case) -> None:
            who = "n1" if "heartbeat" in case.path or "{attempt}" in case.path else "root"
            if "name" in (case.path_parameters or {}):
                case.path_parameters["name"] = "n1"
                if isinstance(case.body, dict) and "node" in case.body:
                    case.body["node"] = "n1"
            query = {name: value for name, value in (case.query or {}).items() if name != "wait"}
            for part in (case.path_parameters or {}).values():
                if "/" in str(part) or str(part) in ("", ".", ".."):
                    return
            body = {} if isinstance(case.body, schemathesis.core.NotSet) else {"json": case.body}
            if isinstance(case.body, bytes):
                body = {"content": case.body}
            try:
                answer = world.call(who, case.method, case.formatted_path, params=query, **body)
            except (TypeError, ValueError):  # what cannot be sent at all
                return
            assert answer.status_code != 500, answer.text
            assert answer.status_code < 500, answer.text
            if answer.status_code >= 400:
                assert set(answer.json()) == {"detail"}
                assert "Traceback" not in answer.text

        attack()
    assert world.call(None, "GET", "/healthz").status_code == 200


EXTREMES: list[dict[str, object]] = [
    {"duration": 1e-3, "total_steps": 1e18},
    {"duration": 1e12, "total_steps": 1e-3},
    {"weight": 1e6},
    {"weight": 1e-6},
    {"cpus_per_gpu": 5e-324},
    {"memory_gib_per_gpu": 1e18},
    {"deadline_seconds": 0},
    {"deadline_seconds": 5e-324},
    {"restart_cost": 1e12},
    {"num_gpus": 100_000},
    {"min_gpus": 1, "max_gpus": 100_000},
]


@pytest.mark.parametrize("policy", ["max_min_fairness", "themis"])
def test_no_job_and_no_report_can_spoil_the_rounds_of_the_others(tmp_path: Path, policy: str) -> None:
    with running(tmp_path, policy=policy) as world:
        world.beat(count=4)
        for extreme in EXTREMES:
            world.submit(**extreme)
        for beyond in ({"duration": 5e-324}, {"total_steps": 5e-324}, {"weight": 5e-324}, {"cpus_per_gpu": 1e300}):
            assert world.call("ada", "POST", "/v1/jobs", json=JOB | beyond).status_code == 422
        node = Obedient(world)
        node.rounds(None)
        for rate in (5e-324, 1e12, 1e18):
            node.rounds(rate)
            assert node.running, "some jobs run all the time"


class Obedient:
    """A node of four GPUs that runs what it is told, and reports strange numbers of steps."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.running: set[tuple[str, int]] = set()
        self.stopped: set[tuple[str, int]] = set()

    def beat(self, rate: float | None) -> None:
        reports = [
            RunReport(job_id=job, attempt=attempt, state=RunState.RUNNING, steps=rate, steps_per_second=rate)
            for job, attempt in self.running
        ]
        reports += [
            RunReport(job_id=job, attempt=attempt, state=RunState.ENDED, preempted=True)
            for job, attempt in self.stopped
        ]
        wanted = {(run.job_id, run.attempt) for run in self.world.beat(count=4, runs=tuple(reports)).runs}
        self.stopped = self.running - wanted
        self.running = wanted

    def rounds(self, rate: float | None) -> None:
        """Wait for rounds that know what is reported."""
        rounds = self.world.service.metrics.rounds._value
        end = rounds.get() + 3
        for _ in range(600):
            self.beat(rate)
            assert self.world.service.loop.failure == ""
            if rounds.get() >= end and self.running:
                return
            time.sleep(0.05)
        raise AssertionError("no rounds are decided")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policy = 'nothing'", "unknown policy 'nothing'"),
        ("policy = 'max_min_fairness_packed'", "share GPUs"),
        ("polcy = 'fifo'", "polcy"),
        ("[rounds]\nseconds = 0", "rounds.seconds"),
        ("[leases]\nheartbeat_seconds = 50.0", "must be in this order"),
        ("[server]\ntls_key = 'x'", "belong together"),
        ("[server]\nport = 99999", "server.port"),
        ("placement = {name = 'best_fit', options = {x = 1}}", "x"),
        ("x = ", "not valid TOML"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_by_key(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(BloxoptError, match=message):
        load_config(tmp_path / "s.toml")


def test_paths_of_a_configuration_are_relative_to_it(tmp_path: Path) -> None:
    config = make_config({"database": "x.db"}, tmp_path)
    assert config.database == str(tmp_path / "x.db")
    assert config.logs == str(tmp_path / "logs")


def test_output_is_kept_up_to_its_limit_and_read_from_any_offset(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path / "logs", limit=8192)
    data = bytes(range(256)) * 64
    for start in range(0, len(data), 1000):
        assert logs.append("j", 1, 0, start, data[start : start + 1000]) == min(start + 1000, len(data))
    piece = logs.read("j", 1, 0, 0, 2**20)
    assert piece.end == len(data)
    assert 4096 <= len(piece.data) <= 8192
    assert piece.data == data[piece.offset :]
    for offset in (-100, piece.offset + 5, len(data) - 1, len(data), 10**9):
        start = len(data) + offset if offset < 0 else min(offset, len(data))
        assert logs.read("j", 1, 0, offset, 50).data == data[start : start + 50]
    assert logs.append("j", 1, 0, 0, data) == len(data), "what is there is not written again"
    assert logs.append("j", 1, 0, len(data) + 1, b"x") == len(data), "a gap is not written over"
    assert LogFolder(tmp_path / "logs", limit=8192).read("j", 1, 0, 0, 2**20) == piece
