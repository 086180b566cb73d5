"""Heartbeats over HTTP: read at once where they are as they should be, and whatever they are, with one meaning."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bloxopt.runtime.messages import NAME_PATTERN, DesiredState, GpuInfo, Heartbeat, RunReport
from bloxopt.runtime.service.routes import PROBLEMS
from tests.runtime.service_world import World, running


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("service")) as world:
        yield world


GPU = '{"index": 0, "uuid": "GPU-0", "gpu_type": "A100"}'
HEARTBEAT = '{"node": "n1", "instance": "i", "sequence": 1, "address": "x", "gpus": [' + GPU + "]}"


def _beat(world: World, body: str | bytes, content_type: str | None = "application/json", who: str = "n1") -> Any:
    headers = {} if content_type is None else {"Content-Type": content_type}
    return world.call(who, "POST", "/v1/nodes/n1/heartbeat", content=body, headers=headers)


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (HEARTBEAT[:-1], "the body is not JSON: Expecting ',' delimiter at character"),
        (HEARTBEAT + "x", "the body is not JSON: Extra data at character"),
        ("", "the body: must be given"),
        ("[]", "the body: is []: must be an object"),
        (HEARTBEAT.replace('"instance"', '"instanze"'), "instance: must be given"),
        (HEARTBEAT.replace("{", '{"adress": 1, ', 1), "adress: unknown key: did you mean address?"),
        (HEARTBEAT.replace("{", '{"cpus": NaN, ', 1), "cpus: must be a finite number: JSON has no NaN and no Infinity"),
        (HEARTBEAT.replace("{", '{"cpus": 1e999, ', 1), "cpus: must be a finite number: JSON has no NaN"),
        (HEARTBEAT.replace('"index": 0', '"index": -1'), "gpus.0.index: is -1: input should be greater than or equal"),
        (HEARTBEAT.replace('"A100"', '"A 100"'), "gpus.0.gpu_type: is 'A 100': must consist of letters"),
        (HEARTBEAT.replace('"A100"', '"A\\ud800"'), "gpus.0.gpu_type: "),
        (HEARTBEAT.replace('"n1"', '"n2"'), "the heartbeat is of node 'n2', and was sent as one of 'n1'"),
    ],
)
def test_what_is_wrong_with_a_heartbeat_is_said_in_plain_words(world: World, text: str, detail: str) -> None:
    answer = _beat(world, text)
    assert answer.status_code == 422
    assert set(answer.json()) == {"detail"}
    assert answer.json()["detail"].startswith(detail), answer.text


def test_heartbeats_are_json_in_whatever_way_they_say_so(world: World) -> None:
    answers = [
        _beat(world, HEARTBEAT, content_type)
        for content_type in ("application/json", "Application/JSON; charset=utf-8", "application/beat+json")
    ]
    answers += [_beat(world, HEARTBEAT.encode(encoding)) for encoding in ("utf-8-sig", "utf-16", "utf-32")]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert set(answer.json()) == set(DesiredState.model_fields)
    for content_type in (None, "text/plain", "application/octet-stream", "application"):
        answer = _beat(world, HEARTBEAT, content_type)
        assert answer.status_code == 422
        assert answer.json()["detail"] == (
            "the body is not read as JSON: send it with the header Content-Type: application/json"
        )


def test_heartbeats_of_another_are_refused_in_words_that_do_not_depend_on_what_they_say(world: World) -> None:
    refusal = {"detail": "only the token of node 'n1' may do this"}
    for who in ("n2", "ada", "root"):
        answer = _beat(world, HEARTBEAT, who=who)
        assert (answer.status_code, answer.json()) == (403, refusal)
    answer = world.call("n1", "POST", "/v1/nodes/-n1/heartbeat", json=json.loads(HEARTBEAT))
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("path.name: is '-n1': must consist of letters")
    answer = world.client.post("/v1/nodes/n1/heartbeat", content=HEARTBEAT)
    assert (answer.status_code, answer.json()) == (401, {"detail": "a token is missing: send it as a bearer token"})


def test_a_heartbeat_that_cannot_be_is_a_conflict(world: World) -> None:
    answer = _beat(world, HEARTBEAT.replace(GPU, f"{GPU}, {GPU}"))
    assert answer.status_code == 409
    assert "reports a GPU twice" in answer.json()["detail"]


_NUMBERS = st.integers() | st.integers(-1, 2) | st.floats() | st.sampled_from([10**400, -(10**400), 2**64, 1e300])
_VALUES = st.recursive(
    _NUMBERS
    | st.none()
    | st.booleans()
    | st.text(max_size=5)
    | st.sampled_from(["1", " 1", "1.0", "nan", "yes", "up"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("01x. ", max_size=2), inner, max_size=2),
    max_leaves=4,
)
_RUN = {"job_id": "j", "attempt": 1, "state": "running"}


@given(st.data())
def test_a_heartbeat_is_read_at_once_as_it_would_be_read_thoroughly(data: st.DataObject) -> None:
    """For people there is one meaning of a body, whichever of the two ways it took."""
    document = {**json.loads(HEARTBEAT), "runs": [dict(_RUN)]}
    model, place = data.draw(
        st.sampled_from([(Heartbeat, document), (GpuInfo, document["gpus"][0]), (RunReport, document["runs"][0])])
    )
    place[data.draw(st.sampled_from([*model.model_fields, "unknown"]))] = data.draw(_VALUES)
    text = json.dumps(document, ensure_ascii=data.draw(st.booleans()))

    def read(how: Callable[[], Heartbeat]) -> str | None:
        try:
            return repr(how())
        except ValidationError:
            return None

    at_once = read(lambda: Heartbeat.model_validate_json(text.encode("utf-8", "surrogatepass")))
    assert at_once in (None, read(lambda: Heartbeat.model_validate(json.loads(text))))


def test_the_description_of_heartbeats_is_that_of_what_they_are_read_as(world: World) -> None:
    description = world.client.get("/openapi.json").json()
    operation = description["paths"]["/v1/nodes/{name}/heartbeat"]["post"]

    def schema(part: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = part["content"]["application/json"]["schema"]
        return found

    assert schema(operation["requestBody"]) == {"$ref": "#/components/schemas/Heartbeat"}
    assert operation["requestBody"]["required"]
    assert schema(operation["responses"]["200"]) == {"$ref": "#/components/schemas/DesiredState"}
    assert set(operation["responses"]) == {"200"} | {str(status) for status in PROBLEMS}
    assert all(
        schema(operation["responses"][str(status)]) == {"$ref": "#/components/schemas/Problem"} for status in PROBLEMS
    )
    (name,) = operation["parameters"]
    assert (name["in"], name["required"], name["schema"]["pattern"]) == ("path", True, NAME_PATTERN)
    assert operation["tags"] == ["nodes"]
    assert operation["description"].startswith("What an agent sees")
    schemas = description["components"]["schemas"]
    for model in (Heartbeat, GpuInfo, RunReport, DesiredState):
        assert schemas[model.__name__]["properties"].keys() == model.model_fields.keys()
