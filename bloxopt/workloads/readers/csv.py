"""Our own format as CSV: one column per field of ``Job`` (see ``docs/traces.md``)."""

from __future__ import annotations

from bloxopt.throughput import ThroughputOracle
from bloxopt.workloads.files import TraceFile
from bloxopt.workloads.formats import Format
from bloxopt.workloads.readers.columns import REQUIRED, trace_from_table
from bloxopt.workloads.table import Table
from bloxopt.workloads.trace import Trace


def read(file: TraceFile, throughput: ThroughputOracle | None) -> Trace:
    """Jobs of our own CSV; without ``throughput`` the jobs need a duration."""
    return trace_from_table(Table.from_text(file, required=REQUIRED), file.path.name, throughput)


FORMAT = Format(name="csv", description="bloxopt's own CSV", read=read, columns=REQUIRED)
