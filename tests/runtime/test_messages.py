"""What versions that differ make of each other's messages: answers are read as far as known, requests wholly or not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from bloxopt.runtime.messages import DesiredRun, DesiredState, GpuInfo, Heartbeat, JobSpec, JobView


def test_an_older_agent_goes_on_with_a_newer_scheduler() -> None:
    told = DesiredState(sequence=3, runs=[], forget=[], lease_seconds=60.0, heartbeat_seconds=5.0)
    newer = told.model_dump(mode="json") | {"invented_later": {"a": 1}}
    assert DesiredState.model_validate(newer) == told


@pytest.mark.parametrize("kind", [JobView, DesiredRun])
def test_what_a_newer_version_has_invented_of_a_job_is_passed_over(kind: type[JobView | DesiredRun]) -> None:
    facts = {"job_id": "a", "user": "ada", "spec": {"command": ["true"]}, "attempt": 1}
    view = {"status": "pending", "submitted_at": 1.0}
    run = {"gpus": [0], "first_rank": 0, "world_size": 1, "node_rank": 0, "num_nodes": 1}
    run |= {"master_address": "a", "master_port": 20_000}
    known = facts | (view if kind is JobView else run)
    newer = known | {"spec": {"command": ["true"], "invented_later": {"a": 1}}}
    assert kind.model_validate(newer) == kind.model_validate(known)


@pytest.mark.parametrize("kind", [Heartbeat, JobSpec])
def test_an_older_scheduler_tells_a_newer_client_what_it_does_not_know(kind: type[Heartbeat | JobSpec]) -> None:
    with pytest.raises(ValidationError, match="invented_later"):
        kind.model_validate({"invented_later": 1})


def _without_bounds(schema: dict[str, Any], definitions: dict[str, Any], place: str) -> list[str]:
    """Places of a schema where a text may be of any length, a number of any size, or a list have any number."""
    if "$ref" in schema:
        return _without_bounds(definitions[schema["$ref"].rpartition("/")[2]], definitions, place)
    found = []
    bound = {
        "string": ("maxLength", "enum", "const"),
        "integer": ("maximum", "exclusiveMaximum"),
        "array": ("maxItems",),
    }
    needed = bound.get(schema.get("type", ""), ())
    if needed and not any(name in schema for name in needed):
        found.append(place)
    for name, part in schema.get("properties", {}).items():
        found += _without_bounds(part, definitions, f"{place}.{name}")
    for part in (*schema.get("anyOf", ()), *filter(None, [schema.get("items")])):
        found += _without_bounds(part, definitions, place)
    if isinstance(schema.get("additionalProperties"), dict):
        found += _without_bounds(schema["additionalProperties"], definitions, place)
        found += [] if "maxProperties" in schema else [place]
    return found


@pytest.mark.parametrize("kind", [Heartbeat, JobSpec])
def test_whatever_is_sent_has_bounds_within_which_it_can_be_stored_and_shown(kind: type[Heartbeat | JobSpec]) -> None:
    schema = kind.model_json_schema()
    assert _without_bounds(schema, schema.get("$defs", {}), kind.__name__) == []


GPU: dict[str, Any] = {"index": 0, "uuid": "GPU-0", "gpu_type": "A100"}


@pytest.mark.parametrize(
    "measured",
    [
        {"throttled": ["\ud800"]},
        {"mig_profiles": ["\ud800"]},
        {"pcie": {1: "\ud800"}},
        {"message": "\ud800"},
        {"uuid": "\ud800"},
        {"ecc_errors": 10**400},
        {"xid_errors": [10**400]},
        {"processes": [10**400]},
        {"links": {10**400: 1}},
        {"links": {1: 10**400}},
    ],
)
def test_what_could_not_be_stored_of_a_gpu_is_no_heartbeat(measured: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        GpuInfo.model_validate(GPU | measured)
    assert GpuInfo.model_validate(GPU | {"throttled": ["thermal"], "ecc_errors": 2**62, "links": {1: 12}})
