"""How records become rows, with values as the database's driver takes them, and how rows become records again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.compiler import SQLCompiler

from bloxopt.runtime.messages import GpuInfo, JobSpec, JobStatus, RunState
from bloxopt.runtime.store import schema
from bloxopt.runtime.store.facts import Change, Event, JobRecord, NodeRecord, RunRecord
from bloxopt.runtime.store.plain_data import as_json, as_short_json

_JOB_FIXED = ("job_id", "user", "spec", "submitted_at", "submission_key")
"""What cannot change of a job that is stored: with the specification, the most of it."""

Converters = Mapping[str, Callable[[Any], Any]]
"""How values are stored that are not stored as they are, by the name of their column."""


class Statement:
    """A statement that stores records, with a placeholder for each attribute of a record that it stores."""

    def __init__(self, text: str, attributes: Sequence[str], converters: Converters) -> None:
        self.text = text
        self._values = attrgetter(*attributes)
        self._converters = [(place, converters[name]) for place, name in enumerate(attributes) if name in converters]

    def rows(self, records: Iterable[Any]) -> list[list[Any]]:
        """The values of records in the order of the placeholders."""
        rows = [list(values) for values in map(self._values, records)]
        for place, convert in self._converters:
            for row in rows:
                row[place] = convert(row[place])
        return rows


class Statements:
    """All that changes are stored with, for a dialect whose placeholders are numbered by their order.

    They are made once, and rows go from them to the driver as they are: for a small change, making a statement takes
    longer than executing it, and for a large one, so does SQLAlchemy's own way with rows.
    """

    def __init__(self, dialect: sa.Dialect) -> None:
        self._dialect = dialect
        jobs, events = schema.jobs, schema.events
        changes: dict[str, Any] = {name: sa.bindparam(name) for name in JobRecord.__slots__ if name not in _JOB_FIXED}
        update = jobs.update().where(jobs.c.job_id == sa.bindparam("job_id")).values(changes)
        status = {"status": _value, "outcome": _value}
        self._nodes = self._put(schema.nodes, ("name",), {"gpus": _gpus_json})
        self._new_jobs = self._put(jobs, _JOB_FIXED, {"spec": _spec_json, **status})
        self._known_jobs = self._made(update, jobs, (), status)
        self._runs = self._put(schema.runs, ("job_id", "attempt", "node"), {"state": _value})
        short = {"data": as_short_json} if dialect.name == "sqlite" else {}
        self._events = self._made(events.insert(), events, Event._fields, short)

    def of(self, change: Change) -> Iterable[tuple[str, list[list[Any]]]]:
        """Statements that store a change and their rows, in the order in which they refer to each other."""
        jobs, known = change.jobs.values(), change.known
        for statement, records in (
            (self._nodes, change.nodes.values()),
            (self._new_jobs, [job for job in jobs if job.job_id not in known]),
            (self._known_jobs, [job for job in jobs if job.job_id in known]),
            (self._runs, change.runs.values()),
            (self._events, change.events),
        ):
            if records:
                yield statement.text, statement.rows(records)

    def _put(self, table: sa.Table, fixed: Sequence[str], converters: Converters) -> Statement:
        """Stores rows of a table; of those that are there already all but the ``fixed`` columns."""
        insert = (sqlite if self._dialect.name == "sqlite" else postgresql).insert(table)
        changed = {column.name: insert.excluded[column.name] for column in table.columns if column.name not in fixed}
        keys = [column.name for column in table.primary_key.columns]
        statement = insert.on_conflict_do_update(index_elements=keys, set_=changed)
        return self._made(statement, table, table.columns.keys(), converters)

    def _made(
        self, statement: sa.ClauseElement, table: sa.Table, inserted: Sequence[str], converters: Converters
    ) -> Statement:
        compiled = statement.compile(dialect=self._dialect, column_keys=inserted, for_executemany=True)
        assert isinstance(compiled, SQLCompiler)
        assert compiled.positiontup is not None
        return Statement(compiled.string, compiled.positiontup, {**self._converters(table), **converters})

    def _converters(self, table: sa.Table) -> Converters:
        """What becomes of values of a table's columns before the driver gets them, as SQLAlchemy has it."""
        found: dict[str, Callable[[Any], Any]] = {}
        for name, column in table.columns.items():
            # Its own for JSON gives the same, and takes longer than making the JSON.
            is_json = isinstance(column.type, sa.JSON)
            convert = as_json if is_json else column.type.dialect_impl(self._dialect).bind_processor(self._dialect)
            if convert is not None:
                found[name] = convert
        return found


def _value(entry: Enum | None) -> Any:
    return None if entry is None else entry.value


def _spec_json(spec: JobSpec) -> str:
    return as_json(spec.model_dump(mode="json", exclude_defaults=True))


def _gpus_json(gpus: Iterable[GpuInfo]) -> str:
    return as_json([gpu.model_dump(mode="json", exclude_defaults=True) for gpu in gpus])


def jobs_of(result: sa.CursorResult[Any]) -> list[JobRecord]:
    """The jobs that rows of their table say."""
    return [
        JobRecord(
            **values
            | {
                "spec": JobSpec.model_validate(values["spec"]),
                "status": JobStatus(values["status"]),
                "outcome": None if values["outcome"] is None else JobStatus(values["outcome"]),
            }
        )
        for values in _named(result)
    ]


def runs_of(result: sa.CursorResult[Any]) -> list[RunRecord]:
    """The runs that rows of their table say."""
    return [
        RunRecord(**values | {"state": None if values["state"] is None else RunState(values["state"])})
        for values in _named(result)
    ]


def nodes_of(result: sa.CursorResult[Any]) -> list[NodeRecord]:
    """The nodes that rows of their table say."""
    return [
        NodeRecord(**values | {"gpus": [GpuInfo.model_validate(gpu) for gpu in values["gpus"]]})
        for values in _named(result)
    ]


def _named(result: sa.CursorResult[Any]) -> Iterator[dict[str, Any]]:
    """Rows as values by column, which takes half of what mappings of SQLAlchemy take."""
    names = tuple(result.keys())
    return (dict(zip(names, row, strict=True)) for row in result)
