"""Pollux' applications: step times by placement and gradient noise by epoch are those of the files."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bloxopt as bx
from bloxopt.errors import ThroughputError, TraceError
from bloxopt.throughput import checked_rates
from bloxopt.workloads.pollux_applications import BatchSplit, load_applications, packed
from bloxopt.workloads.pollux_throughput import PolluxThroughput
from bloxopt.workloads.shipped import data_path

PROFILES = data_path("pollux/profiles")
APPLICATIONS = load_applications(PROFILES)


@pytest.mark.parametrize("name", sorted(APPLICATIONS))
def test_measured_placements_take_the_measured_time_however_the_ring_is_turned(name: str) -> None:
    rows = pd.read_csv(PROFILES / name / "placements.csv", dtype={"placement": str})
    for placement, group in rows.groupby("placement"):
        counts = tuple(map(int, str(placement)))
        turns = {counts[k:] + counts[:k] for k in range(len(counts))}
        # Some rings were measured twice, from different starts: the smallest one counts.
        if counts == min(turns):
            for turn in turns:
                times = APPLICATIONS[name].step_times(turn, group.local_bsz.to_numpy(float))
                np.testing.assert_array_equal(times, group[["step_time", "sync_time"]].to_numpy())


@pytest.mark.parametrize("name", ["bert", "cifar10"])
def test_large_gangs_take_the_measured_time_whatever_their_placement(name: str) -> None:
    rows = pd.read_csv(PROFILES / name / "scalability.csv")
    for row in rows.iloc[:: max(1, len(rows) // 25)].itertuples():
        each, more = divmod(row.num_replicas, row.num_nodes)
        counts = (each + 1,) * more + (each,) * (row.num_nodes - more)
        [times] = APPLICATIONS[name].step_times(counts, np.array([float(row.local_bsz)]))
        np.testing.assert_allclose(times, [row.step_time, row.sync_time], rtol=1e-6)


def test_times_between_measured_batch_sizes_are_on_the_line_and_beyond_them_unknown() -> None:
    application = APPLICATIONS["bert"]
    at = application.step_times((1, 3), np.array([4.0, 5.0, 6.0, 3.0, 99.0]))
    np.testing.assert_allclose(at[1], (at[0] + at[2]) / 2)
    assert np.isnan(at[3:]).all()


@pytest.mark.parametrize("name", sorted(APPLICATIONS))
def test_the_gain_of_a_measured_batch_size_follows_from_its_gradient_statistics(name: str) -> None:
    application = APPLICATIONS[name]
    for size in application.batch_sizes:
        rows = pd.read_csv(PROFILES / name / f"validation-{size:g}.csv")
        noise, signal = rows.grad_var.to_numpy(), rows.grad_sqr.to_numpy()
        expected = (noise + signal) / (noise * application.initial_batch_size / size + signal)
        np.testing.assert_allclose(application.gain(size), expected)
    np.testing.assert_allclose(application.gain(application.initial_batch_size), 1.0)


def test_statistics_between_measured_batch_sizes_are_on_the_line() -> None:
    application = APPLICATIONS["cifar10"]
    low, middle, high = (application.between(application.grad_var, size) for size in (512, 640, 1024))
    np.testing.assert_allclose(middle, 0.75 * low + 0.25 * high)
    with pytest.raises(ThroughputError, match="batch size 64 of cifar10 was not measured: use 128 to 4096"):
        application.gain(64)


@pytest.mark.parametrize(
    ("name", "batch_size", "gpus", "split"),
    [
        ("cifar10", 2048, 6, BatchSplit(342, 0, 6)),  # 2052 samples: every GPU has as many
        ("cifar10", 4096, 1, BatchSplit(1024, 3, 1)),
        ("cifar10", 512, 1, BatchSplit(256, 1, 1)),  # one GPU makes two passes above the initial 128
        ("cifar10", 128, 1, BatchSplit(128, 0, 1)),
        ("yolov3", 64, 4, BatchSplit(8, 1, 4)),  # at most 8 images at once although 16 were measured
        ("cifar10", 4096, 11, BatchSplit(372, 0, 11)),  # 373 would be more samples than were ever measured
    ],
)
def test_a_batch_is_split_as_in_pollux_simulator(name: str, batch_size: int, gpus: int, split: BatchSplit) -> None:
    assert APPLICATIONS[name].split(batch_size, gpus) == split
    assert split.batch_size <= APPLICATIONS[name].max_batch_size


def test_packed_gangs_fill_nodes_of_four() -> None:
    assert [packed(n) for n in (1, 4, 6, 9)] == [(1,), (4,), (4, 2), (4, 4, 1)]


def test_rates_are_progress_per_second_of_each_epoch() -> None:
    trace = bx.load_trace("pollux-6-epochs")
    oracle, jobs = trace.throughput, trace.jobs.take(np.arange(2))
    assert isinstance(oracle, PolluxThroughput)
    application = APPLICATIONS["cifar10"]
    for epoch in (0, 50, 99):
        now = jobs.in_phase(np.full(2, epoch))
        split = application.split(2048, 6)
        for counts in itertools.permutations((1, 2, 3)):
            seconds = application.step_seconds(counts, split)
            expected = application.gain(2052)[epoch] / seconds
            assert oracle.rates_on(now.take(np.array([0])), "T4", [counts])[0] == pytest.approx(expected, rel=1e-12)
        together = application.gain(2052)[epoch] / application.step_seconds((4, 2), split)
        assert checked_rates(oracle, now, ["V100", "T4"], now.num_gpus)[0].tolist() == pytest.approx([0.0, together])


def test_a_placement_beyond_the_measured_ones_runs_as_if_packed() -> None:
    trace = bx.load_trace("pollux-6-epochs")
    first = trace.jobs.take(np.array([0]))
    packed_rate = trace.throughput.rates(first, ["T4"], np.array([6]))[0, 0]
    assert trace.throughput.rates_on(first, "T4", [(6,)])[0] == packed_rate
    assert trace.throughput.rates_on(first, "V100", [(4, 2)])[0] == 0.0


def test_work_is_the_progress_of_all_epochs_which_are_its_phases() -> None:
    trace = bx.load_trace("pollux-6-epochs")
    phases = trace.throughput.phases(trace.jobs)
    ends = phases.end[phases.offsets[0] : phases.offsets[1]]
    rows = [pd.read_csv(path) for path in (PROFILES / "cifar10").glob("validation-*.csv")]
    expected = np.min([frame.progress.to_numpy() for frame in rows], axis=0)
    np.testing.assert_array_equal(ends, expected)
    assert trace.jobs.total_steps[0] == expected[-1]


def test_elastic_jobs_use_as_many_gpus_as_leave_each_the_smallest_measured_share() -> None:
    jobs = bx.load_trace("pollux-6-elastic").jobs
    by_type = dict(
        zip(jobs.job_type_names, zip(jobs.min_gpus.tolist(), jobs.max_gpus.tolist(), strict=True), strict=True)
    )
    assert by_type["deepspeech2 (batch size 320)"] == (1, 32)
    assert by_type["yolov3 (batch size 64)"] == (1, 16)
    assert by_type["cifar10 (batch size 4096)"] == (1, 64)
    assert by_type["ncf (batch size 32768)"] == (1, 1)


def test_what_is_left_are_the_iterations_measured_from_the_next_epoch_on() -> None:
    trace = bx.load_trace("pollux-6-elastic")
    job = trace.jobs.take(np.array([0]))
    rows = pd.read_csv(PROFILES / "cifar10" / "validation-2048.csv")
    application = APPLICATIONS["cifar10"]
    seconds = application.step_seconds((4, 1), application.split(2048, 5))
    for epoch, iterations in ((0, rows.iteration[99] - rows.iteration[0]), (42, 3178 - rows.iteration[42]), (99, 1)):
        left = trace.throughput.remaining_seconds(job.in_phase(np.array([epoch])), ["T4", "V100"], np.array([5]))
        assert left[0].tolist() == pytest.approx([iterations * seconds, np.inf])


def test_unmeasured_batch_sizes_and_unknown_applications_are_named(tmp_path: Path) -> None:
    header = "name,time,application,num_replicas,batch_size\n"
    for line, message in (
        ("a,0,bert,1,1000", "batch size 1000 of bert"),
        ("a,0,gpt,1,64", "'gpt', must be one of bert"),
    ):
        (tmp_path / "t.csv").write_text(header + line + "\n")
        for name in ("pollux-epochs", "pollux-elastic"):
            with pytest.raises(TraceError, match=f"t.csv:2: .*{message}"):
                bx.load_trace(tmp_path / "t.csv", format=name)
    with pytest.raises(ThroughputError, match="job type 'x' is not of Pollux' applications"):
        PolluxThroughput(PROFILES).kind("x")
