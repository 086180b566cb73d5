"""The store: what goes in comes out, all or nothing, one scheduler at a time; on SQLite, and PostgreSQL where it is."""

from __future__ import annotations

import json
import math
import random
import socket
import sqlite3
import struct
import sys
import threading
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import sqlalchemy as sa

from bloxopt.errors import StoreError
from bloxopt.runtime.live import Clock, LeaseTerms, LiveCluster
from bloxopt.runtime.messages import JobSpec, JobStatus, RunState
from bloxopt.runtime.replay.log import read_log
from bloxopt.runtime.service.tokens import Tokens
from bloxopt.runtime.store import Change, Event, Facts, JobRecord, NodeRecord, RunKey, RunRecord, Store, backup, restore
from tests.runtime.live_world import MovedClock, PlayedAgent, gpus, spec


def _facts() -> Change:
    change = Change()
    job = JobRecord("j-1", "ada", JobSpec(command=["x", "é\n"], environment={"A": "b"}), 10.5, attempt=2, wanted=True)
    run = RunRecord("j-1", 2, "n", 0, 1, "A100", [0, 3], 0, 2, "10.0.0.1", 20_000, 11.0, told_to="i")
    change.jobs["j-1"] = job
    change.nodes["n"] = NodeRecord("n", "10.0.0.1", 1.0, gpus=gpus(2), slots={"A100": 0}, cpus=8.0)
    change.runs[run.key] = run
    change.events.append(Event(12.0, "job.submitted", "j-1", {"a": [1, None, "é"]}))
    return change


def test_what_was_stored_is_read_again(url: str) -> None:
    store, change = Store(url), _facts()
    store.commit(change)
    store.close()
    store = Store(url)
    facts = store.load()
    assert facts.jobs == list(change.jobs.values())
    assert facts.runs == list(change.runs.values())
    assert facts.nodes == list(change.nodes.values())
    assert facts.latest == 12.0
    assert store.events() == [(1, change.events[0])]
    job, run = facts.jobs[0], facts.runs[0]
    job.status, job.finished_at = JobStatus.SUCCEEDED, 20.0
    run.state, run.exit_code, run.ended_at = RunState.ENDED, -9, 19.0
    store.commit(Change(jobs={"j-1": job}, runs={run.key: run}))
    assert store.load().jobs == []
    assert store.load().finished_jobs == 1
    assert store.job("j-1") == job
    assert store.runs("j-1") == [run]
    assert store.jobs(user="bob") == []
    assert store.jobs(user="ada", status=[JobStatus.SUCCEEDED]) == [job]
    store.close()


def test_a_gang_that_was_to_stop_and_succeeds_has_succeeded_whoever_schedules_it_by_then(url: str) -> None:
    store, clock = Store(url), MovedClock()
    live = LiveCluster(store, LeaseTerms(), clock)
    agents = [PlayedAgent(clock, name, gpus(1)) for name in ("a", "b")]
    for agent in agents:
        agent.beat(live)
    (job,) = live.submit("ada", [spec(6.0, 2, processes="per_node")])
    with live.change():
        assert live.start(job, "A100", {"a": [0], "b": [0]})
    for agent in agents:
        agent.beat(live)
    clock.move(10.0)
    # Both are done; one has said so when the job is to make room, and the next attempt waits for the other one.
    agents[0].beat(live)
    with live.change():
        live.preempt(job)
    with live.change():
        assert live.start(job, "A100", {"a": [0], "b": [0]})
    live = LiveCluster(store, LeaseTerms(), clock)
    agents[1].beat(live)
    found = store.job(job.job_id)
    assert found is not None
    assert (found.status, found.attempt) == (JobStatus.SUCCEEDED, 2)
    store.close()


def test_a_change_that_fails_leaves_nothing(url: str) -> None:
    store, change = Store(url), _facts()
    (run,) = change.runs.values()
    run.node = "unknown"
    with pytest.raises(StoreError, match="not stored"):
        store.commit(Change(jobs=change.jobs, runs={run.key: run}, events=change.events))
    assert store.load().jobs == []
    assert store.events() == []
    store.close()


class _Pair(NamedTuple):
    first: int
    second: str


def test_the_history_reads_back_bit_for_bit(url: str) -> None:
    rng = random.Random(7)
    patterns = (struct.unpack("<d", rng.randbytes(8))[0] for _ in range(20_000))
    floats = [*filter(math.isfinite, patterns), 0.1, 1e16, 1e22, 5e-324, sys.float_info.max, -0.0]
    texts = ["a\0b", '\u2028\x7f\x1b"\\', "\N{GRINNING FACE}", ""]
    ints = [2**53 + 1, 2**63 - 1, 2**64, -(2**80)]
    given = {"floats": floats, "texts": texts, "ints": ints, "none": None, "flags": [True, False], "empty": [{}, []]}
    # What has no JSON of its own is stored as what is nearest to it.
    near = {
        "pair": _Pair(1, "b"),
        "tuple": (1, (2,)),
        "state": RunState.ENDED,
        "keys": {1: 2, None: 3},
        "real": np.float64(0.1),
    }
    read = {"pair": [1, "b"], "tuple": [1, [2]], "state": "ended", "keys": {"1": 2, "None": 3}, "real": 0.1}
    store = Store(url)
    store.commit(Change(events=[Event(0.1 + 0.2, "round", "", given | near)]))
    ((_, event),) = store.events()
    assert event.time == 0.1 + 0.2
    assert repr(event.data) == repr(given | read)
    # Whoever reads the table without bloxopt reads the same, with zlib where there is much of it.
    with store.reading("the history cannot be read") as connection:
        as_stored = "data" if connection.dialect.name == "sqlite" else "CAST(data AS TEXT)"
        (text,) = connection.execute(sa.text(f"SELECT {as_stored} FROM events")).one()
    text = zlib.decompress(text) if isinstance(text, bytes) else text
    assert repr(json.loads(text)) == repr(given | read)
    store.close()


def test_what_the_standard_library_wrote_is_read(url: str) -> None:
    store = Store(url)
    deep: list[object] = []
    for _ in range(400):
        deep = [deep]
    data = {"surrogate": "\ud800", "deep": deep, "float": 0.1}
    with store.writing("the history cannot be written") as connection:
        insert = "INSERT INTO events (time, kind, subject, data) VALUES (1.0, 'round', '', :data)"
        cast = insert if store.path is not None else insert.replace(":data", "CAST(:data AS JSON)")
        connection.execute(sa.text(cast), {"data": json.dumps(data)})
    assert store.events() == [(1, Event(1.0, "round", "", data))]
    store.close()


def test_numbers_that_are_none_stay_so_where_the_database_has_words_for_them(url: str) -> None:
    store = Store(url)
    change = Change(events=[Event(1.0, "round", "", {"values": [math.inf, -math.inf, math.nan]})])
    if store.path is None:
        with pytest.raises(StoreError, match=r"not stored: invalid input syntax for type json$"):
            store.commit(change)
    else:
        store.commit(change)
        ((_, event),) = store.events()
        assert repr(event.data) == "{'values': [inf, -inf, nan]}"
    store.close()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("message", "a\ud800"),
        ("message", None),
        ("exit_code", 2**70),
        ("gpus", [object()]),
        ("gpus", ["\ud800"]),
        ("gpus", [np.int64(1)]),
        ("preempted", 7),
        ("lost", "yes"),
    ],
)
def test_a_value_that_cannot_be_stored_is_one_sentence_and_nothing_of_its_change_is_stored(
    url: str, field: str, value: Any, count: int
) -> None:
    store, change = Store(url), _facts()
    (run,) = change.runs.values()
    runs = {key: replace(run, attempt=key.attempt) for key in (RunKey("j-1", attempt, "n") for attempt in range(count))}
    setattr(runs[RunKey("j-1", count - 1, "n")], field, value)
    # As often as there are connections, and more: none is lost.
    for _ in range(12):
        with pytest.raises(StoreError, match=r"^the change was not stored: .+$"):
            store.commit(Change(jobs=change.jobs, nodes=change.nodes, runs=runs, events=change.events))
    assert store.load() == Facts([], [], [], 0, 0.0)
    store.commit(change)
    assert store.load().runs == [run]
    store.close()


def test_of_a_job_that_is_known_all_is_stored_but_what_cannot_change(url: str) -> None:
    store, change = Store(url), _facts()
    store.commit(change)
    job = change.jobs["j-1"]
    later = JobRecord(
        *("j-1", "bob", JobSpec(command=["y"]), 99.0, JobStatus.RUNNING, "because", "key", 1.5, 2.5, 3.5, 4, False),
        *(JobStatus.CANCELLED, 5, 6, 7.5, 8.5, 9.5, np.float32(10.5), 11),
    )
    store.commit(Change(jobs={"j-1": later}, known={"j-1"}))
    fixed = {name: getattr(job, name) for name in ("user", "spec", "submitted_at", "submission_key")}
    assert store.job("j-1") == replace(later, **fixed)
    # A job that nobody knows is not there to be updated.
    store.commit(Change(jobs={"j-2": replace(later, job_id="j-2")}, known={"j-2"}))
    assert store.job("j-2") is None
    store.close()


def test_a_second_scheduler_is_refused_until_the_first_is_gone(url: str) -> None:
    first = Store(url)
    with pytest.raises(StoreError, match="in use by another scheduler"):
        Store(url)
    first.close()
    Store(url).close()


def test_a_newer_schema_is_refused_by_name(url: str) -> None:
    store = Store(url)
    with store._writer.begin() as connection:
        connection.execute(sa.text("UPDATE meta SET value = '999' WHERE name = 'schema_version'"))
    store.close()
    with pytest.raises(StoreError, match=r"schema version 999.*upgrade bloxopt"):
        Store(url)


def test_tokens_are_hashed_expire_and_are_revoked(url: str) -> None:
    store, clock = Store(url), MovedClock()
    tokens = Tokens(store, clock)
    token, record = tokens.create("user", "ada", 10.0)
    assert token.partition(".")[2] not in str(store.tokens())
    for known in (tokens, Tokens(store, clock)):
        caller = known.caller(token)
        assert caller is not None
        assert (caller.role, caller.subject) == ("user", "ada")
        assert known.caller(token + "x") is None
    clock.move(11.0)
    assert tokens.caller(token) is None
    lasting, record = tokens.create("node", "n1")
    tokens.revoke(record.token_id)
    assert tokens.caller(lasting) is None
    assert Tokens(store, clock).caller(lasting) is None
    store.close()


def test_a_live_cluster_runs_a_job_over_it(url: str) -> None:
    store, clock = Store(url), MovedClock()
    live = LiveCluster(store, LeaseTerms(), clock)
    agent = PlayedAgent(clock, "a", gpus(2))
    agent.beat(live)
    (job,) = live.submit("ada", [spec(5.0, 2)])
    with live.change():
        assert live.start(job, "A100", {"a": [0, 1]})
    for _ in range(8):
        clock.move(1.0)
        agent.beat(live)
    found = store.job(job.job_id)
    assert found is not None
    assert found.status is JobStatus.SUCCEEDED
    store.close()


def test_submissions_of_many_threads_are_all_stored(url: str) -> None:
    store = Store(url)
    live = LiveCluster(store)
    made: list[str] = []

    def submit(user: str) -> None:
        made.extend(live.submit(user, [spec()], f"k-{n}")[0].job_id for n in range(5))

    threads = [threading.Thread(target=submit, args=(f"u{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {job.job_id for job in store.jobs(limit=100)} == set(made)
    assert len(made) == 30
    store.close()


def test_postgresql_that_goes_away_is_one_sentence_and_comes_back(postgres: str) -> None:
    store = Store(postgres)
    live = LiveCluster(store)
    assert store._ownership is not None
    engine = sa.create_engine(postgres.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        connection.execute(
            sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        )
    engine.dispose()
    # The connections are gone, and with them the lock: it is taken again before anything is stored.
    (job,) = live.submit("ada", [spec()])
    assert store.job(job.job_id) is not None
    with pytest.raises(StoreError, match="in use"):
        Store(postgres)
    store.close()


def test_a_backup_made_in_use_is_restored(tmp_path: Path) -> None:
    path = tmp_path / "live.db"
    store = Store(str(path))
    store.commit(_facts())
    backup(str(path), tmp_path / "copy.db")
    with pytest.raises(StoreError, match="there already"):
        backup(str(path), tmp_path / "copy.db")
    store.close()
    with pytest.raises(StoreError, match="there already"):
        restore(tmp_path / "copy.db", str(path))
    restore(tmp_path / "copy.db", str(tmp_path / "new.db"))
    restored = Store(str(tmp_path / "new.db"))
    assert restored.job("j-1") is not None
    restored.close()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("mysql://x/y", "not known"),
        ("sqlite:///:memory:", "name a file"),
        ("/no/such/folder/x.db", "no folder"),
        ("postgresql://x@127.0.0.1:1/none", "database postgresql"),
    ],
)
def test_databases_that_cannot_be_used_are_refused_by_name(url: str, text: str) -> None:
    with pytest.raises(StoreError, match=text):
        Store(url)


@pytest.mark.slow
def test_a_server_that_says_nothing_is_not_waited_for_for_ever() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(StoreError, match="timeout"):
            Store(f"postgresql://bloxopt@127.0.0.1:{silent.getsockname()[1]}/none")


def test_another_file_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("hello " * 1000)
    with pytest.raises(StoreError, match=r"text.db: file is not a database"):
        Store(str(tmp_path / "text.db"))
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE meta (name TEXT, value TEXT)")
    other.close()
    with pytest.raises(StoreError, match="not made by bloxopt"):
        Store(str(tmp_path / "other.db"))


def test_sqlite_is_durable_by_its_settings(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "x.db"))
    with store._engine.connect() as connection:
        settings = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
        assert settings == ["wal", 2]
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    store.close()
    assert Clock().now() > 1.6e9


def test_a_large_event_is_stored_compressed_and_read_as_it_was(url: str) -> None:
    numbers = random.Random(0)
    data = {"progress": {f"job-{k}": [numbers.random() * 1e9, None, "é", numbers.random()] for k in range(2000)}}
    store = Store(url)
    store.commit(Change(events=[Event(1.0, "round", "", data), Event(2.0, "round", "", {"small": 1})]))
    assert [event.data for _, event in store.events()] == [data, {"small": 1}]
    store.close()
    assert [event.data for event in read_log(url)] == [data, {"small": 1}]
    if "://" not in url:
        with sqlite3.connect(url) as connection:
            large, small = (row[0] for row in connection.execute("SELECT data FROM events ORDER BY number"))
        assert isinstance(small, str)
        assert len(large) < 0.6 * len(json.dumps(data))


def test_a_damaged_event_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bloxopt.db"
    store = Store(str(path))
    store.commit(Change(events=[Event(1.0, "round", "", {"progress": ["x" * 10_000]})]))
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE events SET data = ?", (b"x\x9cnothing",))
    with pytest.raises(StoreError, match="after number 0 is no JSON: it is damaged"):
        list(read_log(path))


def test_a_database_of_something_else_is_no_backup(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE t (a)")
    with pytest.raises(StoreError, match=r"other\.db is no backup of a scheduler's database"):
        restore(tmp_path / "other.db", str(tmp_path / "bloxopt.db"))
    assert not (tmp_path / "bloxopt.db").exists()
