"""Databases for the tests of what is durable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.runtime.postgres_server import postgres_server


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of an empty PostgreSQL server of our own."""
    with postgres_server() as server:
        yield server.url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind, as a scheduler's configuration says it."""
    if request.param == "sqlite":
        return str(tmp_path / "facts.db")
    found: str = request.getfixturevalue("postgres")
    engine = sa.create_engine(found.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        connection.execute(sa.text("CREATE SCHEMA public"))
    engine.dispose()
    return found
