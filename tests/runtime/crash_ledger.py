"""What the ledger of a job (see ``crash_job.py``) must say, whatever was killed while it ran."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    """A line of a ledger; ``at`` is seconds of the machine's monotonic clock."""

    what: str
    number: int
    rank: int
    attempt: int
    node: str
    pid: int
    at: float


def read_ledger(path: Path) -> list[Entry]:
    """The entries in the order in which they were written; empty where there is no ledger."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Entry(**json.loads(line)) for line in lines]


def faults(
    entries: Iterable[Entry], killed: Collection[int] = (), guardless: Collection[tuple[int, str]] = ()
) -> list[str]:
    """All that is wrong with a ledger, in words; empty where nothing is.

    ``killed`` are the processes that the test has killed, and ``guardless`` the (attempt, node) whose guards it has.
    """
    entries = list(entries)
    met = [f"attempt {one.attempt} rank {one.rank} {one.what}: {one.number}" for one in entries if _is_meeting(one)]
    by_rank: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        if not _is_meeting(entry):
            by_rank[entry.rank].append(entry)
    found = [fault for rank in sorted(by_rank) for fault in _faults_of_rank(by_rank[rank], set(killed), set(guardless))]
    return met + _overlaps(entries) + found


def _is_meeting(entry: Entry) -> bool:
    return entry.what not in ("begins", "step", "is saving", "leaves")


def _overlaps(entries: list[Entry]) -> list[str]:
    """Attempts that began before a former one had ended."""
    spans: dict[int, tuple[float, float]] = {}
    for entry in entries:
        first, last = spans.get(entry.attempt, (entry.at, entry.at))
        spans[entry.attempt] = (min(first, entry.at), max(last, entry.at))
    order = sorted(spans)
    return [
        f"attempt {later} began {spans[former][1] - spans[later][0]:.3f} s before the end of attempt {former}"
        for former, later in itertools.pairwise(order)
        if spans[later][0] <= spans[former][1]
    ]


def _faults_of_rank(entries: list[Entry], killed: set[int], guardless: set[tuple[int, str]]) -> list[str]:
    """Steps that one rank left out, or did again without need."""
    found: list[str] = []
    saved, saving, following = 0, None, 0
    last: Entry | None = None
    for entry in entries:
        words = f"rank {entry.rank}, attempt {entry.attempt}, process {entry.pid}: {entry.what} {entry.number}"
        if entry.what == "begins":
            if entry.number not in (saved, saved if saving is None else saving):
                found.append(f"{words}, but the last checkpoint was {saving or saved}")
            if last is not None and last.what != "leaves" and not _was_killed(last, killed, guardless):
                found.append(f"{words}, and nobody had killed process {last.pid}, which last said {last.what}")
            saved, saving, following = entry.number, None, entry.number
        else:
            saved, saving = (saved if saving is None else saving), None
            if entry.what == "step":
                if entry.number != following:
                    found.append(f"{words}, but step {following} was next")
                following = entry.number + 1
            elif entry.what == "is saving":
                saving = entry.number
        last = entry
    return found


def _was_killed(last: Entry, killed: set[int], guardless: set[tuple[int, str]]) -> bool:
    return last.pid in killed or (last.attempt, last.node) in guardless
