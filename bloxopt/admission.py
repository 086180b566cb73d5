"""Admission: which submitted jobs are let in. Here: all of them, in order of arrival."""

from __future__ import annotations

from typing import Protocol

from bloxopt.formulations.space import ConfigurationCatalog
from bloxopt.jobs import IntArray
from bloxopt.state import JobLedger


class Admission(Protocol):
    """Decides on newly submitted jobs; what is neither admitted nor rejected is asked about again."""

    def decide(
        self, submitted: IntArray, ledger: JobLedger, catalog: ConfigurationCatalog, now: float
    ) -> tuple[IntArray, IntArray]:
        """Rows to admit and rows to reject, both in order."""
        ...


class AcceptAll:
    """Admit every job as soon as it is submitted."""

    def decide(
        self, submitted: IntArray, ledger: JobLedger, catalog: ConfigurationCatalog, now: float
    ) -> tuple[IntArray, IntArray]:
        return submitted, submitted[:0]
