"""Reading the log of a scheduler: from its database, from the scheduler itself, or from a file of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from bloxopt.errors import CheckError, InputError, StoreError
from bloxopt.wording import shown

_PAGE = 50
"""Events that are asked for at once."""

_FAR = 1e12
"""Seconds within which every moment is."""

_SQLITE = b"SQLite format 3\0"


class LogEvent(NamedTuple):
    """An event of the log: see :class:`bloxopt.runtime.store.Event`. ``place`` is where it was read, for messages."""

    number: int
    time: float
    kind: str
    subject: str
    data: dict[str, Any]
    place: str


def read_log(source: str | Path, kinds: Iterable[str] = ()) -> Iterator[LogEvent]:
    """The events of a log in order; those of ``kinds`` alone, if any are given.

    ``source`` is the path of a scheduler's SQLite database or of a file of JSON lines, a ``postgresql://`` URL, or the
    ``http://`` or ``https://`` address of a scheduler, which an admin may ask. Nothing is written to it. Raises
    :class:`~bloxopt.errors.InputError` and :class:`~bloxopt.errors.StoreError` that name the source, and the line.
    """
    text, wanted = str(source), frozenset(kinds)
    if text.startswith(("http://", "https://")):
        return _from_scheduler(text, wanted)
    if text.startswith("postgresql"):
        return _from_database(text, text.rpartition("@")[2], wanted)
    path = Path(source)
    if not path.is_file():
        raise InputError(f"{path}: no such log: give a scheduler's database, its address, or a file of JSON lines")
    with path.open("rb") as file:
        is_database = file.read(len(_SQLITE)) == _SQLITE
    if is_database:
        return _from_database(f"sqlite:///file:{path.absolute()}?mode=ro&uri=true", str(path), wanted)
    return _from_lines(path, wanted)


@contextmanager
def reading(event: LogEvent) -> Iterator[None]:
    """What does not fit in an event becomes an error that names it."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{event.place}: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "it"
        text = "is missing" if first["type"] == "missing" else f"is {shown(first['input'])}"
        raise InputError(f"{event.place}: the event is damaged: {key} {text}") from None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, CheckError) as error:
        text = f"no {error} is known" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise InputError(f"{event.place}: the event is damaged, or does not fit those before it: {text}") from None


def write_log(events: Iterable[LogEvent], path: Path) -> int:
    """Write events as JSON lines into a new file; how many. Raises :class:`~bloxopt.errors.InputError`."""
    count = 0
    try:
        with path.open("x", encoding="utf-8") as file:
            for event in events:
                shown = event._asdict()
                del shown["place"]
                file.write(json.dumps(shown, separators=(",", ":")) + "\n")
                count += 1
    except FileExistsError:
        raise InputError(f"{path} is there already: name a new file") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    return count


def _from_lines(path: Path, kinds: frozenset[str]) -> Iterator[LogEvent]:
    last = 0
    with path.open("rb") as file:
        for count, line in enumerate(file, 1):
            place = f"{path}, line {count}"
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{place}: not a line of JSON: {error}") from None
            event = _checked(found, place)
            if event.number <= last:
                raise InputError(
                    f"{place}: event {event.number} comes after event {last}: the events must be in the order of their "
                    "numbers, as they were exported"
                )
            last = event.number
            if not kinds or event.kind in kinds:
                yield event


def _checked(found: Any, place: str) -> LogEvent:
    wanted: dict[str, Any] = {"number": int, "time": (int, float), "kind": str, "subject": str, "data": dict}
    if not isinstance(found, dict):
        raise InputError(f"{place}: not an event: it must be an object with {', '.join(wanted)}")
    for name, kind in wanted.items():
        if not isinstance(found.get(name), kind) or isinstance(found[name], bool):
            raise InputError(f"{place}: not an event: {name} is {shown(found.get(name))}")
    if not abs(found["time"]) < _FAR:
        raise InputError(f"{place}: not an event: time is {shown(found['time'])}")
    return LogEvent(**{name: found[name] for name in wanted}, place=place)


def _from_database(url: str, name: str, kinds: frozenset[str]) -> Iterator[LogEvent]:
    import sqlalchemy as sa

    from bloxopt.runtime.store import schema
    from bloxopt.runtime.store.database import failures
    from bloxopt.runtime.store.plain_data import JSON_SETTINGS

    with failures(f"database {name}"):
        parsed = sa.make_url(url)
        if parsed.get_backend_name() == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        # Not as a store: that would bring the schema up to date, under a scheduler that may be at work.
        engine = sa.create_engine(parsed, **JSON_SETTINGS)
    events, after = schema.events, 0
    try:
        while True:
            query = sa.select(events).where(events.c.number > after).order_by(events.c.number).limit(_PAGE)
            if kinds:
                query = query.where(events.c.kind.in_(sorted(kinds)))
            try:
                with failures(f"database {name}: the events cannot be read"), engine.connect() as connection:
                    page = connection.execute(query).mappings().all()
            except ValueError as error:
                raise StoreError(f"database {name}: an event after number {after} is no JSON: {error}") from None
            for row in page:
                after = int(row["number"])
                yield _checked(dict(row), f"{name}, event {after}")
            if len(page) < _PAGE:
                return
    finally:
        engine.dispose()


def _from_scheduler(url: str, kinds: frozenset[str]) -> Iterator[LogEvent]:
    from bloxopt.runtime.people import People

    after = 0
    with People(url) as people:
        while True:
            page = people.get("/v1/events", after=after, limit=_PAGE, kind=sorted(kinds))
            if not page:
                return
            for found in page:
                event = _checked(found, f"{url}, event {found.get('number')}")
                after = event.number
                yield event
