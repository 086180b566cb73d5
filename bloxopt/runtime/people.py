"""A person's connection to a scheduler: where it is, with which token, and errors that say what to do."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from bloxopt.errors import BloxoptError, ConfigError, InputError
from bloxopt.runtime.answers import ComparisonView, EventView, ExplanationView, JobPage, NewToken, TokenView
from bloxopt.runtime.messages import JobView, NodeView

DEFAULT_URL = "http://127.0.0.1:8080"
URL_VARIABLE, TOKEN_VARIABLE = "BLOXOPT_SCHEDULER", "BLOXOPT_TOKEN"
TOKEN_FILE = Path("~/.config/bloxopt/token")
"""Read where the variable is not set; must be readable by its owner alone."""

_AUTHORITIES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_AWAY = (httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.GATEWAY_TIMEOUT)
"""What is answered, by the scheduler or by something before it, where asking again may help."""


class SchedulerError(BloxoptError):
    """The scheduler refused a request or could not be reached; the message says why."""


class AwayError(SchedulerError):
    """The scheduler could not be reached, or does not work at present: it may be back in a while."""


class People:
    """What a person asks of a scheduler, over HTTP.

    ``url`` (default: the variable BLOXOPT_SCHEDULER, else this machine) and ``token`` (default: the variable
    BLOXOPT_TOKEN, else ``~/.config/bloxopt/token``). Raises :class:`~bloxopt.errors.ConfigError` for an address that is
    none, certificates or a proxy that cannot be used, a token that is missing, or a token file that others can read;
    :class:`~bloxopt.errors.InputError` for what cannot be sent; and :class:`SchedulerError` for everything that the
    scheduler refuses or that is no answer of one, an :class:`AwayError` where asking again may help.
    """

    def __init__(self, url: str | None = None, token: str | None = None, timeout: float = 30.0) -> None:
        self.url = (url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")
        self._client = _client(_checked_address(self.url), _checked_token(token or _token()), timeout)

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
        """The answer to a question, as plain data of the shape that is known of it."""
        return self._data(self._asked("GET", path, params=query), shape_of("GET", path))

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        """The answer to a wish, as plain data of the shape that is known of it."""
        return self._data(self._asked("POST", path, json=body, headers=headers), shape_of("POST", path))

    def output(self, job_id: str, **query: Any) -> tuple[bytes, int, bool]:
        """A piece of a job's output, where to go on, and whether nothing can follow."""
        answer = self._asked("GET", f"/v1/jobs/{quote(job_id, safe='', errors='surrogatepass')}/logs", params=query)
        try:
            following = int(answer.headers["Bloxopt-Next-Offset"])
            complete = answer.headers["Bloxopt-Complete"] == "true"
        except (KeyError, ValueError):
            raise self._strange("does not say where the output goes on") from None
        return answer.content, following, complete

    def _asked(self, method: str, path: str, **parts: Any) -> httpx.Response:
        try:
            request = self._client.build_request(method, path, **parts)
        except (httpx.InvalidURL, ValueError) as error:
            raise InputError(
                f"this cannot be sent to a scheduler ({error}): numbers must be finite, and texts Unicode"
            ) from None
        try:
            answer = self._client.send(request)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise AwayError(
                f"the scheduler at {self.url} cannot be reached ({str(error) or type(error).__name__}): is it running? "
                f"{URL_VARIABLE} or --scheduler says where it is"
            ) from None
        except httpx.TimeoutException:
            raise AwayError(f"the scheduler at {self.url} did not answer in time: {_retry(method)}") from None
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise AwayError(f"the scheduler at {self.url} broke off ({why}): {_retry(method)}") from None
        except UnicodeError:
            raise ConfigError(_no_address(self.url)) from None
        if answer.is_success:
            return answer
        try:
            detail = str(answer.json()["detail"])
        except (ValueError, KeyError, TypeError, RecursionError):
            detail = f"answered {answer.status_code} and gave no reason: is it a bloxopt scheduler?"
        kind = AwayError if answer.status_code in _AWAY else SchedulerError
        raise kind(f"the scheduler at {self.url}: {detail}")

    def _data(self, answer: httpx.Response, shape: TypeAdapter[Any]) -> Any:
        try:
            data = answer.json()
            shape.validate_python(data)
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"]))
            raise self._strange(f"is not what was asked for{f' ({place})' if place else ''}") from None
        except (ValueError, RecursionError):
            raise self._strange("is not JSON") from None
        return data

    def _strange(self, what: str) -> SchedulerError:
        return SchedulerError(f"the scheduler at {self.url}: its answer {what}: is it a bloxopt scheduler?")


_ONE = "[^/]+"
_SHAPES: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/v1/jobs", JobPage),
    ("POST", "/v1/jobs", JobView),
    ("POST", "/v1/jobs/batch", list[JobView]),
    ("GET", f"/v1/jobs/{_ONE}", JobView),
    ("POST", f"/v1/jobs/{_ONE}/cancel", JobView),
    ("GET", f"/v1/jobs/{_ONE}/history", list[EventView]),
    ("GET", f"/v1/jobs/{_ONE}/explain", ExplanationView),
    ("GET", "/v1/nodes", list[NodeView]),
    ("GET", f"/v1/nodes/{_ONE}", NodeView),
    ("POST", f"/v1/nodes/{_ONE}/(un)?drain", NodeView),
    ("GET", "/v1/events", list[EventView]),
    ("POST", "/v1/whatif", ComparisonView),
    ("GET", "/v1/tokens", list[TokenView]),
    ("POST", "/v1/tokens", NewToken),
    ("POST", f"/v1/tokens/{_ONE}/revoke", TokenView),
    ("GET", "/healthz", dict[str, Any]),
)
"""What is answered where."""


def shape_of(method: str, path: str) -> TypeAdapter[Any]:
    """The shape of the answer to such a request."""
    return _adapter(next(n for n, (how, where, _) in enumerate(_SHAPES) if how == method and re.fullmatch(where, path)))


@cache
def _adapter(number: int) -> TypeAdapter[Any]:
    return TypeAdapter(_SHAPES[number][2])


def _retry(method: str) -> str:
    """What to do where a request may have arrived and its answer did not."""
    return "try again" if method == "GET" else "what was asked for may have happened: look before you ask again"


def _no_address(url: str) -> str:
    return f"scheduler {url!r} is no address: give one such as {DEFAULT_URL}"


def _checked_address(url: str) -> str:
    try:
        right = url.startswith(("http://", "https://")) and httpx.URL(url).host
    except httpx.InvalidURL:
        right = False
    if not right:
        raise ConfigError(_no_address(url))
    return url


def _checked_token(token: str) -> str:
    # What is wrong with it is not shown: it may be a token with something beside it.
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError("the token cannot be one: it is a single line of letters, digits, '.', '_' and '-'")
    return token


def _client(url: str, token: str, timeout: float) -> httpx.Client:
    try:
        return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=timeout)
    except OSError as error:
        named = next((name for name in _AUTHORITIES if os.environ.get(name)), _AUTHORITIES[0])
        raise ConfigError(
            f"{named} {os.environ.get(named)!r}: the certificates cannot be read: {error.strerror or error}"
        ) from None
    except (httpx.InvalidURL, ValueError, ImportError) as error:
        raise ConfigError(
            f"the proxy that HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or NO_PROXY names cannot be used: {error}"
        ) from None


def _token() -> str:
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if token:
        return token
    advice = f"set {TOKEN_VARIABLE}, or put it into"
    try:
        path = TOKEN_FILE.expanduser()
    except RuntimeError:  # an account without a home
        raise ConfigError(f"no token: {advice} {TOKEN_FILE} (mode 0600); an admin makes tokens") from None
    try:
        mode, token = path.stat().st_mode, path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        token, mode = "", 0
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: the token cannot be read: {reason}") from None
    if not token:
        raise ConfigError(f"no token: {advice} {path} (mode 0600); an admin makes tokens")
    if mode & 0o077:
        raise ConfigError(f"{path} can be read by others: chmod 600 {path}, and ask for a new token if it may be known")
    return token
