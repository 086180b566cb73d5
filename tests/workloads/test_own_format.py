"""Our own CSV and Parquet: what is written is what is read."""

from __future__ import annotations

import tempfile
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from random_traces import traces

from bloxopt.errors import ResultError, TraceError
from bloxopt.jobs import Job, JobTable
from bloxopt.needs import PlacementNeeds
from bloxopt.workloads import Trace, load_trace


def assert_same_jobs(one: JobTable, other: JobTable) -> None:
    for column in fields(JobTable):
        if column.name not in ("job_types", "tenants", "job_type", "tenant", "needs", "need_kinds"):
            np.testing.assert_array_equal(getattr(one, column.name), getattr(other, column.name), column.name)
    assert list(one.job_type_names) == list(other.job_type_names)
    assert list(one.tenant_names) == list(other.tenant_names)
    assert [one.need_kinds[kind] for kind in one.needs] == [other.need_kinds[kind] for kind in other.needs]


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
@settings(max_examples=40, deadline=None)
@given(trace=traces())
def test_writing_and_reading_gives_the_same_jobs_to_the_last_bit(trace: Trace, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"trace{suffix}"
        trace.write(path)
        assert_same_jobs(trace.jobs, load_trace(path).jobs)


@pytest.mark.parametrize("name", ["gavel-96", "shockwave-120", "synergy-100", "blox-mx-las-8", "pollux-6"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_published_traces_survive_a_round_trip(name: str, suffix: str, tmp_path: Path) -> None:
    trace = load_trace(name)
    trace.write(tmp_path / f"t{suffix}")
    again = load_trace(tmp_path / f"t{suffix}", throughput=trace.throughput)
    assert_same_jobs(trace.jobs, again.jobs)
    assert set(again.extra) == set(trace.extra)
    for key, values in trace.extra.items():
        assert list(again.extra[key]) == list(values)


def test_only_id_arrival_gpus_and_work_are_needed(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("job_id,arrival,num_gpus,total_steps,duration\na,1,2,,60\nb,0,1,500,\n")
    jobs = load_trace(tmp_path / "t.csv").jobs
    assert list(jobs.job_id) == ["b", "a"]
    assert jobs.job(1) == Job(job_id="a", arrival=1.0, num_gpus=2, min_gpus=2, max_gpus=2, duration=60.0)
    assert jobs.job(0).total_steps == 500
    assert jobs.job(0).duration is None


def test_a_whole_number_may_be_written_as_a_float(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("job_id,arrival,num_gpus,duration\na,1,2.0,60\n")
    assert load_trace(tmp_path / "t.csv").jobs.num_gpus[0] == 2


def test_integer_ids_of_parquet_become_text(tmp_path: Path) -> None:
    import pandas as pd

    pd.DataFrame({"job_id": [1, 2], "arrival": [0, 1], "num_gpus": [1, 1], "duration": [5, 6]}).to_parquet(
        tmp_path / "t.parquet"
    )
    assert list(load_trace(tmp_path / "t.parquet").jobs.job_id) == ["1", "2"]


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"end the name with \.csv, \.csv\.gz, \.parquet"):
        load_trace("gavel-15").write(tmp_path / "t.xlsx")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"nowhere/t\.csv: cannot be written: No such file or directory"):
        load_trace("gavel-15").write(tmp_path / "nowhere" / "t.csv")


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas as pd

    path = tmp_path / "t.csv"
    load_trace("gavel-15").write(path)
    before = path.read_bytes()

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    with pytest.raises(ResultError, match=r"t\.csv: cannot be written: No space left on device"):
        load_trace("gavel-96").write(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("same_rack", "must", "same_rack is 'must', must be any, preferred or required"),
        ("max_nodes", "0", "max_nodes is 0, must be None or a whole number >= 1"),
        ("max_nodes", "1.5", "max_nodes is '1.5'"),
        ("exclusive_node", "yes", "exclusive_node is 'yes', must be True or False"),
        ("node_selector", "zone", "node_selector has 'zone', must be name=value pairs"),
        ("node_selector", "zone=a;zone=b", "a label can have one value only"),
        ("node_selector", "=a", "must map label names to values"),
        ("gpu_share", "0", "gpu_share is '0', must be a part of a GPU from 0.001 to 1"),
        ("gpu_share", "1.5", "gpu_share is '1.5', must be a part of a GPU from 0.001 to 1"),
    ],
)
def test_needs_that_cannot_be_read_are_named_with_their_line(
    column: str, cell: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(f"job_id,arrival,num_gpus,duration,{column}\na,0,1,60,\nb,0,1,60,{cell}\n")
    with pytest.raises(TraceError, match=r"t\.csv:3: ") as caught:
        load_trace(tmp_path / "t.csv")
    assert message in str(caught.value)


def test_part_of_a_gpu_is_for_jobs_of_one_gpu(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("job_id,arrival,num_gpus,duration,gpu_share\na,0,2,60,0.5\n")
    with pytest.raises(TraceError, match="must be 1 for jobs of more than one GPU"):
        load_trace(tmp_path / "t.csv")


def test_needs_are_read_from_their_columns(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "job_id,arrival,num_gpus,duration,same_rack,max_nodes,exclusive_node,anti_affinity,node_selector,tolerations\n"
        "a,0,4,60,required,2,true,replicas,zone=a; disk=nvme,slow;old\n"
        "b,0,1,60,,,,,,\n"
    )
    jobs = load_trace(tmp_path / "t.csv").jobs
    assert jobs.job(0).needs == PlacementNeeds(
        same_rack="required",
        max_nodes=2,
        exclusive_node=True,
        anti_affinity="replicas",
        node_selector={"zone": "a", "disk": "nvme"},
        tolerations=("slow", "old"),
    )
    assert jobs.job(1).needs == PlacementNeeds()
