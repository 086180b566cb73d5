"""The output of jobs: appended to as agents send it, kept up to a limit, read from any offset."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bloxopt.errors import StoreError


class Piece(NamedTuple):
    """Bytes of a rank's output from ``offset`` on; ``end`` is how much there is in all."""

    data: bytes
    offset: int
    end: int


_PRUNED = "pruned"
"""An empty file in the folder of a job whose output is no longer kept, so that this can be said."""


class LogFolder:
    """The output of every rank: ``JOB/ATTEMPT/RANK.BASE``, files of at most half of ``limit`` bytes each.

    ``BASE`` is the offset at which the file begins. Of each rank the last two files are kept. Names are those of known
    jobs and numbers, never what a request says. Raises :class:`~bloxopt.errors.StoreError` where the disk fails.
    """

    def __init__(self, folder: str | Path, limit: int) -> None:
        self.folder = Path(folder)
        self._half = max(limit // 2, 1)
        self._locks = [threading.Lock() for _ in range(64)]
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"logs {self.folder}: {error.strerror}: name a folder that can be made") from None
        if not os.access(self.folder, os.R_OK | os.W_OK | os.X_OK):
            raise StoreError(
                f"logs {self.folder}: the scheduler may not write there: give it the folder, or name another"
            )

    def append(self, job_id: str, attempt: int, rank: int, offset: int, data: bytes) -> int:
        """Add output that begins at ``offset``; returns how much there is now.

        What is there already is not written again; what begins later than what is there ends is not taken.
        """
        place = self.folder / job_id / str(attempt)
        with self._lock(job_id, attempt, rank):
            try:
                files = _files(place, rank)
                base, path, size = files[-1] if files else (0, place / f"{rank}.0", 0)
                end = base + size
                new = data[end - offset :] if offset <= end < offset + len(data) else b""
                if not new:
                    return end
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
                while new:
                    if size >= self._half:
                        base, size = base + size, 0
                        path = place / f"{rank}.{base}"
                        for _, old, _ in _files(place, rank)[:-1]:
                            old.unlink()
                    part, new = new[: self._half - size], new[self._half - size :]
                    # One descriptor a call and no buffer: what is reported as there has been written.
                    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
                    try:
                        written = 0
                        while written < len(part):
                            written += os.write(descriptor, part[written:])
                    finally:
                        os.close(descriptor)
                    size += len(part)
                return base + size
            except OSError as error:
                raise StoreError(f"output cannot be stored: {error.strerror}") from None

    def read(self, job_id: str, attempt: int, rank: int, offset: int, limit: int) -> Piece:
        """At most ``limit`` bytes from ``offset``, or from the first that are kept if that is later.

        A negative offset counts from the end.
        """
        with self._lock(job_id, attempt, rank):
            try:
                files = _files(self.folder / job_id / str(attempt), rank)
                if not files:
                    return Piece(b"", 0, 0)
                end = files[-1][0] + files[-1][2]
                begin = min(max(offset if offset >= 0 else end + offset, files[0][0]), end)
                data = b""
                for base, path, size in files:
                    if base + size > begin + len(data) and len(data) < limit:
                        with open(path, "rb") as file:
                            file.seek(begin + len(data) - base)
                            data += file.read(limit - len(data))
                return Piece(data, begin, end)
            except OSError as error:
                raise StoreError(f"output cannot be read: {error.strerror}") from None

    def jobs(self) -> Iterator[str]:
        """The jobs of which there is output, by the names of the folders."""
        try:
            with os.scandir(self.folder) as entries:
                found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            raise StoreError(f"output cannot be listed: {error.strerror}") from None
        for name in found:
            if not self.is_pruned(name):
                yield name

    def is_pruned(self, job_id: str) -> bool:
        """Whether the job had output that is no longer kept."""
        return (self.folder / job_id / _PRUNED).exists()

    def prune(self, job_id: str) -> int:
        """Delete the output of a job that is over; returns how many bytes it was."""
        place = self.folder / job_id
        if not place.is_dir():
            return 0
        try:
            # First, so that whoever reads meanwhile is told why there is less.
            (place / _PRUNED).touch(mode=0o600)
            size = 0
            for attempt in place.iterdir():
                if attempt.name.isdecimal():
                    size += sum(path.lstat().st_size for path in attempt.iterdir())
                    shutil.rmtree(attempt)
            return size
        except OSError as error:
            raise StoreError(f"output of job {job_id} cannot be deleted: {error.strerror}") from None

    def forget(self, job_id: str) -> None:
        """Forget that a job had output which was pruned."""
        with contextlib.suppress(OSError):
            (self.folder / job_id / _PRUNED).unlink(missing_ok=True)
            (self.folder / job_id).rmdir()

    def _lock(self, job_id: str, attempt: int, rank: int) -> threading.Lock:
        return self._locks[hash((job_id, attempt, rank)) % len(self._locks)]


def _files(place: Path, rank: int) -> list[tuple[int, Path, int]]:
    """Base, path and size of a rank's files, in order."""
    if not place.is_dir():
        return []
    found = []
    for path in place.glob(f"{rank}.*"):
        base = path.name.partition(".")[2]
        if base.isdecimal():
            found.append((int(base), path, path.stat().st_size))
    return sorted(found)
