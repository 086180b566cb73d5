"""What keeps a scheduler from starting is one sentence on stderr and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from bloxopt.runtime.service.config_errors import line_of
from bloxopt.runtime.service.listening import listen, url_of
from bloxopt.runtime.store import Store

_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH, _CAP_NET_BIND_SERVICE = 1, 2, 10


def _as_anyone() -> None:
    """Before the program begins: root is then refused what other accounts are refused."""
    if os.geteuid() == 0:
        library = ctypes.CDLL(None)
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH, _CAP_NET_BIND_SERVICE):
            library.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


_MANY = """
import json, sys
from bloxopt.cli import run
for arguments in json.loads(sys.argv[1]):
    code = run(arguments)
    print(f"ended with {code}", file=sys.stderr, flush=True)
"""


def _refused(folder: Path, *configs: str, more: tuple[str, ...] = ()) -> list[str]:
    """What the command says of configurations that cannot be served: each time one sentence, without its beginning.

    One process for all of them, since most of the time goes into its imports.
    """
    commands = []
    for number, config in enumerate(configs):
        path = folder / f"s{number}.toml"
        path.write_text(config)
        commands.append(["scheduler", "--config", str(path), *more])
    command = [sys.executable, "-c", _MANY, json.dumps(commands)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, preexec_fn=_as_anyone, cwd=folder
    )
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    *all_said, end = done.stderr.split("ended with 2\n")
    assert end == "", done.stderr
    sentences = []
    for said in all_said:
        # Before it come only warnings, which are lines of JSON.
        *warnings, sentence = said.splitlines()
        assert all(json.loads(line)["level"] == "warning" for line in warnings), said
        assert sentence.startswith("error: ")
        sentences.append(sentence.removeprefix("error: "))
    return sentences


def _closed(folder: Path) -> str:
    """A folder below in which nothing may be made."""
    place = folder / "closed"
    place.mkdir()
    place.chmod(0o500)
    return str(place)


def test_a_host_or_port_that_cannot_be_is_named_and_no_token_is_made(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        token = tmp_path / "admin.token"
        servers = (
            f"port = {port}",
            'host = "192.0.2.1"',
            'host = "no-such-host.invalid"',
            f'host = "{"a" * 70}.example"',
            "port = 81",
        )
        used, foreign, unknown, long, low = _refused(
            tmp_path, *(f"[server]\n{server}" for server in servers), more=("--admin-token-file", str(token))
        )
    assert f"cannot listen on 127.0.0.1:{port}: another program listens there" in used
    assert "--port" in used
    assert "cannot listen on 192.0.2.1:8080: this machine has no such address" in foreign
    assert "cannot listen on host 'no-such-host.invalid': " in unknown
    assert "cannot listen on host 'aaaa" in long
    assert "cannot listen on 127.0.0.1:81: this account may not use ports below 1024" in low
    assert not token.exists()
    with sqlite3.connect(tmp_path / "bloxopt.db") as database:
        assert database.execute("SELECT COUNT(*) FROM tokens").fetchone() == (0,)


def _pem(folder: Path, name: str, *more: str) -> tuple[str, str]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    request = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-days", "2", "-subj", f"/CN={name}"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*request, *(more or ("-nodes",)), *files], check=True, capture_output=True)
    return str(certificate), str(key)


def test_tls_files_that_cannot_be_used_are_told_apart(tmp_path: Path) -> None:
    certificate, key = _pem(tmp_path, "a")
    _, other_key = _pem(tmp_path, "b")
    _, encrypted = _pem(tmp_path, "c", "-passout", "pass:secret")
    closed = _closed(tmp_path)
    cases = {
        (certificate, other_key): "the key is that of another certificate",
        (key, certificate): "the certificate first",
        (certificate, encrypted): "not encrypted",
        (certificate, f"{closed}/x.key"): "tls_key",
        ("nowhere.pem", key): "nowhere.pem cannot be read: No such file or directory",
        (str(tmp_path), key): "Is a directory",
    }
    said = _refused(tmp_path, *(f'[server]\ntls_certificate = "{pem}"\ntls_key = "{secret}"' for pem, secret in cases))
    for sentence, words in zip(said, cases.values(), strict=True):
        assert words in sentence
    assert not (tmp_path / "bloxopt.db").exists()


def test_a_database_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    closed = _closed(tmp_path)
    only_read = tmp_path / "read.db"
    Store(str(only_read)).close()
    only_read.chmod(0o400)
    cases = {
        f"{closed}/x.db": "Permission denied",
        str(only_read): "readonly",
        closed: "is a folder",
        f"{tmp_path}/no/such/x.db": "there is no folder",
    }
    said = _refused(tmp_path, *(f'database = "{database}"' for database in cases))
    for sentence, (database, words) in zip(said, cases.items(), strict=True):
        assert database in sentence
        assert words in sentence


def test_a_folder_or_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    closed = _closed(tmp_path)
    (tmp_path / "file").write_text("x")
    cases = {closed: "may not write there", f"{closed}/logs": "Permission denied", f"{tmp_path}/file": "File exists"}
    *said, token = _refused(
        tmp_path,
        *(f'logs = "{logs}"' for logs in cases),
        "[server]\nport = 0",
        more=("--admin-token-file", f"{closed}/admin.token"),
    )
    for sentence, (logs, words) in zip(said, cases.items(), strict=True):
        assert sentence.startswith(f"logs {logs}: ")
        assert words in sentence
    assert token == f"{closed}/admin.token: Permission denied"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("policy = 'fifo'\n\n[rounds]\n# s\nseconds = 'x'", "line 5: rounds.seconds: is 'x'"),
        ("[server]\nhost = '0.0.0.0'\nprt = 1", "line 3: server.prt: unknown key: did you mean port?"),
        ("[server]\nxyzzy = 1", "line 2: server.xyzzy: unknown key: there are host, port"),
        ("[servr]\nport = 1", "line 1: servr: unknown key: did you mean server?"),
        ("server = 3", "line 1: server: is 3: must be a table"),
        ("leases.lease_seconds = true", "line 1: leases.lease_seconds: is True"),
        ("[leases]\nheartbeat_seconds = 50.0", "line 1: leases: heartbeat_seconds 50"),
        ("\npolicy = 'fifoo'", "line 2: policy: unknown policy 'fifoo'"),
        ("policy = {name = 'fifo', options = {x = 1}}", "line 1: policy: policy 'fifo': unknown option 'x'"),
        (
            "policy = {name = 'hierarchical', options = {entities = {a = 1, b = 2}}}",
            "line 1: policy: policy 'hierarchical' fails in every round, for everybody, once somebody submits jobs of "
            "tenants that its tree does not name (it names 'a', 'b'): give default, such as 'a'",
        ),
        ("[policy]\nname = 'fifo'\noptins = {}", "line 3: policy.optins: unknown key: did you mean options?"),
        ("solver = 'cplexx'", "line 1: solver: unknown solver 'cplexx'"),
        ("[retention]\noutput_days = -1", "line 2: retention.output_days: is -1"),
        ("[limits]\nburst = 1.5", "line 2: limits.burst: is 1.5"),
        ("[rounds", "not valid TOML: "),
    ],
)
def test_what_is_wrong_with_a_configuration_is_told_by_line_and_key(tmp_path: Path, config: str, said: str) -> None:
    from bloxopt.cli import run as run_cli

    (tmp_path / "s.toml").write_text(config)
    with pytest.MonkeyPatch.context() as patch, (tmp_path / "said").open("w") as err:
        patch.setattr(sys, "stderr", err)
        assert run_cli(["scheduler", "-c", str(tmp_path / "s.toml")]) == 2
    text = (tmp_path / "said").read_text()
    assert text.count("\n") == 1
    assert f"s.toml, {said}" in text or f"s.toml: {said}" in text


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (["a"], 1),
        (["t", "b"], 4),
        (["t", "c d", "e"], 6),
        (["t", "missing"], 3),
        (["u", "v", "w"], 8),
        (["missing"], None),
        (["t", "inner", "x"], 10),
        (["list"], 12),
    ],
)
def test_lines_of_keys_are_found_in_all_ways_that_toml_writes_them(keys: list[str], line: int | None) -> None:
    text = (
        "a = 1\n# b = 0\n[t]  # comment\nb = 2\n\n'c d'.e = 3\n"
        "[u]\nv.w = 4\n[t.inner]\n x = 5\n[other]\n[[list]]\nx = 1"
    )
    assert line_of(text, keys) == line


def test_a_name_listens_on_all_its_addresses_at_one_port() -> None:
    sockets = listen("localhost", 0)
    try:
        ports = {one.getsockname()[1] for one in sockets}
        assert len(ports) == 1
        for one in sockets:
            with socket.create_connection(one.getsockname()[:2], timeout=5):
                pass
        assert url_of(sockets[0], True).startswith("https://")
    finally:
        for one in sockets:
            one.close()


def _served(folder: Path, *more: str) -> subprocess.Popen[str]:
    (folder / "s.toml").write_text("[server]\nport = 0")
    command = [sys.executable, "-m", "bloxopt.cli", "scheduler", "-c", str(folder / "s.toml"), *more]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str], wanted: Callable[[dict[str, object]], bool]) -> dict[str, object]:
    assert process.stderr is not None
    for text in process.stderr:
        line: dict[str, object] = json.loads(text)
        if wanted(line):
            return line
    raise AssertionError("it ended without saying so")


def test_any_free_port_is_logged_and_a_port_is_free_at_once_after_the_end(tmp_path: Path) -> None:
    with _served(tmp_path) as process:
        line = _line(process, lambda line: line["message"] == "listening")
        (url,) = line["urls"]  # type: ignore[misc]
        for _ in range(200):
            if httpx.get(f"{url}/healthz").status_code == 200:
                break
            time.sleep(0.05)
        else:
            raise AssertionError("it does not become healthy")
        process.send_signal(signal.SIGTERM)
        _line(process, lambda line: line["message"] == "scheduler stopped")
    port = int(str(url).rpartition(":")[2])
    with _served(tmp_path, "--port", str(port)) as process:
        assert _line(process, lambda line: line["message"] == "listening")["urls"] == [url]
        process.send_signal(signal.SIGTERM)
