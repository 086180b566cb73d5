"""A person's connection to a scheduler: where it is, with which token, and errors that say what to do."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx

from bloxopt.errors import BloxoptError, ConfigError

DEFAULT_URL = "http://127.0.0.1:8080"
URL_VARIABLE, TOKEN_VARIABLE = "BLOXOPT_SCHEDULER", "BLOXOPT_TOKEN"
TOKEN_FILE = Path("~/.config/bloxopt/token")
"""Read where the variable is not set; must be readable by its owner alone."""


class SchedulerError(BloxoptError):
    """The scheduler refused a request or could not be reached; the message says why."""


class AwayError(SchedulerError):
    """The scheduler could not be reached, or does not work at present: it may be back in a while."""


class People:
    """What a person asks of a scheduler, over HTTP.

    ``url`` (default: the variable BLOXOPT_SCHEDULER, else this machine) and ``token`` (default: the variable
    BLOXOPT_TOKEN, else ``~/.config/bloxopt/token``). Raises :class:`~bloxopt.errors.ConfigError` for an address that is
    none, a token that is missing, or a token file that others can read, and :class:`SchedulerError` for everything that
    the scheduler refuses, an :class:`AwayError` where asking again may help.
    """

    def __init__(self, url: str | None = None, token: str | None = None, timeout: float = 30.0) -> None:
        self.url = (url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"scheduler {self.url!r} is no address: give one such as {DEFAULT_URL}")
        try:
            self._client = httpx.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {token or _token()}"},
                timeout=timeout,
            )
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise ConfigError(f"scheduler {self.url!r} or its token cannot be used: {error}") from None

    def __enter__(self) -> People:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def get(self, path: str, **query: Any) -> Any:
        """The answer to a question, as plain data."""
        return self._asked("GET", path, params=query).json()

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        """The answer to a wish, as plain data."""
        return self._asked("POST", path, json=body, headers=headers).json()

    def output(self, job_id: str, **query: Any) -> tuple[bytes, int, bool]:
        """A piece of a job's output, where to go on, and whether nothing can follow."""
        answer = self._asked("GET", f"/v1/jobs/{quote(job_id, safe='')}/logs", params=query)
        following = int(answer.headers["Bloxopt-Next-Offset"])
        return answer.content, following, answer.headers["Bloxopt-Complete"] == "true"

    def _asked(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, path, **request)
        except httpx.TimeoutException:
            raise AwayError(f"the scheduler at {self.url} did not answer in time: try again") from None
        except httpx.HTTPError as error:
            raise AwayError(
                f"the scheduler at {self.url} cannot be reached ({error}): is it running? {URL_VARIABLE} or "
                "--scheduler says where it is"
            ) from None
        if answer.is_success:
            return answer
        try:
            detail = str(answer.json()["detail"])
        except (ValueError, KeyError, TypeError):
            detail = f"answered {answer.status_code} and gave no reason: is it a bloxopt scheduler?"
        kind = AwayError if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE else SchedulerError
        raise kind(f"the scheduler at {self.url}: {detail}")


def _token() -> str:
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if token:
        return token
    path = TOKEN_FILE.expanduser()
    try:
        mode, token = path.stat().st_mode, path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        token, mode = "", 0
    if not token:
        raise ConfigError(f"no token: set {TOKEN_VARIABLE}, or put it into {path} (mode 0600); an admin makes tokens")
    if mode & 0o077:
        raise ConfigError(f"{path} can be read by others: chmod 600 {path}, and ask for a new token if it may be known")
    return token
