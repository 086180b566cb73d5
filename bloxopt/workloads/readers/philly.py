"""Microsoft's Philly trace as flattened by AdaptDL's authors (Jeon et al., ATC 2019)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from bloxopt.jobs import FloatArray
from bloxopt.throughput import ThroughputOracle
from bloxopt.workloads.files import TraceFile
from bloxopt.workloads.formats import Format
from bloxopt.workloads.table import Table
from bloxopt.workloads.trace import Trace

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")


def read(file: TraceFile, throughput: ThroughputOracle | None) -> Trace:
    """Jobs of a Philly CSV; arrivals are seconds since the first timestamp.

    The virtual cluster is the tenant; ids are ``0``, ``1``, … by row of the file, which is not in
    order of time. ``gpu_time`` is duration × GPUs and is not read.
    """
    table = Table.from_text(file, required=COLUMNS)
    seconds = _seconds(table)
    return Trace.from_columns(
        file.path.name,
        throughput,
        job_id=table.row_numbers(),
        arrival=seconds - seconds.min(),
        duration=table.seconds("duration", strict=True),
        num_gpus=table.whole_numbers("num_gpus"),
        tenant=table.text("cluster"),
    )


def _seconds(table: Table) -> FloatArray:
    """Timestamps as seconds since 1970, of no particular time zone."""
    moments = pd.to_datetime(pd.Series(list(table.columns["timestamp"])), format="%Y-%m-%d %H:%M:%S", errors="coerce")
    table.fail(moments.isna().to_numpy(), "timestamp", "a time such as 2017-10-09 07:01:55")
    seconds: FloatArray = moments.to_numpy().astype("datetime64[s]").astype(np.float64)
    return seconds


FORMAT = Format(name="philly", description="Philly (ATC 2019) CSV", read=read, columns=COLUMNS)
