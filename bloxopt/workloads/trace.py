"""A trace: jobs with arrivals, where they come from, and the throughputs that go with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bloxopt.errors import TraceError
from bloxopt.jobs import Job, JobTable
from bloxopt.throughput import DurationThroughput, ThroughputOracle


@dataclass(frozen=True, eq=False)
class Trace:
    """Jobs sorted by arrival, with the throughput oracle that fits them, their source and licence."""

    name: str
    jobs: JobTable
    throughput: ThroughputOracle = field(default_factory=DurationThroughput)
    source: str = ""
    licence: str = ""

    def __post_init__(self) -> None:
        if len(self.jobs) == 0:
            raise TraceError(f"trace {self.name!r} has no jobs")

    @classmethod
    def from_jobs(cls, jobs: Iterable[Job], throughput: ThroughputOracle | None = None, name: str = "custom") -> Trace:
        """A trace of ``Job`` objects; without ``throughput`` the jobs need a duration."""
        return cls(name, JobTable.from_jobs(list(jobs)), throughput or DurationThroughput())

    def __len__(self) -> int:
        return len(self.jobs)
