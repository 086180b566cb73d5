"""The HTTP service: what every route does, for whom, and what it answers to what it should not do."""

from __future__ import annotations

import hmac
import time
import types
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from bloxopt.runtime.messages import DesiredRun, JobView, NodeView, RunReport, RunState
from tests.runtime.service_world import JOB, World, running


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("service")) as world:
        world.beat("n1")
        world.beat("n2")
        yield world


def _wait_for_run(world: World, job_id: str, node: str = "n1") -> DesiredRun:
    for _ in range(100):
        for run in world.beat(node).runs:
            if run.job_id == job_id:
                return run
        time.sleep(0.05)
    raise AssertionError(f"{job_id} was not started")


def test_a_job_is_submitted_started_reported_and_done(world: World) -> None:
    world.beat()
    job_id = world.submit(name="whole", environment={"SECRET": "s"})
    run = _wait_for_run(world, job_id)
    assert run.user == "ada"
    assert run.spec.environment == {"SECRET": "s"}
    world.beat(runs=(RunReport(job_id=job_id, attempt=1, state=RunState.RUNNING, steps=50.0),))
    shown = JobView.model_validate(world.call("ada", "GET", f"/v1/jobs/{job_id}").json())
    assert shown.status == "running"
    assert shown.gpus == {"n1": run.gpus}
    for offset, data in ((0, b"one\n"), (0, b"one\ntwo\n"), (100, b"later\n")):
        path = f"/v1/nodes/n1/logs/{job_id}/1/0?offset={offset}"
        answer = world.call("n1", "POST", path, content=data)
        assert answer.json() == {"offset": 4 if data == b"one\n" else 8}
    answer = world.call("ada", "GET", f"/v1/jobs/{job_id}/logs?offset=4")
    assert (answer.content, answer.headers["bloxopt-next-offset"]) == (b"two\n", "8")
    assert answer.headers["bloxopt-complete"] == "false"
    began = time.monotonic()
    assert world.call("ada", "GET", f"/v1/jobs/{job_id}/logs?offset=8&wait=0.3").content == b""
    assert time.monotonic() - began > 0.25
    ended = RunReport(job_id=job_id, attempt=1, state=RunState.ENDED, exit_code=0, steps=100.0)
    assert world.beat(runs=(ended,)).forget == [(job_id, 1)]
    shown = JobView.model_validate(world.call("ada", "GET", f"/v1/jobs/{job_id}").json())
    assert (shown.status, shown.steps, shown.exit_code) == ("succeeded", 100.0, 0)
    assert world.call("ada", "GET", f"/v1/jobs/{job_id}/logs?offset=8").headers["bloxopt-complete"] == "true"
    kinds = [event["kind"] for event in world.call("ada", "GET", f"/v1/jobs/{job_id}/history").json()]
    assert kinds == ["job.submitted", "job.admitted", "attempt.started", "run.ended", "job.ended"]


def test_lists_are_paged_and_filtered(world: World) -> None:
    ids = [world.submit("bob", name="page", gpu_types=["None"]) for _ in range(5)]
    seen: list[str] = []
    cursor = ""
    while True:
        page = world.call("bob", "GET", f"/v1/jobs?limit=2&status=pending{cursor}").json()
        seen += [job["job_id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        cursor = f"&before={page['next']}"
    assert seen == ids[::-1]
    for job_id in ids:
        assert world.call("bob", "POST", f"/v1/jobs/{job_id}/cancel").json()["status"] == "cancelled"
    assert world.call("bob", "GET", "/v1/jobs?status=pending").json()["jobs"] == []


def test_many_jobs_are_submitted_together_or_not_at_all(world: World) -> None:
    answer = world.call("bob", "POST", "/v1/jobs/batch", json=[JOB, JOB | {"num_gpus": 2, "max_gpus": 1}])
    assert answer.status_code == 400
    assert "between min_gpus" in answer.json()["detail"]
    assert world.call("bob", "GET", "/v1/jobs?status=pending").json()["jobs"] == []
    headers = {"Idempotency-Key": "once"}
    first = world.call("bob", "POST", "/v1/jobs/batch", json=[JOB, JOB], headers=headers).json()
    again = world.call("bob", "POST", "/v1/jobs/batch", json=[JOB, JOB], headers=headers).json()
    assert [job["job_id"] for job in first] == [job["job_id"] for job in again]
    for job in first:
        world.call("bob", "POST", f"/v1/jobs/{job['job_id']}/cancel")


def test_a_waiting_job_is_explained(world: World) -> None:
    world.beat(count=2)
    job_id = world.submit(name="large", num_gpus=64)
    for _ in range(100):
        answer = world.call("ada", "GET", f"/v1/jobs/{job_id}/explain").json()
        if answer["reason"] not in ("not_submitted", "no_round"):
            break
        time.sleep(0.05)
    assert answer["reason"] == "fits_nowhere", answer
    assert "64 GPUs" in answer["detail"]
    world.call("ada", "POST", f"/v1/jobs/{job_id}/cancel")


def test_nodes_are_listed_drained_and_put_back(world: World) -> None:
    world.beat("n2")
    assert {node["name"] for node in world.call("ada", "GET", "/v1/nodes").json()} >= {"n2"}
    drained = NodeView.model_validate(world.call("root", "POST", "/v1/nodes/n2/drain").json())
    assert drained.state == "drained"
    assert world.call("root", "POST", "/v1/nodes/n2/undrain").json()["state"] == "up"
    assert world.call("root", "POST", "/v1/nodes/nowhere/drain").status_code == 404


def test_metrics_and_health_show_how_things_are(world: World) -> None:
    world.beat()
    assert world.call(None, "GET", "/healthz").json() == {"status": "ok"}
    text = world.call("root", "GET", "/metrics").text
    assert 'bloxopt_nodes{state="up"}' in text
    assert 'bloxopt_gpu_allocated{Hostname="n1",UUID="GPU-A100-0",gpu="0",modelName="A100"} 0.0' in text
    assert "bloxopt_gpu_temperature_celsius{" not in text, "what is unknown has no series"
    assert "bloxopt_round_duration_seconds_count" in text
    assert world.call("ada", "GET", "/metrics").status_code == 403


ROUTES = {
    ("POST", "/v1/jobs"): "person",
    ("POST", "/v1/jobs/batch"): "person",
    ("GET", "/v1/jobs"): "person",
    ("GET", "/v1/jobs/{job}"): "owner",
    ("POST", "/v1/jobs/{job}/cancel"): "owner",
    ("GET", "/v1/jobs/{job}/history"): "owner",
    ("GET", "/v1/jobs/{job}/explain"): "owner",
    ("GET", "/v1/jobs/{job}/logs"): "owner",
    ("GET", "/v1/nodes"): "person",
    ("GET", "/v1/nodes/n1"): "person",
    ("POST", "/v1/nodes/n1/drain"): "admin",
    ("POST", "/v1/nodes/n1/undrain"): "admin",
    ("POST", "/v1/nodes/n1/heartbeat"): "node",
    ("POST", "/v1/nodes/n1/logs/{job}/1/0?offset=0"): "node",
    ("GET", "/v1/tokens"): "admin",
    ("POST", "/v1/tokens"): "admin",
    ("POST", "/v1/tokens/00/revoke"): "admin",
    ("GET", "/v1/events"): "admin",
    ("POST", "/v1/whatif"): "admin",
    ("GET", "/metrics"): "admin",
}
ALLOWED = {
    "person": {"root", "ada", "bob"},
    "owner": {"root", "ada"},
    "admin": {"root"},
    "node": {"n1"},
}
BODIES = {
    "/v1/jobs": JOB | {"gpu_types": ["None"]},
    "/v1/jobs/batch": [JOB | {"gpu_types": ["None"]}],
    "/v1/tokens": {"role": "user", "subject": "eve"},
    "/v1/whatif": {"policy": "las", "horizon": -1.0},
}


def test_the_table_of_routes_is_complete(world: World) -> None:
    routes = {
        (method.upper(), path)
        for path, methods in world.client.get("/openapi.json").json()["paths"].items()
        for method in methods
    }
    known = {
        (method, path.partition("?")[0].replace("n1", "{name}").replace("{job}/1/0", "{job_id}/{attempt}/{rank}"))
        for method, path in ROUTES
    }
    known = {(method, path.replace("{job}", "{job_id}").replace("/00/", "/{token_id}/")) for method, path in known}
    assert known | {("GET", "/healthz")} == routes


@pytest.mark.parametrize(("method", "path"), list(ROUTES))
def test_every_route_is_only_for_those_it_is_for(world: World, method: str, path: str) -> None:
    job_id = world.submit(gpu_types=["None"])
    target = path.format(job=job_id)
    expired = world.service.tokens.create("admin", "old", -1.0)[0]
    revoked, record = world.service.tokens.create("admin", "gone")
    world.service.tokens.revoke(record.token_id)
    real_id = world.tokens["root"].partition(".")[0]
    admin = world.tokens["root"]
    nobodies = ["", "x", expired, revoked, f"{real_id}.wrong", f"{real_id}.", "..", "é" * 20, f"{admin}x", admin[:-1]]
    body = BODIES.get(path, [] if "heartbeat" in path else None)
    credentials: list[dict[str, str | bytes]] = [{"Authorization": f"Bearer {token}".encode()} for token in nobodies]
    credentials += [{}, {"Authorization": f"Basic {admin}"}, {"Authorization": admin}, {"X-Token": admin}]
    credentials += [{"Cookie": f"token={admin}"}, {"Authorization": ""}]
    for headers in credentials:
        answer = world.client.request(method, target, json=body, headers=headers)
        assert answer.status_code == 401, (headers, answer.text)
        assert set(answer.json()) == {"detail"}
        assert answer.headers["www-authenticate"] == "Bearer"
    told = {"params": {"token": admin, "access_token": admin, "authorization": f"Bearer {admin}"}}
    assert world.client.request(method, target, json=body, **told).status_code == 401, "a token in the address is none"
    for other in {"HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"}:
        assert world.client.request(other, target).status_code == 401
        assert world.call("root", other, target).status_code in (404, 405)
    for who in world.tokens:
        answer = world.call(who, method, target, json=body)
        if who in ALLOWED[ROUTES[method, path]]:
            assert answer.status_code in (200, 201, 404, 422), answer.text
            assert answer.status_code != 404 or path in ("/v1/tokens/00/revoke", "/v1/nodes/n1/logs/{job}/1/0?offset=0")
        else:
            # Another's job is as if there were none; a malformed body may be told before the role is looked at.
            assert answer.status_code in (403, 404, 422), answer.text
            assert (answer.status_code == 404) == (ROUTES[method, path] == "owner" and who == "bob")
            assert (answer.status_code != 422) or "heartbeat" in path
    world.service.live.cancel(job_id, "root")
    world.service.live.drain("n1", False, "root")


def test_what_everyone_may_ask_tells_nothing(world: World) -> None:
    job_id = world.submit(gpu_types=["None"], name="secret-name")
    for path in ("/healthz", "/openapi.json"):
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Bearer {world.tokens['n1']}"}):
            answer = world.client.get(path, headers=headers)
            assert answer.status_code == 200
            assert not any(word in answer.text for word in (job_id, "secret-name", "ada", *world.tokens.values()))
    for path in ("/docs", "/redoc", "/", "/v1", "/v1/", "/v1/jobs/", "/metrics/", "/healthz/", "//healthz", "/HEALTHZ"):
        assert world.client.get(path).status_code == 401, path
        assert world.call("root", "GET", path).status_code == 404, path
    world.service.live.cancel(job_id, "root")


def test_secrets_are_compared_in_constant_time_and_as_long_for_no_token(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, int]] = []

    def compare(one: str, other: str) -> bool:
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr("bloxopt.runtime.service.tokens.hmac", types.SimpleNamespace(compare_digest=compare))
    for token in (world.tokens["ada"], "nobody.secret", "x", world.tokens["ada"][:-1]):
        world.client.get("/v1/jobs", headers={"Authorization": f"Bearer {token}"})
    assert compared == [(64, 64)] * 4, "digests, once for each request, whether there is such a token or not"


def test_a_node_speaks_for_itself_alone(world: World) -> None:
    world.beat("n2")
    heartbeat = {"node": "n2", "instance": "i", "sequence": 999, "address": "x", "gpus": []}
    assert world.call("n1", "POST", "/v1/nodes/n2/heartbeat", json=heartbeat).status_code == 403
    assert world.call("n1", "POST", "/v1/nodes/n1/heartbeat", json=heartbeat).status_code == 422
    job_id = world.submit()
    _wait_for_run(world, job_id)
    assert world.call("n2", "POST", f"/v1/nodes/n2/logs/{job_id}/1/0?offset=0", content=b"x").status_code == 404
    assert world.call("n1", "POST", f"/v1/nodes/n1/logs/{job_id}/1/7?offset=0", content=b"x").status_code == 404
    world.call("ada", "POST", f"/v1/jobs/{job_id}/cancel")
    world.beat(runs=(RunReport(job_id=job_id, attempt=1, state=RunState.ENDED, preempted=True),))


@pytest.mark.parametrize(
    "name", ["../../etc", "a/b", "x'; DROP TABLE jobs; --", "", "a" * 64, "-rf", ".hidden", "ab\0c", "ab\n", "é"]
)
def test_names_are_never_paths_or_statements(world: World, name: str) -> None:
    for field in ("name", "job_type"):
        answer = world.call("ada", "POST", "/v1/jobs", json=JOB | {field: name})
        assert answer.status_code == 422, answer.text
        assert answer.json()["detail"].startswith(field)
    answer = world.call("root", "POST", "/v1/tokens", json={"role": "user", "subject": name})
    assert answer.status_code == 422
    for path in ("/v1/jobs/{}", "/v1/jobs/{}/logs", "/v1/nodes/{}", "/v1/jobs?before={}", "/v1/jobs?user={}"):
        answer = world.call("root", "GET", path.format(urllib.parse.quote(name, safe="")))
        assert answer.status_code in (404, 405, 422) or name == "", answer.text
    assert world.call("root", "GET", "/v1/jobs").status_code == 200


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"command": []}, "command"),
        ({"command": ["a\0b"]}, "NUL"),
        ({"command": [""]}, "command"),
        ({"workdir": "/data/../etc"}, "workdir"),
        ({"workdir": "relative"}, "workdir"),
        ({"environment": {"A=B": "x"}}, "environment"),
        ({"environment": {"LD PRELOAD": "x"}}, "environment"),
        ({"num_gpus": 0}, "num_gpus"),
        ({"num_gpus": 10**9}, "num_gpus"),
        ({"weight": 0}, "weight"),
        ({"unknown": 1}, "unknown"),
        ({"duration": "1e999"}, "duration"),
    ],
)
def test_what_cannot_be_a_job_is_refused_by_name(world: World, change: dict[str, object], field: str) -> None:
    answer = world.call("ada", "POST", "/v1/jobs", json=JOB | change)
    assert answer.status_code in (400, 422)
    assert field in answer.json()["detail"]


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (
            '{"command": ["x"], "name": "a b"}',
            "name: is 'a b': must consist of letters, digits, '.', '_' and '-', and begin with a letter or digit",
        ),
        ('{"command": ["x"], "num_gpu": 2}', "num_gpu: unknown key: did you mean num_gpus?"),
        ('{"command": ["x"], "duration": NaN}', "duration: must be a finite number: JSON has no NaN and no Infinity"),
        ('{"command": ["x"],, }', "the body is not JSON: Expecting property name enclosed in double quotes"),
        ('["x"]', "the body: is ['x']: must be an object"),
    ],
)
def test_what_is_wrong_with_a_body_is_said_in_plain_words(world: World, text: str, detail: str) -> None:
    answer = world.call("ada", "POST", "/v1/jobs", content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(detail)
    assert "application/json" in world.call("ada", "POST", "/v1/jobs", content=text).json()["detail"]


def test_what_a_key_of_a_submission_consists_of_is_said(world: World) -> None:
    answer = world.call("ada", "POST", "/v1/jobs", json=JOB, headers={"Idempotency-Key": "a b"})
    assert answer.status_code == 422
    assert answer.json()["detail"].endswith("is 'a b': must consist of 1 to 64 letters, digits, '.', '_' and '-'")


@pytest.mark.parametrize(
    "text",
    [
        '{"command": ["x"], "num_gpus": ' + "9" * 4000 + "}",
        '{"command": ["x"], "num_gpus": ' + "9" * 100_000 + "}",
        '{"command": ["x"], "duration": 1e400}',
        '{"command": ["x"], "duration": NaN}',
        '{"command": ["x"], "weight": -Infinity}',
        '{"command": ["x"], "total_steps": "1"}x',
        '{"command": ["x"], "environment": ' + '{"a":' * 2000 + "1" + "}" * 2000 + "}",
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"command": ' + "[" * 50_000 + "]" * 50_000 + "}",
        '{"command": ["x"], "\\u0000": 1}',
        '{"command": ["x"], "environment": {"A\\u0000": "1"}}',
        '{"command": ["x"], "environment": {"A": "1\\u0000"}}',
        '{"command": ["x"], "workdir": "/tmp\\u0000"}',
        '{"command": ["x\\ud800"]}',
        '{"command": "rm -rf /"}',
        '{"command": [["x"]]}',
        '{"command": ["x"], "num_gpus": 1.5}',
        '{"command": ["x"], "__class__": {}}',
        "",
        "null",
        "0",
        '"x"',
    ],
)
def test_bodies_that_are_no_jobs_are_refused_whatever_is_in_them(world: World, text: str) -> None:
    for path, body in (("/v1/jobs", text), ("/v1/jobs/batch", f"[{text}]")):
        answer = world.call("ada", "POST", path, content=body.encode(), headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422), answer.text
        assert set(answer.json()) == {"detail"}
        assert len(answer.json()["detail"]) < 1000


def test_of_a_key_that_comes_twice_the_last_holds_and_is_what_is_shown(world: World) -> None:
    text = '{"command": ["first"], "name": "a", "command": ["last"], "name": "b", "gpu_types": ["None"]}'
    answer = world.call("ada", "POST", "/v1/jobs", content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code == 201
    job = answer.json()
    assert (job["spec"]["command"], job["spec"]["name"]) == (["last"], "b")
    assert world.call("ada", "GET", f"/v1/jobs/{job['job_id']}").json()["spec"] == job["spec"]
    world.service.live.cancel(job["job_id"], "root")


@pytest.mark.parametrize(
    "query",
    [
        "/v1/jobs?limit=" + "9" * 5000,
        "/v1/jobs?limit=-1",
        "/v1/jobs?limit=1e3",
        "/v1/jobs?before=" + "9" * 100,
        "/v1/jobs?before=1.0_%27%3B--",
        "/v1/jobs?status=running&status=everything",
        "/v1/jobs?" + "&".join(["status=running"] * 50),
        "/v1/events?after=" + "9" * 50,
        "/v1/events?subject=%00",
        "/v1/events?subject=%27%20OR%201%3D1",
        "/v1/jobs/{job}/logs?offset=" + "9" * 30,
        "/v1/jobs/{job}/logs?rank=-1",
        "/v1/jobs/{job}/logs?attempt=99999999999",
        "/v1/jobs/{job}/logs?wait=inf",
        "/v1/jobs/{job}/logs?limit=999999999",
        "/v1/jobs/{job}/explain?horizon=nan",
    ],
)
def test_questions_that_cannot_be_are_refused(world: World, query: str) -> None:
    job_id = world.submit(gpu_types=["None"])
    answer = world.call("root", "GET", query.format(job=job_id))
    assert answer.status_code == 422, answer.text
    assert set(answer.json()) == {"detail"}
    world.service.live.cancel(job_id, "root")


def test_malformed_and_oversized_bodies_are_refused(tmp_path: Path) -> None:
    with running(tmp_path, limits={"request_bytes": 2048}) as world:
        for body in (b"", b"{", b"null", b"[" * 1000, b"\xff\xfe", b'{"command": "x"}', b'{"command": ["\\ud800"]}'):
            answer = world.call("ada", "POST", "/v1/jobs", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code in (400, 422), (body, answer.text)
            assert set(answer.json()) == {"detail"}
        answer = world.call("ada", "POST", "/v1/jobs", content=b" " * 4096)
        assert answer.status_code == 413
        chunks = (b" " * 512 for _ in range(100))
        assert world.call("ada", "POST", "/v1/jobs", content=chunks).status_code == 413
        assert world.call("ada", "GET", "/v1/nothing").status_code == 404
        assert world.call("ada", "PUT", "/v1/jobs").status_code == 405


def test_who_asks_too_much_is_told_to_wait(tmp_path: Path) -> None:
    with running(tmp_path, limits={"requests_per_second": 1.0, "burst": 3}) as world:
        codes = [world.call("ada", "GET", "/v1/jobs").status_code for _ in range(5)]
        assert codes == [200, 200, 200, 429, 429]
        assert world.call("bob", "GET", "/v1/jobs").status_code == 200, "each token has its own limit"
        assert int(world.call("ada", "GET", "/v1/jobs").headers["retry-after"]) >= 1


def test_a_store_that_fails_shows_as_one_sentence_and_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bloxopt.errors import StoreError
    from bloxopt.runtime.store import Change, Store

    def fails(store: Store, change: Change) -> None:
        raise StoreError("disk /secret/path is full")

    with running(tmp_path) as world:
        with monkeypatch.context() as patch:
            patch.setattr(Store, "commit", fails)
            answer = world.call("ada", "POST", "/v1/jobs", json=JOB)
            assert answer.status_code == 503
            assert "secret" not in answer.text
        assert world.call("ada", "POST", "/v1/jobs", json=JOB).status_code == 201

        def breaks(store: Store, change: Change) -> None:
            raise ZeroDivisionError("secret")

        with monkeypatch.context() as patch:
            patch.setattr(Store, "commit", breaks)
            answer = world.call("ada", "POST", "/v1/jobs", json=JOB)
            assert answer.status_code == 500
            assert "secret" not in answer.text
            assert "Traceback" not in answer.text
