"""How far a rank is: a file of 64 bytes in the run's folder that the job maps into memory and the agent reads.

The job writes with plain stores, so that a step costs no system call; each field is one aligned word, so that a reader
never sees half of one. Only the standard library: jobs of any framework import this, and so does the guard."""

from __future__ import annotations

import itertools
import mmap
import os
import stat
import struct
from pathlib import Path
from typing import NamedTuple

SIZE = 64
MOST_RANKS = 1024
"""Ranks of one run on one node whose progress is read."""
_MAGIC = 0x3130474F52505842  # "BXPROG01"
_LAYOUT = struct.Struct("<qqddd")
_MAGIC_WORD, _PROCESS, _STEPS, _RATE, _TIME = range(5)
_FOLDER = "progress"


class Progress(NamedTuple):
    """What one rank has written: its ``process`` id, ``steps`` done, steps a second (None before the first step), and
    when (seconds of the monotonic clock, the same for all processes of a machine)."""

    process: int
    steps: float
    steps_per_second: float | None
    time: float


class ProgressWriter:
    """The job's end: maps ``run_dir/progress/RANK`` and stores to it. Raises OSError where it cannot be written."""

    def __init__(self, run_dir: str, rank: int) -> None:
        folder = os.path.join(run_dir, _FOLDER)
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(os.path.join(folder, str(rank)), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Blocks are taken now: a mapped page that finds no space later would end the job with SIGBUS.
            os.posix_fallocate(descriptor, 0, SIZE)
            self._map = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)
        view = memoryview(self._map)
        self._integers, self._numbers = view.cast("q"), view.cast("d")
        self._integers[_PROCESS] = os.getpid()
        self._numbers[_RATE] = float("nan")
        self._integers[_MAGIC_WORD] = _MAGIC

    def store(self, steps: float, time: float) -> None:
        self._numbers[_STEPS] = steps
        self._numbers[_TIME] = time

    def store_rate(self, steps_per_second: float) -> None:
        self._numbers[_RATE] = steps_per_second


def read_progress(run_dir: Path) -> dict[int, Progress]:
    """What the ranks of a run have written, by rank; empty where none uses the client.

    The folder belongs to the job: links, pipes and anything else that is not a plain file of the right kind is passed
    over, so is what cannot be a number of steps, and so are files beyond the first :data:`MOST_RANKS`.
    """
    found: dict[int, Progress] = {}
    try:
        folder = os.open(run_dir / _FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return found
    try:
        with os.scandir(folder) as entries:
            for entry in itertools.islice(entries, MOST_RANKS):
                if entry.name.isdecimal():
                    progress = _read(entry.name, folder)
                    if progress is not None:
                        found[int(entry.name)] = progress
    except OSError:
        return found
    finally:
        os.close(folder)
    return found


def _read(name: str, folder: int) -> Progress | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = os.pread(descriptor, SIZE, 0)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if len(data) < _LAYOUT.size:
        return None
    magic, process, steps, rate, time = _LAYOUT.unpack_from(data)
    if magic != _MAGIC or not 0 <= steps <= 1e18:
        return None
    return Progress(process, steps, rate if 0 <= rate <= 1e12 else None, time)
