"""The trace itself: its jobs, its durations, its load, its table."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from bloxopt.errors import TraceError
from bloxopt.jobs import Job, JobTable
from bloxopt.throughput import TableThroughput
from bloxopt.workloads import Trace, load_trace


def two_jobs() -> Trace:
    return Trace.from_jobs(
        [
            Job(job_id="a", total_steps=100, num_gpus=2, job_type="x"),
            Job(job_id="b", arrival=50, duration=30, total_steps=60, num_gpus=4, job_type="x"),
        ],
        throughput=TableThroughput({("x", "V100", 2): 5.0, ("x", "V100", 4): 2.0, ("x", "K80", 4): 1.0}),
    )


def test_a_trace_needs_a_job() -> None:
    with pytest.raises(TraceError, match="trace 'custom' has no jobs"):
        Trace.from_jobs([])


def test_extra_values_must_fit_the_jobs() -> None:
    with pytest.raises(TraceError, match="extra 'mode' has 1 values for 2 jobs"):
        Trace("t", two_jobs().jobs, extra={"mode": np.array(["static"], dtype=object)})


def test_a_duration_is_the_jobs_own_or_its_steps_at_the_throughput() -> None:
    assert list(two_jobs().durations("V100")) == [20, 30]
    # The table has no rate for two K80: the first job never ends there.
    assert list(two_jobs().durations("K80")) == [math.inf, 30]


def test_the_offered_load_is_gpu_seconds_over_the_span_of_arrivals() -> None:
    assert two_jobs().offered_load() == (20 * 2 + 30 * 4) / 50


def test_columns_in_any_order_are_sorted_with_their_extra_values() -> None:
    trace = Trace.from_columns(
        "t", job_id=["late", "early"], arrival=[9.0, 1.0], num_gpus=[1, 1], duration=[1.0, 2.0], extra={"k": ["L", "E"]}
    )
    assert list(trace.jobs.job_id) == ["early", "late"]
    assert list(trace.extra["k"]) == ["E", "L"]


def test_the_frame_has_the_columns_of_our_own_format() -> None:
    frame = load_trace("shockwave-120").to_pandas()
    assert list(frame.columns) == [
        *("job_id", "arrival", "job_type", "total_steps", "duration", "num_gpus", "min_gpus", "max_gpus"),
        *("tenant", "weight", "deadline", "restart_cost", "cpus_per_gpu", "memory_gib_per_gpu", "extra.mode"),
    ]
    assert len(frame) == 120
    assert frame.deadline.isna().all()


def test_free_columns_may_have_empty_cells(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("job_id,arrival,num_gpus,duration,extra.note\na,0,1,5,\nb,1,1,5,hello\n")
    assert list(load_trace(tmp_path / "t.csv").extra["note"]) == ["", "hello"]


def test_a_table_of_no_rows_makes_no_trace() -> None:
    with pytest.raises(TraceError, match="has no jobs"):
        Trace("t", JobTable.from_jobs([]))
