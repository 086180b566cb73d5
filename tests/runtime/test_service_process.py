"""A real scheduler process over a real socket: tokens, TLS-free start and end, and kill -9 wherever it writes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest

from bloxopt.runtime.live import Clock
from bloxopt.runtime.messages import DesiredState, JobStatus
from bloxopt.runtime.replay import read_log, replay
from bloxopt.runtime.service.command import configured, new_admin_token
from bloxopt.runtime.service.logs import LogFolder
from bloxopt.runtime.service.tokens import Tokens
from bloxopt.runtime.store import Store
from tests.runtime.live_world import MovedClock, PlayedAgent, gpus, spec

CONFIG = """
policy = "fifo"
database = "live.db"

[rounds]
seconds = 0.3
shortest = 0.05
budget = 0.0

[leases]
lease_seconds = 20.0
heartbeat_seconds = 0.2
lost_seconds = 5.0
margin_seconds = 0.5
"""

HELPER = str(Path(__file__).with_name("crashing_scheduler.py"))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def scheduler(*command: str, port: int, stderr: IO[bytes] | int = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
    """The process, from when it answers; killed at the end if it still runs."""
    process = subprocess.Popen([sys.executable, *command], stderr=stderr, stdout=subprocess.DEVNULL)
    try:
        for _ in range(300):
            try:
                httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=2.0)
                break
            except httpx.TransportError:
                if process.poll() is not None:
                    break
                time.sleep(0.05)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def test_the_command_serves_writes_its_first_token_and_ends_on_sigterm(tmp_path: Path) -> None:
    config, token_file, port = tmp_path / "scheduler.toml", tmp_path / "admin.token", _free_port()
    config.write_text(CONFIG)
    command = ["-m", "bloxopt.cli", "scheduler", "--config", str(config), "--port", str(port)]
    with scheduler(*command, "--admin-token-file", str(token_file), port=port) as process:
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "live.db").stat().st_mode) == 0o600
        headers = {"Authorization": f"Bearer {token_file.read_text().strip()}"}
        url = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{url}/v1/jobs", headers=headers).json() == {"jobs": [], "next": None}
        assert httpx.get(f"{url}/v1/jobs").status_code == 401
        second = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 2
        assert "in use by another scheduler" in second.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) in (0, -signal.SIGTERM)


def test_who_follows_output_does_not_keep_it_from_ending_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    config, token_file, port = tmp_path / "scheduler.toml", tmp_path / "admin.token", _free_port()
    config.write_text(CONFIG)
    command = ["-m", "bloxopt.cli", "scheduler", "--config", str(config), "--port", str(port)]
    command += ["--admin-token-file", str(token_file)]
    url = f"http://127.0.0.1:{port}"
    with (tmp_path / "scheduler.log").open("wb") as told, scheduler(*command, port=port, stderr=told) as process:
        token = token_file.read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        job = httpx.post(f"{url}/v1/jobs", headers=headers, json={"command": ["true"]}).json()["job_id"]
        output = LogFolder(tmp_path / "logs", 2**20)
        output.append(job, 0, 0, 0, b"before\n")
        reader = subprocess.Popen(
            [sys.executable, "-m", "bloxopt.cli", "logs", "--follow", job],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "BLOXOPT_SCHEDULER": url, "BLOXOPT_TOKEN": token},
        )
        assert reader.stdout is not None
        assert reader.stdout.readline() == "before\n"
        time.sleep(1.0)  # by now it waits for more
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) in (0, -signal.SIGTERM)
    log = (tmp_path / "scheduler.log").read_text()
    assert "Traceback" not in log
    assert '"level": "error"' not in log
    with scheduler(*command, port=port, stderr=subprocess.DEVNULL):
        output.append(job, 0, 0, 7, b"after\n")
        assert reader.stdout.readline() == "after\n"
        assert httpx.post(f"{url}/v1/jobs/{job}/cancel", headers=headers).status_code == 200
        out, errors = reader.communicate(timeout=60)
    assert (reader.returncode, out) == (0, "")
    assert errors.count("\n") == 1
    assert "does not answer" in errors


def test_nodes_are_listed_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    config, token_file, port = tmp_path / "scheduler.toml", tmp_path / "admin.token", _free_port()
    config.write_text(CONFIG)
    command = ["-m", "bloxopt.cli", "scheduler", "--config", str(config), "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with scheduler(*command, "--admin-token-file", str(token_file), port=port, stderr=subprocess.DEVNULL):
        token = token_file.read_text().strip()
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}) as client:
            for name in ("node-10", "node-2", "node-1"):
                secret = client.post("/v1/tokens", json={"role": "node", "subject": name}).json()["token"]
                heartbeat = PlayedAgent(MovedClock(), name, gpus(1)).heartbeat().model_dump(mode="json")
                headers = {"Authorization": f"Bearer {secret}"}
                assert client.post(f"/v1/nodes/{name}/heartbeat", json=heartbeat, headers=headers).status_code == 200
        listed = subprocess.run(
            [sys.executable, "-m", "bloxopt.cli", "nodes"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "BLOXOPT_SCHEDULER": url, "BLOXOPT_TOKEN": token},
        ).stdout
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["node-1", "node-2", "node-10"]


class RemoteWorld:
    """Agents that speak to a scheduler process over HTTP; what it does not answer is lost."""

    def __init__(self, port: int, tokens: dict[str, str], gpus_each: int = 2) -> None:
        self.url, self.tokens = f"http://127.0.0.1:{port}", tokens
        self.clock = MovedClock()
        self.agents = [PlayedAgent(self.clock, name, gpus(gpus_each), stopping=1.0) for name in ("a", "b")]
        self.client = httpx.Client(timeout=5.0)

    def request(self, who: str, method: str, path: str, **more: object) -> httpx.Response | None:
        headers = {"Authorization": f"Bearer {self.tokens[who]}", **dict(more.pop("headers", {}))}  # type: ignore[call-overload]
        try:
            answer = self.client.request(method, self.url + path, headers=headers, **more)  # type: ignore[arg-type]
        except httpx.TransportError:
            return None
        assert answer.status_code < 500 or answer.status_code == 503, answer.text
        return answer

    def beat(self) -> bool:
        """One heartbeat of each; False if the scheduler is gone."""
        self.clock.move(1.0)
        there = True
        for agent in self.agents:
            agent.advance()
            heartbeat = agent.heartbeat().model_dump(mode="json")
            answer = self.request(agent.node, "POST", f"/v1/nodes/{agent.node}/heartbeat", json=heartbeat)
            if answer is not None and answer.status_code == 200:
                agent.converge(DesiredState.model_validate(answer.json()))
            there = there and answer is not None
        alive: dict[str, set[int]] = {}
        for agent in self.agents:
            for job_id, attempt in agent.busy().values():
                alive.setdefault(job_id, set()).add(attempt)
        assert all(len(attempts) == 1 for attempts in alive.values()), alive
        return there


def _tokens(folder: Path) -> dict[str, str]:
    store = Store(str(folder / "live.db"))
    tokens = Tokens(store, Clock())
    made = {name: tokens.create(role, name)[0] for name, role in {"ada": "user", "a": "node", "b": "node"}.items()}
    store.close()
    return made


def _killed_again_and_again(folder: Path, seed: int, crashes: int) -> None:
    """Jobs come and run while the scheduler dies at commits drawn from ``seed``; then it stays, and all end."""
    draw = random.Random(seed)
    config, port = folder / "scheduler.toml", _free_port()
    config.write_text(CONFIG)
    world = RemoteWorld(port, _tokens(folder))
    keys = iter(range(10_000))
    submitted: dict[str, str] = {}
    unanswered: list[str] = []

    def submit(key: str) -> None:
        size = 1 + int(key) % 4
        body = spec(10.0 * size, size if size != 3 else 2, name=f"job-{key}").model_dump(mode="json")
        answer = world.request("ada", "POST", "/v1/jobs", json=body, headers={"Idempotency-Key": key})
        if answer is not None and answer.status_code == 201:
            submitted[key] = answer.json()["job_id"]
        else:
            unanswered.append(key)

    for crash in range(crashes + 1):
        last = crash == crashes
        point = ["1000000", "after"] if last else [str(draw.randint(2, 25)), draw.choice(["before", "after"])]
        with scheduler(HELPER, str(config), str(port), *point, port=port) as process:
            for key in list(unanswered):
                unanswered.remove(key)
                submit(key)
            for step in range(2000):
                if not world.beat():
                    break
                # More come where the first are over before it has died: how often it stores depends on how fast it is.
                if not last and step % 3 == 0 and len(submitted) < 2 * crash + 3 + step // 100:
                    submit(str(next(keys)))
                if last and step % 10 == 0:
                    answer = world.request(
                        "ada", "GET", "/v1/jobs?status=pending&status=running&status=starting&status=stopping"
                    )
                    if answer is not None and not answer.json()["jobs"]:
                        break
                time.sleep(0.02)
            else:
                raise AssertionError("jobs are not over, or the scheduler did not die")
            assert last or process.wait(timeout=10) == -signal.SIGKILL
    after = Store(str(folder / "live.db"))
    jobs = {job.job_id: job for job in after.jobs(limit=1000)}
    assert set(submitted.values()) == set(jobs), "no job is lost, and none is there twice"
    for job in jobs.values():
        assert job.status is JobStatus.SUCCEEDED
        assert job.steps == job.spec.total_steps
        runs = after.runs(job.job_id)
        assert all(run.ended for run in runs)
        assert sorted({run.attempt for run in runs}) == list(range(1, job.attempt + 1))
    assert len(jobs) >= crashes
    assert not any(agent.busy() for agent in world.agents)
    after.close()


def test_killed_wherever_it_writes_it_loses_no_job_and_runs_none_twice(tmp_path: Path) -> None:
    _killed_again_and_again(tmp_path, seed=1, crashes=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_killed_at_many_more_points_too(tmp_path: Path, seed: int) -> None:
    _killed_again_and_again(tmp_path, seed, crashes=12)


def test_a_round_that_was_stored_in_part_goes_on_and_what_was_recorded_replays(tmp_path: Path) -> None:
    config, port = tmp_path / "scheduler.toml", _free_port()
    config.write_text(CONFIG)
    jobs = 300
    world = RemoteWorld(port, _tokens(tmp_path), gpus_each=jobs // 2)
    with scheduler(HELPER, str(config), str(port), "1", "part", port=port) as process:
        for _ in range(3):
            assert world.beat()
        specs = [spec(20.0, name=f"job-{number}").model_dump(mode="json") for number in range(jobs)]
        submission = {"json": specs, "headers": {"Idempotency-Key": "all"}}
        world.request("ada", "POST", "/v1/jobs/batch", **submission)
        assert process.wait(timeout=30) == -signal.SIGKILL
    store = Store(str(tmp_path / "live.db"))
    kept = store.jobs(limit=1000)
    begun = {job.job_id for job in kept if job.attempt}
    recorded = [event for _, event in store.events(kinds=["round"], limit=1000)]
    store.close()
    assert len(kept) == jobs, "the round would have admitted and started all of them"
    assert 0 < len(begun) < jobs
    assert not any("started" in event.data or "admitted" in event.data for event in recorded)

    with scheduler(HELPER, str(config), str(port), "1000000", "after", port=port):
        again = world.request("ada", "POST", "/v1/jobs/batch", **submission)
        assert again is not None
        assert {job["job_id"] for job in again.json()} == {job.job_id for job in kept}
        for _ in range(500):
            assert world.beat()
            left = world.request(
                "ada", "GET", "/v1/jobs?status=pending&status=running&status=starting&status=stopping&limit=1"
            )
            if left is not None and not left.json()["jobs"]:
                break
            time.sleep(0.02)
        else:
            raise AssertionError("jobs are not over")
    store = Store(str(tmp_path / "live.db"))
    ended = store.jobs(limit=1000)
    assert {job.job_id for job in ended} == {job.job_id for job in kept}
    for job in ended:
        (run,) = store.runs(job.job_id)
        assert (job.status, job.steps, job.attempt) == (JobStatus.SUCCEEDED, 20.0, 1)
        assert run.done
    recorded = [event for _, event in store.events(kinds=["round"], limit=1000)]
    store.close()
    assert not any(agent.busy() for agent in world.agents)
    started = [job_id for event in recorded for job_id in event.data.get("started", ())]
    assert sorted(started) == sorted(job.job_id for job in kept if job.job_id not in begun), "of the rounds on record"
    report = replay(read_log(tmp_path / "live.db"))
    assert report.rounds == report.identical == len(recorded)
    assert (report.first, report.last, report.difference) == (1, len(recorded), None)


def test_an_admin_token_cannot_be_made_behind_a_running_schedulers_back(tmp_path: Path) -> None:
    (tmp_path / "scheduler.toml").write_text(CONFIG)
    config = configured(tmp_path / "scheduler.toml", None, None, None, None)
    token = new_admin_token(config)
    store = Store(config.database)
    caller = Tokens(store, Clock()).caller(token)
    assert caller is not None
    assert caller.is_admin
    assert token not in (tmp_path / "live.db").read_bytes().decode("latin-1")
    with pytest.raises(Exception, match="in use by another scheduler"):
        new_admin_token(config)
    store.close()


def test_tls_is_served_and_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    key, certificate, port = tmp_path / "key.pem", tmp_path / "certificate.pem", _free_port()
    request = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*request, *names], check=True, capture_output=True)
    (tmp_path / "scheduler.toml").write_text(CONFIG)
    command = ["-m", "bloxopt.cli", "scheduler", "--config", str(tmp_path / "scheduler.toml"), "--port", str(port)]
    wrong = subprocess.run(
        [sys.executable, *command, "--tls-certificate", str(key), "--tls-key", str(certificate)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert wrong.returncode == 2
    assert "cannot be used" in wrong.stderr
    tls = ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    process = subprocess.Popen([sys.executable, *command, *tls], stderr=subprocess.DEVNULL)
    try:
        trusted = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(verify=trusted) as client:
            for _ in range(300):
                try:
                    assert client.get(f"https://127.0.0.1:{port}/healthz").status_code in (200, 503)
                    break
                except httpx.TransportError:
                    assert process.poll() is None
                    time.sleep(0.05)
            else:
                raise AssertionError("it did not answer")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/healthz")
    finally:
        process.kill()
        process.wait()
