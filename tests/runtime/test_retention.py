"""What is old is pruned, a little at a time: output, events and finished jobs; what is not over stays."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from bloxopt.errors import BloxoptError, StoreError
from bloxopt.runtime.messages import JobStatus, RunReport, RunState
from bloxopt.runtime.service.config import make_config
from bloxopt.runtime.service.logs import LogFolder
from bloxopt.runtime.store import Change, Event, JobRecord, NodeRecord, RunRecord, Store, schema
from bloxopt.runtime.store.pruning import (
    SNAPSHOT,
    delete_jobs,
    over_before,
    prunable_jobs,
    prune_events,
    shrink,
)
from tests.runtime.live_world import gpus, spec
from tests.runtime.service_world import World, running

DAY = 86_400.0


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store(url)
    yield store
    store.close()


def _job(name: str, finished_at: float | None, key: str | None = None) -> JobRecord:
    status = JobStatus.PENDING if finished_at is None else JobStatus.SUCCEEDED
    return JobRecord(name, "ada", spec(), 0.0, status, submission_key=key, finished_at=finished_at, attempt=1)


def _stored(store: Store, *jobs: JobRecord, events: tuple[Event, ...] = ()) -> None:
    runs = [RunRecord(job.job_id, 1, "n", 0, 1, "A100", [0], 0, 1, "10.0.0.1", 20_000, 1.0) for job in jobs]
    node = NodeRecord("n", "10.0.0.1", 1.0, gpus=gpus(1), slots={"A100": 0})
    jobs_by_id = {job.job_id: job for job in jobs}
    store.commit(Change(jobs_by_id, {run.key: run for run in runs}, {"n": node}, list(events)))


def _times(store: Store) -> list[float]:
    return [event.time for _, event in store.events(limit=100_000)]


def test_events_go_by_age_in_short_transactions_and_those_of_unfinished_jobs_stay(store: Store) -> None:
    noted = [Event(float(time), "job.note", "over" if time % 10 else "waits", {}) for time in range(100)]
    _stored(store, _job("over", 50.0), _job("waits", None), events=tuple(noted))
    counts = list(prune_events(store, before=60.0, most=7))
    assert max(counts) <= 7
    assert sum(counts) == 54
    assert _times(store) == [0, 10, 20, 30, 40, 50, *range(60, 100)]
    assert list(prune_events(store, before=60.0, most=7)) == [], "there is no more to do"
    numbers = [number for number, _ in store.events(limit=1000)]
    store.commit(Change(events=[Event(100.0, "job.note", "over", {})]))
    (number,) = (number for number, event in store.events(limit=1000) if event.time == 100.0)
    assert number > max(numbers), "numbers are not used again"


def test_the_latest_event_stays_by_which_the_clock_goes_on(store: Store) -> None:
    _stored(store, events=tuple(Event(float(time), "x", "", {}) for time in range(5)))
    assert sum(prune_events(store, before=1000.0)) == 4
    assert store.load().latest == 4.0


@pytest.mark.parametrize(
    ("snapshots", "before", "first_kept"),
    [
        ((20, 40, 80), 60.0, 40),  # up to the latest snapshot that is old
        ((20, 40, 80), 81.0, 80),
        ((20, 40, 80), 80.0, 40),
        ((80,), 60.0, 0),  # the only one is young: what came before it is needed until it is old
        ((), 60.0, 60),
    ],
)
def test_a_replay_always_finds_a_snapshot_to_begin_from(
    store: Store, snapshots: tuple[int, ...], before: float, first_kept: int
) -> None:
    noted = [Event(float(time), SNAPSHOT if time in snapshots else "x", "", {}) for time in range(100)]
    _stored(store, events=tuple(noted))
    list(prune_events(store, before, most=9))
    assert _times(store) == list(range(first_kept, 100))


def test_finished_jobs_go_with_their_runs_and_still_count(store: Store) -> None:
    _stored(store, _job("old", 10.0), _job("young", 90.0), _job("waits", None))
    assert over_before(store, ["old", "young", "waits", "nobody"], 50.0) == {"old"}
    for names in prunable_jobs(store, before=50.0):
        delete_jobs(store, names)
    assert store.job("old") is None
    assert store.runs("old") == []
    assert {job.job_id for job in store.jobs()} == {"young", "waits"}
    assert len(store.runs("young")) == len(store.runs("waits")) == 1
    assert store.load().finished_jobs == 2
    delete_jobs(store, ["young", "waits"])
    assert [job.job_id for job in store.jobs()] == ["waits"], "a job that is not over is never deleted"
    assert store.load().finished_jobs == 2


def test_an_idempotency_key_stands_for_all_its_jobs_until_all_are_old(store: Store) -> None:
    _stored(
        store,
        _job("a", 10.0, "ada/k/0"),
        _job("b", 90.0, "ada/k/1"),
        _job("c", 10.0, "ada/l/0"),
        _job("d", 10.0, "ada/l/1"),
        _job("e", 10.0, "ada/m/0"),
        _job("f", None, "ada/m/1"),
        _job("g", 10.0),
    )
    assert sorted(name for names in prunable_jobs(store, 50.0, most=2) for name in names) == ["c", "d", "g"]
    assert sorted(name for names in prunable_jobs(store, 99.0, most=2) for name in names) == ["a", "b", "c", "d", "g"]


def test_others_write_while_much_is_pruned(store: Store) -> None:
    _stored(store, events=tuple(Event(float(time), "x", "", {}) for time in range(3000)))
    store.commit(Change(events=[Event(10_000.0, "y", "", {})]))
    written = 1
    stop = threading.Event()

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            store.commit(Change(events=[Event(10_000.0 + written, "y", "", {})]))
            written += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert sum(prune_events(store, before=5000.0, most=50)) == 3000
    finally:
        stop.set()
        writer.join()
    assert written > 0
    assert len(store.events(kinds=["y"], limit=100_000)) == written
    assert store.events(kinds=["x"]) == []


def test_a_sqlite_file_becomes_smaller_and_an_older_one_uses_its_pages_again(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "x.db"))
    _stored(store, events=tuple(Event(float(time), "x", "", {"text": "y" * 2000}) for time in range(2000)))
    sum(prune_events(store, before=5000.0))
    steps = list(shrink(store, pages=100))
    assert max(steps) <= 100 * 4096
    assert sum(steps) > 2_000_000
    store.close()
    assert (tmp_path / "x.db").stat().st_size < 500_000
    older = sa.create_engine(f"sqlite:///{tmp_path / 'older.db'}")
    schema.metadata.create_all(older)
    with older.begin() as connection:
        connection.execute(schema.meta.insert().values(name="schema_version", value=str(schema.SCHEMA_VERSION)))
    older.dispose()
    store = Store(str(tmp_path / "older.db"))
    assert list(shrink(store)) == []
    store.close()


@pytest.mark.parametrize("older", [1, 2])
def test_a_store_of_an_older_schema_is_upgraded_by_the_scheduler_alone(url: str, older: int) -> None:
    store = Store(url)
    before = _described(store)
    _stored(store, events=(Event(1.0, "x", "", {}),))
    with store.writing("x") as connection:
        for statement in (
            *(["ALTER TABLE tokens DROP COLUMN last_used_at"] if older == 1 else []),
            "DROP INDEX jobs_of_user",
            "DROP INDEX jobs_by_status",
            'CREATE INDEX ix_jobs_user ON jobs ("user")',
            "CREATE INDEX ix_jobs_status ON jobs (status)",
        ):
            connection.execute(sa.text(statement))
        connection.execute(sa.text(f"UPDATE meta SET value = '{older}' WHERE name = 'schema_version'"))
    assert _described(store) != before
    store.close()

    def version() -> str:
        with store.reading("x") as connection:
            return str(connection.scalar(sa.select(schema.meta.c.value).where(schema.meta.c.name == "schema_version")))

    store = Store(url, owned=False)
    assert version() == str(older), "who only copies a store leaves it as it is"
    store.close()
    store = Store(url)
    assert version() == str(schema.SCHEMA_VERSION)
    assert store.tokens() == []
    assert _described(store) == before
    assert [event.kind for _, event in store.events()] == ["x"]
    store.close()
    Store(url).close()


def _described(store: Store) -> dict[str, tuple[set[str], set[str]]]:
    """Names of the columns and indexes of each table."""
    with store.reading("x") as connection:
        inspector = sa.inspect(connection)
        return {
            table: (
                {str(column["name"]) for column in inspector.get_columns(table)},
                {str(index["name"]) for index in inspector.get_indexes(table)},
            )
            for table in inspector.get_table_names()
        }


def test_output_that_is_pruned_is_known_to_have_been(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path / "logs", 8192)
    for attempt in (1, 2):
        logs.append("j", attempt, 0, 0, b"x" * 1000)
    logs.append("k", 1, 0, 0, b"y")
    assert sorted(logs.jobs()) == ["j", "k"]
    assert logs.prune("j") == 2000
    assert logs.is_pruned("j")
    assert list(logs.jobs()) == ["k"]
    assert logs.read("j", 1, 0, 0, 100).end == 0
    assert logs.prune("j") == 0
    assert logs.prune("nobody") == 0
    logs.forget("j")
    assert sorted(path.name for path in logs.folder.iterdir()) == ["k"]


def test_only_what_is_output_is_deleted(tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "precious").write_text("x")
    logs = LogFolder(tmp_path / "logs", 8192)
    logs.append("j", 1, 0, 0, b"x")
    (logs.folder / "j" / "1" / "link").symlink_to(other)
    (logs.folder / "j" / "notes").write_text("by hand")
    logs.prune("j")
    logs.forget("j")
    assert (other / "precious").exists()
    assert (logs.folder / "j" / "notes").exists()


def _over(world: World, **more: object) -> str:
    """A job that has run, written a line, and ended."""
    job_id = world.submit(**more)
    for _ in range(200):
        if any(run.job_id == job_id for run in world.beat().runs):
            break
        time.sleep(0.05)
    world.beat(runs=(RunReport(job_id=job_id, attempt=1, state=RunState.RUNNING),))
    answer = world.call("n1", "POST", f"/v1/nodes/n1/logs/{job_id}/1/0?offset=0", content=b"a line\n")
    assert answer.json() == {"offset": 7}
    world.beat(runs=(RunReport(job_id=job_id, attempt=1, state=RunState.ENDED, exit_code=0),))
    world.beat()
    assert world.call("ada", "GET", f"/v1/jobs/{job_id}").json()["status"] == "succeeded"
    return job_id


def test_the_output_of_a_job_is_pruned_before_the_job_and_its_readers_are_told(tmp_path: Path) -> None:
    keep = {"output_days": 1e-6, "events_days": 0, "jobs_days": 0}
    with running(tmp_path, retention=keep) as world:
        world.beat()
        job_id = _over(world)
        waits = world.submit(gpu_types=["None"])
        assert world.call("ada", "GET", f"/v1/jobs/{job_id}/logs").content == b"a line\n"
        time.sleep(0.2)
        done = world.service.retention.turn()
        assert (done.outputs, done.output_bytes, done.events, done.jobs) == (1, 7, 0, 0)
        answer = world.call("ada", "GET", f"/v1/jobs/{job_id}/logs")
        assert answer.status_code == 410
        assert f"the output of job '{job_id}' was pruned" in answer.json()["detail"]
        assert world.call("bob", "GET", f"/v1/jobs/{job_id}/logs").status_code == 404
        late = world.call("n1", "POST", f"/v1/nodes/n1/logs/{job_id}/1/0?offset=7", content=b"late")
        assert late.status_code == 410
        assert world.call("ada", "GET", f"/v1/jobs/{job_id}").json()["status"] == "succeeded"
        assert len(world.call("ada", "GET", f"/v1/jobs/{job_id}/history").json()) > 2
        assert world.call("ada", "GET", f"/v1/jobs/{waits}/logs").status_code == 200
        assert world.service.retention.turn().outputs == 0


def test_old_jobs_go_whole_and_their_key_may_be_used_again(tmp_path: Path) -> None:
    body = {"command": ["x"], "gpu_types": ["None"]}
    key = {"Idempotency-Key": "k"}
    with running(tmp_path, retention={"output_days": 0, "events_days": 1e-6, "jobs_days": 1e-6}) as world:
        world.beat()
        job_id = _over(world)
        kept = world.submit(gpu_types=["None"])
        first = world.call("ada", "POST", "/v1/jobs", json=body, headers=key).json()["job_id"]
        assert world.call("ada", "POST", "/v1/jobs", json=body, headers=key).json()["job_id"] == first
        world.call("ada", "POST", f"/v1/jobs/{first}/cancel")
        time.sleep(0.2)
        done = world.service.retention.turn()
        assert done.jobs == 2
        assert done.output_bytes == 7
        assert done.events >= 1, "what came before the latest snapshot that is old"
        assert {path.name for path in (tmp_path / "logs").iterdir()} == set()
        for path in (f"/v1/jobs/{job_id}", f"/v1/jobs/{job_id}/logs", f"/v1/jobs/{job_id}/history"):
            assert world.call("ada", "GET", path).status_code == 404
        assert [job["job_id"] for job in world.call("ada", "GET", "/v1/jobs").json()["jobs"]] == [kept]
        history = world.call("ada", "GET", f"/v1/jobs/{kept}/history").json()
        assert history[0]["kind"] == "job.submitted", "what happened to a job that is not over stays"
        second = world.call("ada", "POST", "/v1/jobs", json=body, headers=key).json()["job_id"]
        assert second != first
        text = world.call("root", "GET", "/metrics").text
        assert 'bloxopt_pruned_total{kind="jobs"} 2.0' in text
        assert "bloxopt_pruned_output_bytes_total 7.0" in text
    assert Store(str(tmp_path / "bloxopt.db")).load().finished_jobs == 2


def test_tokens_go_when_they_have_held_no_longer_for_so_long(tmp_path: Path) -> None:
    with running(tmp_path, retention={"tokens_days": 1e-6}) as world:
        made = {}
        for name, lifetime in (("lasts", None), ("expires", 0.01), ("later", 1e6)):
            body = {"role": "user", "subject": name, "lifetime": lifetime}
            made[name] = world.call("root", "POST", "/v1/tokens", json=body).json()["token_id"]
        time.sleep(0.02)
        valid = {view["token_id"]: view["valid"] for view in world.call("root", "GET", "/v1/tokens").json()}
        assert [valid[made[name]] for name in ("lasts", "expires", "later")] == [True, False, True]
        time.sleep(0.2)
        assert world.service.retention.turn().tokens == 1
        left = {view["token_id"] for view in world.call("root", "GET", "/v1/tokens").json()}
        assert {name for name, token_id in made.items() if token_id in left} == {"lasts", "later"}
        assert 'bloxopt_pruned_total{kind="tokens"} 1.0' in world.call("root", "GET", "/metrics").text


def test_with_zeros_everything_is_kept(tmp_path: Path) -> None:
    zeros = {"output_days": 0, "events_days": 0, "jobs_days": 0, "tokens_days": 0}
    with running(tmp_path, retention=zeros) as world:
        world.beat()
        body = {"role": "user", "subject": "x", "lifetime": 1e-6}
        gone = world.call("root", "POST", "/v1/tokens", json=body).json()["token_id"]
        job_id = _over(world)
        done = world.service.retention.turn()
        assert (done.outputs, done.events, done.jobs, done.tokens) == (0, 0, 0, 0)
        assert gone in {view["token_id"] for view in world.call("root", "GET", "/v1/tokens").json()}
        assert world.call("ada", "GET", f"/v1/jobs/{job_id}/logs").content == b"a line\n"


def test_the_service_prunes_by_itself_says_so_and_outlives_a_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bloxopt.runtime")
    keep = {"output_days": 1e-6, "events_days": 0, "jobs_days": 5e-5, "interval_seconds": 0.1}
    with running(tmp_path, retention=keep) as world:
        world.beat()
        logs = world.service.logs.folder
        logs.rename(tmp_path / "away")
        _until(lambda: any(record.message == "old data was not pruned" for record in caplog.records))
        (tmp_path / "away").rename(logs)
        job_id = _over(world)
        _until(lambda: world.call("ada", "GET", f"/v1/jobs/{job_id}/logs").status_code == 410)
        _until(lambda: world.call("ada", "GET", f"/v1/jobs/{job_id}").status_code == 404)
        _until(lambda: 'bloxopt_pruned_total{kind="jobs"} 1.0' in world.call("root", "GET", "/metrics").text)
        assert "bloxopt_retention_failures_total 0.0" not in world.call("root", "GET", "/metrics").text
    told = [vars(record) for record in caplog.records if record.message == "old data was pruned"]
    assert sum(record["outputs"] for record in told) == 1
    assert sum(record["output_bytes"] for record in told) == 7
    assert sum(record["jobs"] for record in told) == 1
    assert not os.listdir(logs)


def _until(happened: object, seconds: float = 30.0) -> None:
    assert callable(happened)
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    "text", [{"output_days": -1}, {"events_days": "long"}, {"jobs_days": float("nan")}, {"days": 1}]
)
def test_ages_that_cannot_be_are_refused_by_key(tmp_path: Path, text: dict[str, object]) -> None:
    (key,) = text
    with pytest.raises(BloxoptError, match=rf"retention\.{key}"):
        make_config({"retention": text}, tmp_path)


def test_a_store_that_fails_stops_a_turn_with_one_sentence(tmp_path: Path) -> None:
    with running(tmp_path, retention={"events_days": 1e-6}) as world:
        with world.service.store.writing("x") as connection:
            connection.execute(sa.text("ALTER TABLE events RENAME TO moved"))
        with pytest.raises(StoreError, match="the events cannot be read"):
            world.service.retention.turn()
        with world.service.store.writing("x") as connection:
            connection.execute(sa.text("ALTER TABLE moved RENAME TO events"))
        assert json.loads(world.call(None, "GET", "/openapi.json").text)["openapi"]
