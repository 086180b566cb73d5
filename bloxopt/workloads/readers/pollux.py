"""Pollux' workloads: which model, on how many replicas, at which batch size (Qiao et al., OSDI 2021)."""

from __future__ import annotations

import numpy as np

from bloxopt.errors import TraceError
from bloxopt.jobs import MAX_GPUS
from bloxopt.throughput import TableThroughput, ThroughputOracle
from bloxopt.workloads.files import TraceFile
from bloxopt.workloads.formats import Format
from bloxopt.workloads.pollux_profiles import GPU_TYPE, load_profiles
from bloxopt.workloads.shipped import data_path
from bloxopt.workloads.table import Table
from bloxopt.workloads.trace import Trace

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


def read(file: TraceFile, throughput: ThroughputOracle | None) -> Trace:
    """Jobs of a Pollux workload as rigid gangs at the batch size they ask for.

    A step is one iteration; there are as many as the model needs to converge at that batch size,
    and the throughput is measured (on T4 GPUs, packed four to a node). The job type names model and
    batch size. Batch sizes do not adapt: that needs a goodput model, not a table.
    """
    table = Table.from_text(file, required=COLUMNS)
    models = table.text("application")
    batch_sizes = table.whole_numbers("batch_size", f"a whole number of samples from 1 to {MAX_GPUS}")
    gpus = table.whole_numbers("num_replicas")
    profiles = load_profiles(data_path("pollux/profiles"))
    table.fail(~np.isin(models, list(profiles)), "application", f"one of {', '.join(profiles)}")
    steps = np.zeros(len(table))
    job_types: list[str] = []
    rates: dict[tuple[str, str, int], float] = {}
    for row, (model, batch_size) in enumerate(zip(models, batch_sizes, strict=True)):
        try:
            steps[row] = profiles[model].total_steps(batch_size)
        except TraceError as error:
            raise TraceError(f"{table.where(row)}: {error}") from None
        job_types.append(f"{model} (batch size {batch_size})")
    for job_type, (model, batch_size) in dict(
        zip(job_types, zip(models, batch_sizes, strict=True), strict=True)
    ).items():
        for count in profiles[model].step_times:
            rates[job_type, GPU_TYPE, count] = profiles[model].rate(count, batch_size)
    return Trace.from_columns(
        file.path.name,
        throughput or TableThroughput(rates),
        job_id=table.identifiers("name"),
        arrival=table.seconds("time"),
        job_type=job_types,
        total_steps=steps,
        num_gpus=gpus,
    )


FORMAT = Format(name="pollux", description="Pollux (OSDI 2021) workload CSV", read=read, columns=COLUMNS)
