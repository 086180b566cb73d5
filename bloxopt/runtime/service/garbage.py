"""Cyclic garbage is collected bit by bit: looking through a hundred thousand jobs and runs holds up every request."""

from __future__ import annotations

import gc
import threading

_YOUNG = (1_000, 10, 1_000_000)
"""Objects after which the youngest are looked through (1 to 3 ms), how often until those next to them are (some 20 ms),
and all: never."""

_ALL_EVERY = 900.0
"""Seconds between two times that all are looked through. Nearly everything is freed without, when nobody has it."""


class ShortCollections:
    """While it is on, Python looks through all objects only every quarter of an hour."""

    def __init__(self) -> None:
        self._before = gc.get_threshold()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="garbage", daemon=True)

    def start(self) -> None:
        gc.set_threshold(*_YOUNG)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        gc.set_threshold(*self._before)

    def _run(self) -> None:
        while not self._stopped.wait(_ALL_EVERY):
            gc.collect()
