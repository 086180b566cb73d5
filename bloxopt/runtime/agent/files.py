"""What agent and guard leave for each other in a run's folder, so that it survives either being killed at any time.

State that changes (:class:`Record`, :class:`Lease`) lives in files whose blocks are taken when the run is created and
are overwritten in place: a disk that is full stops neither the renewal of leases nor the report of how a run ended."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple

_SLOT = 4096
_HEADER = struct.Struct("<IIQ")
_LEASE = struct.Struct("<ddq")


def boottime() -> float:
    """Seconds since the machine started, suspended time included: no adjustment of clocks moves it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Names this boot of the machine; process ids and boot times of another one mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write_file(path: Path, data: bytes) -> None:
    """A new file whose contents are on the disk before this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Names made in or moved into this folder are on the disk before this returns."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Record:
    """A small JSON object, replaced as a whole: after a crash it is the old or the new one.

    Two slots are written in turn; the valid one with the higher count holds. One writer at a time; readers need no
    lock.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def create(self) -> None:
        """The empty record, with its blocks taken: :meth:`read` gives None."""
        write_file(self._path, bytes(2 * _SLOT))

    def read(self) -> dict[str, Any] | None:
        """The object, or None where none was written. Raises OSError where the file is missing."""
        latest = self._latest()
        return None if latest is None else latest[1]

    def write(self, value: dict[str, Any]) -> None:
        """Raises OSError where the disk fails, ValueError for objects of more than 4 KiB."""
        latest = self._latest()
        count = 1 if latest is None else latest[0] + 1
        payload = json.dumps(value).encode()
        if len(payload) > _SLOT - _HEADER.size:
            raise ValueError(f"a record of {len(payload)} bytes is longer than its slot")
        body = _HEADER.pack(0, len(payload), count)[4:] + payload
        data = struct.pack("<I", zlib.crc32(body)) + body
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, data, _SLOT * (count % 2))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _latest(self) -> tuple[int, dict[str, Any]] | None:
        data = self._path.read_bytes()
        slots = [slot for slot in (_slot(data[:_SLOT]), _slot(data[_SLOT:])) if slot is not None]
        return max(slots, key=lambda slot: slot[0]) if slots else None


def _slot(data: bytes) -> tuple[int, dict[str, Any]] | None:
    if len(data) < _HEADER.size:
        return None
    checksum, length, count = _HEADER.unpack_from(data)
    end = _HEADER.size + length
    if count == 0 or end > len(data) or zlib.crc32(data[4:end]) != checksum:
        return None
    return count, json.loads(data[_HEADER.size : end])


class Terms(NamedTuple):
    """Until when a run may go on: ``deadline`` by :func:`boottime`, ``length`` of the lease it ends (s), and whether
    the run is to ``stop`` now."""

    deadline: float
    length: float
    stop: bool


class Lease:
    """The terms that the agent sets and the guard keeps."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def create(self, terms: Terms) -> None:
        write_file(self._path, _LEASE.pack(*terms))

    def read(self) -> Terms:
        deadline, length, stop = _LEASE.unpack(self._path.read_bytes())
        return Terms(deadline, length, bool(stop))

    def renew(self, deadline: float, length: float) -> None:
        """Move the deadline; a run that was told to stop stays told."""
        self._overwrite(struct.pack("<dd", deadline, length), 0)

    def stop(self) -> None:
        self._overwrite(struct.pack("<q", 1), 16)

    def _overwrite(self, data: bytes, offset: int) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, data, offset)
        finally:
            os.close(descriptor)


class FolderLock:
    """Held by one process at a time; the kernel gives it back when that process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self, patience: float = 0.0) -> bool:
        """True if it is ours now; tries for ``patience`` seconds, as a look at the lock holds it for an instant."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        give_up = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= give_up:
                    os.close(descriptor)
                    return False
                time.sleep(0.02)
            else:
                self._descriptor = descriptor
                return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
