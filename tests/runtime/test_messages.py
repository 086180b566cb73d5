"""What versions that differ make of each other's messages: answers are read as far as known, requests wholly or not."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from bloxopt.runtime.messages import DesiredRun, DesiredState, Heartbeat, JobSpec, JobView


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
