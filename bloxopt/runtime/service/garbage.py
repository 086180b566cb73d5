"""Cyclic garbage is collected seldom: looking through a hundred thousand jobs and runs holds up every request."""

from __future__ import annotations

import gc
import threading

_YOUNG = (50_000, 20, 1_000_000)
"""Objects after which the youngest are looked through, how often until those next to them are, and all: never."""

_ALL_EVERY = 900.0
"""Seconds between two times that all are looked through. Nearly everything is freed without, when nobody has it."""


class SeldomCollections:
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
