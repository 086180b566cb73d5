"""Pollux' workloads: which model, on how many replicas, at which batch size (Qiao et al., OSDI 2021)."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from bloxopt.errors import ThroughputError, TraceError
from bloxopt.jobs import MAX_GPUS, IntArray
from bloxopt.throughput import TableThroughput, ThroughputOracle
from bloxopt.workloads.files import TraceFile
from bloxopt.workloads.formats import Format
from bloxopt.workloads.pollux_applications import Application, load_applications
from bloxopt.workloads.pollux_goodput import PolluxGoodput, Source
from bloxopt.workloads.pollux_profiles import GPU_TYPE, load_profiles
from bloxopt.workloads.pollux_throughput import MOST_GPUS, PolluxThroughput
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
    table, models, batch_sizes, gpus = _columns(file)
    profiles = load_profiles(data_path("pollux/profiles"))
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


def read_epochs(file: TraceFile, throughput: ThroughputOracle | None, elastic: bool = False) -> Trace:
    """The same jobs as Pollux' own simulator runs them: epoch by epoch, at rates that depend on the placement.

    A step is one iteration's worth of progress at the application's initial batch size; ``total_steps`` is the
    progress at the end of the last measured epoch. ``elastic`` lets a job use 1 GPU to as many as leave each
    the smallest share of the batch that was measured (NCF stays on one, as it does there); the batch size stays.
    """
    table, names, batch_sizes, gpus = _columns(file)
    applications = load_applications(data_path("pollux/profiles"))
    mine = [applications[name] for name in names]
    for row, (application, batch_size) in enumerate(zip(mine, batch_sizes, strict=True)):
        try:
            application.gain(float(batch_size))
        except ThroughputError as error:
            raise TraceError(f"{table.where(row)}: {error}") from None
    most = np.array([_most_gpus(application, int(size)) for application, size in zip(mine, batch_sizes, strict=True)])
    return Trace.from_columns(
        file.path.name,
        throughput or PolluxThroughput(data_path("pollux/profiles")),
        job_id=table.identifiers("name"),
        arrival=table.seconds("time"),
        job_type=[f"{name} (batch size {size})" for name, size in zip(names, batch_sizes, strict=True)],
        total_steps=np.array([application.progress[-1] for application in mine]),
        num_gpus=gpus,
        min_gpus=np.minimum(gpus, 1) if elastic else gpus,
        max_gpus=np.maximum(gpus, most) if elastic else gpus,
    )


def read_adaptive(file: TraceFile, throughput: ThroughputOracle | None, batch_sizes: Source = "measured") -> Trace:
    """The same jobs as Pollux runs them: on any number of GPUs, and at the batch size that is best there in each epoch.

    A job may use 1 GPU to as many as leave each the smallest share of the largest batch that was measured, 64 at most;
    of what its owner asked for only the application counts. NCF runs on one GPU with 32,768 samples, as in Pollux' own
    simulator. ``batch_sizes``: whether jobs know the best batch size or choose by a fitted model.
    """
    table, names, _, gpus = _columns(file)
    directory = data_path("pollux/profiles")
    applications = load_applications(directory)
    mine = [applications[name] for name in names]
    most = np.array([_most_gpus(application, application.max_batch_size) for application in mine])
    fixed = [f"{name} (batch size {applications[name].max_batch_size})" for name in names]
    return Trace.from_columns(
        file.path.name,
        throughput or PolluxGoodput(directory, "measured", batch_sizes),
        job_id=table.identifiers("name"),
        arrival=table.seconds("time"),
        job_type=[one if name == "ncf" else name for name, one in zip(names, fixed, strict=True)],
        total_steps=np.array([application.progress[-1] for application in mine]),
        num_gpus=np.minimum(gpus, most),
        min_gpus=np.ones(len(table), dtype=np.int64),
        max_gpus=most,
    )


def _columns(file: TraceFile) -> tuple[Table, NDArray[np.object_], IntArray, IntArray]:
    """The rows of a workload: its table, applications, batch sizes and GPUs asked for."""
    table = Table.from_text(file, required=COLUMNS)
    models = table.text("application")
    batch_sizes = table.whole_numbers("batch_size", f"a whole number of samples from 1 to {MAX_GPUS}")
    gpus = table.whole_numbers("num_replicas")
    known = sorted(folder.name for folder in data_path("pollux/profiles").iterdir() if folder.is_dir())
    table.fail(~np.isin(models, known), "application", f"one of {', '.join(known)}")
    return table, models, batch_sizes, gpus


def _most_gpus(application: Application, batch_size: int) -> int:
    return 1 if application.name == "ncf" else min(batch_size // application.min_local, MOST_GPUS)


FORMAT = Format(name="pollux", description="Pollux (OSDI 2021) workload CSV", read=read, columns=COLUMNS)

EPOCHS = Format(
    name="pollux-epochs",
    description="the same, run epoch by epoch at rates by placement, as in Pollux' simulator",
    read=read_epochs,
    columns=COLUMNS,
    detected=False,
)

ELASTIC = Format(
    name="pollux-elastic",
    description="the same as pollux-epochs, on any number of GPUs at the batch size asked for",
    read=partial(read_epochs, elastic=True),
    columns=COLUMNS,
    detected=False,
)

ADAPTIVE = Format(
    name="pollux-adaptive",
    description="the same on any number of GPUs, at the best batch size in each epoch",
    read=read_adaptive,
    columns=COLUMNS,
    detected=False,
)

ADAPTIVE_FITTED = Format(
    name="pollux-adaptive-fitted",
    description="the same as pollux-adaptive, at the batch size that a fitted model of step times holds for the best",
    read=partial(read_adaptive, batch_sizes="fitted"),
    columns=COLUMNS,
    detected=False,
)
