"""Shockwave's traces: Gavel's columns plus batch size mode and duration (Zheng et al., NSDI 2023)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bloxopt.errors import ThroughputError, TraceError
from bloxopt.throughput import ThroughputOracle
from bloxopt.workloads.batch_size_regimes import MODES, parse_job_type
from bloxopt.workloads.files import TraceFile
from bloxopt.workloads.formats import Format
from bloxopt.workloads.readers import gavel
from bloxopt.workloads.regime_throughput import RegimeThroughput, regime_job_type
from bloxopt.workloads.shipped import shipped_throughput
from bloxopt.workloads.table import Table
from bloxopt.workloads.trace import Trace

COLUMNS = (*gavel.COLUMNS[:7], "mode", "priority", "SLO", "duration", "arrival")

THROUGHPUTS = "shockwave/tacc_throughputs.json.gz"


def read(file: TraceFile, throughput: ThroughputOracle | None) -> Trace:
    """Jobs of a Shockwave trace, with its table of throughputs unless ``throughput`` is given.

    ``mode`` (static, accordion, gns: how the batch size changes while the job runs) is kept in
    ``extra["mode"]``; the job is simulated at its first batch size. Ids are line numbers from 0.
    """
    table = Table.from_text(file, delimiter="\t", names=COLUMNS)
    return _trace(file, table, throughput or shipped_throughput(THROUGHPUTS), regimes=False)


def read_regimes(file: TraceFile, throughput: ThroughputOracle | None) -> Trace:
    """The same jobs with their batch sizes changing as their ``mode`` says, which their job type then names too.

    A step is one at the first batch size. ``throughput`` must know job types such as ``LM (batch size 10), gns``.
    """
    table = Table.from_text(file, delimiter="\t", names=COLUMNS)
    for row, job_type in enumerate(table.text("job_type").tolist()):
        try:
            parse_job_type(job_type)
        except ThroughputError as error:
            raise TraceError(f"{table.where(row)}: {error}") from None
    return _trace(file, table, throughput or RegimeThroughput(shipped_throughput(THROUGHPUTS)), regimes=True)


def _trace(file: TraceFile, table: Table, oracle: ThroughputOracle, regimes: bool) -> Trace:
    columns = gavel.job_columns(table)
    mode = table.text("mode")
    if regimes:
        table.fail(~np.isin(mode, MODES), "mode", f"one of {', '.join(MODES)}")
        columns["job_type"] = _with_mode(columns["job_type"], mode)
    duration = table.seconds("duration", strict=True)
    return Trace.from_columns(
        file.path.name,
        oracle,
        **columns,
        duration=duration,
        deadline=gavel.deadlines(table, oracle, columns, duration),
        extra={"mode": mode},
    )


def _with_mode(job_types: NDArray[np.object_], mode: NDArray[np.object_]) -> NDArray[np.object_]:
    return np.array([regime_job_type(kind, how) for kind, how in zip(job_types, mode, strict=True)], dtype=object)


FORMAT = Format(
    name="shockwave",
    description="Shockwave (NSDI 2023) TSV",
    read=read,
    columns=COLUMNS,
    delimiter="\t",
    header=False,
    numeric=("total_steps", "scale_factor", "duration", "arrival"),
)

REGIMES = Format(
    name="shockwave-regimes",
    description="the same, with batch sizes that change as the mode of each job says",
    read=read_regimes,
    columns=COLUMNS,
    delimiter="\t",
    header=False,
    numeric=("total_steps", "scale_factor", "duration", "arrival"),
    detected=False,
)
