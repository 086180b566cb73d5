"""The cluster traces published with ElasticFlow (Gu et al., ASPLOS 2023)."""

from __future__ import annotations

from bloxopt.throughput import ThroughputOracle
from bloxopt.workloads.files import TraceFile
from bloxopt.workloads.formats import Format
from bloxopt.workloads.table import Table
from bloxopt.workloads.trace import Trace

COLUMNS = ("job_id", "submission_time", "duration", "num_gpu")


def read(file: TraceFile, throughput: ThroughputOracle | None) -> Trace:
    """Jobs of one ElasticFlow cluster; arrivals are seconds since its first submission."""
    table = Table.from_text(file, required=COLUMNS)
    submitted = table.seconds("submission_time")
    return Trace.from_columns(
        file.path.name,
        throughput,
        job_id=table.identifiers(),
        arrival=submitted - submitted.min(),
        duration=table.seconds("duration", strict=True),
        num_gpus=table.whole_numbers("num_gpu"),
    )


FORMAT = Format(name="elasticflow", description="ElasticFlow (ASPLOS 2023) CSV", read=read, columns=COLUMNS)
