"""What versions that differ make of each other's messages: answers are read as far as known, requests wholly or not."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from bloxopt.runtime.messages import DesiredState, Heartbeat, JobSpec


def test_an_older_agent_goes_on_with_a_newer_scheduler() -> None:
    told = DesiredState(sequence=3, runs=[], forget=[], lease_seconds=60.0, heartbeat_seconds=5.0)
    newer = told.model_dump(mode="json") | {"invented_later": {"a": 1}}
    assert DesiredState.model_validate(newer) == told


@pytest.mark.parametrize("kind", [Heartbeat, JobSpec])
def test_an_older_scheduler_tells_a_newer_client_what_it_does_not_know(kind: type[Heartbeat | JobSpec]) -> None:
    with pytest.raises(ValidationError, match="invented_later"):
        kind.model_validate({"invented_later": 1})
