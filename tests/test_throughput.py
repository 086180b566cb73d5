"""Throughput oracles: durations, tables, functions; rates that are no rates are refused."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bloxopt.errors import ThroughputError
from bloxopt.jobs import IntArray, Job, JobTable
from bloxopt.throughput import (
    CallableThroughput,
    DurationThroughput,
    TableThroughput,
    ThroughputOracle,
    as_oracle,
    checked_rates,
)

JOBS = JobTable.from_jobs(
    [
        Job(job_id="a", duration=100, num_gpus=2, job_type="x"),
        Job(job_id="b", duration=50, total_steps=500, num_gpus=4, job_type="y"),
    ]
)


def rates(oracle: ThroughputOracle, types: list[str], gpus: IntArray = JOBS.num_gpus) -> list[list[float]]:
    result: list[list[float]] = checked_rates(oracle, JOBS, types, gpus).tolist()
    return result


def test_durations_give_steps_over_seconds_on_every_type() -> None:
    assert rates(DurationThroughput(), ["V100", "K80"]) == [[1, 1], [10, 10]]


def test_durations_scale_with_speed_and_gpus() -> None:
    oracle = DurationThroughput({"k80": 0.5}, scaling_exponent=0.5)
    assert rates(oracle, ["V100", "K80"], 4 * JOBS.num_gpus) == [[2, 1], [20, 10]]


def test_a_job_without_duration_needs_a_table() -> None:
    jobs = JobTable.from_jobs([Job(job_id="s", total_steps=5)])
    with pytest.raises(ThroughputError, match="job 's' has steps but no duration: give the trace a throughput table"):
        DurationThroughput().rates(jobs, ["V100"], jobs.num_gpus)


def test_a_table_knows_types_in_any_case_and_what_is_absent_cannot_run() -> None:
    oracle = TableThroughput({("x", "V100", 2): 3.0, ("y", "v100", 8): 4.0})
    assert rates(oracle, ["v100", "K80"]) == [[3, 0], [0, 0]]


def test_a_table_refuses_a_job_type_it_does_not_know() -> None:
    oracle = TableThroughput({("x", "V100", 2): 3.0})
    with pytest.raises(ThroughputError, match=r"job 'b': job type 'y' is not in the throughput table: it knows x$"):
        rates(oracle, ["V100"])


def test_a_function_is_called_once_for_each_distinct_triple() -> None:
    calls = []

    def function(job_type: str, gpu_type: str, gpus: int) -> float:
        calls.append((job_type, gpu_type, gpus))
        return 2.0 * gpus

    oracle = CallableThroughput(function)
    jobs = JobTable.from_jobs([Job(job_id=str(i), duration=1, num_gpus=1 + i % 2) for i in range(100)])
    for _ in range(3):
        result = checked_rates(oracle, jobs, ["A", "B"], jobs.num_gpus)
    assert len(calls) == len(set(calls)) == 4
    assert result.tolist() == [[2.0 * n, 2.0 * n] for n in jobs.num_gpus]


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, None, "fast"])
def test_a_rate_that_is_no_rate_is_refused(value: object) -> None:
    with pytest.raises(ThroughputError, match="throughput of 'x' on 2 x V100 is"):
        TableThroughput({("x", "V100", 2): value})  # type: ignore[dict-item]
    with pytest.raises(ThroughputError, match="throughput of 'x' on 2 x V100 is"):
        rates(CallableThroughput(lambda *key: value), ["V100"])  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    "key", [("x", "V100"), "x", ("x", "V100", 0), ("x", "V100", 1.5), ("x", 3, 1), ("x", "V", math.nan)]
)
def test_a_table_key_must_be_type_type_and_gpus(key: object) -> None:
    with pytest.raises(ThroughputError, match="is not \\(job type, GPU type, number of GPUs >= 1\\)"):
        TableThroughput({key: 1.0})  # type: ignore[dict-item]


def test_a_rate_given_twice_is_refused() -> None:
    with pytest.raises(ThroughputError, match="'x' on 1 x V100 is given twice"):
        TableThroughput({("x", "v100", 1): 1.0, ("x", "V100", 1): 2.0})


@pytest.mark.parametrize("speed", [-1.0, math.nan, math.inf])
def test_a_speed_that_is_no_speed_is_refused(speed: float) -> None:
    with pytest.raises(ThroughputError, match="speed of GPU type 'v100'"):
        DurationThroughput({"V100": speed})


class Broken:
    """An oracle that returns what it is told to."""

    def __init__(self, result: object) -> None:
        self.result = result

    def rates(self, jobs: JobTable, gpu_types: object, num_gpus: object) -> object:
        return self.result


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1.0, 2.0], r"gave shape \(2,\), expected \(jobs, GPU types\) = \(2, 1\)"),
        ([[1.0, 2.0]], r"gave shape \(1, 2\)"),
        ([[math.nan], [1.0]], r"throughput of job 'a' on 2 x V100 is nan"),
        ([[1.0], [-1.0]], r"throughput of job 'b' on 4 x V100 is -1"),
        ([[1.0], [math.inf]], r"throughput of job 'b' on 4 x V100 is inf"),
        ([["fast"], [1.0]], r"oracle Broken gave no numbers"),
        (None, r"oracle Broken gave no numbers|gave shape"),
    ],
)
def test_a_users_oracle_is_checked(result: object, message: str) -> None:
    with pytest.raises(ThroughputError, match=message):
        checked_rates(Broken(result), JOBS, ["V100"], JOBS.num_gpus)  # type: ignore[arg-type]


FRAME = pd.DataFrame(
    {"job_type": ["x", "y"], "gpu_type": ["V100", "V100"], "num_gpus": [2, 4], "steps_per_second": [3.0, 4.0]}
)


def test_a_frame_a_mapping_a_csv_a_function_and_an_oracle_are_all_sources(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    mapping = {("x", "V100", 2): 3.0, ("y", "V100", 4): 4.0}
    for source in (
        FRAME,
        mapping,
        tmp_path / "t.csv",
        TableThroughput(mapping),
        lambda kind, *_: {"x": 3, "y": 4}[kind],
    ):
        assert rates(as_oracle(source), ["V100"]) == [[3], [4]]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME.drop(columns="gpu_type"), "column 'gpu_type' is missing"),
        (pd.concat([FRAME, FRAME]), "'x' on 2 x V100 is given twice"),
        (FRAME.assign(num_gpus=[1.5, 2]), "number of GPUs"),
        (FRAME.assign(num_gpus=[math.nan, 2]), "number of GPUs"),
        (FRAME.assign(steps_per_second=[-1, 2]), "must be a finite number of steps/s"),
    ],
)
def test_a_bad_frame_is_refused(frame: pd.DataFrame, message: str, tmp_path: Path) -> None:
    with pytest.raises(ThroughputError, match=message):
        as_oracle(frame)
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(ThroughputError, match=rf"t\.csv: .*{message}"):
        as_oracle(tmp_path / "t.csv")


def test_gavels_json_is_read_plain_or_compressed(tmp_path: Path) -> None:
    document = {"v100": {"('x', 2)": {"null": 3.0, "('y', 1)": [1.0, 2.0]}, "('y', 4)": {"null": 4.0}}}
    (tmp_path / "t.json").write_text(json.dumps(document))
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(json.dumps(document).encode()))
    for name in ("t.json", "t.json.gz"):
        assert rates(as_oracle(tmp_path / name), ["V100"]) == [[3], [4]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[1]", "expected GPU type"),
        (b'{"v100": 3}', "expected GPU type"),
        (b'{"v100": {"x": {"null": 1}}}', "v100: cannot read the entry 'x'"),
        (b'{"v100": {"(\'x\', 1)": {}}}', "cannot read the entry"),
        (b'{"v100": {"(\'x\', 1)": {"null": -1}}}', "throughput of 'x' on 1 x v100 is -1"),
        (b'{"v100": {"(\'x\', 1)": {"null": NaN}}}', "throughput of 'x' on 1 x v100 is nan"),
        (b"\x1f\x8bjunk", "not valid gzip"),
    ],
)
def test_a_bad_gavel_json_is_refused_with_its_file(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(ThroughputError, match=rf"t\.json: .*{message}"):
        as_oracle(tmp_path / "t.json")


@pytest.mark.parametrize("name", ["none.json", "none.csv"])
def test_a_missing_table_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ThroughputError, match=r"none\.\w+: .*cannot be read"):
        as_oracle(tmp_path / name)


def test_something_that_gives_no_throughputs_is_refused() -> None:
    with pytest.raises(ThroughputError, match="cannot make throughputs of int"):
        as_oracle(3)


def test_rates_do_not_depend_on_the_order_of_jobs() -> None:
    oracle = TableThroughput({("x", "V100", 2): 3.0, ("y", "V100", 4): 4.0})
    np.testing.assert_array_equal(
        checked_rates(oracle, JOBS, ["V100"], JOBS.num_gpus)[::-1],
        checked_rates(oracle, JOBS.take([1, 0]), ["V100"], JOBS.num_gpus[::-1]),
    )
