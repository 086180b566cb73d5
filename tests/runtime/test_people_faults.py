"""Whatever is between a person and the scheduler, or wrong with their machine: one sentence, and exit code 2."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("httpx")

from bloxopt.cli import run as run_cli
from bloxopt.runtime.people import AwayError, People

SUBMIT = ("submit", "--workdir", "relative", "--", "true")
DEEP = b"[" * 100_000


def http(code: int, body: bytes, *headers: bytes, length: int | None = None) -> bytes:
    head = [b"HTTP/1.1 %d X" % code, b"Content-Length: %d" % (len(body) if length is None else length), *headers]
    return b"\r\n".join([*head, b"Connection: close", b"", body])


class Stranger:
    """Somebody at an address who gives one answer to everything, and may reset the connection after it."""

    def __init__(self) -> None:
        self.answer, self.resets = b"", False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5.0)
                asked = b""
                while b"\r\n\r\n" not in asked and (data := connection.recv(65_536)):
                    asked += data
                    if not asked.startswith((b"GET", b"POST")):
                        break
                connection.sendall(self.answer)
                if self.resets:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    connection.shutdown(socket.SHUT_WR)
                    with connection.makefile("rb") as rest:
                        rest.read(1 << 20)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stranger]:
    one = Stranger()
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("BLOXOPT_SCHEDULER", f"http://{one.address}")
    monkeypatch.setenv("BLOXOPT_TOKEN", "0123.secret")
    yield one
    one.close()


def said(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that cannot work says: one line, without the token."""
    capfd.readouterr()
    assert run_cli(list(arguments)) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    assert "secret" not in err
    return err


@pytest.mark.parametrize("command", [SUBMIT, ("queue",), ("logs", "job")], ids=["submit", "queue", "logs"])
@pytest.mark.parametrize(
    ("answer", "resets", "words"),
    [
        (http(200, b"<html>Welcome</html>"), False, "its answer"),
        (http(200, b"null"), False, "its answer"),
        (http(200, DEEP), False, "its answer"),
        (http(200, b"\xff\xfe"), False, "its answer"),
        (http(200, b"x", b"Bloxopt-Next-Offset: soon"), False, "its answer"),
        (http(200, b"{}"), False, "its answer"),
        (http(200, b"[3]"), False, "its answer"),
        (http(201, b'[{"job_id": 3}]'), False, "its answer"),
        (http(200, b'{"jobs": 5, "next": null}'), False, "its answer"),
        (http(200, b'{"jobs": [{"job_id": "a", "spec": []}], "next": null}'), False, "its answer"),
        (http(200, b'"x"'), False, "its answer"),
        (http(302, b"", b"Location: /login"), False, "answered 302 and gave no reason"),
        (http(401, b"who are you?"), False, "answered 401 and gave no reason"),
        (http(500, b"<html>oops</html>"), False, "answered 500 and gave no reason"),
        (http(500, DEEP), False, "answered 500 and gave no reason"),
        (http(502, b"[1]"), False, "answered 502 and gave no reason"),
        (http(503, b'{"detail": "the disk is full"}'), False, "the disk is full"),
        (http(200, b"xx", b"Content-Encoding: gzip"), False, "broke off"),
        (http(200, b"[", length=100), False, "broke off"),
        (http(200, b"[", length=100), True, "broke off"),
        (b"", False, "broke off"),
        (b"", True, "broke off"),
        (b"220 mail ready\r\n", False, "broke off"),
    ],
)
def test_an_answer_that_is_none_of_a_scheduler_is_said(
    stranger: Stranger,
    capfd: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    answer: bytes,
    resets: bool,
    words: str,
) -> None:
    stranger.answer, stranger.resets = answer, resets
    error = said(capfd, *command)
    assert f"the scheduler at http://{stranger.address}" in error
    assert words in error
    if words == "broke off":
        assert ("may have happened" if command == SUBMIT else "try again") in error


def test_an_answer_about_fewer_jobs_than_were_submitted_is_said(
    stranger: Stranger, capfd: pytest.CaptureFixture[str]
) -> None:
    stranger.answer = http(201, b"[]")
    assert "the answer is about 0 of 1 job: look at `bloxopt queue`" in said(capfd, *SUBMIT)


def test_a_scheduler_that_says_nothing_is_not_waited_for_for_ever(stranger: Stranger) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with People(address, timeout=0.2) as people:
            with pytest.raises(AwayError, match=f"{address} did not answer in time: try again"):
                people.get("/v1/jobs")
            with pytest.raises(AwayError, match="did not answer in time: what was asked for may have happened"):
                people.post("/v1/jobs", {})


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://127.0.0.1:1", "cannot be reached"),
        ("http://no-such-host.invalid", "cannot be reached"),
        ("https://{stranger}", "cannot be reached"),
        ("ftp://host", "is no address"),
        ("http://", "is no address"),
        ("http://[::1", "is no address"),
        ("http://host:port", "is no address"),
        ("http://a..b", "is no address"),
        (f"http://{'a' * 70}.example", "is no address"),
    ],
)
def test_an_address_that_leads_nowhere_is_named(
    stranger: Stranger, capfd: pytest.CaptureFixture[str], address: str, words: str
) -> None:
    address = address.format(stranger=stranger.address)
    error = said(capfd, "queue", "--scheduler", address)
    assert words in error
    assert address.rstrip("/") in error


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("SSL_CERT_FILE", "/no/such.pem", "SSL_CERT_FILE '/no/such.pem': the certificates cannot be read"),
        ("SSL_CERT_FILE", __file__, "the certificates cannot be read"),
        ("HTTP_PROXY", "carrier-pigeon://x:1", "the proxy that HTTP_PROXY"),
        ("HTTP_PROXY", "http://[::1", "the proxy that HTTP_PROXY"),
        ("BLOXOPT_TOKEN", "0123.secret\nmore", "the token cannot be one"),
        ("BLOXOPT_TOKEN", "0123.secret more", "the token cannot be one"),
        ("BLOXOPT_TOKEN", "0123.sécret", "the token cannot be one"),
        ("BLOXOPT_TOKEN", "0123.secret\udcff", "the token cannot be one"),
    ],
)
def test_variables_that_cannot_be_used_are_named(
    stranger: Stranger,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    words: str,
) -> None:
    monkeypatch.setenv(variable, value)
    assert words in said(capfd, *SUBMIT)


def test_a_token_file_that_cannot_be_used_is_named(
    stranger: Stranger, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("BLOXOPT_TOKEN")
    monkeypatch.setenv("HOME", str(tmp_path))
    token = tmp_path / ".config" / "bloxopt" / "token"
    assert f"put it into {token}" in said(capfd, "queue")
    token.mkdir(parents=True)
    assert f"{token}: the token cannot be read: Is a directory" in said(capfd, "queue")
    token.rmdir()
    token.write_bytes(b"\xff\xfe")
    token.chmod(0o600)
    assert f"{token}: the token cannot be read: not UTF-8 text" in said(capfd, "queue")
    token.write_text("\n")
    assert f"put it into {token}" in said(capfd, "queue")
    token.write_text("0123.secret")
    token.chmod(0o644)
    assert f"chmod 600 {token}" in said(capfd, "queue")
    token.parent.rename(tmp_path / ".config" / "away")
    token.parent.write_text("in the way")
    assert f"put it into {token}" in said(capfd, "queue")


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "a" * 70_000),
        ("queue", "--user", "\udcff"),
        ("token", "user", "\udcff"),
        ("token", "user", "ada", "--days", "inf"),
        ("whatif", "--policy", "fifo", "--horizon", "inf"),
    ],
)
def test_what_cannot_be_sent_is_said(
    stranger: Stranger, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert "this cannot be sent to a scheduler" in said(capfd, *arguments)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"jobs = " + b"[" * 5_000 + b"]" * 5_000, "not valid TOML"),
        (b"\xff", "not valid TOML"),
        (b"jobs = 3", "needs [[jobs]] tables"),
        (b'[[jobs]]\ncommand = "x"', "job 1: command"),
    ],
)
def test_a_file_of_jobs_that_cannot_be_used_is_named(
    stranger: Stranger, capfd: pytest.CaptureFixture[str], tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "jobs.toml"
    if content is not None:
        path.write_bytes(content)
    error = said(capfd, "submit", "--file", str(path))
    assert words in error


IN_A_DELETED_FOLDER = 'cd "$0" && rmdir "$0" && exec "$@"'


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (SUBMIT, "its answer is not JSON"),
        (("submit", "--file", "jobs.toml"), "jobs.toml: cannot be read"),
        (("scheduler",), "the current folder is not there any more"),
        (("up", "--simulate", "1x1xA100", "--folder", "x"), "the current folder is not there any more"),
        (("agent", "--state-folder", "x", "--simulate", "1xA100"), "the current folder is not there any more"),
    ],
    ids=["submit", "file", "scheduler", "up", "agent"],
)
def test_a_command_in_a_folder_that_was_deleted_works_or_says_so(
    stranger: Stranger, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    stranger.answer = http(200, b"<html>")
    (tmp_path / "gone").mkdir()
    command = [str(Path(sys.executable).with_name("bloxopt")), *arguments]
    done = subprocess.run(
        ["/bin/sh", "-c", IN_A_DELETED_FOLDER, str(tmp_path / "gone"), *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


PAGE = (
    '{"jobs": [{"job_id": "j", "user": "u", "spec": {"command": ["x"], "num_gpus": 1, "name": "n"}, "gpus": {}, '
    '"started_at": null, "submitted_at": 0, "finished_at": null, "status": "pending", "reason": "später …", "steps": 0'
    '}], "next": null}'
)


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(stranger: Stranger) -> None:
    stranger.answer = http(200, b"x" * 10_000_000, b"Bloxopt-Next-Offset: 10000000", b"Bloxopt-Complete: true")
    command = [sys.executable, "-m", "bloxopt.cli"]
    with subprocess.Popen([*command, "logs", "job"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 1


def test_characters_that_the_terminal_does_not_have_are_written_out(stranger: Stranger) -> None:
    stranger.answer = http(200, PAGE.encode())
    done = subprocess.run(
        [sys.executable, "-m", "bloxopt.cli", "queue"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
        timeout=60,
    )
    assert rb"sp\xe4ter \u2026" in done.stdout
