"""Opening the database: durable settings, the schema and its version, and that one scheduler alone uses it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from bloxopt.errors import StoreError
from bloxopt.runtime.store import schema
from bloxopt.runtime.store.plain_data import JSON_SETTINGS

BUSY_SECONDS = 10.0
"""How long a writer waits for another one to finish."""

_NOTICED = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 20_000,
}
"""Seconds (the last: milliseconds) after which a PostgreSQL server counts as away that is cut off without a word. By
default that takes a quarter of an hour, in which no heartbeat would be answered."""

_LOCK_NUMBER = 0x626C6F78
"""Of the advisory lock in PostgreSQL that the scheduler holds."""


def open_engine(url: str) -> sa.Engine:
    """An engine for ``url``, a path of a SQLite file or a ``sqlite:///`` or ``postgresql://`` URL.

    Raises :class:`~bloxopt.errors.StoreError` for other kinds of databases, and files that cannot be opened.
    """
    parsed = _parsed(url)
    if parsed.get_backend_name() == "sqlite":
        return _sqlite(parsed)
    return sa.create_engine(
        parsed,
        paramstyle="format",
        pool_pre_ping=True,
        pool_size=5,
        max_overflow=5,
        connect_args=_NOTICED,
        **JSON_SETTINGS,
    )


def name_of(engine: sa.Engine) -> str:
    """What messages call the database: its file, or its URL without the password."""
    url = engine.url
    return str(url.database) if engine.dialect.name == "sqlite" else url.render_as_string(hide_password=True)


def _parsed(url: str) -> sa.URL:
    if "://" not in url:
        return sa.URL.create("sqlite", database=url)
    try:
        parsed = sa.make_url(url)
    except SQLAlchemyError as error:
        raise StoreError(f"database {url!r} is not a URL: {error}") from None
    kind = parsed.get_backend_name()
    if kind == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise StoreError("a database in memory would lose every job: name a file, such as sqlite:///bloxopt.db")
        return parsed
    if kind == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    raise StoreError(f"database {kind!r} is not known: use a path, sqlite:///PATH or postgresql://USER@HOST/NAME")


def _sqlite(url: sa.URL) -> sa.Engine:
    path = Path(str(url.database))
    if not path.parent.is_dir():
        raise StoreError(f"{path}: there is no folder {str(path.parent)!r} for the database: make it first")
    if path.is_dir():
        raise StoreError(f"database {path} is a folder: name a file in it")
    if not path.exists():
        # Before anything is in it: what users run is nobody else's business.
        try:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from None
    settings = {"timeout": BUSY_SECONDS, "check_same_thread": False}
    engine = sa.create_engine(url, connect_args=settings, **JSON_SETTINGS)

    @sa.event.listens_for(engine, "connect")
    def _settings(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver when it sees fit
        # The first holds for a new file alone; without it a file never becomes smaller.
        for setting in ("auto_vacuum=INCREMENTAL", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {setting}")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")

    return engine


def prepare(engine: sa.Engine, upgrade: bool) -> None:
    """Make the tables, or bring those of an older bloxopt up to date if ``upgrade``: the scheduler's alone to do.

    Raises :class:`~bloxopt.errors.StoreError` for a database that does not work, or is of a newer bloxopt.
    """
    name = name_of(engine)
    with failures(f"database {name}"), engine.execution_options(writes=True).begin() as connection:
        if sa.inspect(connection).has_table(schema.meta.name):
            row = connection.execute(
                sa.select(schema.meta.c.value).where(schema.meta.c.name == "schema_version")
            ).first()
            version = _version(None if row is None else str(row[0]), name)
            if upgrade and version < schema.SCHEMA_VERSION:
                _upgrade(connection, version)
        else:
            schema.metadata.create_all(connection)
            connection.execute(schema.meta.insert().values(name="schema_version", value=str(schema.SCHEMA_VERSION)))


def _version(found: str | None, name: str) -> int:
    """The version of the schema; raises for one that this version does not know."""
    version = int(found) if found is not None and found.isdecimal() else 0
    if not 1 <= version <= schema.SCHEMA_VERSION:
        raise StoreError(
            f"database {name} has schema version {found}, and this bloxopt knows {schema.SCHEMA_VERSION}: "
            + ("upgrade bloxopt" if version else "it was not made by bloxopt, so use another database")
        )
    return version


def _upgrade(connection: sa.Connection, version: int) -> None:
    for step in range(version + 1, schema.SCHEMA_VERSION + 1):
        for statement in schema.MIGRATIONS[step]:
            connection.exec_driver_sql(statement)
    latest = schema.meta.update().where(schema.meta.c.name == "schema_version")
    connection.execute(latest.values(value=str(schema.SCHEMA_VERSION)))


@contextmanager
def failures(what: str) -> Iterator[None]:
    """Database errors inside become :class:`~bloxopt.errors.StoreError` that say ``what`` failed."""
    try:
        yield
    except DBAPIError as error:
        raise _failure(what, error.orig) from error
    except SQLAlchemyError as error:
        raise _failure(what, error) from error


def _failure(what: str, error: BaseException | None) -> StoreError:
    cause = str(error).strip().splitlines()
    return StoreError(f"{what}: {cause[0] if cause else type(error).__name__}")


@contextmanager
def changing(engine: sa.Engine, what: str) -> Iterator[Any]:
    """A cursor of the driver itself in a transaction that writes: what SQLAlchemy adds costs more than small changes.

    Raises :class:`~bloxopt.errors.StoreError` that says ``what`` failed, also for values that cannot be stored: nothing
    is stored then.
    """
    dialect = engine.dialect
    with failures(what):
        connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        if dialect.name == "sqlite":
            cursor.execute("BEGIN IMMEDIATE")
        yield cursor
        connection.commit()
    except dialect.loaded_dbapi.Error as error:
        if dialect.is_disconnect(error, connection.driver_connection, None):
            connection.invalidate()
        raise _failure(what, error) from error
    except (ValueError, TypeError, OverflowError) as error:
        raise _failure(what, error) from error
    finally:
        # Rolls back what is not committed. A file stays open: where nothing can be written, it could not be opened.
        connection.close()


class Ownership:
    """Held by the one scheduler that uses a database; a second one is refused, and gets it when the first is gone."""

    def __init__(self, engine: sa.Engine) -> None:
        self._file: IO[str] | None = None
        self._connection: sa.Connection | None = None
        self._engine = engine
        if engine.dialect.name == "sqlite":
            path = f"{engine.url.database}.lock"
            try:
                self._file = open(path, "a")  # noqa: SIM115 - held for as long as the scheduler runs
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                raise _taken(name_of(engine)) from None
            except OSError as error:
                raise StoreError(f"{path}: {error.strerror}") from None
        else:
            self._take()

    def _take(self) -> None:
        name = name_of(self._engine)
        with failures(f"database {name}"):
            self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            if not self._connection.scalar(sa.select(sa.func.pg_try_advisory_lock(_LOCK_NUMBER))):
                self.close()
                raise _taken(name)

    def check(self) -> None:
        """Raise :class:`~bloxopt.errors.StoreError` unless the database is still this scheduler's alone."""
        if self._engine.dialect.name == "sqlite":
            return
        try:
            if self._connection is not None:
                self._connection.scalar(sa.select(1))
                return
        except SQLAlchemyError:
            # The lock went with its connection. Whoever takes it first goes on.
            self.close()
        self._take()

    def close(self) -> None:
        """Give the database up."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None


def _taken(name: str) -> StoreError:
    return StoreError(f"database {name} is in use by another scheduler: stop that one first, or use another database")
