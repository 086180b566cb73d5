"""Talking to the scheduler: heartbeats and logs over HTTP."""

from __future__ import annotations

import ssl

import httpx
from pydantic import ValidationError

from bloxopt.errors import BloxoptError, ConfigError
from bloxopt.runtime.agent.config import AgentConfig
from bloxopt.runtime.agent.runs import RunKey
from bloxopt.runtime.agent.upload import LogRefusedError
from bloxopt.runtime.messages import DesiredState, Heartbeat

_GONE = (400, 404, 409, 410, 422)
"""Answers to a log that will not become better by asking again."""


class ConnectionLostError(BloxoptError, OSError):
    """The scheduler cannot be reached, refuses, or answers what cannot be understood."""


class SchedulerConnection:
    """One node's connection. Raises ConfigError for certificates that cannot be read."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._client = httpx.Client(
            base_url=config.scheduler.rstrip("/"),
            timeout=config.patience_seconds,
            verify=_authorities(config),
            trust_env=False,
        )

    def close(self) -> None:
        self._client.close()

    def beat(self, heartbeat: Heartbeat) -> DesiredState:
        """Raises ConnectionLostError."""
        answer = self._post(
            f"/v1/nodes/{self._config.node}/heartbeat",
            heartbeat.model_dump_json().encode(),
            {"Content-Type": "application/json"},
        )
        if answer.status_code != 200:
            raise ConnectionLostError(f"the scheduler answered {answer.status_code}: {answer.text[:500]}")
        try:
            return DesiredState.model_validate_json(answer.content)
        except ValidationError as error:
            raise ConnectionLostError(f"the scheduler's answer cannot be read: {error.errors()[0]}") from None

    def send_log(self, key: RunKey, rank: int, offset: int, data: bytes) -> int:
        """How much of the log the scheduler has then. Raises ConnectionLostError and LogRefusedError."""
        answer = self._post(
            f"/v1/nodes/{self._config.node}/logs/{key[0]}/{key[1]}/{rank}?offset={offset}",
            data,
            {"Content-Type": "application/octet-stream"},
        )
        if answer.status_code in _GONE:
            raise LogRefusedError(f"the scheduler answered {answer.status_code}: {answer.text[:500]}")
        if answer.status_code != 200:
            raise ConnectionLostError(f"the scheduler answered {answer.status_code}: {answer.text[:500]}")
        try:
            return int(answer.json()["offset"])
        except (ValueError, KeyError, TypeError):
            raise ConnectionLostError("the scheduler's answer to a log cannot be read") from None

    def _post(self, path: str, data: bytes, headers: dict[str, str]) -> httpx.Response:
        try:
            token = self._config.bearer
            if token:
                headers["Authorization"] = f"Bearer {token}"
            return self._client.post(path, content=data, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL, ConfigError, UnicodeEncodeError) as error:
            raise ConnectionLostError(f"the scheduler cannot be reached: {error or type(error).__name__}") from None


def _authorities(config: AgentConfig) -> ssl.SSLContext | bool:
    if config.scheduler.startswith("http://"):
        # Loading the system's authorities takes longer than all the rest of an agent's start.
        return False
    try:
        return ssl.create_default_context(cafile=config.certificates)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"certificates {config.certificates}: {error}") from None
