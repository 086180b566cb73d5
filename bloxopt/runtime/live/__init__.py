"""The live cluster: jobs, runs and nodes as they are, and the backend that schedules them. No network here."""

from __future__ import annotations

from bloxopt.runtime.live.backend import LiveBackend
from bloxopt.runtime.live.clock import Clock
from bloxopt.runtime.live.cluster import LiveCluster
from bloxopt.runtime.live.heartbeats import answer
from bloxopt.runtime.live.terms import LeaseTerms, Rounds

__all__ = ["Clock", "LeaseTerms", "LiveBackend", "LiveCluster", "Rounds", "answer"]
