"""Whatever a trace file holds, reading it gives a trace or a message, never another exception."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bloxopt.errors import InputError
from bloxopt.workloads import FORMATS, TRACES, load_trace
from bloxopt.workloads.files import TraceFile

CELLS = [
    "",
    " ",
    "-1",
    "0",
    "1",
    "1.5",
    "nan",
    "inf",
    "1e999",
    "1e18",
    "-1e-320",
    "x",
    '"',
    "é",
    "\x00",
    "\t",
    ",",
    "\r",
    "9" * 400,
]


def load_or_refuse(content: bytes, format: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.csv"
        path.write_bytes(content)
        try:
            jobs = load_trace(path, format=format).jobs
        except InputError as error:
            message = str(error)
            jobs = None
    if jobs is None:
        assert "\n" not in message
        return
    assert np.all(jobs.num_gpus >= 1)
    assert np.all(jobs.total_steps > 0)
    assert np.all(np.isfinite(jobs.arrival))
    assert len(set(jobs.job_id)) == len(jobs)


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=300), format=st.sampled_from([None, *FORMATS]))
@example(content=b"\x1f\x8b", format=None)
@example(content=b"PAR1PAR1", format=None)
@example(content=b"job_id,arrival,num_gpus,duration\na,0,1,5", format="parquet")
def test_any_bytes_are_read_or_refused(content: bytes, format: str | None) -> None:
    load_or_refuse(content, format)


@pytest.mark.parametrize(
    "name", ["gavel-15", "shockwave-120", "tiresias-60", "pollux-1", "synergy-100", "blox-mx-las-8"]
)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_cell_of_a_real_file_is_read_or_refused(name: str, data: st.DataObject) -> None:
    shipped = TRACES.get(name)
    lines = TraceFile.open(shipped.location()).text.splitlines()[:20]
    delimiter = "\t" if "\t" in lines[0] else ","
    row = data.draw(st.integers(0, len(lines) - 1))
    fields = lines[row].split(delimiter)
    fields[data.draw(st.integers(0, len(fields) - 1))] = data.draw(st.sampled_from(CELLS))
    lines[row] = delimiter.join(fields)
    load_or_refuse("\n".join(lines).encode(), data.draw(st.sampled_from([None, shipped.format])))
