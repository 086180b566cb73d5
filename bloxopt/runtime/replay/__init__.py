"""Recorded logs: every round decided again and compared, and the workload in them under another policy."""

from __future__ import annotations

from bloxopt.runtime.replay.log import LogEvent, read_log, write_log
from bloxopt.runtime.replay.rounds import Difference, Report, replay

__all__ = ["Difference", "LogEvent", "Report", "read_log", "replay", "write_log"]
