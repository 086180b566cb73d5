"""Why a job waits is worked out in another process, whatever becomes of that; the answer is the scheduler's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from bloxopt.errors import BloxoptError
from bloxopt.explanations.explain import explain
from bloxopt.runtime.answers import ExplanationView
from bloxopt.runtime.service.application import create_app
from bloxopt.simulation.fork import fork
from tests.runtime.recorded_world import RecordedWorld

LONG = 31 * 86_400.0


class Asked:
    """A world of two nodes, and what its scheduler answers."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.world = RecordedWorld(folder, **{"policy": "fifo", **settings})
        self.service = self.world.service
        for name in ("a", "b"):
            self.world.add(name, 4)
        self.world.beat()
        self.client = TestClient(create_app(self.service), raise_server_exceptions=False)
        self.token = self.service.tokens.create("admin", "root")[0]

    def get(self, job_id: str, **query: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        return self.client.get(f"/v1/jobs/{job_id}/explain", params=query, headers=headers)

    def here(self, job_id: str, remedies: bool, horizon: float) -> dict[str, Any]:
        """What a fork of the scheduler answers in this process."""
        scheduler, backend = self.service.loop._scheduler, self.service.backend
        assert scheduler is not None
        answer = explain(*fork(scheduler, backend.snapshot()), job_id, remedies=remedies, horizon=horizon)
        return ExplanationView.model_validate(answer.to_dict()).model_dump(mode="json")

    @property
    def pid(self) -> int:
        process = self.service.loop.explainer._process
        assert process is not None
        return process._process.pid

    def fill(self, jobs: int = 3_000) -> list[str]:
        """Jobs that run for years, and so many behind them that it takes long to look far ahead."""
        running = self.world.submit("ada", *[1] * 8, total_steps=1e9, duration=1e9)
        self.world.rounds(1)
        return running + self.world.submit("bob", *[1] * jobs, total_steps=1e9, duration=1e9)

    def end(self) -> None:
        self.service.loop.explainer.close()
        self.world.kill()


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    asked = Asked(tmp_path, policy="srtf")
    yield asked
    asked.end()


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "fifo"},
        {"policy": "las"},
        {"policy": "srtf", "admission": {"name": "quota", "options": {"gpus": 3}}},
        {"policy": "max_min_fairness"},
        {"policy": "max_min_fairness", "rounds": {"seconds": 10.0, "budget": 0.0, "solve_interval": 1e6}},
        {"policy": "max_sum_throughput", "selector": "exact"},
        {"policy": "shockwave"},
        {
            "policy": "fifo",
            "placement": {"name": "guaranteed_cells", "options": {"virtual_clusters": {"ada": {"node:A100": 1}}}},
        },
    ],
    ids=lambda settings: "-".join(str(value) for value in settings.values())[:40],
)
def test_the_answer_is_that_of_the_scheduler_itself(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Also for jobs that run, with what would help and when they start, and while a plan is in force."""
    asked = Asked(tmp_path, **settings)
    jobs = asked.world.submit("ada", 1, 2, 4, 2) + asked.world.submit("bob", 2, 1, 8, job_type="resnet")
    asked.world.rounds(3)
    jobs += asked.world.submit("eve", 16, 1, deadline_seconds=50.0)
    asked.world.rounds(1)
    reasons = set()
    for job_id in (job_id for job_id in jobs if job_id in asked.world.live.jobs):
        for remedies, horizon in ((False, 0.0), (True, 900.0)):
            answer = asked.get(job_id, remedies=remedies, horizon=horizon)
            assert answer.status_code == 200, answer.text
            assert answer.json() == asked.here(job_id, remedies, horizon)
            reasons.add(answer.json()["reason"])
    assert len(reasons) > 1
    asked.end()


def test_one_process_and_one_copy_serve_many_questions_and_each_moment_has_its_own(asked: Asked) -> None:
    running, *_, waits = asked.fill()
    asked.world.rounds(1)
    assert asked.get(waits).json()["ahead"] == 2_999
    pid, copied = asked.pid, asked.service.loop._copied
    assert asked.get(running).json()["reason"] == "running"
    assert asked.service.loop._copied is copied
    asked.world.live.cancel(running, "ada")
    asked.world.rounds(2)
    assert asked.get(waits).json()["ahead"] == 2_998
    assert asked.service.loop._copied is not copied
    assert asked.pid == pid


def test_what_takes_too_long_is_said_and_the_next_question_is_answered(asked: Asked) -> None:
    waits = asked.fill()[-1]
    asked.world.rounds(1)
    asked.service.loop.explainer.seconds = 1.0
    answer = asked.get(waits, horizon=LONG, remedies=True)
    assert answer.status_code == 409
    assert answer.json()["detail"] == (
        "the explanation took more than 1 s of processor time: ask without what would make it run now, or ask for a "
        "shorter horizon (0: the present round alone)"
    )
    assert asked.get(waits).json()["reason"] == "lower_priority"


def test_a_start_that_takes_too_long_to_find_leaves_the_rest_of_the_answer(asked: Asked) -> None:
    waits = asked.fill()[-1]
    asked.world.rounds(1)
    known = asked.get(waits).json()
    asked.service.loop.explainer.patience = 1.0
    answer = asked.get(waits, horizon=LONG)
    assert answer.status_code == 200
    assert answer.json() == known | {"detail": f"{known['detail']}; when it starts takes too long to work out"}


def test_a_copy_that_cannot_be_opened_is_never_answered_from_an_older_one(asked: Asked) -> None:
    waits = asked.fill()[-1]
    asked.world.rounds(1)
    explainer, loop = asked.service.loop.explainer, asked.service.loop
    good = loop.copy()
    assert good is not None
    assert explainer.answer(lambda: good, waits, False, 0.0) is not None
    damaged = replace(good, message=good.message[:-100])
    for _ in range(2):
        with pytest.raises(BloxoptError, match="the explanation failed"):
            explainer.answer(lambda: damaged, waits, False, 0.0)
    assert explainer.answer(lambda: good, waits, False, 0.0) is not None


def test_a_process_that_was_killed_is_made_again(asked: Asked) -> None:
    waits = asked.fill()[-1]
    asked.world.rounds(1)
    assert asked.get(waits).status_code == 200
    first = asked.pid
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert asked.get(waits).json()["reason"] == "lower_priority"
    assert asked.pid != first
    # While it works something out: that question has no answer.
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(asked.get(waits, horizon=LONG)))
    thread.start()
    time.sleep(1.0)
    os.kill(asked.pid, signal.SIGKILL)
    thread.join()
    assert answers[0].status_code == 409
    assert "exit code -9" in answers[0].json()["detail"]
    assert asked.get(waits).status_code == 200


def test_who_asks_while_many_wait_is_told_to_come_again(asked: Asked) -> None:
    waits = asked.fill()[-1]
    asked.world.rounds(1)
    asked.service.loop.explainer.seconds = 2.0
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(asked.get(waits, horizon=LONG)))]
    threads += [threading.Thread(target=lambda: answers.append(asked.get(waits))) for _ in range(12)]
    for thread in threads:
        thread.start()
        time.sleep(0.2 if thread is threads[0] else 0.0)
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} == {200, 409, 429}
    (busy, *_) = [answer for answer in answers if answer.status_code == 429]
    assert busy.headers["retry-after"] == "5"
    assert "other explanations are being worked out" in busy.json()["detail"]


def test_a_part_that_cannot_go_into_another_process_is_named(asked: Asked) -> None:
    waits = asked.fill()[-1]
    asked.world.rounds(1)
    scheduler = asked.service.loop._scheduler
    assert scheduler is not None
    scheduler.admission.own = threading.Lock()  # type: ignore[attr-defined]
    answer = asked.get(waits)
    assert answer.status_code == 409
    assert "the scheduler cannot be copied into another process: cannot pickle '_thread.lock'" in answer.text


SCHEDULER = """
import sys, threading, time
from pathlib import Path
from tests.runtime.test_explaining import LONG, Asked

asked = Asked(Path(sys.argv[1]), policy="srtf")
waits = asked.fill()[-1]
asked.world.rounds(1)
assert asked.get(waits).status_code == 200
threading.Thread(target=asked.get, args=(waits,), kwargs={"horizon": LONG}, daemon=True).start()
time.sleep(0.5)
print(asked.pid, flush=True)
time.sleep(60.0)
"""


def test_the_process_gives_way_and_ends_with_the_scheduler_in_the_middle_of_a_question(tmp_path: Path) -> None:
    scheduler = subprocess.Popen([sys.executable, "-c", SCHEDULER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert scheduler.stdout is not None
    pid = int(scheduler.stdout.readline())
    assert os.getpriority(os.PRIO_PROCESS, pid) >= 10
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert f"Max data size             {4 * 2**30}" in limits
    scheduler.kill()
    scheduler.wait()
    scheduler.stdout.close()
    for _ in range(100):
        if not _alive(pid):
            break
        time.sleep(0.1)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
