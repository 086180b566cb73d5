"""The store: what goes in comes out, all or nothing, one scheduler at a time; on SQLite, and PostgreSQL where it is."""

from __future__ import annotations

import socket
import sqlite3
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from bloxopt.errors import StoreError
from bloxopt.runtime.live import Clock, LeaseTerms, LiveCluster
from bloxopt.runtime.messages import JobSpec, JobStatus, RunState
from bloxopt.runtime.service.tokens import Tokens
from bloxopt.runtime.store import Change, Event, JobRecord, NodeRecord, RunRecord, Store, backup, restore
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
