"""Blox's job lists (Agarwal et al., EuroSys 2024)."""

from __future__ import annotations

import numpy as np

from bloxopt.throughput import ThroughputOracle
from bloxopt.workloads.files import TraceFile
from bloxopt.workloads.formats import Format
from bloxopt.workloads.table import Table
from bloxopt.workloads.trace import Trace

COLUMNS = ("job_id", "arrival_time", "total_iterations", "iteration_time", "num_gpus")


def read(file: TraceFile, throughput: ThroughputOracle | None) -> Trace:
    """Jobs of a Blox CSV: the work is ``total_iterations`` × ``iteration_time`` seconds.

    Blox's simulator never reads the ``duration`` column; where it says something else, a note does.
    ``multigpu`` says how ``num_gpus`` was generated and is not read.
    """
    table = Table.from_text(file, required=COLUMNS)
    iterations = table.numbers("total_iterations", "a finite number of iterations > 0", strict=True)
    seconds = table.numbers("iteration_time", "a finite number of seconds an iteration > 0", strict=True)
    duration = iterations * seconds
    table.fail(duration == 0, "total_iterations", "larger: with iteration_time it makes no time at all")
    notes = []
    if "duration" in table.columns:
        differs = ~np.isclose(table.seconds("duration"), duration, rtol=1e-6, atol=1e-6)
        if np.any(differs):
            notes.append(
                f"{int(differs.sum())} jobs have a duration other than total_iterations x iteration_time; "
                "the product is used, as Blox does"
            )
    return Trace.from_columns(
        file.path.name,
        throughput,
        notes=notes,
        job_id=table.identifiers(),
        arrival=table.seconds("arrival_time"),
        total_steps=iterations,
        duration=duration,
        num_gpus=table.whole_numbers("num_gpus"),
    )


FORMAT = Format(name="blox", description="Blox (EuroSys 2024) job CSV", read=read, columns=COLUMNS)
