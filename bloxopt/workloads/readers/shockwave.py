"""Shockwave's traces: Gavel's columns plus batch size mode and duration (Zheng et al., NSDI 2023)."""

from __future__ import annotations

from bloxopt.throughput import ThroughputOracle
from bloxopt.workloads.files import TraceFile
from bloxopt.workloads.formats import Format
from bloxopt.workloads.readers import gavel
from bloxopt.workloads.shipped import shipped_throughput
from bloxopt.workloads.table import Table
from bloxopt.workloads.trace import Trace

COLUMNS = (*gavel.COLUMNS[:7], "mode", "priority", "SLO", "duration", "arrival")


def read(file: TraceFile, throughput: ThroughputOracle | None) -> Trace:
    """Jobs of a Shockwave trace, with its table of throughputs unless ``throughput`` is given.

    ``mode`` (static, accordion, gns: how the batch size changes while the job runs) is kept in
    ``extra["mode"]``; the job is simulated at its first batch size. Ids are line numbers from 0.
    """
    table = Table.from_text(file, delimiter="\t", names=COLUMNS)
    oracle = throughput or shipped_throughput("shockwave/tacc_throughputs.json.gz")
    columns = gavel.job_columns(table)
    duration = table.seconds("duration", strict=True)
    return Trace.from_columns(
        file.path.name,
        oracle,
        **columns,
        duration=duration,
        deadline=gavel.deadlines(table, oracle, columns, duration),
        extra={"mode": table.text("mode")},
    )


FORMAT = Format(
    name="shockwave",
    description="Shockwave (NSDI 2023) TSV",
    read=read,
    columns=COLUMNS,
    delimiter="\t",
    header=False,
    numeric=("total_steps", "scale_factor", "duration", "arrival"),
)
