"""Synergy's traces: a CSV without a header (Mohan et al., OSDI 2022)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from bloxopt.errors import TraceError
from bloxopt.throughput import ThroughputOracle
from bloxopt.workloads.files import TraceFile
from bloxopt.workloads.formats import Format
from bloxopt.workloads.shipped import data_path
from bloxopt.workloads.table import Table
from bloxopt.workloads.trace import Trace

COLUMNS = ("job_id", "model", "arrival", "iterations", "num_gpus")

PROPORTIONAL_CPUS, PROPORTIONAL_MEMORY_GIB = 3.0, 62.5
"""Per GPU, the equal share of Synergy's servers (24 CPUs, 500 GiB, 8 GPUs) that iteration times stand for."""


def read(file: TraceFile, throughput: ThroughputOracle | None) -> Trace:
    """Jobs of a Synergy CSV: iterations, of the seconds that Synergy's profile gives for the model.

    The duration is the one with the proportional share of CPUs and memory, which is what each job
    is taken to need; what a job gains from more is in ``synergy/sensitivity.json``.
    """
    table = Table.from_text(file, names=COLUMNS)
    models, gpus = table.text("model"), table.whole_numbers("num_gpus")
    iterations = table.numbers("iterations", "a finite number of iterations > 0", strict=True)
    profiles: dict[str, Any] = json.loads(data_path("synergy/sensitivity.json").read_text(encoding="utf-8"))["models"]
    keys = [f"{model}_{count}" for model, count in zip(models, gpus, strict=True)]
    unknown = [row for row, key in enumerate(keys) if key not in profiles]
    if unknown:
        row = unknown[0]
        known = ", ".join(key.replace("_", " x ") for key in sorted(profiles))
        raise TraceError(
            f"{table.where(row)}: model is {models[row]!r} on {gpus[row]} GPUs, which Synergy did not profile; known "
            f"are {known}" + (f" ({len(unknown)} rows are like this)" if len(unknown) > 1 else "")
        )
    seconds = np.array([profiles[key]["iteration_seconds"] for key in keys])
    count = len(table)
    return Trace.from_columns(
        file.path.name,
        throughput,
        job_id=table.identifiers(),
        arrival=table.seconds("arrival"),
        job_type=models,
        total_steps=iterations,
        duration=iterations * seconds,
        num_gpus=gpus,
        cpus_per_gpu=np.full(count, PROPORTIONAL_CPUS),
        memory_gib_per_gpu=np.full(count, PROPORTIONAL_MEMORY_GIB),
    )


FORMAT = Format(
    name="synergy",
    description="Synergy (OSDI 2022) CSV",
    read=read,
    columns=COLUMNS,
    header=False,
    numeric=("arrival", "iterations", "num_gpus"),
)
