"""Tokens on the command line, and what becomes of them: shown once, listed without secrets, revoked, never logged."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from bloxopt.cli import run as run_cli
from bloxopt.runtime.live.faults import UnknownError
from bloxopt.runtime.service.tokens import Tokens
from bloxopt.runtime.store import Store
from tests.runtime.live_world import MovedClock
from tests.runtime.service_world import running
from tests.runtime.test_service_process import _free_port, scheduler

TOKEN = re.compile(r"^[0-9a-f]{16}\.[A-Za-z0-9_-]{43}\n$")


class Served:
    """A scheduler process; ``folder`` has its database ``bloxopt.db``, its log ``log`` and the token of its admin."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.url = folder, f"http://127.0.0.1:{port}"
        self.admin = (folder / "admin.token").read_text().strip()

    def get(self, token: str, path: str = "/v1/jobs") -> int:
        return httpx.get(self.url + path, headers={"Authorization": f"Bearer {token}"}).status_code


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, port = tmp_path_factory.mktemp("served"), _free_port()
    (folder / "s.toml").write_text('policy = "fifo"\n[retention]\ninterval_seconds = 0.2\n')
    command = ["-m", "bloxopt.cli", "scheduler", "-c", str(folder / "s.toml"), "--port", str(port)]
    with (
        (folder / "log").open("wb") as log,
        scheduler(*command, "--admin-token-file", str(folder / "admin.token"), port=port, stderr=log),
    ):
        yield Served(folder, port)


@pytest.fixture
def command(served: Served, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a command as the admin that must end with ``code``; gives what it printed, of an error what it said."""
    monkeypatch.setenv("BLOXOPT_SCHEDULER", served.url)
    monkeypatch.setenv("BLOXOPT_TOKEN", served.admin)

    def run(*arguments: str, code: int = 0) -> str:
        capfd.readouterr()
        assert run_cli(list(arguments)) == code
        out, err = capfd.readouterr()
        return out if code == 0 else err

    return run


def _listed(command: Callable[..., str]) -> dict[str, dict[str, object]]:
    return {view["token_id"]: view for view in json.loads(command("token", "list", "--json"))}


def test_a_token_is_made_listed_and_revoked(served: Served, command: Callable[..., str]) -> None:
    made = {
        (role, name): command("token", role, name)
        for role, name in (("user", "ada"), ("node", "gpu-01"), ("admin", "eve"))
    }
    assert all(TOKEN.match(token) for token in made.values()), "one line, and nothing else"
    views = _listed(command)
    for (role, name), token in made.items():
        view = views[token.partition(".")[0]]
        assert (view["role"], view["subject"], view["valid"], view["expires_at"]) == (role, name, True, None)
    ada = made["user", "ada"].strip()
    token_id = ada.partition(".")[0]
    assert served.get(ada) == 200
    assert command("token", "revoke", token_id) == f"{token_id} revoked\n"
    assert served.get(ada) == 401
    view = _listed(command)[token_id]
    assert not view["valid"]
    assert view["revoked_at"] is not None
    (again,) = json.loads(command("token", "revoke", token_id, "--json"))
    assert again["revoked_at"] == view["revoked_at"], "it stays as it is"


def test_the_list_shows_what_holds_and_what_does_not(served: Served, command: Callable[..., str]) -> None:
    lasting, short, gone = (
        command("token", "user", name, *days).partition(".")[0]
        for name, days in (("l", []), ("s", ["--days", "1e-6"]), ("g", ["--days", "30"]))
    )
    command("token", "revoke", gone)
    time.sleep(0.2)
    lines = {line.split()[0]: line for line in command("token", "list").splitlines()}
    assert "active" in lines[lasting]
    assert "never" in lines[lasting]
    assert "expired" in lines[short]
    assert "revoked" in lines[gone]


def test_a_whole_token_given_for_its_id_is_revoked_and_not_written_anywhere(
    served: Served, command: Callable[..., str]
) -> None:
    token = command("token", "user", "whole").strip()
    token_id, _, secret = token.partition(".")
    assert command("token", "revoke", token) == f"{token_id} revoked\n"
    assert secret not in (served.folder / "log").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["revoke", "00ff"], "there is no token '00ff'"),
        (["revoke", "../x"], "there is nothing of the name '../x'"),
        (["revoke", "x?y=1#z"], "there is no token 'x?y=1#z'"),
        (["revoke"], "Missing argument"),
        (["user", "a b"], "subject"),
        (["user", "a" * 64], "subject"),
        (["user", "../x"], "subject"),
        (["user", "ada", "--days", "-1"], "--days"),
        (["user", "ada", "--days", "0"], "lifetime"),
        (["user", "ada", "--days", "1e9"], "lifetime"),
        (["emperor", "me"], "emperor"),
    ],
)
def test_what_cannot_be_is_one_sentence(command: Callable[..., str], arguments: list[str], words: str) -> None:
    error = command("token", *arguments, code=2)
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert words in error


def test_the_token_of_the_command_itself_is_not_revoked(served: Served, command: Callable[..., str]) -> None:
    assert "revoke it with another one" in command("token", "revoke", served.admin.partition(".")[0], code=2)
    assert served.get(served.admin) == 200


def test_only_admins_make_list_and_revoke(
    served: Served, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for role in ("user", "node"):
        token = command("token", role, "someone").strip()
        with monkeypatch.context() as as_them:
            as_them.setenv("BLOXOPT_TOKEN", token)
            for arguments in (["list"], ["revoke", token.partition(".")[0]], ["admin", "me"]):
                assert "only admins may do this" in command("token", *arguments, code=2)


def test_help_is_shown_without_a_command(command: Callable[..., str]) -> None:
    shown = command("token")
    assert all(word in shown for word in ("user", "node", "admin", "list", "revoke"))


def test_secrets_are_in_no_log_event_answer_database_or_process_list(
    served: Served, command: Callable[..., str]
) -> None:
    tokens = [served.admin, *(command("token", role, "quiet").strip() for role in ("user", "node", "admin"))]
    revoked = tokens[1]
    assert served.get(revoked) == 200
    command("token", "revoke", revoked.partition(".")[0])
    for path in ("/v1/jobs", "/v1/events", "/metrics", "/v1/nothing", f"/v1/jobs/{revoked}", f"/v1/{revoked}"):
        assert served.get(revoked, path) == 401
        served.get(served.admin, path)
    served.get(f"{revoked[:16]}.guessed")
    environment = {"BLOXOPT_SCHEDULER": served.url, "BLOXOPT_TOKEN": served.admin, "PATH": os.environ["PATH"]}
    watch = subprocess.Popen(
        [sys.executable, "-m", "bloxopt.cli", "logs", "-f", "none-0"], env=environment, stderr=subprocess.DEVNULL
    )
    commands = " ".join(path.read_text(errors="replace") for path in _command_lines())
    watch.wait(30)
    with sqlite3.connect(served.folder / "bloxopt.db") as database:
        stored = "\n".join(database.iterdump())
    shown = "".join(
        command(*arguments)
        for arguments in (["token", "list", "--json"], ["history", "--json"], ["history"], ["token", "list"])
    )
    metrics = httpx.get(served.url + "/metrics", headers={"Authorization": f"Bearer {served.admin}"}).text
    log = (served.folder / "log").read_text()
    assert '"status": 401' in log
    for token in tokens:
        secret = token.partition(".")[2]
        for where in (log, stored, shown, metrics, commands):
            assert secret not in where


def _command_lines() -> Iterator[Path]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            path.read_bytes()
        except OSError:
            continue
        yield path


def test_when_a_token_was_last_used_is_known_and_stored_without_a_write_for_each_request(tmp_path: Path) -> None:
    store, clock = Store(str(tmp_path / "x.db")), MovedClock()
    tokens = Tokens(store, clock)
    used, record = tokens.create("user", "ada")
    _, other = tokens.create("user", "bob")
    for _ in range(3):
        clock.move(10.0)
        assert tokens.caller(used)
    assert tokens.caller(used + "x") is None
    at = clock.now()
    assert {token.token_id: token.last_used_at for token in tokens.listed()} == {
        record.token_id: at,
        other.token_id: None,
    }
    assert [token.last_used_at for token in store.tokens()] == [None, None]
    tokens.save_use()
    assert {token.token_id: token.last_used_at for token in Tokens(store, clock).listed()}[record.token_id] == at
    tokens.revoke(record.token_id)
    assert next(token for token in tokens.listed() if token.token_id == record.token_id).last_used_at == at
    store.close()


def test_tokens_that_hold_no_longer_are_forgotten_after_a_while_and_no_others(tmp_path: Path) -> None:
    store, clock = Store(str(tmp_path / "x.db")), MovedClock()
    tokens = Tokens(store, clock)
    lasting, long, short, gone, both = (
        tokens.create("user", name, lifetime)
        for name, lifetime in (("l", None), ("o", 1e6), ("s", 10.0), ("g", None), ("b", 20.0))
    )
    assert all(tokens.caller(token) for token, _ in (lasting, long, short, gone, both))
    tokens.save_use()
    clock.move(15.0)
    tokens.revoke(gone[1].token_id)
    tokens.revoke(both[1].token_id)
    clock.move(10.0)
    assert [tokens.is_valid(record) for record in tokens.listed()].count(True) == 2, "all are listed"
    now = clock.now()
    assert tokens.prune(now - 15.0, 250) == 0
    assert tokens.prune(now - 14.0, 250) == 1, "what expired first"
    assert [tokens.prune(now, 1) for _ in range(3)] == [1, 1, 0], "a few at a time"
    for kept in (tokens, Tokens(store, clock)):
        assert {record.subject for record in kept.listed()} == {"l", "o"}
        assert kept.caller(lasting[0])
        assert kept.caller(short[0]) is None
    with pytest.raises(UnknownError, match="there is no token"):
        tokens.revoke(short[1].token_id)
    tokens.save_use()
    store.close()


def test_the_last_use_outlives_the_scheduler(tmp_path: Path) -> None:
    with running(tmp_path) as world:
        world.call("ada", "GET", "/v1/jobs")
    store = Store(str(tmp_path / "bloxopt.db"))
    last = {token.subject: token.last_used_at for token in store.tokens()}
    assert last["ada"] is not None
    assert last["bob"] is None
    store.close()
