"""What each reader makes of a row, and how a format is found."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from bloxopt.errors import TraceError, UnknownNameError
from bloxopt.throughput import TableThroughput
from bloxopt.workloads import FORMATS, TRACES, ShippedTrace, load_trace
from bloxopt.workloads.files import TraceFile
from bloxopt.workloads.formats import Format, detect_format
from bloxopt.workloads.trace import Trace


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def gavel_line(**changes: object) -> str:
    fields = {
        "job_type": "ResNet-50 (batch size 64)",
        "command": 'python "main.py" -j 2',
        "working_dir": "imagenet",
        "num_steps_arg": "-n",
        "needs_data_dir": 1,
        "total_steps": 1000,
        "scale_factor": 1,
        "priority": 1,
        "SLO": "-1.000000",
        "arrival": 0,
    }
    return "\t".join(str(value) for value in {**fields, **changes}.values()) + "\n"


@pytest.mark.parametrize("name", [name for name in TRACES if FORMATS.get(TRACES.get(name).format).detected])
def test_the_format_of_every_shipped_trace_is_found_from_its_content(name: str) -> None:
    shipped = TRACES.get(name)
    assert detect_format(TraceFile.open(shipped.location())).name == shipped.format


def test_a_gavel_slo_is_a_factor_of_the_duration_at_v100_throughput(tmp_path: Path) -> None:
    path = write(tmp_path, gavel_line() + gavel_line(SLO=2.0, arrival=30, total_steps=1000), "a.trace")
    table = TableThroughput({("ResNet-50 (batch size 64)", "V100", 1): 4.0})
    trace = load_trace(path, throughput=table)
    assert list(trace.jobs.deadline) == [np.inf, 30 + 2.0 * 1000 / 4.0]


def test_a_gavel_slo_needs_a_v100_throughput(tmp_path: Path) -> None:
    path = write(tmp_path, gavel_line(SLO=2.0), "a.trace")
    with pytest.raises(TraceError, match=r"a\.trace:1: SLO is given, but the throughput .* is 0"):
        load_trace(path, throughput={("ResNet-50 (batch size 64)", "K80", 1): 4.0})


def test_a_gavel_priority_is_the_weight_of_the_job(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path, gavel_line(priority=5.0), "a.trace"))
    assert trace.jobs.weight[0] == 5.0


def test_gavel_jobs_are_sorted_by_arrival_and_keep_the_number_of_their_line(tmp_path: Path) -> None:
    text = gavel_line(arrival=20, SLO=1.0) + gavel_line(arrival=10, SLO=3.0)
    jobs = load_trace(write(tmp_path, text, "a.trace")).jobs
    assert list(jobs.job_id) == ["1", "0"]
    assert list(jobs.arrival) == [10, 20]
    rate = load_trace("gavel-100").throughput.table["ResNet-50 (batch size 64)", "v100", 1]
    np.testing.assert_allclose(jobs.deadline, [10 + 3 * 1000 / rate, 20 + 1000 / rate])


def test_blox_work_is_iterations_times_iteration_time(tmp_path: Path) -> None:
    header = "job_id,arrival_time,total_iterations,iteration_time,duration,num_gpus,multigpu\n"
    trace = load_trace(write(tmp_path, header + "0,5,100,0.5,50,2,1\n1,6,10,2,99,1,1\n"))
    assert list(trace.jobs.duration) == [50, 20]
    assert list(trace.jobs.total_steps) == [100, 10]
    assert trace.notes == (
        "1 jobs have a duration other than total_iterations x iteration_time; the product is used, as Blox does",
    )


def test_a_pollux_batch_size_between_measured_ones_is_interpolated(tmp_path: Path) -> None:
    header = "name,time,application,num_replicas,batch_size\n"
    trace = load_trace(write(tmp_path, header + "a,0,cifar10,4,3072\n"))
    assert trace.jobs.total_steps[0] == (3178 + 2011) / 2


def test_a_pollux_batch_size_beyond_the_measured_ones_is_refused(tmp_path: Path) -> None:
    header = "name,time,application,num_replicas,batch_size\n"
    path = write(tmp_path, header + "a,0,cifar10,4,8192\n")
    with pytest.raises(TraceError, match=r"trace\.csv:2: batch_size 8192 of cifar10 was not measured: use 128 to 4096"):
        load_trace(path)


def test_a_synergy_model_that_was_not_profiled_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "0,alexnet,0.0,10,1\n1,gpt,0.0,10,1\n2,gpt,0.0,10,1\n")
    with pytest.raises(TraceError, match=r"trace\.csv:2: model is 'gpt' on 1 GPUs.*2 rows are like this"):
        load_trace(path)


def test_throughputs_given_replace_those_of_the_format() -> None:
    trace = load_trace("gavel-15", throughput=lambda job_type, gpu_type, gpus: 3.0 * gpus)
    assert np.all(trace.throughput.rates(trace.jobs, ["A100"], trace.jobs.num_gpus)[:, 0] == 3 * trace.jobs.num_gpus)


def test_compressed_files_and_members_of_archives_are_read(tmp_path: Path) -> None:
    text = "job_id,arrival,num_gpus,duration\na,0,1,5\n"
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("inner/b.csv")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text.encode()))
    assert len(load_trace(tmp_path / "a.csv.gz")) == 1
    assert len(load_trace(tmp_path / "b.tar.gz" / "inner" / "b.csv")) == 1


def test_an_archive_without_a_member_names_those_it_has(tmp_path: Path) -> None:
    shipped = TRACES.get("elasticflow-01").location().parent
    with pytest.raises(TraceError, match=r"is an archive: name one of its members.*cluster01\.csv, cluster02\.csv"):
        load_trace(shipped)
    with pytest.raises(TraceError, match=r"has no member 'cluster11\.csv'; it has LICENSE, cluster01\.csv"):
        load_trace(shipped / "cluster11.csv")


def test_windows_line_ends_and_a_byte_order_mark_are_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes("\ufeffjob_id,arrival,num_gpus,duration\r\na,0,1,5\r\n\r\nb,1,1,5\r\n".encode())
    assert list(load_trace(path).jobs.job_id) == ["a", "b"]


def test_the_tiresias_file_with_windows_line_ends_has_clean_durations() -> None:
    assert load_trace("tiresias-60").jobs.duration[0] == 164


def test_an_unknown_format_says_what_was_tried(tmp_path: Path) -> None:
    path = write(tmp_path, "colour,size\nred,3\n")
    with pytest.raises(
        TraceError, match=r"no known trace format: the first line is 'colour,size'.*format=.*gavel.*philly"
    ):
        load_trace(path)


def test_an_almost_known_format_says_which_column_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path, "timestamp,duration,gpus,cluster\n2017-10-09 07:01:55,1,1,a\n")
    with pytest.raises(TraceError, match=r"closest is philly, which lacks column num_gpus"):
        load_trace(path)


def test_a_named_format_is_used_without_looking(tmp_path: Path) -> None:
    path = write(tmp_path, "timestamp,duration,gpus,cluster\n2017-10-09 07:01:55,1,1,a\n")
    with pytest.raises(TraceError, match=r"trace\.csv:1: column 'num_gpus' is missing; needed are timestamp, duration"):
        load_trace(path, format="philly")


def test_an_unknown_format_name_is_answered_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown trace format 'gavell': did you mean 'gavel'\?"):
        load_trace("x.trace", format="gavell")


def test_an_unknown_trace_name_is_answered_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown trace 'gavel-1000': did you mean 'gavel-100'\?"):
        load_trace("gavel-1000")


def test_a_format_of_ones_own_is_one_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(file: TraceFile, throughput: object) -> Trace:
        words = file.text.split()[1:]
        return Trace.from_columns(
            file.path.name,
            job_id=words,
            arrival=[0.0] * len(words),
            num_gpus=[1] * len(words),
            duration=[1.0] * len(words),
        )

    monkeypatch.setattr(FORMATS, "_entries", dict(FORMATS._entries))
    FORMATS.register("words", Format(name="words", description="one id a word", read=read, columns=("words",)))
    assert len(load_trace(write(tmp_path, "words\na b c\n"))) == 3


def test_a_trace_of_ones_own_can_be_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "job_id,arrival,num_gpus,duration\na,0,1,5\n")
    own = ShippedTrace(
        name="own",
        description="mine",
        jobs=1,
        cluster="1x1xV100",
        path=str(path),
        format="csv",
        source="me",
        licence="CC0",
    )
    monkeypatch.setattr(TRACES, "_entries", dict(TRACES._entries))
    TRACES.register("own", own)
    assert load_trace("own").licence == "CC0"


def test_a_trace_passes_through_load_trace_unchanged() -> None:
    trace = load_trace("gavel-15")
    assert load_trace(trace) is trace
