"""What people's commands expect of an answer is what the API says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bloxopt.runtime.people import shape_of
from bloxopt.runtime.service.application import create_app
from bloxopt.runtime.service.config import make_config

NOT_FOR_PEOPLE = {"/v1/nodes/{name}/heartbeat", "/v1/nodes/{name}/logs/{job_id}/{attempt}/{rank}", "/metrics"}
RAW = {"/v1/jobs/{job_id}/logs", "/v1/events", "/healthz"}
"""What is read another way, or said without a model."""


def _name(schema: dict[str, Any]) -> str:
    return str(schema["$ref"].rpartition("/")[2] if "$ref" in schema else schema.get("title", schema.get("type")))


def _shape(schema: dict[str, Any]) -> str:
    return f"list of {_name(schema['items'])}" if schema.get("type") == "array" else _name(schema)


def test_every_answer_has_the_shape_of_the_api(tmp_path: Path) -> None:
    app = create_app(make_config({}, tmp_path))
    try:
        paths = app.openapi()["paths"]
    finally:
        app.state.service.store.close()
    compared = 0
    for path, methods in paths.items():
        if path in NOT_FOR_PEOPLE | RAW:
            continue
        for method, said in methods.items():
            answers = [said["responses"][code] for code in ("200", "201") if code in said["responses"]]
            schema = answers[0]["content"]["application/json"]["schema"]
            example = "/".join("x" if part.startswith("{") else part for part in path.split("/"))
            assert _shape(schema) == _shape(shape_of(method.upper(), example).json_schema()), (method, path)
            compared += 1
    assert compared >= 14
