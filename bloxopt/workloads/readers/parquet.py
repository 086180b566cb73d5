"""Our own format as Parquet: the columns of the CSV, typed."""

from __future__ import annotations

import io

from bloxopt.errors import TraceError
from bloxopt.throughput import ThroughputOracle
from bloxopt.workloads.files import TraceFile
from bloxopt.workloads.formats import Format
from bloxopt.workloads.readers.columns import trace_from_table
from bloxopt.workloads.table import Table
from bloxopt.workloads.trace import Trace


def read(file: TraceFile, throughput: ThroughputOracle | None) -> Trace:
    """Jobs of our own Parquet file; without ``throughput`` the jobs need a duration."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        content = pq.read_table(io.BytesIO(file.data))
    except (pa.ArrowException, OSError) as error:
        raise TraceError(f"{file.path}: not a readable Parquet file: {error}") from error
    names: list[str] = content.column_names
    for name in names:
        if names.count(name) > 1:
            raise TraceError(f"{file.path}: column {name!r} appears twice")
    if content.num_rows == 0:
        raise TraceError(f"{file.path}: has columns but no jobs: a trace needs at least one job")
    columns = {name: content.column(name).to_pylist() for name in names}
    return trace_from_table(
        Table(file.path, columns, range(1, content.num_rows + 1), place="row "), file.path.name, throughput
    )


FORMAT = Format(name="parquet", description="bloxopt's own Parquet", read=read, magic=b"PAR1")
