"""Our own format as columns, shared by its CSV and Parquet readers."""

from __future__ import annotations

import difflib

import numpy as np

from bloxopt.errors import TraceError
from bloxopt.throughput import ThroughputOracle
from bloxopt.workloads import table as cells
from bloxopt.workloads.needs_columns import COLUMNS as NEEDS
from bloxopt.workloads.needs_columns import needs_from_table
from bloxopt.workloads.table import Table
from bloxopt.workloads.trace import Trace

REQUIRED = ("job_id", "arrival", "num_gpus")
OPTIONAL = (
    "job_type",
    "total_steps",
    "duration",
    "min_gpus",
    "max_gpus",
    "tenant",
    "weight",
    "deadline",
    "restart_cost",
    "cpus_per_gpu",
    "memory_gib_per_gpu",
    "gpu_share",
    *NEEDS,
)
EXTRA = "extra."
_SHARE = "a part of a GPU from 0.001 to 1"


def trace_from_table(table: Table, name: str, throughput: ThroughputOracle | None) -> Trace:
    """Check every column of our own format and build the trace."""
    _check_names(table)
    arrival = table.seconds("arrival")
    steps = table.numbers("total_steps", cells.STEPS, strict=True, default=np.nan)
    duration = table.seconds("duration", strict=True, default=np.nan)
    table.fail(np.isnan(steps) & np.isnan(duration), "total_steps", "given, or duration instead")
    num_gpus = table.whole_numbers("num_gpus")
    min_gpus, max_gpus = (
        table.whole_numbers("min_gpus", default=num_gpus),
        table.whole_numbers("max_gpus", default=num_gpus),
    )
    table.fail(min_gpus > num_gpus, "min_gpus", "at most num_gpus")
    table.fail(max_gpus < num_gpus, "max_gpus", "at least num_gpus")
    deadline = table.seconds("deadline", default=np.inf)
    table.fail(deadline <= arrival, "deadline", "a time after the arrival, in seconds")
    share = table.numbers("gpu_share", _SHARE, low=0.001, default=1.0)
    table.fail(share > 1, "gpu_share", _SHARE)
    table.fail((share < 1) & ((min_gpus != 1) | (max_gpus != 1)), "gpu_share", "1 for jobs of more than one GPU")
    return Trace.from_columns(
        name,
        throughput,
        job_id=table.identifiers(),
        arrival=arrival,
        job_type=table.text("job_type", "generic"),
        total_steps=steps,
        duration=duration,
        num_gpus=num_gpus,
        min_gpus=min_gpus,
        max_gpus=max_gpus,
        tenant=table.text("tenant", "default"),
        weight=table.numbers("weight", cells.POSITIVE, strict=True, default=1.0),
        deadline=deadline,
        restart_cost=table.seconds("restart_cost", default=0.0),
        cpus_per_gpu=table.numbers("cpus_per_gpu", cells.NOT_NEGATIVE, default=0.0),
        memory_gib_per_gpu=table.numbers("memory_gib_per_gpu", cells.NOT_NEGATIVE, default=0.0),
        gpu_share=share,
        needs=needs_from_table(table),
        extra={
            column.removeprefix(EXTRA): table.free_text(column) for column in table.columns if column.startswith(EXTRA)
        },
    )


def _check_names(table: Table) -> None:
    known = (*REQUIRED, *OPTIONAL)
    for column in table.columns:
        if column in known or (column.startswith(EXTRA) and len(column) > len(EXTRA)):
            continue
        close = difflib.get_close_matches(column.lower(), known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise TraceError(
            f"{table.path}: unknown column {column!r}: {hint}known are {', '.join(known)}; "
            f"name columns of your own {EXTRA}NAME"
        )
    missing = [column for column in REQUIRED if column not in table.columns]
    if missing:
        raise TraceError(f"{table.path}: column {missing[0]!r} is missing; needed are {', '.join(REQUIRED)}")
    if not {"total_steps", "duration"} & set(table.columns):
        raise TraceError(
            f"{table.path}: column 'total_steps' or 'duration' is missing: one must give the work of a job"
        )
