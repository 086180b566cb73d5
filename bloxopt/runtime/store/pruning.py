"""What a store may forget, and forgetting it a little at a time: each step is one short transaction.

Unfinished jobs, their runs and their events stay. What is to go is looked up by readers, who hold nobody up; a write
only deletes rows by their primary keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import sqlalchemy as sa

from bloxopt.runtime.store import schema
from bloxopt.runtime.store.facts import FINAL
from bloxopt.runtime.store.store import Store

SNAPSHOT = "log.snapshot"
"""Kind of the events from which a replay may begin: they hold everything that came before."""

ROWS = 250
"""Events or jobs that one transaction deletes at most."""

PAGES = 256
"""Pages of a SQLite file (of 4 KiB mostly) that one transaction gives back."""

_FINAL = [status.value for status in FINAL]
_OLD = sa.and_(schema.jobs.c.status.in_(_FINAL), schema.jobs.c.finished_at < sa.bindparam("before"))


def prune_events(store: Store, before: float, most: int = ROWS) -> Iterator[int]:
    """Delete events noted before ``before`` (s), at most ``most`` a step; yields the number deleted after each step.

    Events of jobs that are not over stay, and the latest event, by which the clock goes on. Where there are snapshots,
    so do the latest one from before ``before`` and all that follows it, so that a replay always finds where to begin:
    nothing goes while every snapshot is younger. Raises :class:`~bloxopt.errors.StoreError`.
    """
    events, jobs = schema.events, schema.jobs
    unfinished = sa.select(jobs.c.job_id).where(jobs.c.status.not_in(_FINAL))
    # Events are numbered in the order of their times.
    young = sa.select(events.c.number).where(events.c.time >= before).order_by(events.c.time, events.c.number)
    snapshots = sa.select(events.c.number).where(events.c.kind == SNAPSHOT).order_by(events.c.number.desc())
    with store.reading("the events cannot be read") as connection:
        end = connection.scalar(young.limit(1)) or connection.scalar(sa.select(sa.func.max(events.c.number))) or 0
        if connection.scalar(snapshots.limit(1)) is not None:
            end = min(end, connection.scalar(snapshots.where(events.c.number < end).limit(1)) or 0)
    done = 0
    while True:
        page = (
            sa.select(events.c.number)
            .where(events.c.number > done, events.c.number < end, events.c.subject.not_in(unfinished))
            .order_by(events.c.number)
            .limit(most)
        )
        with store.reading("the events cannot be read") as connection:
            numbers = connection.scalars(page).all()
        if not numbers:
            return
        with store.writing("old events were not deleted") as connection:
            connection.execute(events.delete().where(events.c.number.in_(numbers)))
        done = numbers[-1]
        yield len(numbers)


def prunable_jobs(store: Store, before: float, most: int = ROWS) -> Iterator[list[str]]:
    """Ids of jobs that were over before ``before`` (s), at most ``most`` at a time.

    Jobs submitted together under one idempotency key go together, when the last of them is old enough: until then the
    key stands for all of them. Raises :class:`~bloxopt.errors.StoreError`.
    """
    jobs = schema.jobs
    young = sa.select(jobs.c.submission_key).where(jobs.c.submission_key.is_not(None), sa.not_(_OLD))
    with store.reading("the jobs cannot be read") as connection:
        kept = {_submission(key) for key in connection.scalars(young, {"before": before})}
    last = ""
    while True:
        page = (
            sa.select(jobs.c.job_id, jobs.c.submission_key)
            .where(_OLD, jobs.c.job_id > last)
            .order_by(jobs.c.job_id)
            .limit(most)
        )
        with store.reading("the jobs cannot be read") as connection:
            rows = connection.execute(page, {"before": before}).all()
        if not rows:
            return
        last = rows[-1].job_id
        found = [job_id for job_id, key in rows if key is None or _submission(key) not in kept]
        if found:
            yield found


def delete_jobs(store: Store, job_ids: Collection[str]) -> None:
    """Delete finished jobs and their runs, in one transaction; they still count as finished."""
    jobs, runs, meta = schema.jobs, schema.runs, schema.meta
    chosen = sa.select(jobs.c.job_id).where(jobs.c.job_id.in_(job_ids), jobs.c.status.in_(_FINAL))
    with store.writing("old jobs were not deleted") as connection:
        names = connection.scalars(chosen).all()
        connection.execute(runs.delete().where(runs.c.job_id.in_(names)))
        connection.execute(jobs.delete().where(jobs.c.job_id.in_(names)))
        counted = connection.scalar(sa.select(meta.c.value).where(meta.c.name == schema.PRUNED_JOBS))
        if counted is None:
            connection.execute(meta.insert().values(name=schema.PRUNED_JOBS, value=str(len(names))))
        else:
            total = str(int(counted) + len(names))
            connection.execute(meta.update().where(meta.c.name == schema.PRUNED_JOBS).values(value=total))


def delete_tokens(store: Store, token_ids: Collection[str]) -> None:
    """Delete tokens, in one transaction."""
    with store.writing("old tokens were not deleted") as connection:
        connection.execute(schema.tokens.delete().where(schema.tokens.c.token_id.in_(token_ids)))


def over_before(store: Store, job_ids: Collection[str], before: float) -> set[str]:
    """Those of the jobs that were over before ``before`` (s)."""
    query = sa.select(schema.jobs.c.job_id).where(_OLD, schema.jobs.c.job_id.in_(job_ids))
    with store.reading("the jobs cannot be read") as connection:
        return set(connection.scalars(query, {"before": before}))


def shrink(store: Store, pages: int = PAGES) -> Iterator[int]:
    """Give free pages of a SQLite file back, ``pages`` a step; yields how many bytes each step gave back.

    Nothing for PostgreSQL, which vacuums by itself, and for files that were not made to be shrunk (``auto_vacuum``):
    their free pages are used again. Raises :class:`~bloxopt.errors.StoreError`.
    """
    if store.path is None:
        return
    while True:
        with store.reading("the database cannot be read") as connection:
            incremental = connection.exec_driver_sql("PRAGMA auto_vacuum").scalar() == 2
            free = connection.exec_driver_sql("PRAGMA freelist_count").scalar() or 0
            size = connection.exec_driver_sql("PRAGMA page_size").scalar() or 0
        if not incremental or not free:
            return
        store.give_back(pages)
        yield min(free, pages) * size


def _submission(key: str) -> str:
    """What the names of all jobs of one submission begin with."""
    return key.rpartition("/")[0]
