"""Tiresias' job traces (Gu et al., NSDI 2019)."""

from __future__ import annotations

from bloxopt.throughput import ThroughputOracle
from bloxopt.workloads import table as cells
from bloxopt.workloads.files import TraceFile
from bloxopt.workloads.formats import Format
from bloxopt.workloads.table import Table
from bloxopt.workloads.trace import Trace

COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration")


def read(file: TraceFile, throughput: ThroughputOracle | None) -> Trace:
    """Jobs of a Tiresias CSV: a step is an iteration, of which ``duration`` seconds do them all.

    ``interval``, the time since the job before, repeats ``submit_time`` and is not read.
    """
    table = Table.from_text(file, required=COLUMNS)
    return Trace.from_columns(
        file.path.name,
        throughput,
        job_id=table.identifiers(),
        arrival=table.seconds("submit_time"),
        job_type=table.text("model_name"),
        total_steps=table.numbers("iterations", cells.STEPS, strict=True),
        duration=table.seconds("duration", strict=True),
        num_gpus=table.whole_numbers("num_gpu"),
    )


FORMAT = Format(name="tiresias", description="Tiresias (NSDI 2019) CSV", read=read, columns=COLUMNS)
