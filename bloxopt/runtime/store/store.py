"""The store itself: facts in, facts out, each change as one transaction."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa

from bloxopt.errors import StoreError
from bloxopt.runtime.messages import JobStatus
from bloxopt.runtime.store import schema
from bloxopt.runtime.store.database import Ownership, changing, failures, open_engine, prepare
from bloxopt.runtime.store.facts import FINAL, Change, Event, Facts, JobRecord, RunRecord, TokenRecord
from bloxopt.runtime.store.rows import Statements, jobs_of, nodes_of, runs_of


class Store:
    """Jobs, runs, nodes, tokens and events in a database, which one scheduler alone may write.

    Methods may be called from many threads. Raises :class:`~bloxopt.errors.StoreError` for a database that cannot be
    opened, that another scheduler uses, or that fails: nothing of a change is stored then.
    """

    def __init__(self, url: str, owned: bool = True) -> None:
        self._engine = open_engine(url)
        self._writer = self._engine.execution_options(writes=True)
        self._statements = Statements(self._engine.dialect)
        self._write_lock = threading.Lock()
        self._ownership: Ownership | None = None
        try:
            if owned:
                self._ownership = Ownership(self._engine)
            prepare(self._engine, upgrade=owned)
        except StoreError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the database."""
        if self._ownership is not None:
            self._ownership.close()
        self._engine.dispose()

    def check(self) -> None:
        """Raise :class:`~bloxopt.errors.StoreError` unless the database answers and is this scheduler's alone."""
        with self._write_lock:
            if self._ownership is not None:
                self._ownership.check()
        with failures("the database does not answer"), self._engine.connect() as connection:
            connection.execute(sa.select(1))

    def commit(self, change: Change) -> None:
        """Store all of a change, durably, or nothing of it."""
        if not change:
            return
        with self._write_lock:
            if self._ownership is not None:
                self._ownership.check()
            with changing(self._engine, "the change was not stored") as cursor:
                for statement, rows in self._statements.of(change):
                    if len(rows) == 1:
                        cursor.execute(statement, rows[0])
                    else:
                        cursor.executemany(statement, rows)

    @contextmanager
    def writing(self, failure: str) -> Iterator[sa.Connection]:
        """A transaction that writes; ``failure`` is what to say where it fails. Others wait as long as it takes."""
        with self._write_lock:
            if self._ownership is not None:
                self._ownership.check()
            with failures(failure), self._writer.begin() as connection:
                yield connection

    @contextmanager
    def reading(self, failure: str) -> Iterator[sa.Connection]:
        """A connection that only reads, and holds nobody up."""
        with failures(failure), self._engine.connect() as connection:
            yield connection

    @property
    def path(self) -> Path | None:
        """The file of a SQLite database, None for PostgreSQL."""
        url = self._engine.url
        return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None

    def give_back(self, pages: int) -> None:
        """Make a SQLite file smaller, by so many of its free pages at most."""
        with self._write_lock, failures("the database was not made smaller"):
            connection = self._engine.raw_connection()
            try:
                # As a script: a statement that is only begun gives back one page.
                connection.cursor().executescript(f"PRAGMA incremental_vacuum({int(pages)})")
            except sqlite3.Error as error:
                raise StoreError(f"the database was not made smaller: {error}") from error
            finally:
                connection.close()

    def load(self) -> Facts:
        """What a scheduler goes on from."""
        jobs, runs, nodes = schema.jobs, schema.runs, schema.nodes
        unfinished = jobs.c.status.not_in([status.value for status in FINAL])
        # An attempt that was to stop may yet succeed: all of its runs count then, those that have ended too.
        going = runs.alias()
        goes_on = sa.exists().where(
            going.c.job_id == runs.c.job_id, going.c.attempt == runs.c.attempt, going.c.ended_at.is_(None)
        )
        with failures("the jobs cannot be read"), self._engine.begin() as connection:
            found = connection.execute(sa.select(jobs).where(unfinished).order_by(jobs.c.submitted_at, jobs.c.job_id))
            kept = connection.execute(
                sa.select(runs)
                .join(jobs, jobs.c.job_id == runs.c.job_id)
                .where(unfinished, sa.or_(runs.c.attempt == jobs.c.attempt, goes_on))
            )
            hosts = connection.execute(sa.select(nodes).order_by(nodes.c.registered_at, nodes.c.name))
            finished = connection.scalar(sa.select(sa.func.count()).select_from(jobs).where(~unfinished)) or 0
            pruned = connection.scalar(sa.select(schema.meta.c.value).where(schema.meta.c.name == schema.PRUNED_JOBS))
            latest = connection.scalar(sa.select(sa.func.max(schema.events.c.time)))
            return Facts(
                jobs_of(found),
                runs_of(kept),
                nodes_of(hosts),
                finished + int(pruned or 0),
                latest or 0.0,
            )

    def job(self, job_id: str) -> JobRecord | None:
        """The job of that id, finished or not."""
        with failures("the job cannot be read"), self._engine.connect() as connection:
            found = jobs_of(connection.execute(sa.select(schema.jobs).where(schema.jobs.c.job_id == job_id)))
        return found[0] if found else None

    def jobs(
        self,
        user: str | None = None,
        status: Sequence[JobStatus] = (),
        limit: int = 100,
        before: tuple[float, str] | None = None,
    ) -> list[JobRecord]:
        """Jobs, the latest first; ``before`` the (submission time, id) of the last one of the page before."""
        jobs = schema.jobs
        query = sa.select(jobs).order_by(jobs.c.submitted_at.desc(), jobs.c.job_id.desc()).limit(limit)
        if user is not None:
            query = query.where(jobs.c.user == user)
        if status:
            query = query.where(jobs.c.status.in_([entry.value for entry in status]))
        if before is not None:
            query = query.where(sa.tuple_(jobs.c.submitted_at, jobs.c.job_id) < sa.tuple_(*before))
        with failures("the jobs cannot be read"), self._engine.connect() as connection:
            return jobs_of(connection.execute(query))

    def submitted(self, keys: Sequence[str]) -> dict[str, str]:
        """Ids of the jobs that were submitted under these keys before, by key."""
        jobs = schema.jobs
        query = sa.select(jobs.c.submission_key, jobs.c.job_id).where(jobs.c.submission_key.in_(keys))
        with failures("the jobs cannot be read"), self._engine.connect() as connection:
            return {str(key): str(job_id) for key, job_id in connection.execute(query)}

    def runs(self, job_id: str) -> list[RunRecord]:
        """Every run that a job ever had, by attempt and node rank."""
        runs = schema.runs
        query = sa.select(runs).where(runs.c.job_id == job_id).order_by(runs.c.attempt, runs.c.node_rank)
        with failures("the runs cannot be read"), self._engine.connect() as connection:
            return runs_of(connection.execute(query))

    def events(
        self, subject: str | None = None, after: int = 0, limit: int = 1000, kinds: Sequence[str] = ()
    ) -> list[tuple[int, Event]]:
        """Events and their numbers in the order in which they were stored, those after number ``after``."""
        events = schema.events
        query = sa.select(events).where(events.c.number > after).order_by(events.c.number).limit(limit)
        if subject is not None:
            query = query.where(events.c.subject == subject)
        if kinds:
            query = query.where(events.c.kind.in_(kinds))
        with failures("the history cannot be read"), self._engine.connect() as connection:
            return [(number, Event(*values)) for number, *values in connection.execute(query).all()]

    def tokens(self) -> list[TokenRecord]:
        """Every token there is, revoked ones too, the oldest first."""
        query = sa.select(schema.tokens).order_by(schema.tokens.c.created_at, schema.tokens.c.token_id)
        with failures("the tokens cannot be read"), self._engine.connect() as connection:
            return [TokenRecord(**row) for row in connection.execute(query).mappings()]

    def add_token(self, token: TokenRecord) -> None:
        """Store a token."""
        values = {name: getattr(token, name) for name in TokenRecord.__slots__}
        with self._write_lock, failures("the token was not stored"), self._writer.begin() as connection:
            connection.execute(schema.tokens.insert().values(**values))

    def revoke_token(self, token: TokenRecord, now: float) -> TokenRecord:
        """Revoke a token; one that is revoked already stays as it is."""
        tokens = schema.tokens
        with self._write_lock, failures("the token was not revoked"), self._writer.begin() as connection:
            connection.execute(
                tokens.update()
                .where(tokens.c.token_id == token.token_id, tokens.c.revoked_at.is_(None))
                .values(revoked_at=now)
            )
        return token if token.revoked_at is not None else replace(token, revoked_at=now)

    def note_tokens_used(self, times: Mapping[str, float]) -> None:
        """Store when tokens were last used (s), by token id."""
        if not times:
            return
        tokens = schema.tokens
        statement = (
            tokens.update()
            .where(tokens.c.token_id == sa.bindparam("which"))
            .values(last_used_at=sa.bindparam("last_used_at"))
        )
        with self.writing("the use of tokens was not stored") as connection:
            connection.execute(statement, [{"which": name, "last_used_at": at} for name, at in times.items()])


def backup(url: str, target: str | Path) -> None:
    """Copy a SQLite database to the file ``target`` while a scheduler uses it.

    Raises :class:`~bloxopt.errors.StoreError` for a file that is there already, and for PostgreSQL, which ``pg_dump``
    copies.
    """
    store = Store(url, owned=False)
    try:
        engine = store._engine
        if engine.dialect.name != "sqlite":
            raise StoreError("a PostgreSQL database is backed up with pg_dump: pg_dump --format=custom NAME > FILE")
        _copy(str(engine.url.database), Path(target))
    finally:
        store.close()


def restore(source: str | Path, url: str) -> None:
    """Make the SQLite database ``url`` from a backup, which is checked first.

    Raises :class:`~bloxopt.errors.StoreError` for a database that is there already, and for a file that is no backup.
    """
    if not Path(source).is_file():
        raise StoreError(f"{source}: no such backup")
    if "://" in url and not url.startswith("sqlite:///"):
        raise StoreError("a PostgreSQL database is restored with pg_restore: pg_restore --dbname=NAME FILE")
    if not _is_scheduler_database(source):
        raise StoreError(f"{source} is no backup of a scheduler's database")
    Store(str(source), owned=False).close()
    _copy(str(source), Path(url.removeprefix("sqlite:///")))


def _is_scheduler_database(source: str | Path) -> bool:
    """Whether a SQLite file has the tables of a scheduler; what is no SQLite file at all is told by opening it."""
    connection = sqlite3.connect(f"{Path(source).absolute().as_uri()}?mode=ro", uri=True)
    try:
        found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (schema.meta.name,)).fetchone()
    except sqlite3.Error:
        return True
    finally:
        connection.close()
    return found is not None


def _copy(source: str, target: Path) -> None:
    """Copy one SQLite file into a new one, by its own online backup."""
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise StoreError(f"{target} is there already: name a new file") from None
    except OSError as error:
        raise StoreError(f"{target}: {error.strerror}") from None
    reading, writing = sqlite3.connect(source), sqlite3.connect(target)
    try:
        reading.backup(writing)
        fault = writing.execute("PRAGMA integrity_check").fetchone()[0]
        if fault != "ok":
            raise StoreError(f"{target}: the copy is damaged: {fault}")
    except sqlite3.Error as error:
        raise StoreError(f"{target}: {error}") from error
    finally:
        reading.close()
        writing.close()
