"""A service over HTTP, in this process, with tokens of every role."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from bloxopt.runtime.messages import DesiredState, Heartbeat
from bloxopt.runtime.service.application import create_app
from bloxopt.runtime.service.config import make_config
from bloxopt.runtime.service.service import Service
from tests.runtime.live_world import gpus

JOB: dict[str, Any] = {"command": ["train", "--fast"], "total_steps": 100.0, "duration": 100.0}


class World:
    """A running service, its client, and one token each of an admin, two users and two nodes."""

    def __init__(self, service: Service, client: TestClient) -> None:
        self.service, self.client = service, client
        made = {"root": "admin", "ada": "user", "bob": "user", "n1": "node", "n2": "node"}
        self.tokens = {name: service.tokens.create(role, name)[0] for name, role in made.items()}
        self.sequence = 0

    def call(self, who: str | None, method: str, path: str, **more: Any) -> Any:
        headers = dict(more.pop("headers", {}))
        if who is not None:
            headers["Authorization"] = f"Bearer {self.tokens.get(who, who)}"
        return self.client.request(method, path, headers=headers, **more)

    def submit(self, who: str = "ada", **more: Any) -> str:
        answer = self.call(who, "POST", "/v1/jobs", json=JOB | more)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["job_id"])

    def beat(self, node: str = "n1", runs: tuple[Any, ...] = (), count: int = 2) -> DesiredState:
        self.sequence += 1
        heartbeat = Heartbeat(
            node=node, instance="i", sequence=self.sequence, address="127.0.0.1", gpus=gpus(count), runs=list(runs)
        )
        answer = self.call(node, "POST", f"/v1/nodes/{node}/heartbeat", json=heartbeat.model_dump(mode="json"))
        assert answer.status_code == 200, answer.text
        return DesiredState.model_validate(answer.json())


@contextmanager
def running(folder: Path, **settings: Any) -> Iterator[World]:
    """A service with rounds of a tenth of a second."""
    document = {
        "policy": "fifo",
        "rounds": {"seconds": 0.2, "shortest": 0.05, "budget": 0.0},
        "leases": {"lease_seconds": 30.0, "heartbeat_seconds": 1.0, "lost_seconds": 20.0},
        **settings,
    }
    service = Service(make_config(document, folder))
    with TestClient(create_app(service), raise_server_exceptions=False) as client:
        yield World(service, client)
