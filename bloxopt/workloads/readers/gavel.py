"""Gavel's traces: tab-separated, without a header (Narayanan et al., OSDI 2020)."""

from __future__ import annotations

from typing import Any

import numpy as np

from bloxopt.errors import TraceError
from bloxopt.jobs import FloatArray, JobTable
from bloxopt.throughput import ThroughputOracle, checked_rates
from bloxopt.workloads import table as cells
from bloxopt.workloads.files import TraceFile
from bloxopt.workloads.formats import Format
from bloxopt.workloads.shipped import shipped_throughput
from bloxopt.workloads.table import Table
from bloxopt.workloads.trace import Trace

REFERENCE_GPU_TYPE = "v100"
"""Gavel counts a job's duration, on which its SLO stands, at this type's throughput."""

COLUMNS = (
    "job_type",
    "command",
    "working_dir",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
    "priority",
    "SLO",
    "arrival",
)


def read(file: TraceFile, throughput: ThroughputOracle | None) -> Trace:
    """Jobs of a Gavel trace, with Gavel's throughput table unless ``throughput`` is given.

    Ids are ``0``, ``1``, … by line. ``priority`` is the weight. An ``SLO`` of k > 0 is a deadline at
    arrival + k × the job's duration at its V100 throughput; -1 is none.
    """
    table = Table.from_text(file, delimiter="\t", names=COLUMNS)
    oracle = throughput or shipped_throughput("gavel/simulation_throughputs.json.gz")
    columns = job_columns(table)
    return Trace.from_columns(
        file.path.name, oracle, **columns, deadline=deadlines(table, oracle, columns, durations=None)
    )


def job_columns(table: Table) -> dict[str, Any]:
    """The columns that Gavel's format and its descendants share."""
    return {
        "job_id": table.row_numbers(),
        "arrival": table.seconds("arrival"),
        "job_type": table.text("job_type"),
        "total_steps": table.numbers("total_steps", cells.STEPS, strict=True),
        "num_gpus": table.whole_numbers("scale_factor"),
        "weight": table.numbers("priority", cells.POSITIVE, strict=True),
    }


def deadlines(
    table: Table, oracle: ThroughputOracle, columns: dict[str, Any], durations: FloatArray | None
) -> FloatArray:
    """Absolute deadlines (s), +inf where the SLO is -1; ``durations`` as the file has them, if it does."""
    wanted = "a factor of the duration > 0, or -1 for none"
    factor = table.numbers("SLO", wanted, low=-1.0)
    table.fail((factor <= 0) & (factor != -1), "SLO", wanted)
    limited = factor > 0
    if durations is None:
        durations = np.full(len(table), np.nan)
        if np.any(limited):
            # Rows stay in file order here: equal arrivals keep the table from sorting.
            unsorted = JobTable.from_columns(**{**columns, "arrival": np.zeros(len(table))})
            rates = checked_rates(oracle, unsorted, [REFERENCE_GPU_TYPE], unsorted.num_gpus)[:, 0]
            if np.any(rates[limited] == 0):
                row = int(np.flatnonzero(limited & (rates == 0))[0])
                raise TraceError(
                    f"{table.where(row)}: SLO is given, but the throughput of {columns['job_type'][row]!r} on "
                    f"{columns['num_gpus'][row]} x {REFERENCE_GPU_TYPE}, which its duration stands on, is 0"
                )
            durations = np.divide(unsorted.total_steps, rates, where=rates > 0, out=durations)
    return np.where(limited, columns["arrival"] + factor * durations, np.inf)


FORMAT = Format(
    name="gavel",
    description="Gavel (OSDI 2020) TSV",
    read=read,
    columns=COLUMNS,
    delimiter="\t",
    header=False,
    numeric=("total_steps", "scale_factor", "arrival"),
)
