"""A scheduler process under hostile connections: floods, trickles and lies are refused and logged, and stop nobody."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.runtime.test_service_process import _free_port, scheduler

PATIENCE = 2.0
CONFIG = f"""
policy = "fifo"
[limits]
request_bytes = 4096
request_seconds = {PATIENCE}
"""


class Target:
    """A scheduler process, and raw connections to it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port, self._log = port, folder / "log"
        self.token = (folder / "admin.token").read_text().strip()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def head(self, method: str = "POST", path: str = "/v1/jobs", token: str | None = None, **headers: str) -> bytes:
        """The head of a request that would be let in."""
        fields = {"Host": "x", "Authorization": f"Bearer {token or self.token}", "Content-Type": "application/json"}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        return "\r\n".join(lines).encode()

    def ask(self, *parts: bytes) -> bytes:
        """All that comes back until the connection is closed, or an answer is complete."""
        with self.connect() as connection:
            try:
                for part in parts:
                    connection.sendall(part)
            except OSError:
                pass  # it hung up before it had heard all
            return _answer(connection)

    def ask_all(self, *parts: bytes) -> bytes:
        """All that comes back until the connection is closed, which it is."""
        with self.connect() as connection:
            data = b""
            try:
                for part in parts:
                    connection.sendall(part)
                    time.sleep(0.02)
                while piece := connection.recv(65_536):
                    data += piece
            except ConnectionError:
                pass  # it hung up before it had heard all
            return data

    def works(self) -> bool:
        answer = httpx.get(
            f"http://127.0.0.1:{self.port}/v1/jobs", headers={"Authorization": f"Bearer {self.token}"}, timeout=30
        )
        return answer.status_code == 200

    def log(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]


def _answer(connection: socket.socket) -> bytes:
    data = b""
    try:
        while piece := connection.recv(65_536):
            data += piece
            length = re.search(rb"content-length: (\d+)", data)
            if length and len(data.partition(b"\r\n\r\n")[2]) >= int(length[1]):
                break
    except OSError:
        pass
    return data


def _status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder, port = tmp_path_factory.mktemp("target"), _free_port()
    (folder / "s.toml").write_text(CONFIG)
    command = ["-m", "bloxopt.cli", "scheduler", "-c", str(folder / "s.toml"), "--port", str(port)]
    with (
        (folder / "log").open("wb") as log,
        scheduler(*command, "--admin-token-file", str(folder / "admin.token"), port=port, stderr=log),
    ):
        yield Target(folder, port)


@pytest.fixture(autouse=True)
def _nobody_else_notices(target: Target) -> Iterator[None]:
    yield
    assert target.works()
    assert not any("exception" in line for line in target.log())
    assert not any(line["level"] == "error" for line in target.log())


def _closed_after(connection: socket.socket) -> float:
    began = time.monotonic()
    _answer(connection)
    return time.monotonic() - began


def test_whoever_says_nothing_or_little_is_hung_up_on(target: Target) -> None:
    began = time.monotonic()
    with target.connect() as silent, target.connect() as half, target.connect() as waiting, target.connect() as late:
        half.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nX-A: ")
        waiting.sendall(target.head(Content_Length="100") + b"{")
        # One byte now and then: it never becomes a request.
        late.sendall(b"GET /v1/jobs HTTP/1.1\r\n")
        for number in range(100):
            time.sleep(0.1)
            try:
                late.sendall(f"X-{number}: y\r\n".encode())
            except OSError:
                break
        else:
            raise AssertionError("it went on listening")
        for connection in (silent, half, waiting):
            _answer(connection)
    assert time.monotonic() - began < PATIENCE + 20
    assert sum(line["message"] == "a request did not arrive in time" for line in target.log()) >= 4


def test_a_body_after_a_refusal_is_not_listened_to_for_long(target: Target) -> None:
    with target.connect() as connection:
        connection.sendall(target.head(token="no", Content_Length="4000"))
        assert _status(_answer(connection)) == 401
        for _ in range(100):
            time.sleep(0.1)
            try:
                connection.sendall(b"x")
            except OSError:
                break
        else:
            raise AssertionError("it went on listening")


def test_who_is_answered_in_time_may_stay_connected(target: Target) -> None:
    with httpx.Client(headers={"Authorization": f"Bearer {target.token}"}) as client:
        for _ in range(2):
            assert client.get(f"http://127.0.0.1:{target.port}/v1/jobs").status_code == 200
            time.sleep(PATIENCE * 1.5)
        (connection,) = client._transport._pool.connections  # type: ignore[attr-defined]
        assert "Request Count: 2" in repr(connection), "both went over one connection"


def test_a_long_poll_may_last_longer_than_a_request_may_take(target: Target) -> None:
    headers = {"Authorization": f"Bearer {target.token}"}
    url = f"http://127.0.0.1:{target.port}/v1/jobs"
    job = httpx.post(url, headers=headers, json={"command": ["x"], "gpu_types": ["None"]}).json()
    answer = httpx.get(f"{url}/{job['job_id']}/logs?wait={PATIENCE + 1}", headers=headers, timeout=30)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {f"X-{number}": "y" * 100 for number in range(30_000)},
        {"X-Long": "y" * 3_000_000},
        {"X" * 3_000_000: "y"},
        {"Authorization": "Bearer " + "x" * 3_000_000},
    ],
    ids=["many", "long value", "long name", "long token"],
)
def test_floods_of_headers_are_refused(target: Target, fields: dict[str, str]) -> None:
    assert _status(target.ask(target.head("GET", **fields))) in (0, 400, 431)


def test_long_paths_are_refused_and_not_logged_whole(target: Target) -> None:
    assert _status(target.ask(target.head("GET", "/v1/jobs/" + "a" * 15_000))) in (404, 422)
    assert _status(target.ask(target.head("GET", "/" + "a" * 3_000_000))) in (0, 400, 414)
    assert all(len(str(line.get("path", ""))) <= 500 for line in target.log())


def test_bodies_larger_than_allowed_are_refused_however_they_come(target: Target) -> None:
    big = b'{"command": ["' + b"x" * 100_000 + b'"]}'
    assert _status(target.ask(target.head(Content_Length=str(len(big))), big)) == 413
    assert _status(target.ask(target.head(Content_Length="1000000000000"))) == 413
    assert _status(target.ask(target.head(Content_Length="9" * 30))) in (400, 413)
    chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
    assert _status(target.ask(target.head(Transfer_Encoding="chunked"), *([chunk] * 50))) == 413
    small = b'{"command": ["x"], "gpu_types": ["None"]}'
    chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in (small[:10], small[10:])]
    assert _status(target.ask(target.head(Transfer_Encoding="chunked"), *chunks, b"0\r\n\r\n")) == 201


def test_no_second_request_hides_in_the_body_of_a_first(target: Target) -> None:
    hidden = target.head("POST", "/v1/tokens")
    both = target.head(Transfer_Encoding="chunked", Content_Length=str(len(hidden)))
    answer = target.ask(both, b"0\r\n\r\n", hidden)
    assert b" 201 " not in answer
    assert _status(target.ask(target.head(Content_Length="5, 6"), b"hello")) == 400
    assert _status(target.ask(target.head(Content_Length="-1"))) == 400
    assert _status(target.ask(target.head(Transfer_Encoding="gzip, chunked"))) in (400, 501)


HIDDEN = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 5", b"0\r\n\r\n"),
        (b"Transfer-Encoding: gzip, chunked", b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked, identity", b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
        (b"Transfer-Encoding: identity", b"0\r\n\r\n"),
        (b"Transfer-Encoding: xchunked", b"0\r\n\r\n"),
        (b"Transfer-Encoding: \x0bchunked", b"0\r\n\r\n"),
        (b"Transfer-Encoding : chunked", b"0\r\n\r\n"),
        (b"Transfer-Encoding: x\r\n chunked", b"0\r\n\r\n"),
        (b"Content-Length: 5, 6", b"hello"),
        (b"Content-Length: 5\r\nContent-Length: 6", b"hello"),
        (b"Content-Length: -1", b"hello"),
        (b"Content-Length: +5", b"hello"),
        (b"Content-Length: 0x5", b"hello"),
        (b"Content-Length: 5 5", b"hello"),
        (b"Content-Length: ", b"hello"),
        (b"Content-Length: " + b"9" * 30, b"hello"),
        (b"Content-Length: 18446744073709551621", b"hello"),
        (b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5", b"hello"),
        (b"Transfer-Encoding: chunked", b"0x5\r\nhello\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"-5\r\nhello\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"10000000000000005\r\nhello\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"5\nhello\n0\n\n"),
        (b"Transfer-Encoding: chunked", b"1\r\nhello\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"0\r\nContent-Length: 5\r\n\r\n"),
    ],
)
def test_a_body_that_ends_here_for_one_and_there_for_another_is_refused(
    target: Target, fields: bytes, body: bytes
) -> None:
    """Whoever reads requests for others would take for the body of one what is the next for the scheduler."""
    head = target.head().removesuffix(b"\r\n") + fields + b"\r\n\r\n"
    answer = target.ask_all(head + body + HIDDEN)
    assert (_status(answer), answer.count(b"HTTP/1.1 ")) == (400, 1), answer
    answer = target.ask_all(head, body, HIDDEN)  # which may come after it has hung up: then the answer is lost
    assert _status(answer) in (0, 400)
    assert answer.count(b"HTTP/1.1 ") <= 1, answer


def test_what_comes_after_a_body_is_no_header(target: Target) -> None:
    """Whoever let the request through did not see it as one."""
    body = b'{"command": ["x"], "gpu_types": ["None"]}'
    chunk = b"%x\r\n%s\r\n" % (len(body), body)
    trailer = f"0\r\nAuthorization: Bearer {target.token}\r\n\r\n".encode()
    head = target.head(token="no", Transfer_Encoding="chunked")
    for parts in ((head + chunk + trailer + HIDDEN,), (head, chunk, trailer, HIDDEN)):
        answer = target.ask_all(*parts)
        assert b" 201 " not in answer
        assert answer.count(b"HTTP/1.1 ") <= 1


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET /v1/", b"x" * 1000),
        (b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n", b"X: y\r\n" * 150),
        (b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nX", b"x" * 1000),
        (b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nX: ", b"y" * 1000),
        (b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;x=", b"y" * 1000),
        (b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"0" * 1000),
        (b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ", b"y" * 1000),
        (b"", b"\r\n" * 500),
    ],
    ids=["path", "headers", "name", "value", "extension", "size", "trailer", "nothing"],
)
def test_heads_without_end_are_refused_long_before_they_are_late(target: Target, begin: bytes, piece: bytes) -> None:
    began = time.monotonic()
    sent = 0
    with target.connect() as connection:
        try:
            connection.sendall(begin)
            while sent < 2**19:
                sent += connection.send(piece)
                time.sleep(0.001)
        except OSError:
            pass
    assert 2**16 < sent < 2**19
    assert time.monotonic() - began < PATIENCE


def test_requests_that_do_not_wait_for_their_turn_are_not_performed(target: Target) -> None:
    """The first is answered as if it were alone, and the connection is over: whoever sent the others asks again."""
    body = b'{"command": ["x"], "name": "turn", "gpu_types": ["None"]}'
    submit = target.head(Content_Length=str(len(body))) + body
    for parts in ((submit * 1000,), (submit + submit[:50], submit[50:]), (submit + b"\0garbage", b"\0" * 1000)):
        answer = target.ask_all(*parts)
        assert answer.count(b"HTTP/1.1 ") == 1, answer[:2000]
        assert _status(answer) == 201
        head, _, content = answer.partition(b"\r\n\r\n")
        assert b"connection: close" in head
        assert json.loads(content)["spec"]["name"] == "turn"
    listed = target.ask(target.head("GET", "/v1/jobs"))
    assert json.dumps(json.loads(listed.partition(b"\r\n\r\n")[2])).count('"turn"') == 3


def test_a_request_after_an_answer_is_answered_whatever_became_of_the_body_before(target: Target) -> None:
    with target.connect() as connection:
        connection.sendall(target.head(token="no", Content_Length="4000"))
        assert _status(_answer(connection)) == 401
        connection.sendall(b"x" * 4000 + target.head("GET"))
        assert _status(_answer(connection)) == 200
        connection.sendall(target.head(token="no", Transfer_Encoding="chunked"))
        assert _status(_answer(connection)) == 401
        connection.sendall(b"no size\r\n" + target.head("GET"))
        assert _answer(connection) == b"", "no answer that would be taken for that to another request"


@pytest.mark.parametrize(
    "field",
    [
        b"X: a\0b",
        b"X: a\x01b",
        b"X: a\x7fb",
        b"X: a\rb",
        b"X: a\nb",
        b"X\xe9: a",
        b"X\0: a",
        b"X y: a",
        b"X : a",
        b": a",
        b"X: a\r\n b",
        b"no header",
        b"Host: y",
    ],
)
def test_headers_that_are_none_are_refused(target: Target, field: bytes) -> None:
    answer = target.ask_all(target.head("GET").removesuffix(b"\r\n") + field + b"\r\n\r\n")
    assert (_status(answer), answer.count(b"HTTP/1.1 ")) == (400, 1)


def test_odd_bytes_in_the_value_of_a_header_are_only_that(target: Target) -> None:
    odd = bytes(range(0x80, 0x100)) + b"\t~"
    head = target.head("GET").removesuffix(b"\r\n")
    assert _status(target.ask(head + b"X: " + odd + b"\r\n\r\n")) == 200
    head = b"GET /v1/jobs HTTP/1.1\r\nHost: " + odd + b"\r\n"
    assert _status(target.ask(head + b"Authorization: Bearer " + odd + b"\r\n\r\n")) == 401
    assert _status(target.ask(head + b"Content-Type: " + odd + b"\r\n\r\n")) == 401


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /v1/jobs",
        b"GET /v1/jobs HTTP/2.0",
        b"GET /v1/jobs HTTP/1.9",
        b"GET /v1/jobs HTTP/0.9",
        b"GET /v1/jobs#part HTTP/1.1",
        b"GET v1/jobs HTTP/1.1",
        b"GET /v1/\xe9 HTTP/1.1",
        b"GET /v1/jobs\t HTTP/1.1",
        b"get /v1/jobs HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET http://elsewhere/v1/jobs HTTP/1.1",
        b"GET /v1/%00%2e%2e/%2e%2e/etc/passwd HTTP/1.1",
        b"GET /v1/jobs/..%2f..%2fetc%2fpasswd/logs HTTP/1.1",
        b"GET //v1//jobs HTTP/1.1",
        b"GET /v1/jobs;x=y HTTP/1.1",
        b"G\x00T /v1/jobs HTTP/1.1",
        b"CONNECT 127.0.0.1:22 HTTP/1.1",
        b"TRACE /v1/jobs HTTP/1.1",
    ],
)
def test_what_is_no_request_is_refused(target: Target, request_line: bytes) -> None:
    head = target.head("GET").partition(b"\r\n")[2]
    answer = target.ask(request_line + b"\r\n" + head)
    assert _status(answer) in (0, 400, 404, 405, 422), answer
    assert b"Traceback" not in answer
    assert target.token.encode() not in answer


def test_the_other_protocols_are_not_spoken(target: Target) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    answer = target.ask_all(target.head("GET", "/v1/nothing", **upgrade) + HIDDEN, HIDDEN)
    assert (_status(answer), answer.count(b"HTTP/1.1 ")) == (404, 1)
    assert _status(target.ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")) in (0, 400, 401)


def test_refusals_are_logged_with_who_asked_and_no_secret(target: Target) -> None:
    wrong = f"{target.token[:16]}.{'w' * 43}"
    target.ask(target.head("GET", token=wrong))
    target.ask(target.head("GET", "/v1/jobs?token=" + target.token, token="nobody"))
    lines = [line for line in target.log() if line.get("status") == 401]
    assert lines
    assert all(line["client"] == "127.0.0.1" and line["level"] == "warning" for line in lines)
    text = json.dumps(target.log())
    assert "w" * 43 not in text
    assert target.token.partition(".")[2] not in text
