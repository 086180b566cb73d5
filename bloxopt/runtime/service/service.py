"""Everything that one scheduler process has, put together from its configuration."""

from __future__ import annotations

import contextlib
import threading

from bloxopt.errors import StoreError
from bloxopt.experiments.store import versions
from bloxopt.runtime.live import Clock, LiveBackend, LiveCluster
from bloxopt.runtime.live.reception import Reception
from bloxopt.runtime.service.config import ServiceConfig
from bloxopt.runtime.service.garbage import ShortCollections
from bloxopt.runtime.service.limits import RateLimit
from bloxopt.runtime.service.logging import log
from bloxopt.runtime.service.logs import LogFolder
from bloxopt.runtime.service.loop import RoundLoop
from bloxopt.runtime.service.metrics import Metrics
from bloxopt.runtime.service.retention import Retention
from bloxopt.runtime.service.tokens import Tokens
from bloxopt.runtime.service.whatif import WhatIf
from bloxopt.runtime.store import Store

_CHECK_SECONDS = 5.0


class Service:
    """A scheduler: its store, live cluster, rounds, tokens, logs and metrics.

    Raises a :class:`~bloxopt.errors.BloxoptError` for a configuration that cannot be used, or a database that cannot.
    """

    def __init__(self, config: ServiceConfig, clock: Clock | None = None) -> None:
        self.config = config
        config.check()
        self.store = Store(config.database)
        try:
            self.clock = Clock() if clock is None else clock
            self.live = LiveCluster(self.store, config.terms, self.clock)
            self.reception = Reception(self.live)
            self.backend = LiveBackend(self.live, config.live_rounds)
            self.tokens = Tokens(self.store, self.clock)
            self.logs = LogFolder(config.logs, config.limits.log_bytes)
        except BaseException:
            self.store.close()
            raise
        self.metrics = Metrics(self.live)
        self.rates = RateLimit(config.limits.requests_per_second, config.limits.burst)
        self.loop = RoundLoop(config, self.backend, self.metrics)
        self.what_if = WhatIf()
        self.retention = Retention(config.retention, self.store, self.logs, self.tokens, self.clock, self.metrics)
        self.garbage = ShortCollections()
        self._started = False
        self._checked: tuple[float, str] = (-_CHECK_SECONDS, "")
        self._check_lock = threading.Lock()

    def start(self) -> None:
        """Begin to decide rounds, if that has not begun yet."""
        if self._started:
            return
        self._started = True
        with self.live.change():
            plain = self.config.model_dump(mode="json", exclude={"database"})
            self.live.note("scheduler.started", "", config=plain, versions=versions())
        self.garbage.start()
        self.loop.start()
        self.retention.start()
        log.info("scheduler started", extra={"jobs": len(self.live.jobs), "nodes": len(self.live.nodes)})

    def stop(self) -> None:
        """Decide no more rounds, and let go of the store. Jobs go on under their leases."""
        self.garbage.stop()
        self.loop.stop()
        self.retention.stop()
        self.reception.close()
        with contextlib.suppress(StoreError):
            self.tokens.save_use()
        self.store.close()
        log.info("scheduler stopped")

    def fault(self) -> str:
        """What keeps the service from working, "" if nothing does; the store is asked every few seconds."""
        if not self.loop.alive:
            return "no rounds are decided"
        if self.loop.failure:
            return "the last round failed"
        with self._check_lock:
            now = self.clock.monotonic()
            if now - self._checked[0] > _CHECK_SECONDS:
                try:
                    self.store.check()
                    self._checked = (now, "")
                except StoreError as error:
                    log.error("the store failed", extra={"reason": str(error)})
                    self._checked = (now, "the database does not work")
            return self._checked[1]
