"""Malformed input: one message that names file, line, field and value, never a traceback, never a lost row."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from bloxopt.errors import TraceError
from bloxopt.workloads import load_trace

OWN = "job_id,arrival,num_gpus,duration\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
ELASTICFLOW = "job_id,submission_time,duration,num_gpu\n"
TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
POLLUX = "name,time,application,num_replicas,batch_size\n"
BLOX = "job_id,arrival_time,total_iterations,iteration_time,duration,num_gpus,multigpu\n"
GAVEL = "A\tc\td\t-n\t1\t{steps}\t{gpus}\t{priority}\t{slo}\t{arrival}\n"
GOOD = {"steps": 5, "gpus": 1, "priority": 1, "slo": -1, "arrival": 0}


def gavel(**changes: object) -> str:
    return GAVEL.format(**GOOD) + GAVEL.format(**{**GOOD, **changes})


BAD_ROWS = {
    "too few fields": (
        OWN + "a,0,1,5\nb,0,1\n",
        "t.csv:3: 3 fields instead of 4 (job_id, arrival, num_gpus, duration)",
    ),
    "too many fields": (OWN + "a,0,1,5,9\n", "t.csv:2: 5 fields instead of 4"),
    "negative arrival": (OWN + "a,-1,1,5\n", "t.csv:2: arrival is '-1', must be a finite number of seconds >= 0"),
    "NaN arrival": (OWN + "a,nan,1,5\n", "t.csv:2: arrival is 'nan'"),
    "infinite duration": (OWN + "a,0,1,inf\n", "t.csv:2: duration is 'inf', must be a finite number of seconds > 0"),
    "NaN duration": (OWN + "a,0,1,NaN\n", "t.csv:2: duration is 'NaN'"),
    "zero duration": (OWN + "a,0,1,0\n", "t.csv:2: duration is '0', must be a finite number of seconds > 0"),
    "negative duration": (OWN + "a,0,1,-5\n", "t.csv:2: duration is '-5'"),
    "word for a number": (OWN + "a,zero,1,5\n", "t.csv:2: arrival is 'zero'"),
    "underscore in a number": (OWN + "a,1_000,1,5\n", "t.csv:2: arrival is '1_000'"),
    "overflow": (OWN + "a,1e999,1,5\n", "t.csv:2: arrival is '1e999'"),
    "fraction of a GPU": (OWN + "a,0,1.5,5\n", "t.csv:2: num_gpus is '1.5', must be a whole number of GPUs from 1 to"),
    "no GPUs": (OWN + "a,0,0,5\n", "t.csv:2: num_gpus is '0'"),
    "negative GPUs": (OWN + "a,0,-2,5\n", "t.csv:2: num_gpus is '-2'"),
    "absurd GPUs": (OWN + "a,0,1e300,5\n", "t.csv:2: num_gpus is '1e300'"),
    "missing GPUs": (OWN + "a,0,,5\n", "t.csv:2: num_gpus is missing"),
    "missing id": (OWN + ",0,1,5\n", "t.csv:2: job_id is missing, must be non-empty printable text"),
    "control character in id": (OWN + "a\x1b[2J,0,1,5\n", "t.csv:2: job_id is 'a\\x1b[2J'"),
    "duplicate id": (OWN + "a,0,1,5\nb,0,1,5\na,1,1,5\n", "t.csv:4: job_id 'a' appears twice, first in line 2"),
    "no work": (OWN + "a,0,1,\n", "t.csv:2: total_steps is missing, must be given, or duration instead"),
    "several bad rows are counted": (OWN + "a,0,1,5\nb,-1,1,5\nc,-2,1,5\nd,-3,1,5\n", "(3 rows are like this)"),
    "blank lines keep the count of lines": (OWN + "\na,0,1,5\n\n\nb,0,1,-5\n", "t.csv:6: duration is '-5'"),
    "open quote": (OWN + 'a,0,1,5\n"b,0,1,5\n', "t.csv:3: cannot be read as delimited text"),
    "header alone": (OWN, "t.csv: has a header but no jobs"),
    "repeated column": (
        "job_id,arrival,num_gpus,duration,arrival\na,0,1,5,0\n",
        "t.csv:1: column 'arrival' appears twice",
    ),
    "unknown column": (
        "job_id,arrival,num_gpus,durations\na,0,1,5\n",
        "unknown column 'durations': did you mean 'duration'?",
    ),
    "no column of work": ("job_id,arrival,num_gpus\na,0,1\n", "column 'total_steps' or 'duration' is missing"),
    "empty extra name": ("job_id,arrival,num_gpus,duration,extra.\na,0,1,5,x\n", "unknown column 'extra.'"),
    "zero weight": ("job_id,arrival,num_gpus,duration,weight\na,0,1,5,0\n", "t.csv:2: weight is '0'"),
    "deadline before arrival": (
        "job_id,arrival,num_gpus,duration,deadline\na,9,1,5,8\n",
        "t.csv:2: deadline is '8', must be a time after the arrival",
    ),
    "min above request": (
        "job_id,arrival,num_gpus,duration,min_gpus\na,0,2,5,4\n",
        "t.csv:2: min_gpus is '4', must be at most",
    ),
    "max below request": (
        "job_id,arrival,num_gpus,duration,max_gpus\na,0,2,5,1\n",
        "t.csv:2: max_gpus is '1', must be at least",
    ),
    "negative restart cost": ("job_id,arrival,num_gpus,duration,restart_cost\na,0,2,5,-1\n", "restart_cost is '-1'"),
    "negative memory": (
        "job_id,arrival,num_gpus,duration,memory_gib_per_gpu\na,0,2,5,-1\n",
        "memory_gib_per_gpu is '-1'",
    ),
    "Gavel without steps": (gavel(steps=0), "t.csv:2: total_steps is '0', must be a finite number of steps > 0"),
    "Gavel with half a worker": (gavel(gpus=0.5), "t.csv:2: scale_factor is '0.5'"),
    "Gavel with priority 0": (gavel(priority=0), "t.csv:2: priority is '0'"),
    "Gavel with SLO 0": (gavel(slo=0), "t.csv:2: SLO is '0', must be a factor of the duration > 0, or -1 for none"),
    "Gavel with SLO -0.5": (gavel(slo=-0.5), "t.csv:2: SLO is '-0.5'"),
    "Gavel with a column too few": (
        GAVEL.format(**GOOD) + "A\t1\n",
        "t.csv:2: 2 fields instead of 10 (job_type, command",
    ),
    "Philly time": (
        PHILLY + "yesterday,1,1,1,a\n",
        "t.csv:2: timestamp is 'yesterday', must be a time such as 2017-10-09",
    ),
    "Philly empty time": (PHILLY + ",1,1,1,a\n", "t.csv:2: timestamp is missing"),
    "Philly without GPUs": (PHILLY + "2017-10-09 07:01:55,1,0,1,a\n", "t.csv:2: num_gpus is '0'"),
    "Philly without virtual cluster": (PHILLY + "2017-10-09 07:01:55,1,1,1,\n", "t.csv:2: cluster is missing"),
    "ElasticFlow duration": (ELASTICFLOW + "a,1,0,1\n", "t.csv:2: duration is '0'"),
    "ElasticFlow duplicate": (ELASTICFLOW + "a,1,1,1\na,1,1,1\n", "t.csv:3: job_id 'a' appears twice"),
    "Tiresias iterations": (TIRESIAS + "0,1,0,x,vgg,5,1\n", "t.csv:2: iterations is 'x'"),
    "Pollux model": (POLLUX + "a,0,gpt,1,64\n", "t.csv:2: application is 'gpt', must be one of bert, cifar10"),
    "Pollux batch size": (POLLUX + "a,0,bert,1,0\n", "t.csv:2: batch_size is '0', must be a whole number of samples"),
    "Blox iteration time": (BLOX + "0,0,10,0,10,1,1\n", "t.csv:2: iteration_time is '0'"),
    "Blox overflow": (BLOX + "0,0,1e200,1e200,10,1,1\n", "t.csv:2: total_iterations is '1e200', must be at most 1e+18"),
    "Blox underflow": (BLOX + "0,0,1e-200,1e-200,10,1,1\n", "t.csv:2: total_iterations is '1e-200', must be larger"),
    "Blox negative duration": (BLOX + "0,0,10,1,-1,1,1\n", "t.csv:2: duration is '-1'"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_named_with_file_line_field_and_value(case: str, tmp_path: Path) -> None:
    text, expected = BAD_ROWS[case]
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as raised:
        load_trace(path)
    assert expected in str(raised.value)
    assert str(tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"\n  \n"):
        (tmp_path / "e.csv").write_bytes(content)
        with pytest.raises(TraceError, match=r"e\.csv: is empty"):
            load_trace(tmp_path / "e.csv")


def test_binary_junk_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_bytes(bytes(range(256)) * 10)
    with pytest.raises(TraceError, match=r"b\.csv:1: not a text file: it holds NUL bytes"):
        load_trace(tmp_path / "b.csv")


def test_text_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_bytes((OWN + "a,0,1,5\n").encode() + "é,0,1,5\n".encode("latin-1"))
    with pytest.raises(TraceError, match=r"l\.csv:3: not UTF-8 text \(byte 0xe9\)"):
        load_trace(tmp_path / "l.csv")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is a directory: name a trace file in it"):
        load_trace(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nothing\.csv: cannot be read: No such file"):
        load_trace(tmp_path / "nothing.csv")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "u.csv"
    path.write_text(OWN)
    path.chmod(0)
    with pytest.raises(TraceError, match="cannot be read: Permission denied"):
        load_trace(path)


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "g.csv.gz").write_bytes(gzip.compress(OWN.encode() * 100)[:-20])
    with pytest.raises(TraceError, match=r"g\.csv\.gz: damaged gzip file"):
        load_trace(tmp_path / "g.csv.gz")


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(TraceError, match=r"p\.parquet: not a readable Parquet file"):
        load_trace(tmp_path / "p.parquet")


def test_a_path_inside_a_plain_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(OWN + "a,0,1,5\n")
    with pytest.raises(TraceError, match=r"t\.csv: is not an archive, so 'x' cannot be read from it"):
        load_trace(tmp_path / "t.csv" / "x")


@pytest.mark.parametrize("source", [None, 3, ["gavel-100"]])
def test_something_that_is_no_name_or_path_is_refused(source: object) -> None:
    with pytest.raises(TraceError, match="give a name, a path or a Trace"):
        load_trace(source)  # type: ignore[arg-type]


def test_a_shipped_trace_cannot_be_read_in_another_format() -> None:
    with pytest.raises(TraceError, match="'gavel-15' is in format 'gavel', not 'philly'"):
        load_trace("gavel-15", format="philly")


def test_a_parquet_row_is_named_by_its_number(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"job_id": ["a", "b"], "arrival": [0.0, -1.0], "num_gpus": [1, 1], "duration": [5.0, 5.0]})
    frame.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(TraceError, match=r"t\.parquet:row 2: arrival is -1\.0"):
        load_trace(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("duration", [5.0, float("inf")], "duration is inf"),
        ("num_gpus", [True, True], "num_gpus is True"),
        ("num_gpus", [1.0, None], "num_gpus is nan|num_gpus is missing|num_gpus is None"),
        ("job_id", ["a", "a"], "row 2: job_id 'a' appears twice, first in row 1"),
    ],
)
def test_bad_parquet_values_are_refused(column: str, values: list[object], message: str, tmp_path: Path) -> None:
    import pandas as pd

    columns = {"job_id": ["a", "b"], "arrival": [0.0, 1.0], "num_gpus": [1, 1], "duration": [5.0, 5.0]}
    pd.DataFrame({**columns, column: values}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(TraceError, match=message):
        load_trace(tmp_path / "t.parquet")
