"""The output of a rank: segments of a byte stream, each named by the offset of its first byte, the oldest dropped."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def segments(folder: Path, rank: int) -> list[tuple[int, Path]]:
    """The segments that are there: the offset of each one's first byte, and its file, oldest first."""
    prefix = f"rank{rank}."
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(
        (int(name[len(prefix) : -4]), folder / name)
        for name in names
        if name.startswith(prefix) and name.endswith(".log") and name[len(prefix) : -4].isdecimal()
    )


def read_log(folder: Path, rank: int, offset: int, size: int) -> tuple[int, bytes]:
    """Up to ``size`` bytes from ``offset`` on, and where they begin: later than asked for if those were dropped."""
    start, data = offset, b""
    for first, path in segments(folder, rank):
        try:
            with path.open("rb") as file:
                length = os.fstat(file.fileno()).st_size
                if not data and first > start:
                    start = first
                if first <= start + len(data) < first + length:
                    file.seek(start + len(data) - first)
                    data += file.read(size - len(data))
        except FileNotFoundError:
            continue
        if len(data) >= size:
            break
    return start, data


class LogWriter:
    """Appends to the newest segment and begins another every ``segment_bytes``; keeps the newest ``most``.

    A disk that is full costs output, never the job: what could not be written is counted and told in the log itself
    once there is space again.
    """

    def __init__(self, folder: Path, rank: int, segment_bytes: int, most: int) -> None:
        self._folder, self._rank = folder, rank
        self._segment_bytes, self._most = segment_bytes, most
        self._descriptor: int | None = None
        self._first = self._length = 0
        self._lost = 0
        self._error = ""

    def write(self, data: bytes) -> None:
        if self._lost:
            notice = f"\n[bloxopt: {self._lost} bytes of output were lost here: {self._error}]\n".encode()
            if self._append(notice) == len(notice):
                self._lost = 0
        written = 0 if self._lost else self._append(data)
        self._lost += len(data) - written

    def close(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, data: bytes) -> int:
        """How many of the bytes were written."""
        view = memoryview(data)
        try:
            while view:
                if self._descriptor is None or self._length >= self._segment_bytes:
                    self._rotate()
                assert self._descriptor is not None
                written = os.write(self._descriptor, view[: self._segment_bytes - self._length])
                self._length += written
                view = view[written:]
        except OSError as error:
            self._error = error.strerror or str(error)
        return len(data) - len(view)

    def _rotate(self) -> None:
        first = self._first + self._length
        path = self._folder / f"rank{self._rank}.{first:020d}.log"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._first, self._length = descriptor, first, 0
        for _, old in segments(self._folder, self._rank)[: -self._most]:
            with contextlib.suppress(OSError):
                old.unlink()
