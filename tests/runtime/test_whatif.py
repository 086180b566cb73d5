"""What-if questions are answered from a copy: the running scheduler decides as if nobody had asked."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from bloxopt.formulations.policies import POLICIES, get_policy
from bloxopt.runtime.replay import read_log
from bloxopt.runtime.service.application import create_app
from bloxopt.runtime.service.config import ServiceConfig
from bloxopt.runtime.service.copies import Copy, opened
from bloxopt.runtime.service.whatif import Question
from bloxopt.simulation.fork import fork
from bloxopt.simulation.whatif import Alternative, what_if
from tests.runtime.recorded_world import RecordedWorld


class Asked:
    """A world with jobs under fifo, and what its scheduler answers."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.world = RecordedWorld(folder, **{"policy": "fifo", **settings})
        service = self.world.service
        self.client = TestClient(create_app(service), raise_server_exceptions=False)
        self.tokens = {role: service.tokens.create(role, role)[0] for role in ("admin", "user", "node")}

    def ask(self, who: str = "admin", **question: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        return self.client.post("/v1/whatif", json=question, headers=headers)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """Four GPUs, a long job on three of them that came first, and short ones that wait for it."""
    asked = Asked(tmp_path_factory.mktemp("whatif"))
    asked.world.add("a", 4)
    asked.world.beat()
    asked.world.submit("ada", 3, total_steps=1800.0, duration=600.0)
    asked.world.rounds(1)
    asked.world.submit("bob", 2, 2, 2)
    asked.world.rounds(2)
    return asked


def test_both_sides_are_told_now_and_later_with_the_jobs_that_differ(asked: Asked) -> None:
    answer = asked.ask(policy="srtf", horizon=1800.0)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    present, other = found["present"], found["alternative"]
    assert (present["decision"]["policy"], other["decision"]["policy"]) == ("fifo", "srtf")
    assert (present["decision"]["running"], present["decision"]["gpus_used"]) == (1, 3.0)
    assert (other["decision"]["started"], other["decision"]["stopped"]) == (2, 1)
    assert other["decision"]["gpus_up"] == 4
    # The three short jobs are done long before the long one.
    assert other["future"]["average_completion"] < present["future"]["average_completion"]
    assert present["future"]["finished"] == other["future"]["finished"] == present["future"]["jobs"] == 4
    assert not found["comparable"]
    by_user = {(job["tenant"], job["now"], job["present"], job["alternative"]) for job in found["jobs"]}
    assert by_user == {
        ("ada", "3 A100 on a", "3 A100 on a", None),
        ("bob", None, None, "2 A100 on a"),
    }
    assert len(found["jobs"]) == 3


def test_another_solver_is_compared_by_objective_and_certificate(tmp_path: Path) -> None:
    asked = Asked(tmp_path, policy="max_min_fairness")
    asked.world.add("a", 4)
    asked.world.beat()
    asked.world.submit("ada", 1, 2, 4)
    asked.world.rounds(1)
    found = asked.ask(solver="ortools:glop", horizon=0).json()
    present, other = found["present"]["decision"], found["alternative"]["decision"]
    assert found["comparable"]
    assert found["present"]["future"] is None
    assert other["solver"] == "ortools:glop" != present["solver"]
    assert other["objective"] == pytest.approx(present["objective"])
    assert other["termination"] == "optimal"
    assert other["verified"]
    asked.world.kill()


def test_asking_changes_nothing_of_what_is_decided(tmp_path: Path) -> None:
    """Also for a placement that remembers what it has bound, and a selector that remembers the plans before."""
    cells = {"name": "guaranteed_cells", "options": {"virtual_clusters": {"ada": {"node:A100": 1}}}}
    questions = [Question(policy="srtf"), Question(placement=cells), Question(solver="ortools:glop")]
    decided = []
    for often in (False, True):
        folder = tmp_path / str(often)
        folder.mkdir()
        asked = Asked(folder, policy="max_min_fairness", placement=cells)
        world = asked.world
        for name in ("a", "b"):
            world.add(name, 4)
        world.beat()
        jobs = world.submit("ada", 1, 2, 4) + world.submit("bob", 2, 1, 2)
        number = {job_id: k for k, job_id in enumerate(jobs)}
        for _ in range(8):
            world.rounds(1)
            for question in questions if often else ():
                copied = world.service.loop.copy()
                assert copied is not None
                what_if(*opened(copied.message), question.alternative(world.service.config), horizon=60.0, budget=60.0)
        if often:
            assert asked.ask(policy="srtf", horizon=60.0).status_code == 200
        world.rounds(1)
        world.kill()
        rounds = [event.data for event in read_log(folder / "live.db", ["round"])]
        decided.append(
            [
                (
                    {number[job_id] for job_id in data.get("stopped", ())},
                    {number[job_id]: place for job_id, place in data.get("started", {}).items()},
                    data.get("plan"),
                )
                for data in rounds
            ]
        )
    assert decided[0] == decided[1]
    assert sum(bool(stopped) for stopped, _, _ in decided[0]) > 1


@pytest.mark.parametrize(
    ("question", "status", "message"),
    [
        ({}, 400, "nothing to try"),
        ({"policy": "srft"}, 400, "unknown policy 'srft': did you mean 'srtf'?"),
        ({"policy": "/etc/policy.py:mine"}, 400, "unknown policy"),
        ({"policy": {"name": "las", "options": {"speed": 1}}}, 400, "unknown option 'speed'"),
        ({"solver": "gurobi"}, 400, "unknown solver 'gurobi'"),
        (
            {"policy": {"name": "hierarchical", "options": {"entities": {"ada": 1, "bob": 2}}}},
            400,
            "give default, such as 'ada'",
        ),
        ({"policy": "gandiva"}, 400, "lets jobs share GPUs, and live nodes do not"),
        (
            {"placement": {"name": "guaranteed_cells", "options": {"virtual_clusters": "cells.toml"}}},
            400,
            "names a file",
        ),
        ({"policy": "fifo", "horizon": -1}, 422, "horizon"),
        ({"policy": "fifo", "budget": 1e9}, 422, "budget"),
        ({"policy": "fifo", "apply": True}, 422, "apply"),
        (
            {"placement": {"name": "guaranteed_cells", "options": {"virtual_clusters": {"eve": {"node:A100": 9}}}}},
            400,
            "node:A100",
        ),
    ],
)
def test_what_cannot_be_tried_is_said(asked: Asked, question: dict[str, Any], status: int, message: str) -> None:
    answer = asked.ask(**question)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["detail"]


def test_only_admins_may_ask(asked: Asked) -> None:
    assert asked.ask("user", policy="las").status_code == 403
    assert asked.ask("node", policy="las").status_code == 403
    assert asked.client.post("/v1/whatif", json={"policy": "las"}).status_code == 401


def test_one_is_worked_out_at_a_time(asked: Asked) -> None:
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(asked.ask(policy="srtf", horizon=0.0).status_code))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(answers)) == [200, 429]
    # The turn is given back to rounds while it is worked out, and for the next question.
    assert asked.ask(policy="srtf", horizon=0.0).status_code == 200


def test_looking_ahead_ends_when_its_time_is_up(tmp_path: Path) -> None:
    asked = Asked(tmp_path, policy="las", rounds={"seconds": 0.2, "shortest": 0.1, "budget": 0.0})
    asked.world.add("a", 4)
    asked.world.beat()
    asked.world.submit("ada", *[1] * 40, total_steps=1e7, duration=1e7)
    asked.world.rounds(1)
    answer = asked.ask(policy="max_min_fairness", horizon=31 * 86_400.0, budget=1.0)
    assert answer.status_code == 200, answer.text
    future = answer.json()["alternative"]["future"]
    assert future["cut"]
    assert future["seconds"] < 31 * 86_400.0
    # What it did not get to is estimated.
    assert future["average_completion"] > 1e6
    asked.world.kill()


def test_parts_whose_rounds_have_a_deadline_can_be_copied(tmp_path: Path) -> None:
    rounds = {"seconds": 10.0, "shortest": 1.0, "budget": 5.0}
    asked = Asked(tmp_path, policy="max_min_fairness", selector="exact", placement="exact", rounds=rounds)
    asked.world.add("a", 4)
    asked.world.beat()
    asked.world.submit("ada", 1, 2, 4)
    asked.world.rounds(2)
    answer = asked.ask(policy="las", horizon=0.0)
    assert answer.status_code == 200, answer.text
    assert answer.json()["present"]["decision"]["running"] >= 1
    asked.world.kill()


def test_an_idle_cluster_has_no_future(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    asked.world.add("a", 4)
    asked.world.beat()
    asked.world.rounds(1)
    found = asked.ask(policy="las").json()
    assert found["jobs"] == []
    assert found["alternative"]["future"]["jobs"] == 0
    assert found["alternative"]["decision"]["gpus_up"] == 4
    asked.world.kill()


def test_before_the_first_round_there_is_nothing_to_compare(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    answer = asked.ask(policy="las")
    assert answer.status_code == 409
    assert "no node has registered" in answer.json()["detail"]
    asked.world.kill()


@pytest.mark.parametrize("policy", [name for name in POLICIES if get_policy(name).pair_threshold is None])
def test_every_policy_can_be_asked_about_and_asked_from(asked: Asked, policy: str) -> None:
    """Each as the alternative, and as what is in force, whose plan has to go into another process."""
    copied = asked.world.service.loop.copy()
    assert copied is not None
    alternative = pickle.loads(pickle.dumps(Question(policy=policy).alternative(ServiceConfig())))
    answer = what_if(*opened(copied.message), alternative, horizon=30.0, budget=60.0)
    assert answer.alternative.future is not None
    assert answer.alternative.future.error == ""
    twin, state = fork(*opened(copied.message), policy=get_policy(policy))
    twin.run_round()
    there = opened(Copy.of(twin, state).message)
    answer = what_if(*there, Alternative(), horizon=0.0, budget=60.0)
    assert answer.present.decision.policy == policy


def test_the_command_line_shows_both_side_by_side(asked: Asked) -> None:
    from bloxopt.cli import whatif

    answer = asked.ask(policy="srtf", horizon=1800.0).json()
    rows = {row[""]: (row["as it is"], row["what if"]) for row in whatif._rows(answer)}
    assert rows["policy"] == ("fifo", "srtf")
    assert rows["GPUs used"] == ("3 of 4", "4 of 4")
    assert rows["finished within 0.5 h"] == ("4 of 4", "4 of 4")
